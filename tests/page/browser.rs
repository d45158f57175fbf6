//! Headless Chromium, controlled through the DevTools protocol over a pair of pipes.

use std::fs::{self, File};
use std::io::{BufRead as _, BufReader, Write as _};
use std::path::Path;
use std::process::{Child, Command};
use std::time::{Duration, Instant};

use base64::Engine as _;
use nix::sys::stat::Mode;
use serde_json::{Value, json};
use tempfile::TempDir;

/// Timeout for a condition in the page.
const TIMEOUT: Duration = Duration::from_secs(30);

pub(crate) struct Browser {
    child: Child,
    to: File,
    from: BufReader<File>,
    last_id: u64,
    session: Option<String>,
    /// URLs of all requests.
    pub(crate) requests: Vec<String>,
    /// Exceptions of the page and log entries of the browser.
    pub(crate) errors: Vec<Value>,
    _directory: TempDir,
}

impl Browser {
    /// Starts the browser with one empty page.
    pub(crate) fn start() -> Self {
        let directory = TempDir::new().unwrap();
        let pipe = |name: &str| {
            let path = directory.path().join(name);
            nix::unistd::mkfifo(&path, Mode::S_IRUSR | Mode::S_IWUSR).unwrap();
            path
        };
        let (to, from) = (pipe("to"), pipe("from"));
        // `--remote-debugging-pipe` uses file descriptors 3 and 4. `timeout` kills a browser that hangs.
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
            last_id: 0,
            session: None,
            requests: Vec::new(),
            errors: Vec::new(),
            _directory: directory,
        };
        let target = browser.call("Target.createTarget", json!({ "url": "about:blank" }));
        let attach = json!({ "targetId": target["targetId"], "flatten": true });
        browser.session = Some(browser.call("Target.attachToTarget", attach)["sessionId"].as_str().unwrap().to_owned());
        for domain in ["Network", "Runtime", "Log"] {
            browser.call(&format!("{domain}.enable"), json!({}));
        }
        browser
    }

    /// Opens a page with this screen size and color scheme.
    pub(crate) fn open(&mut self, url: &str, (width, height): (u32, u32), scheme: &str) {
        let screen = json!({ "width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600 });
        self.call("Emulation.setDeviceMetricsOverride", screen);
        let scheme = json!({ "features": [{ "name": "prefers-color-scheme", "value": scheme }] });
        self.call("Emulation.setEmulatedMedia", scheme);
        let reply = self.call("Page.navigate", json!({ "url": url }));
        assert!(reply.get("errorText").is_none(), "{reply}");
    }

    /// Evaluates a JavaScript expression in the page.
    pub(crate) fn value(&mut self, expression: &str) -> Value {
        let reply = self.call("Runtime.evaluate", json!({ "expression": expression, "returnByValue": true }));
        assert!(reply.get("exceptionDetails").is_none(), "{expression}: {reply}");
        reply["result"]["value"].clone()
    }

    /// Waits until a JavaScript expression is true.
    pub(crate) fn wait_for(&mut self, expression: &str) {
        let start = Instant::now();
        while self.value(expression) != json!(true) {
            assert!(start.elapsed() < TIMEOUT, "{expression}: {:?}", self.errors);
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    /// Saves a screenshot of the whole page.
    pub(crate) fn screenshot(&mut self, file: &Path) {
        let size = self.call("Page.getLayoutMetrics", json!({}))["cssContentSize"].clone();
        let clip = json!({ "x": 0, "y": 0, "width": size["width"], "height": size["height"], "scale": 1 });
        let reply = self.call("Page.captureScreenshot", json!({ "captureBeyondViewport": true, "clip": clip }));
        let screenshot = base64::engine::general_purpose::STANDARD.decode(reply["data"].as_str().unwrap()).unwrap();
        fs::write(file, screenshot).unwrap();
    }

    fn call(&mut self, method: &str, parameters: Value) -> Value {
        self.last_id += 1;
        let mut request = json!({ "id": self.last_id, "method": method, "params": parameters });
        if let Some(session) = &self.session {
            request["sessionId"] = json!(session);
        }
        self.to.write_all(format!("{request}\0").as_bytes()).unwrap();
        loop {
            let mut text = Vec::new();
            self.from.read_until(0, &mut text).unwrap();
            text.pop().unwrap_or_else(|| panic!("Chromium exited before it replied to {method}"));
            let message: Value = serde_json::from_slice(&text).unwrap();
            let event = &message["params"];
            match message["method"].as_str() {
                Some("Network.requestWillBeSent") => {
                    self.requests.push(event["request"]["url"].as_str().unwrap().to_owned());
                }
                Some("Runtime.exceptionThrown" | "Log.entryAdded") => self.errors.push(event.clone()),
                _ => {}
            }
            if message["id"] == json!(self.last_id) {
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

/// The command name of Chromium: Debian's, Fedora's or Google Chrome's.
fn program() -> String {
    let is_installed =
        |name: &&str| Command::new(name).arg("--version").output().is_ok_and(|output| output.status.success());
    let names = ["chromium", "chromium-browser", "google-chrome"];
    names.into_iter().find(is_installed).expect("Chromium is installed").to_owned()
}
