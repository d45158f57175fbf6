//! Reads one HTTP/1.1 request from a connection, and writes the response. Only GET and HEAD without a body are supported.

use std::borrow::Cow;
use std::time::Duration;

use httparse::{EMPTY_HEADER, Header};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::time::timeout;

/// Timeout of a request, from the connection to the end of its header.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(5);
/// Timeout of a response, from its first byte to its last.
const RESPONSE_TIMEOUT: Duration = Duration::from_secs(10);
/// Maximum length of a request, in bytes.
const MAX_REQUEST: usize = 8192;
/// Maximum number of headers of a request.
const MAX_HEADERS: usize = 64;

/// The status codes.
pub(super) mod status {
    pub(in super::super) const OK: &str = "200 OK";
    pub(in super::super) const NOT_FOUND: &str = "404 Not Found";
    pub(in super::super) const MISDIRECTED_REQUEST: &str = "421 Misdirected Request";
    pub(super) const BAD_REQUEST: &str = "400 Bad Request";
    pub(super) const METHOD_NOT_ALLOWED: &str = "405 Method Not Allowed";
    pub(super) const CONTENT_TOO_LARGE: &str = "413 Content Too Large";
    pub(super) const HEADERS_TOO_LARGE: &str = "431 Request Header Fields Too Large";
}

/// The content types.
pub(super) mod content {
    pub(in super::super) const TEXT: &str = "text/plain; charset=utf-8";
    pub(in super::super) const HTML: &str = "text/html; charset=utf-8";
    pub(in super::super) const CSS: &str = "text/css; charset=utf-8";
    pub(in super::super) const JAVASCRIPT: &str = "text/javascript; charset=utf-8";
    pub(in super::super) const METRICS: &str = "text/plain; version=0.0.4; charset=utf-8";
    pub(in super::super) const JSON: &str = "application/json";
}

/// The headers of every response. The policy allows the page's own style and script, and nothing from other servers.
const HEADERS: &str = concat!(
    "connection: close\r\n",
    "allow: GET, HEAD\r\n",
    "content-security-policy: default-src 'none'; connect-src 'self'; style-src 'self'; script-src 'self'; ",
    "img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'\r\n",
    "x-content-type-options: nosniff\r\n",
    "referrer-policy: no-referrer\r\n",
    "cache-control: no-store\r\n",
    "cross-origin-resource-policy: same-origin\r\n",
);

/// A request.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Request {
    pub(super) is_head: bool,
    /// The path, without the query.
    pub(super) path: String,
    /// The values of the Host headers.
    pub(super) hosts: Vec<String>,
}

/// A response.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Response {
    head: String,
    body: Cow<'static, str>,
}

impl Response {
    pub(super) fn new(status: &str, content: &str, body: impl Into<Cow<'static, str>>) -> Self {
        let body = body.into();
        let length = body.len();
        let head = format!("HTTP/1.1 {status}\r\ncontent-type: {content}\r\ncontent-length: {length}\r\n{HEADERS}\r\n");
        Self { head, body }
    }

    /// The response to HEAD.
    pub(super) fn without_body(self) -> Self {
        Self { body: Cow::default(), ..self }
    }

    fn error(status: &str, text: &'static str) -> Self {
        Self::new(status, content::TEXT, text)
    }
}

/// The request, or the response to an invalid one. `None` if the client is too slow or disconnects.
pub(super) async fn receive(stream: &mut TcpStream) -> Option<Result<Request, Response>> {
    let read = async {
        let mut received = Vec::new();
        loop {
            let rest = u64::try_from(MAX_REQUEST - received.len()).unwrap_or_default();
            if stream.take(rest).read_buf(&mut received).await.ok()? == 0 {
                return None;
            }
            if let Some(request) = parse(&received) {
                return Some(request);
            }
        }
    };
    timeout(REQUEST_TIMEOUT, read).await.ok()?
}

