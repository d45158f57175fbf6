//! Notifications of GPU faults and jobs: commands and webhooks.

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use http::Uri;
use serde::Deserialize;

use faults::fault::Policy;
use model::value;

/// A `[[notify]]`: the commands and webhooks for one event.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(try_from = "Written")]
pub struct Notify {
    /// The commands and webhooks; at least one.
    pub receivers: Vec<Receiver>,
    /// The event that triggers the notification.
    pub on: Event,
    /// The user to run as; `None` means `slurminit`, an unprivileged user.
    pub user: Option<String>,
    /// The least severe fault policy that triggers the notification.
    pub at_least: Policy,
    /// How long a command or a webhook may take.
    pub timeout: Duration,
    /// The maximum number of runs of each command and webhook per hour.
    pub per_hour: u32,
}

/// The events of a `[[notify]]`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Event {
    /// A GPU has a fault.
    #[default]
    GpuFault,
    /// A job with GPUs has ended, and its user had asked for mail.
    JobEnd,
    /// A job does not use its GPUs. `action` in `[gpu.idle]` determines whether it is also warned or cancelled.
    IdleJob,
}

impl Notify {
    /// The full URLs of the webhooks in the configuration.
    pub(crate) fn urls(&self) -> impl Iterator<Item = &str> {
        self.receivers.iter().filter_map(|receiver| match receiver {
            Receiver::Url(url) => Some(url.as_str()),
            Receiver::Command(_) | Receiver::UrlFile(_) => None,
        })
    }
}

/// A target of a `[[notify]]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Receiver {
    /// A program and its arguments.
    Command(Vec<String>),
    /// The URL of a webhook.
    Url(WebhookUrl),
    /// A file with the URL of a webhook.
    UrlFile(PathBuf),
}

/// An http or https URL. It can contain a secret, so only the host is printed.
#[derive(Clone, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub struct WebhookUrl {
    text: String,
    host: String,
}

impl WebhookUrl {
    /// The full URL.
    pub fn as_str(&self) -> &str {
        &self.text
    }
}

impl TryFrom<String> for WebhookUrl {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        let url: Uri = text.parse().map_err(|error| format!("invalid URL: {error}"))?;
        let is_known = matches!(url.scheme_str(), Some("http" | "https"));
        match url.host().filter(|host| is_known && !host.is_empty()) {
            Some(host) => Ok(Self { host: host.to_owned(), text }),
            None => Err("a webhook's URL must begin with https:// or http:// and a host".to_owned()),
        }
    }
}

impl fmt::Debug for WebhookUrl {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{} (path hidden)", self.host)
    }
}

impl fmt::Display for Receiver {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Command(command) => out.write_str(command.first().map_or("", String::as_str)),
            Self::Url(url) => write!(out, "the webhook of {}", url.host),
            Self::UrlFile(path) => write!(out, "the webhook in {}", path.display()),
        }
    }
}

/// The table `[[notify]]` as written in the file.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Written {
    #[serde(default, deserialize_with = "value::optional_command")]
    command: Option<Vec<String>>,
    url: Option<WebhookUrl>,
    url_file: Option<PathBuf>,
    #[serde(default)]
    on: Event,
    user: Option<String>,
    at_least: Option<Policy>,
    #[serde(default = "ten_seconds", deserialize_with = "value::seconds")]
    timeout: Duration,
    #[serde(default = "sixty")]
    per_hour: u32,
}

impl TryFrom<Written> for Notify {
    type Error = &'static str;

    fn try_from(written: Written) -> Result<Self, Self::Error> {
        let Written { command, url, url_file, on, user, at_least, timeout, per_hour } = written;
        let urls = url.map(Receiver::Url).into_iter().chain(url_file.map(Receiver::UrlFile));
        let receivers: Vec<Receiver> = urls.chain(command.map(Receiver::Command)).collect();
        if receivers.is_empty() {
            return Err("[[notify]] has no target: set `url`, `url_file` or `command`");
        }
        if on != Event::GpuFault && at_least.is_some() {
            return Err("`at_least` of [[notify]] applies only to GPU faults");
        }
        Ok(Self { receivers, on, user, at_least: at_least.unwrap_or(Policy::Warn), timeout, per_hour })
    }
}

const fn ten_seconds() -> Duration {
    Duration::from_secs(10)
}

const fn sixty() -> u32 {
    60
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn webhook_url_requires_http_and_hides_secret() {
        let url = |text: &str| WebhookUrl::try_from(text.to_owned());
        let webhook = url("https://hooks.example.org:8443/T000/s3cret?x=1").unwrap();
        let shown = format!("{webhook:?} {}", Receiver::Url(webhook.clone()));
        assert!(webhook.as_str().ends_with("s3cret?x=1") && !shown.contains("s3cret"), "{shown}");
        assert!(shown.contains("hooks.example.org"), "{shown}");
        for bad in ["", "hooks.example.org/x", "/x", "ftp://a/b", "file:///etc/passwd", "https://", "https://a b/"] {
            assert!(url(bad).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn notify_requires_receiver() {
        let parse = |text: &str| toml::from_str::<Notify>(text).map_err(|error| error.to_string());
        assert!(parse("url = 'https://a.example/x'\nuser = 'nobody'").is_ok());
        assert!(parse("url_file = '/run/secrets/webhook'").is_ok());
        assert_eq!(parse("command = ['/a']\nurl = 'https://a.example/x'").unwrap().receivers.len(), 2);
        assert_eq!(parse("command = ['/a']\non = 'job-end'").unwrap().on, Event::JobEnd);
        assert!(parse("command = ['/a']\non = 'job-end'\nat_least = 'warn'").is_err());
        let config = |on: &str| crate::Config {
            notifies: vec![parse(&format!("command = ['/a']\n{on}")).unwrap()],
            ..Default::default()
        };
        assert!(config("on = 'job-end'").notifies_job_ends() && !config("").notifies_job_ends());
        for bad in ["", "user = 'nobody'", "command = []", "url = 'x'", "word = 1\ncommand = ['/a']"] {
            assert!(parse(bad).is_err(), "{bad}");
        }
    }
}
