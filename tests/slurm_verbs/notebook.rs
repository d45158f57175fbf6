//! `slurminit notebook`: JupyterLab in a job.

use std::fs::{self, File};
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpStream;
use std::process::{Child, Stdio};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use super::fake::Fake;
use super::session::{SESSIONS, STEP, listed, with_job};

/// The responses of JupyterLab to a request without the token, and to one with it.
const PROTECTED: &str = "HTTP/1.1 403 Forbidden\r\n\r\nHTTP/1.1 200 OK\r\n\r\n";

/// A running notebook, whose server exits with 3 when its job is cancelled or `end` is written to.
struct Notebook {
    fake: Fake,
    process: Child,
    end: File,
}

impl Notebook {
    fn start(responses: &str, options: &str, directory: &str) -> Self {
        let respond =
            format!("sed '/Connection: close/q' >>\"$here/requests\"; printf '{}'", responses.escape_default());
        let serve = "read token; printf %s \"$token\" >\"$here/token\"; printf %s \"$PWD\" >\"$here/directory\"; \
                     printf '%s\\n' \"$@\" | tail -n 5 >\"$here/new\"; mv \"$here/new\" \"$here/options\"; read line <\"$here/end\"; exit 3";
        let fake = with_job(Fake::new().script("scancel *", "echo >\"$here/end\""), "RUNNING")
            .reply(SESSIONS, &[&listed(&[("70", "RUNNING", "session/x")])])
            .reply("sbatch *", &["70\n"])
            .script("srun *--unbuffered*", &respond)
            .script("srun *", serve);
        fs::create_dir_all(fake.path("home/project")).unwrap();
        nix::unistd::mkfifo(&fake.path("end"), nix::sys::stat::Mode::S_IRWXU).unwrap();
        // Keeps what was written before the server reads it.
        let end = File::options().read(true).write(true).open(fake.path("end")).unwrap();
        let mut command = fake.command(&["notebook"]);
        command.args(options.split_whitespace()).current_dir(fake.path(directory)).env("HOME", fake.path("home"));
        command.env("SSH_CONNECTION", "x").stdout(Stdio::piped()).stderr(Stdio::piped());
        let process = command.spawn().unwrap();
        Self { fake, process, end }
    }

    /// The URL without its token, and the port.
    fn url(&mut self) -> (String, u16) {
        let mut line = String::new();
        BufReader::new(self.process.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
        // The server and the connection that checks it are separate processes.
        while !self.fake.path("options").exists() {
            std::thread::yield_now();
        }
        let (url, token) = line.trim().split_once("/lab?token=").unwrap();
        assert_eq!(token, self.read("token"));
        (url.to_owned(), url.rsplit(':').next().unwrap().parse().unwrap())
    }

    fn read(&self, file: &str) -> String {
        fs::read_to_string(self.fake.path(file)).unwrap()
    }

    /// Waits for the end; returns the exit code and standard error.
    fn wait(self) -> (Option<i32>, String, Fake) {
        let output = self.process.wait_with_output().unwrap();
        assert_eq!(output.stdout, b"");
        (output.status.code(), String::from_utf8(output.stderr).unwrap(), self.fake)
    }
}

#[test]
fn each_connection_is_a_step_of_the_job() {
    let options = "--port 0 --idle 2m --container tools";
    let mut notebook = Notebook::start(PROTECTED, options, ".");
    let (url, port) = notebook.url();
    assert_eq!(url, format!("http://127.0.0.1:{port}"));
    let request = |rest: &str| format!("GET /api/status HTTP/1.1\r\nHost: localhost\r\n{rest}\r\n");
    let with_token = request(&format!("Authorization: token {}\r\nConnection: close", notebook.read("token")));
    assert_eq!(notebook.read("requests"), request("Accept: */*\r\n") + &with_token);
    // Browsers connect in advance.
    drop(TcpStream::connect(("127.0.0.1", port)).unwrap());
    let mut browser = TcpStream::connect(("127.0.0.1", port)).unwrap();
    browser.write_all(b"GET /lab\nConnection: close\n").unwrap();
    let mut response = String::new();
    browser.read_to_string(&mut response).unwrap();
    assert_eq!(response, PROTECTED);
    assert!(notebook.read("requests").ends_with("GET /lab\nConnection: close\n"));
    assert_eq!(notebook.read("directory"), notebook.fake.path("home").to_str().unwrap());
    let options = notebook.read("options");
    let [sh, directory, options @ ..] = &options.lines().collect::<Vec<_>>()[..] else { panic!("{options}") };
    assert!(*sh == "sh" && directory.starts_with("/tmp/slurminit-session-70-"), "{directory}");
    let idle = "--ServerApp.shutdown_no_activity_timeout=120 --MappingKernelManager.cull_idle_timeout=120 \
                --MappingKernelManager.cull_interval=60";
    assert_eq!(options.join(" "), idle);
    notebook.end.write_all(b"\n").unwrap();
    let (code, log, fake) = notebook.wait();
    assert_eq!(code, Some(3), "{log}");
    let lines: Vec<&str> = log.lines().collect();
    assert!(lines[0].starts_with("slurminit: JupyterLab runs until Ctrl-C or the job's end: Job 70 of alice"), "{log}");
    assert!(lines[1].ends_with(&format!("ssh -N -L {port}:127.0.0.1:{port} USER@HOST")), "{log}");
    assert_eq!(lines[2], "slurminit: the notebook and its job have ended");
    let (server, connections): (Vec<String>, Vec<String>) =
        fake.calls("srun ").into_iter().partition(|step| step.contains(" sh -c "));
    assert!(server[0].starts_with(&format!("{STEP} --container=tools sh -c # JupyterLab")), "{server:?}");
    let program = harness::slurminit().display();
    let step = format!("{STEP} --unbuffered --mpi=none --gres=none {program} session stream {directory}/socket");
    assert_eq!(connections, [step.clone(), step]);
    assert_eq!(fake.changes(), ["scancel 70"]);
}

#[test]
fn signal_ends_notebook_and_its_job() {
    let mut notebook = Notebook::start(PROTECTED, "--port 0.0.0.0:0", "home/project");
    let (url, port) = notebook.url();
    assert_eq!(url, format!("http://127.0.0.1:{port}"));
    assert_eq!(notebook.read("directory"), notebook.fake.path("home/project").to_str().unwrap());
    assert!(notebook.read("options").ends_with("--ServerApp.allow_remote_access=True\n"));
    kill(Pid::from_raw(i32::try_from(notebook.process.id()).unwrap()), Signal::SIGTERM).unwrap();
    let (code, log, fake) = notebook.wait();
    assert_eq!(code, Some(0), "{log}");
    assert_eq!(fake.changes(), ["scancel 70", "scancel 70"]);
}

#[test]
fn notebook_without_token_is_not_served() {
    for (responses, why) in [
        ("HTTP/1.1 200 OK\r\n\r\nHTTP/1.1 200 OK\r\n\r\n", "must require the token"),
        ("", "JupyterLab does not respond; see its output above"),
    ] {
        let (code, log, _) = Notebook::start(responses, "--port 0", "home").wait();
        assert!(code == Some(3) && log.contains(why), "{log}");
    }
}
