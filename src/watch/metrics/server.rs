//! The HTTP server: a few fixed paths, no file, no request with a body.
//!
//! One thread serves all connections. Each has one request, and a deadline for each of its parts; if there are too many, one without a
//! request is closed.

mod connections;
mod reply;
mod stream;
mod viewers;

use std::convert::Infallible;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use hyper::body::{Body as _, Incoming};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode, header};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::{TcpListener, TcpStream};

use super::Settings;
use super::source::Source;
use connections::{Connections, Slot};
use reply::{Content, Reply, answer};
use stream::Stream;
use viewers::Viewers;

/// Timeout of a request's header.
const HEADER_TIMEOUT: Duration = Duration::from_secs(5);
/// Maximum length of a header, in bytes; hyper allows no less.
const MAX_HEADER: usize = 8192;
/// The pause after a failed accept, when no file descriptors are left.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// How long the page waits for its first state; without one it is sent empty, and gets the state as an event.
const FIRST_STATE_TIMEOUT: Duration = Duration::from_secs(1);
/// The page.
const PAGE: &str = include_str!("page.html");

struct Server {
    source: Arc<Source>,
    viewers: Arc<Viewers>,
    hosts: Vec<String>,
}

/// Serves until the process is killed.
pub(super) fn run(settings: Settings) -> anyhow::Result<()> {
    // The only other thread queries slurmctld.
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_io().enable_time().max_blocking_threads(1).build()?;
    runtime.block_on(serve(settings))
}

async fn serve(settings: Settings) -> anyhow::Result<()> {
    let listen = settings.listen;
    let own = nix::unistd::gethostname().ok().and_then(|name| name.into_string().ok());
    let hosts = settings.hosts.iter().cloned().chain(own).collect();
    let listener = TcpListener::bind(listen).await.with_context(|| format!("cannot listen on {listen}"))?;
    let source = Source::new(settings);
    let viewers = Viewers::new(Arc::clone(&source));
    let server = Arc::new(Server { source, viewers, hosts });
    let connections = Arc::new(Connections::default());
    loop {
        match listener.accept().await {
            Ok((stream, peer)) => accept(&server, &connections, stream, peer.ip()),
            Err(_) => tokio::time::sleep(ACCEPT_PAUSE).await,
        }
    }
}

/// Without a free place the connection is closed.
fn accept(server: &Arc<Server>, connections: &Arc<Connections>, stream: TcpStream, peer: IpAddr) {
    let Some(slot) = connections.open_slot() else { return };
    let number = slot.number();
    let task = tokio::spawn(serve_client(Arc::clone(server), stream, peer, slot));
    connections.set_task(number, task.abort_handle());
}

async fn serve_client(server: Arc<Server>, stream: TcpStream, peer: IpAddr, slot: Slot) {
    let slot = Arc::new(slot);
    let service = service_fn(move |request: Request<Incoming>| {
        slot.mark_request();
        let (server, slot) = (Arc::clone(&server), Arc::clone(&slot));
        async move {
            let _slot = slot;
            Ok::<Response<Reply>, Infallible>(server.serve(&request, peer).await)
        }
    });
    let mut http = http1::Builder::new();
    http.keep_alive(false).max_buf_size(MAX_HEADER).max_headers(64);
    http.timer(TokioTimer::new()).header_read_timeout(HEADER_TIMEOUT);
    // Errors of a connection concern only its client.
    let _ = http.serve_connection(TokioIo::new(Stream::new(stream)), service).await;
}

impl Server {
    async fn serve(&self, request: &Request<Incoming>, peer: IpAddr) -> Response<Reply> {
        let is_head = request.method() == Method::HEAD;
        if request.method() != Method::GET && !is_head {
            return answer(StatusCode::METHOD_NOT_ALLOWED, Content::Text, "only GET and HEAD are allowed\n");
        }
        if !request.body().is_end_stream() {
            return answer(StatusCode::PAYLOAD_TOO_LARGE, Content::Text, "request bodies are not allowed\n");
        }
        if !self.has_allowed_host(request) {
            return answer(
                StatusCode::MISDIRECTED_REQUEST,
                Content::Text,
                "request it by an IP address, or add the name to `hosts` of [metrics]\n",
            );
        }
        match request.uri().path() {
            "/" if is_head => answer(StatusCode::OK, Content::Page, PAGE),
            "/" => {
                let state = tokio::time::timeout(FIRST_STATE_TIMEOUT, self.source.state()).await;
                answer(StatusCode::OK, Content::Page, page(state.ok().as_deref()))
            }
            "/metrics" => answer(StatusCode::OK, Content::Metrics, self.source.metrics().await),
            "/api/state" => answer(StatusCode::OK, Content::Json, self.source.state().await),
            "/events" if is_head => answer(StatusCode::OK, Content::Events, ""),
            "/events" => reply::events(self.viewers.join(peer).await),
            _ => answer(StatusCode::NOT_FOUND, Content::Text, "there are /, /metrics and /api/state\n"),
        }
    }

    /// Rejects foreign host names: a web page could point its own name here and read this server through a browser (DNS rebinding).
    fn has_allowed_host(&self, request: &Request<Incoming>) -> bool {
        let host = request.headers().get(header::HOST).map(|host| host.to_str().unwrap_or_default());
        host.is_none_or(|host| is_allowed_host(host, &self.hosts))
    }
}

/// The page with its first state, so that it shows data at once.
fn page(state: Option<&str>) -> String {
    // In JSON `<` occurs only in strings. It is escaped, because `</script>` would end the element.
    state.map_or_else(
        || PAGE.to_owned(),
        |state| PAGE.replacen(">null<", &format!(">{}<", state.replace('<', "\\u003c")), 1),
    )
}

/// Whether a Host header, with or without a port, is an address, one of the names of this machine, or a name without a dot, which no web
/// page has.
fn is_allowed_host(host: &str, names: &[String]) -> bool {
    let name = host.rsplit_once(':').filter(|(_, port)| port.bytes().all(|byte| byte.is_ascii_digit()));
    let name = name.map_or(host, |(name, _)| name);
    let bare = name.trim_start_matches('[').trim_end_matches(']');
    let is_label = !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_".contains(&byte));
    is_label || bare.parse::<std::net::IpAddr>().is_ok() || names.iter().any(|own| own.eq_ignore_ascii_case(name))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn page_embeds_escaped_initial_state() {
        let page = page(Some(r#"{"why":"</script><b>"}"#));
        assert!(page.contains(r#"id="first">{"why":"\u003c/script>\u003cb>"}</script>"#), "{page}");
        assert_eq!(super::page(None), PAGE);
        assert!(PAGE.matches(">null<").count() == 1);
    }

    #[test]
    fn accepts_only_addresses_own_names_and_dotless_names() {
        let names = ["gpu1.example.org".to_owned()];
        for own in ["127.0.0.1:9835", "[::1]:9835", "localhost", "slurm:9835", "10.0.0.7", "GPU1.example.org:9835"] {
            assert!(is_allowed_host(own, &names), "{own}");
        }
        for foreign in
            ["evil.example:9835", "evil.example", "", ".", "127.0.0.1.evil.example", "gpu1.example.org.evil.example"]
        {
            assert!(!is_allowed_host(foreign, &names), "{foreign}");
        }
    }
}
