//! `slurminit webhook` against a local HTTP server.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]
#![expect(clippy::disallowed_methods, reason = "a test is not PID 1, so it may wait for the commands it runs")]

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::process::{Command, Output, Stdio};
use std::thread::{self, JoinHandle};

/// Starts a server for one request. Returns its URL and a thread that returns the request's head and body.
fn server(response: &'static str) -> (String, JoinHandle<(String, String)>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}/hooks/s3cret?a=b", listener.local_addr().unwrap());
    (url, thread::spawn(move || serve(&listener.accept().unwrap().0, response)))
}

fn serve(mut stream: &TcpStream, response: &str) -> (String, String) {
    let mut reader = BufReader::new(stream);
    let mut head = String::new();
    while !head.ends_with("\r\n\r\n") && reader.read_line(&mut head).unwrap() > 0 {}
    let length = head.to_lowercase().lines().find_map(|line| line.strip_prefix("content-length: ")?.parse().ok());
    let mut body = vec![0; length.unwrap_or(0)];
    reader.read_exact(&mut body).unwrap();
    if response.is_empty() {
        // No response until the client disconnects.
        let _ = reader.read_to_end(&mut Vec::new());
    }
    let _ = stream.write_all(response.as_bytes());
    (head, String::from_utf8(body).unwrap())
}

fn post(url: &str, timeout: &str) -> Output {
    post_message(url, timeout, "{\"gpu\":3}")
}

fn post_message(url: &str, timeout: &str, message: &str) -> Output {
    let mut command = Command::new(harness::slurminit());
    command.args(["webhook", "--timeout", timeout]).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    for name in ["http_proxy", "HTTP_PROXY", "https_proxy", "HTTPS_PROXY", "all_proxy", "ALL_PROXY"] {
        command.env_remove(name);
    }
    let mut child = command.spawn().unwrap();
    child.stdin.take().unwrap().write_all(format!("{url}\n{message}\n").as_bytes()).unwrap();
    child.wait_with_output().unwrap()
}

/// The error message of a failed command.
fn error_text(output: &Output) -> String {
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!output.status.success(), "the command succeeded");
    assert!(text.starts_with("error: "), "without this prefix the log level would be info: {text}");
    assert!(!text.contains("s3cret") && text.contains("127.0.0.1"), "{text}");
    text
}

#[test]
fn posts_message_as_json() {
    let (url, server) = server("HTTP/1.1 204 No Content\r\n\r\n");
    let output = post(&url, "10");
    assert!(output.status.success(), "{output:?}");
    let (head, body) = server.join().unwrap();
    assert!(head.starts_with("POST /hooks/s3cret?a=b HTTP/1.1\r\n"), "{head}");
    assert!(head.to_lowercase().contains("content-type: application/json\r\n"), "{head}");
    assert_eq!(body, "{\"gpu\":3}");
}

#[test]
fn posts_long_message_completely() {
    let (url, server) = server("HTTP/1.1 204 No Content\r\n\r\n");
    let message = "x".repeat(60_000);
    assert!(post_message(&url, "10", &message).status.success());
    assert!(server.join().unwrap().1 == message);
}

#[test]
fn reports_http_error_redirect_and_closed_port_without_secret() {
    for (response, status) in [
        ("HTTP/1.1 403 Forbidden\r\ncontent-length: 0\r\n\r\n", "403"),
        ("HTTP/1.1 302 Found\r\nlocation: /elsewhere\r\ncontent-length: 0\r\n\r\n", "302"),
    ] {
        let (url, server) = server(response);
        let text = error_text(&post(&url, "10"));
        assert!(text.contains(status), "{text}");
        server.join().unwrap();
    }
    let closed = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    assert!(error_text(&post(&format!("http://{closed}/s3cret"), "10")).contains("refused"));
}

#[test]
fn times_out_on_unresponsive_server() {
    let (url, server) = server("");
    let text = error_text(&post(&url, "5"));
    assert!(text.contains("timeout"), "{text}");
    server.join().unwrap();
}
