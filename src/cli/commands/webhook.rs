//! `slurminit webhook`: posts a message to a URL. Both are read from standard input, because all users may read a process's arguments.
//!
//! The agent runs it as the `user` of the `[[notify]]`, by default an unprivileged user.

use std::io::Read as _;
use std::time::Duration;

use anyhow::Context as _;
use ureq::tls::{PemItem, RootCerts, TlsConfig, parse_pem};

use config::WebhookUrl;
use model::{exit_code, message};
use sys::report;

/// The file with the trusted certificate authorities in Debian.
const AUTHORITIES: &str = "/etc/ssl/certs/ca-certificates.crt";
/// Maximum length of the URL and the message together, in bytes.
const MAX_INPUT_BYTES: u64 = 64 * 1024;

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Timeout of the request
    #[arg(long, value_name = "SECONDS")]
    timeout: f64,
}

pub(crate) fn run(args: Args) -> anyhow::Result<u8> {
    let mut input = String::new();
    std::io::stdin().take(MAX_INPUT_BYTES).read_to_string(&mut input)?;
    let (url, message) =
        input.split_once('\n').context("standard input must contain the URL on the first line, then the message")?;
    let url = WebhookUrl::try_from(url.to_owned()).map_err(anyhow::Error::msg)?;
    let timeout = Duration::try_from_secs_f64(args.timeout).unwrap_or(Duration::from_secs(10));
    match post(&url, message.trim_end(), timeout) {
        Ok(()) => Ok(exit_code::SUCCESS),
        Err(error) => {
            report::error(message!(
                "webhook-failed",
                "cannot post to the webhook at {url}: {error}",
                url = format!("{url:?}"),
                error = format!("{error:#}")
            ));
            Ok(exit_code::FAILURE)
        }
    }
}

fn post(url: &WebhookUrl, message: &str, timeout: Duration) -> anyhow::Result<()> {
    // A redirected POST becomes a GET without the message.
    let config =
        ureq::Agent::config_builder().timeout_global(Some(timeout)).max_redirects(0).http_status_as_error(false);
    let config = config.tls_config(TlsConfig::builder().root_certs(authorities()).build());
    let agent = config.build().new_agent();
    let response = agent.post(url.as_str()).header("Content-Type", "application/json").send(message)?;
    let status = response.status();
    anyhow::ensure!(status.is_success(), "the server responded with {status}");
    Ok(())
}

/// The certificate authorities in the file that `SSL_CERT_FILE` names, by default those of the image: a site can add its own, as for curl. If the
/// file contains none, Mozilla's.
fn authorities() -> RootCerts {
    let file = std::env::var_os("SSL_CERT_FILE").unwrap_or_else(|| AUTHORITIES.into());
    let pem = std::fs::read(file).unwrap_or_default();
    let certificate = |item| match item {
        Ok(PemItem::Certificate(certificate)) => Some(certificate),
        _ => None,
    };
    let certificates: Vec<_> = parse_pem(&pem).filter_map(certificate).collect();
    if certificates.is_empty() { RootCerts::WebPki } else { RootCerts::new_with_certs(&certificates) }
}
