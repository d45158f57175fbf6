//! The messages on the control socket, through which slurminit's commands send requests to PID 1.
//!
//! A stream socket in the run directory, accessible to root only. A client sends one line of JSON, a [`Request`], and receives one line, a [`Reply`].
//! Log lines may follow; then the connection ends.
//!
//! Requests are untrusted until parsed.

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use model::message::Report;

/// The path of the socket.
pub fn socket(run_directory: &Path) -> PathBuf {
    run_directory.join("control")
}

/// The maximum length of a request in bytes, including its newline.
pub const MAX_REQUEST_BYTES: usize = 4096;

/// A request from an operator, or from a program that slurmd runs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", tag = "verb", deny_unknown_fields)]
pub enum Request {
    /// Answer without any action, to show that PID 1 responds.
    Ping,
    /// Restart a daemon or service.
    Restart {
        /// The unit's name.
        name: String,
    },
    /// Run detection again and apply the changes.
    Reload,
    /// Stop the container.
    Stop,
    /// The last log lines of a daemon, a service, or slurminit itself.
    Logs {
        /// The unit's name, or `slurminit`.
        name: String,
        /// The maximum number of lines.
        lines: u32,
    },
    /// Like `Logs`, then each new line, until one side closes the connection.
    Follow {
        /// The unit's name, or `slurminit`.
        name: String,
        /// The maximum number of old lines.
        lines: u32,
    },
    /// A message for the log from a program that slurmd runs, whose output slurmd discards.
    Report {
        /// The message.
        report: Report,
    },
}

/// The first line of an answer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", tag = "reply")]
pub enum Reply {
    /// The request was handled, or the stop has begun.
    Done,
    /// The restart has begun.
    Restarting {
        /// How many times the unit had been started before.
        starts: u32,
    },
    /// The reload is queued.
    Reloading {
        /// The number of reload requests so far, including this one. This request is served once [`super::LastReload::serves`] is at
        /// least this number.
        asked: u64,
    },
    /// Log lines follow until the connection ends.
    Lines,
    /// PID 1 already serves the maximum number of clients.
    Busy,
    /// The request is refused.
    Refused {
        /// The reason.
        why: String,
    },
}

/// Extracts the request from the bytes received so far; `None` while it is incomplete. `ended`: no more bytes will come. An error states why the
/// request is invalid.
pub fn take_request(received: &[u8], ended: bool) -> Option<Result<Request, String>> {
    match received.iter().position(|byte| *byte == b'\n') {
        Some(end) => Some(parse(received.get(..end).unwrap_or_default())),
        None if received.len() >= MAX_REQUEST_BYTES => {
            Some(Err(format!("the request is longer than {MAX_REQUEST_BYTES} bytes; send one line of JSON")))
        }
        None => ended.then(|| parse(received)),
    }
}

fn parse(line: &[u8]) -> Result<Request, String> {
    if line.trim_ascii().is_empty() {
        return Err("the request is empty; send one line of JSON, such as {\"verb\":\"ping\"}".to_owned());
    }
    serde_json::from_slice(line).map_err(|error| format!("not a request: {error}"))
}

/// A message as one line of JSON.
pub fn line(message: &impl Serialize) -> Vec<u8> {
    // Serializing these types cannot fail.
    let mut line = serde_json::to_vec(message).unwrap_or_default();
    line.push(b'\n');
    line
}

/// Splits an answer into the reply and the bytes after it.
///
/// # Errors
/// The first line is not a reply.
pub fn parse_answer(bytes: &[u8]) -> Result<(Reply, &[u8]), serde_json::Error> {
    let end = bytes.iter().position(|byte| *byte == b'\n').unwrap_or(bytes.len());
    let reply = serde_json::from_slice(bytes.get(..end).unwrap_or_default())?;
    Ok((reply, bytes.get(end + 1..).unwrap_or_default()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use model::message;
    use proptest::prelude::*;

    fn request() -> impl Strategy<Value = Request> {
        prop_oneof![
            Just(Request::Ping),
            Just(Request::Reload),
            Just(Request::Stop),
            ".{0,60}".prop_map(|name| Request::Restart { name }),
            (".{0,60}", any::<u32>()).prop_map(|(name, lines)| Request::Logs { name, lines }),
            (".{0,60}", any::<u32>()).prop_map(|(name, lines)| Request::Follow { name, lines }),
            ".{0,60}".prop_map(|why| Request::Report {
                report: Report::warn(message!("hook-failed", "failed: {why}", why))
            }),
        ]
    }

    #[test]
    fn explains_invalid_request() {
        let refused = |bytes: &[u8]| take_request(bytes, true).unwrap().unwrap_err().to_string();
        assert!(refused(b"").contains("empty"));
        assert!(refused(b"\r\n").contains("empty"));
        assert!(refused(&[b'['; MAX_REQUEST_BYTES]).contains("longer than 4096 bytes"));
        assert!(refused(b"{\"verb\":\"reboot\"}\n").contains("reboot"));
        assert!(refused(b"{\"verb\":\"restart\"}\n").contains("name"));
        assert!(refused(b"{\"verb\":\"restart\",\"name\":\"a\",\"now\":true}\n").contains("now"));
        assert!(refused(b"GET / HTTP/1.1\r\n").contains("not a request"));
        assert!(refused("[".repeat(4000).as_bytes()).contains("not a request"));
    }

    proptest! {
        #[test]
        fn arbitrary_bytes_do_not_break_parser(bytes in proptest::collection::vec(any::<u8>(), 0..6_000), ended in any::<bool>()) {
            let _ = take_request(&bytes, ended);
            let _ = parse_answer(&bytes);
        }

        #[test]
        fn almost_valid_request_does_not_break_parser(text in r#"\{("(verb|name|lines)":("?[a-z0-9\\\[]{0,9}"?),?){0,4}\}?\n?"#) {
            let _ = take_request(text.as_bytes(), true);
        }

        /// A request is accepted exactly when its line is complete, however its bytes are split.
        #[test]
        fn accepts_request_at_end_of_line(request in request(), garbage in proptest::collection::vec(any::<u8>(), 0..50)) {
            let mut bytes = line(&request);
            for cut in 0..bytes.len() {
                prop_assert_eq!(take_request(&bytes[..cut], false), None);
            }
            bytes.extend(garbage);
            prop_assert_eq!(take_request(&bytes, false), Some(Ok(request)));
        }

        #[test]
        fn splits_reply_from_following_lines(why in ".{0,80}", lines in proptest::collection::vec(any::<u8>(), 0..99)) {
            let reply = Reply::Refused { why };
            let answer = [line(&reply), lines.clone()].concat();
            prop_assert_eq!(parse_answer(&answer).unwrap(), (reply, &lines[..]));
        }
    }
}
