//! The HTTP server. It serves a few fixed paths, no files, and accepts no request with a body.
//!
//! One thread serves all connections. A connection has one request; the request and the response have deadlines. A client that sends
//! nothing cannot block other clients: if too many connections wait for their requests, the oldest is closed.

mod http;

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::task::AbortHandle;

use super::Settings;
use super::source::Source;
use http::{Request, Response, content, status};

/// Maximum number of connections whose request has not arrived.
const MAX_WAITING: usize = 256;
/// Maximum number of connections that are being answered. Further ones are closed.
const MAX_ANSWERING: usize = 256;
/// The pause after a failed accept, for example because no file descriptor is left.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

const PAGE: &str = include_str!("page/page.html");
const STYLE: &str = include_str!("page/page.css");
const SCRIPT: &str = include_str!("page/page.js");

struct Server {
    source: Arc<Source>,
    hosts: Vec<String>,
    answering: Arc<Semaphore>,
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
    let answering = Arc::new(Semaphore::new(MAX_ANSWERING));
    let server = Arc::new(Server { source: Source::new(settings), hosts, answering });
    let mut waiting = Waiting::default();
    loop {
        match listener.accept().await {
            Ok((stream, _)) => waiting.add(|| tokio::spawn(receive(Arc::clone(&server), stream)).abort_handle()),
            Err(_) => tokio::time::sleep(ACCEPT_PAUSE).await,
        }
    }
}

/// The tasks that wait for a request, the oldest first.
#[derive(Default)]
struct Waiting(VecDeque<AbortHandle>);

impl Waiting {
    fn add(&mut self, spawn: impl FnOnce() -> AbortHandle) {
        self.0.retain(|task| !task.is_finished());
        if self.0.len() >= MAX_WAITING {
            self.0.pop_front().inspect(AbortHandle::abort);
        }
        self.0.push_back(spawn());
    }
}

/// Waits for the request, and leaves the answer to another task, which is never aborted.
async fn receive(server: Arc<Server>, mut stream: TcpStream) {
    let Some(request) = http::receive(&mut stream).await else { return };
    let Ok(permit) = Arc::clone(&server.answering).try_acquire_owned() else { return };
    tokio::spawn(async move {
        let response = match request {
            Ok(request) => server.answer(&request).await,
            Err(response) => response,
        };
        http::send(&mut stream, &response).await;
        drop(permit);
    });
}

impl Server {
    async fn answer(&self, request: &Request) -> Response {
        if !request.hosts.iter().all(|host| is_allowed_host(host, &self.hosts)) {
            let text =
                "host name not allowed; use an IP address in the URL, or add the host name to `hosts` in [metrics]\n";
            return Response::new(status::MISDIRECTED_REQUEST, content::TEXT, text);
        }
        let response = match request.path.as_str() {
            "/" => Response::new(status::OK, content::HTML, PAGE),
            "/page.css" => Response::new(status::OK, content::CSS, STYLE),
            "/page.js" => Response::new(status::OK, content::JAVASCRIPT, SCRIPT),
            "/metrics" => Response::new(status::OK, content::METRICS, self.source.metrics().await),
            "/api/state" => Response::new(status::OK, content::JSON, self.source.state().await),
            _ => Response::new(status::NOT_FOUND, content::TEXT, "not found; available: /, /metrics and /api/state\n"),
        };
        if request.is_head { response.without_body() } else { response }
    }
}

/// Whether a Host header, with or without a port, is an address, one of `names`, or a name without a dot, which no public web page has. A web
/// page could point its own name here and read this server through a browser (DNS rebinding).
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

    /// The Content-Security-Policy allows only the page's own script and style.
    #[test]
    fn page_has_no_inline_code_and_no_external_address() {
        for forbidden in ["<style", "<script>", "style=", " onclick="] {
            assert!(!PAGE.contains(forbidden), "{forbidden}");
        }
        for text in [PAGE, STYLE, SCRIPT] {
            assert!(!text.contains("innerHTML") && !text.contains("http://") && !text.contains("https://"));
        }
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

    #[tokio::test]
    async fn closes_oldest_connection_that_sent_no_request() {
        let mut waiting = Waiting::default();
        let mut tasks = Vec::new();
        let mut add = |waiting: &mut Waiting, is_idle: bool| {
            waiting.add(|| {
                let task = tokio::spawn(async move {
                    if is_idle {
                        std::future::pending::<()>().await;
                    }
                });
                let handle = task.abort_handle();
                tasks.push(task);
                handle
            });
        };
        add(&mut waiting, false);
        tokio::task::yield_now().await;
        for _ in 0..=MAX_WAITING {
            add(&mut waiting, true);
        }
        let mut ends = Vec::new();
        for task in tasks.drain(..2) {
            ends.push(task.await.is_err_and(|error| error.is_cancelled()));
        }
        assert_eq!(ends, [false, true]);
        assert!(tasks.iter().all(|task| !task.is_finished()));
    }
}
