//! Chromium without a window, led by its DevTools protocol over a pair of pipes.

use std::fs::{self, File};
use std::io::{BufRead as _, BufReader, Write as _};
use std::path::Path;
use std::process::{Child, Command};
use std::time::{Duration, Instant};

use base64::Engine as _;
use nix::sys::stat::Mode;
use serde_json::{Value, json};
use tempfile::TempDir;

/// What has not come after this time never comes.
const PATIENCE: Duration = Duration::from_secs(30);

pub(crate) struct Browser {
    child: Child,
    to: File,
    from: BufReader<File>,
    last: u64,
    session: Option<String>,
    /// The address of each request that the page has made.
    pub(crate) requests: Vec<String>,
    /// What the page throws, and what the browser refuses it.
    pub(crate) complaints: Vec<Value>,
    _directory: TempDir,
}

impl Browser {
    /// With one empty page.
    pub(crate) fn start() -> Self {
        let directory = TempDir::new().unwrap();
        let pipe = |name: &str| {
            let path = directory.path().join(name);
            nix::unistd::mkfifo(&path, Mode::S_IRUSR | Mode::S_IWUSR).unwrap();
            path
        };
        let (to, from) = (pipe("to"), pipe("from"));
        // The protocol's pipes are the descriptors 3 and 4. A browser that hangs ends, and with it the test.
        let script = r#"to=$1 from=$2; shift 2; exec timeout 300 "$@" 3<"$to" 4>"$from""#;
        let mut command = Command::new("sh");
        command.args(["-c", script, "sh"]).args([&to, &from]).arg(program());
        command.args(["--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run"]);
        command.args(["--disable-background-networking", "--hide-scrollbars", "--remote-debugging-pipe"]);
        command.arg(format!("--user-data-dir={}", directory.path().join("profile").display()));
        let child = command.arg("about:blank").spawn().unwrap();
        let to = File::options().write(true).open(to).unwrap();
        let from = BufReader::new(File::open(from).unwrap());
        let mut browser = Self {
            child,
            to,
            from,
            last: 0,
            session: None,
            requests: Vec::new(),
            complaints: Vec::new(),
            _directory: directory,
        };
        let target = browser.ask("Target.createTarget", json!({ "url": "about:blank" }));
        let attach = json!({ "targetId": target["targetId"], "flatten": true });
        browser.session = Some(browser.ask("Target.attachToTarget", attach)["sessionId"].as_str().unwrap().to_owned());
        for domain in ["Network", "Runtime", "Log"] {
            browser.ask(&format!("{domain}.enable"), json!({}));
        }
        browser
    }

    /// Opens a page on a screen of this size.
    pub(crate) fn open(&mut self, url: &str, (width, height): (u32, u32), scheme: &str) {
        let screen = json!({ "width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600 });
        self.ask("Emulation.setDeviceMetricsOverride", screen);
        let scheme = json!({ "features": [{ "name": "prefers-color-scheme", "value": scheme }] });
        self.ask("Emulation.setEmulatedMedia", scheme);
        let opened = self.ask("Page.navigate", json!({ "url": url }));
        assert!(opened.get("errorText").is_none(), "{opened}");
    }

    /// The value of an expression in the page.
    pub(crate) fn value(&mut self, expression: &str) -> Value {
        let answer = self.ask("Runtime.evaluate", json!({ "expression": expression, "returnByValue": true }));
        assert!(answer.get("exceptionDetails").is_none(), "{expression}: {answer}");
        answer["result"]["value"].clone()
    }

    /// Waits until an expression in the page is true.
    pub(crate) fn wait_for(&mut self, expression: &str) {
        let start = Instant::now();
        while self.value(expression) != json!(true) {
            assert!(start.elapsed() < PATIENCE, "{expression}: {:?}", self.complaints);
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    /// A picture of the whole page.
    pub(crate) fn picture(&mut self, file: &Path) {
        let size = self.ask("Page.getLayoutMetrics", json!({}))["cssContentSize"].clone();
        let clip = json!({ "x": 0, "y": 0, "width": size["width"], "height": size["height"], "scale": 1 });
        let picture = self.ask("Page.captureScreenshot", json!({ "captureBeyondViewport": true, "clip": clip }));
        let picture = base64::engine::general_purpose::STANDARD.decode(picture["data"].as_str().unwrap()).unwrap();
        fs::write(file, picture).unwrap();
    }

    fn ask(&mut self, method: &str, parameters: Value) -> Value {
        self.last += 1;
        let mut question = json!({ "id": self.last, "method": method, "params": parameters });
        if let Some(session) = &self.session {
            question["sessionId"] = json!(session);
        }
        self.to.write_all(format!("{question}\0").as_bytes()).unwrap();
        loop {
            let mut text = Vec::new();
            self.from.read_until(0, &mut text).unwrap();
            text.pop().unwrap_or_else(|| panic!("Chromium has ended before it answered {method}"));
            let message: Value = serde_json::from_slice(&text).unwrap();
            let event = &message["params"];
            match message["method"].as_str() {
                Some("Network.requestWillBeSent") => {
                    self.requests.push(event["request"]["url"].as_str().unwrap().to_owned());
                }
                Some("Runtime.exceptionThrown" | "Log.entryAdded") => self.complaints.push(event.clone()),
                _ => {}
            }
            if message["id"] == json!(self.last) {
                assert!(message.get("error").is_none(), "{method}: {message}");
                return message["result"].clone();
            }
        }
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        let _ = self.to.write_all(b"{\"id\":0,\"method\":\"Browser.close\"}\0");
        let _ = self.child.wait();
    }
}

/// Debian's name and Fedora's, or that of Google's own.
fn program() -> String {
    let is_there =
        |name: &&str| Command::new(name).arg("--version").output().is_ok_and(|output| output.status.success());
    let known = ["chromium", "chromium-browser", "google-chrome"];
    known.into_iter().find(is_there).expect("Chromium is installed").to_owned()
}