/// Sends the response. A client that reads too slowly receives only a part of it.
pub(super) async fn send(stream: &mut TcpStream, response: &Response) {
    let write = async {
        stream.write_all(response.head.as_bytes()).await?;
        stream.write_all(response.body.as_bytes()).await?;
        stream.shutdown().await
    };
    // Errors of a connection affect only its client.
    let _ = timeout(RESPONSE_TIMEOUT, write).await;
}

/// Parses a request; `None` while the header is incomplete.
fn parse(received: &[u8]) -> Option<Result<Request, Response>> {
    let mut headers = [EMPTY_HEADER; MAX_HEADERS];
    let mut request = httparse::Request::new(&mut headers);
    match request.parse(received) {
        Ok(httparse::Status::Complete(_)) => Some(checked(&request)),
        Ok(httparse::Status::Partial) if received.len() < MAX_REQUEST => None,
        Ok(httparse::Status::Partial) | Err(httparse::Error::TooManyHeaders) => {
            Some(Err(Response::error(status::HEADERS_TOO_LARGE, "the request is too long or has too many headers\n")))
        }
        Err(_) => Some(Err(Response::error(status::BAD_REQUEST, "not an HTTP/1.1 request\n"))),
    }
}

fn checked(request: &httparse::Request<'_, '_>) -> Result<Request, Response> {
    let is_head = request.method == Some("HEAD");
    if !is_head && request.method != Some("GET") {
        return Err(Response::error(status::METHOD_NOT_ALLOWED, "only GET and HEAD are allowed\n"));
    }
    let named = |name: &'static str| {
        let headers = request.headers.iter().filter(move |header| header.name.eq_ignore_ascii_case(name));
        headers.map(|Header { value, .. }| String::from_utf8_lossy(value).into_owned())
    };
    if named("transfer-encoding").next().is_some() || named("content-length").any(|length| length != "0") {
        return Err(Response::error(status::CONTENT_TOO_LARGE, "request bodies are not allowed\n"));
    }
    let path = request.path.unwrap_or_default();
    let path = path.split_once('?').map_or(path, |(path, _)| path).to_owned();
    Ok(Request { is_head, path, hosts: named("host").collect() })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn status_of(request: &str) -> Option<String> {
        let parsed = parse(request.as_bytes())?;
        Some(parsed.map_or_else(|response| response.head[9..12].to_owned(), |_| "200".to_owned()))
    }

    #[test]
    fn takes_path_without_query_and_all_hosts() {
        let parsed = parse(b"GET /metrics?a=b HTTP/1.1\r\nHost: a\r\nAccept: */*\r\nhost: b.example\r\n\r\n");
        let hosts = ["a", "b.example"].map(str::to_owned).to_vec();
        assert_eq!(parsed, Some(Ok(Request { is_head: false, path: "/metrics".to_owned(), hosts })));
    }

    #[test]
    fn rejects_other_methods_bodies_and_long_headers() {
        for (request, expected) in [
            ("GET / HTTP/1.0\r\n\r\n", Some("200")),
            ("HEAD / HTTP/1.1\r\nContent-Length: 0\r\n\r\n", Some("200")),
            ("GET / HTTP/1.1\r\nHost: a\r\n", None),
            ("POST / HTTP/1.1\r\n\r\n", Some("405")),
            ("GET / HTTP/1.1\r\nContent-Length: 1\r\n\r\nx", Some("413")),
            ("GET / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n", Some("413")),
            ("\u{16}\u{3}\u{1}", Some("400")),
            (&format!("GET / HTTP/1.1\r\n{}\r\n", "a: b\r\n".repeat(65)), Some("431")),
            (&format!("GET /{}", "a".repeat(MAX_REQUEST)), Some("431")),
        ] {
            assert_eq!(status_of(request).as_deref(), expected, "{request:?}");
        }
    }

    #[test]
    fn response_to_head_has_length_and_no_body() {
        let response = Response::new(status::OK, content::JSON, "{}").without_body();
        assert!(response.head.contains("content-length: 2\r\n") && response.head.ends_with("\r\n\r\n"));
        assert_eq!(response.body, "");
    }
}
