//! What is said on the control socket.
//!
//! PURE. Requests come from anyone who can open the socket, and are hostile until they are parsed.

use serde::{Deserialize, Serialize};

/// A request is no longer than this, in bytes, its end of line included.
pub const LONGEST_REQUEST: usize = 4096;

/// What a client asks for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", tag = "verb", deny_unknown_fields)]
pub enum Request {
    /// An answer, to see that PID 1 gives one.
    Ping,
    /// A daemon or service is to be started again.
    Restart {
        /// Its name.
        name: String,
    },
    /// The container is to stop.
    Stop,
    /// The last lines of a daemon, of a service, or of slurminit itself.
    Logs {
        /// Its name.
        name: String,
        /// How many, at most.
        lines: u32,
    },
}

/// The first line of an answer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", tag = "reply")]
pub enum Reply {
    /// It is done, or has begun.
    Done,
    /// It begins.
    Restarting {
        /// How often the unit was started before.
        starts: u32,
    },
    /// The lines follow, until the connection ends.
    Lines,
    /// As many clients as PID 1 serves at a time are there already.
    Busy,
    /// It is not done.
    Refused {
        /// Why.
        why: String,
    },
}

/// What is wrong with a request.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Malformed {
    /// No end of line came.
    #[error("the request is longer than {LONGEST_REQUEST} bytes; send one line of JSON")]
    TooLong,
    /// The connection ended before one came.
    #[error("the request is empty; send one line of JSON, such as {{\"verb\":\"ping\"}}")]
    Empty,
    /// It is not what it should be.
    #[error("not a request: {0}")]
    NotARequest(String),
}

/// Takes the request out of what was received so far; `None` as long as it is not complete. `ended`: nothing more comes.
pub fn take_request(received: &[u8], ended: bool) -> Option<Result<Request, Malformed>> {
    match received.iter().position(|byte| *byte == b'\n') {
        Some(end) => Some(parse(received.get(..end).unwrap_or_default())),
        None if received.len() >= LONGEST_REQUEST => Some(Err(Malformed::TooLong)),
        None => ended.then(|| parse(received)),
    }
}

fn parse(line: &[u8]) -> Result<Request, Malformed> {
    if line.trim_ascii().is_empty() {
        return Err(Malformed::Empty);
    }
    serde_json::from_slice(line).map_err(|error| Malformed::NotARequest(error.to_string()))
}

/// One line of JSON with its end.
pub fn line(message: &impl Serialize) -> Vec<u8> {
    // These types always have a JSON form.
    let mut line = serde_json::to_vec(message).unwrap_or_default();
    line.push(b'\n');
    line
}

/// Takes an answer apart: the reply, and what follows it.
///
/// # Errors
/// It is not one.
pub fn parse_answer(bytes: &[u8]) -> Result<(Reply, &[u8]), serde_json::Error> {
    let end = bytes.iter().position(|byte| *byte == b'\n').unwrap_or(bytes.len());
    let reply = serde_json::from_slice(bytes.get(..end).unwrap_or_default())?;
    Ok((reply, bytes.get(end + 1..).unwrap_or_default()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn request() -> impl Strategy<Value = Request> {
        prop_oneof![
            Just(Request::Ping),
            Just(Request::Stop),
            ".{0,60}".prop_map(|name| Request::Restart { name }),
            (".{0,60}", any::<u32>()).prop_map(|(name, lines)| Request::Logs { name, lines }),
        ]
    }

    #[test]
    fn what_is_no_request_is_told_why() {
        let refused = |bytes: &[u8]| take_request(bytes, true).unwrap().unwrap_err().to_string();
        assert!(refused(b"").contains("empty"));
        assert!(refused(b"\r\n").contains("empty"));
        assert!(refused(&[b'['; LONGEST_REQUEST]).contains("longer than 4096 bytes"));
        assert!(refused(b"{\"verb\":\"reboot\"}\n").contains("reboot"));
        assert!(refused(b"{\"verb\":\"restart\"}\n").contains("name"));
        assert!(refused(b"{\"verb\":\"restart\",\"name\":\"a\",\"now\":true}\n").contains("now"));
        assert!(refused(b"GET / HTTP/1.1\r\n").contains("not a request"));
        assert!(refused("[".repeat(4000).as_bytes()).contains("not a request"));
    }

    proptest! {
        #[test]
        fn no_bytes_break_the_parser(bytes in proptest::collection::vec(any::<u8>(), 0..6_000), ended in any::<bool>()) {
            let _ = take_request(&bytes, ended);
            let _ = parse_answer(&bytes);
        }

        #[test]
        fn no_text_that_is_nearly_a_request_breaks_it(text in r#"\{("(verb|name|lines)":("?[a-z0-9\\\[]{0,9}"?),?){0,4}\}?\n?"#) {
            let _ = take_request(text.as_bytes(), true);
        }

        /// However the bytes come, the request is taken when its line is complete, and not before.
        #[test]
        fn a_request_is_taken_when_its_line_ends(request in request(), garbage in proptest::collection::vec(any::<u8>(), 0..50)) {
            let mut bytes = line(&request);
            for cut in 0..bytes.len() {
                prop_assert_eq!(take_request(&bytes[..cut], false), None);
            }
            bytes.extend(garbage);
            prop_assert_eq!(take_request(&bytes, false), Some(Ok(request)));
        }

        #[test]
        fn a_reply_and_what_follows_it_come_apart_again(why in ".{0,80}", lines in proptest::collection::vec(any::<u8>(), 0..99)) {
            let reply = Reply::Refused { why };
            let answer = [line(&reply), lines.clone()].concat();
            prop_assert_eq!(parse_answer(&answer).unwrap(), (reply, &lines[..]));
        }
    }
}
