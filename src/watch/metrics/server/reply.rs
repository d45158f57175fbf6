//! HTTP responses.

use std::convert::Infallible;
use std::pin::Pin;
use std::task::{Context, Poll};

use hyper::body::{Body, Bytes, Frame, SizeHint};
use hyper::header::{self, HeaderName, HeaderValue};
use hyper::{Response, StatusCode};
use tokio::sync::mpsc::Receiver;

/// The body of a response.
#[derive(Debug)]
pub(super) enum Reply {
    /// A complete body; `None` once it is sent.
    Complete(Option<Bytes>),
    /// A stream of states.
    Events(Receiver<Bytes>),
}

impl Body for Reply {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        let data = match self.get_mut() {
            Self::Complete(text) => Poll::Ready(text.take()),
            Self::Events(events) => events.poll_recv(cx),
        };
        data.map(|data| data.map(|data| Ok(Frame::data(data))))
    }

    fn is_end_stream(&self) -> bool {
        matches!(self, Self::Complete(None))
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Complete(text) => SizeHint::with_exact(text.as_ref().map_or(0, |text| text.len() as u64)),
            Self::Events(_) => SizeHint::default(),
        }
    }
}

/// The content type of a body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Content {
    Text,
    Page,
    Metrics,
    Json,
    Events,
}

impl Content {
    const fn kind(self) -> &'static str {
        match self {
            Self::Text => "text/plain; charset=utf-8",
            Self::Page => "text/html; charset=utf-8",
            Self::Metrics => "text/plain; version=0.0.4; charset=utf-8",
            Self::Json => "application/json",
            Self::Events => "text/event-stream",
        }
    }
}

/// Allows only the page's own style and script; a test computes their hashes.
const POLICY: &str = "default-src 'none'; connect-src 'self'; style-src 'sha256-MoEAIam6LsVJl6vcI+BveXAewmg7J6x6+vKhao9+3as='; script-src 'sha256-kXU+DFS7D4mxlIZG8Q9e+dcfiUow5qKRl43+Nd8FkH8='; \
    img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

const HEADERS: [(HeaderName, &str); 5] = [
    (header::CONTENT_SECURITY_POLICY, POLICY),
    (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
    (header::REFERRER_POLICY, "no-referrer"),
    (header::CACHE_CONTROL, "no-store"),
    (HeaderName::from_static("cross-origin-resource-policy"), "same-origin"),
];

/// A complete response.
pub(super) fn answer(status: StatusCode, content: Content, text: impl Into<Bytes>) -> Response<Reply> {
    with_headers(status, content, Reply::Complete(Some(text.into())))
}

/// A streaming response.
pub(super) fn events(events: Receiver<Bytes>) -> Response<Reply> {
    with_headers(StatusCode::OK, Content::Events, Reply::Events(events))
}

fn with_headers(status: StatusCode, content: Content, reply: Reply) -> Response<Reply> {
    let mut response = Response::new(reply);
    *response.status_mut() = status;
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(content.kind()));
    if status == StatusCode::METHOD_NOT_ALLOWED {
        headers.insert(header::ALLOW, HeaderValue::from_static("GET, HEAD"));
    }
    for (name, value) in HEADERS {
        headers.insert(name, HeaderValue::from_static(value));
    }
    response
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use base64::Engine as _;

    use super::*;

    #[expect(clippy::disallowed_methods, reason = "a test is not PID 1")]
    fn hash(text: &str) -> String {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("text");
        std::fs::write(&file, text).unwrap();
        let output = Command::new("sha256sum").arg(&file).output().unwrap();
        let hex = String::from_utf8(output.stdout).unwrap();
        let byte = |at: usize| u8::from_str_radix(&hex[2 * at..2 * at + 2], 16).unwrap();
        let bytes: Vec<u8> = (0..32).map(byte).collect();
        format!("'sha256-{}'", base64::engine::general_purpose::STANDARD.encode(bytes))
    }

    #[test]
    fn policy_allows_only_own_style_and_script() {
        let page = super::super::PAGE;
        for tag in ["style", "script"] {
            let inner = page.split(&format!("<{tag}>")).nth(1).unwrap().split(&format!("</{tag}>")).next().unwrap();
            let hash = hash(inner);
            assert!(POLICY.contains(&hash), "write {tag}-src {hash} into POLICY");
        }
        assert!(!page.contains("innerHTML") && !page.contains("http://") && !page.contains("https://"));
    }
}
