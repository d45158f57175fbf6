//! Pulls an image from a registry into a store: skopeo downloads it, and the import unpacks it.
//!
//! Both run as the user of this process, with that user's credentials, and never as root for another user. If several tasks or jobs need the
//! same image at the same time, one of them pulls it and the others wait. They share its result, even an error: otherwise each would wait for the
//! registry's timeouts, one after the other.

use std::ffi::OsString;
use std::fs::DirEntry;
use std::io::Read as _;
use std::os::fd::AsFd as _;
use std::path::Path;
use std::process::{Child, ChildStderr, Command, Stdio};
use std::time::{Duration, Instant};

use model::paths::Paths;
use model::printable;
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::statvfs::statvfs;
use sys::secret_variables;

use super::store::Turn;
use super::{ImageError, ImageName, ImageRecord, Importer, Reference, Source};

/// The name of the downloaded OCI layout in the directory that is passed to [`Download::run`].
pub(crate) const LAYOUT: &str = "layout";
/// The maximum size of skopeo's messages that are kept, in bytes.
const MAX_MESSAGES: usize = 64 << 10;
/// The interval between two checks of a running download.
const CHECK: Duration = Duration::from_secs(1);
/// The interval between two progress reports.
const REPORT: Duration = Duration::from_secs(10);
/// A download is aborted after this time without new data.
const STALLED: Duration = Duration::from_secs(120);

/// Pulls images into a store.
#[derive(Clone, Debug)]
pub struct Puller {
    /// The store, the limits of an image, and whether an existing image is replaced.
    pub importer: Importer,
    /// The environment of skopeo, which sets the proxies and the location of the credentials; `None` means the environment of this process.
    pub environment: Option<Vec<(OsString, OsString)>>,
    /// A function that receives the progress, as lines of text.
    pub report: fn(&str),
}

impl Puller {
    /// Returns the image of this name, and pulls it first if the store has none.
    ///
    /// # Errors
    /// This process or another one cannot pull the image, or another user could change it.
    pub fn ensure(&self, name: &ImageName, reference: &Reference) -> Result<ImageRecord, ImageError> {
        let store = &self.importer.store;
        loop {
            if let Some(record) = store.find(name)? {
                return Ok(record);
            }
            let waiting = || (self.report)(&format!("another process is pulling {reference}; waiting for it"));
            match store.turn(name, waiting)? {
                Turn::Ours(lock) => {
                    let outcome = match store.find(name) {
                        Ok(None) => self.pull_alone(name, reference),
                        found => found.map(Option::unwrap_or_default),
                    };
                    lock.release(outcome.as_ref().err().map(ToString::to_string));
                    return outcome;
                }
                Turn::Passed(Some(why)) => return Err(ImageError::PullOfAnother(why)),
                Turn::Passed(None) => {}
            }
        }
    }

    /// Pulls the image. If the store already has an image of this name, replaces it or fails, depending on [`Importer::replaces`].
    ///
    /// # Errors
    /// The name is taken, the image cannot be pulled, or another user could change it.
    pub fn pull(&self, name: &ImageName, reference: &Reference) -> Result<ImageRecord, ImageError> {
        loop {
            let waiting = || (self.report)(&format!("another process is pulling image {name}; waiting for it"));
            if let Turn::Ours(lock) = self.importer.store.turn(name, waiting)? {
                let outcome = self.pull_alone(name, reference);
                lock.release(outcome.as_ref().err().map(ToString::to_string));
                return outcome;
            }
        }
    }

    fn pull_alone(&self, name: &ImageName, reference: &Reference) -> Result<ImageRecord, ImageError> {
        let start = Instant::now();
        (self.report)(&format!("pulling {reference} into {}", self.importer.store.path().display()));
        let download = Download {
            reference: reference.clone(),
            environment: self.environment.clone(),
            report: self.report,
            reserve: self.importer.limits.reserve,
        };
        let pulled = self.importer.import(name, Source::Registry(download));
        let record =
            pulled.map_err(|error| ImageError::NotPulled { image: reference.clone(), error: Box::new(error) })?;
        let (files, size, seconds) = (record.files, record.bytes.div_ceil(1 << 20), start.elapsed().as_secs());
        (self.report)(&format!("pulled {reference} in {seconds} s: {files} files, {size} MiB"));
        Ok(record)
    }
}

/// The download of an image.
#[derive(Debug)]
pub struct Download {
    pub(crate) reference: Reference,
    environment: Option<Vec<(OsString, OsString)>>,
    report: fn(&str),
    /// The free disk space that the download must leave, in bytes.
    reserve: u64,
}

impl Download {
    /// Downloads the image into an OCI layout in `directory`, which only this user can write to.
    pub(crate) fn run(&self, directory: &Path) -> Result<(), ImageError> {
        let (mut skopeo, errors) = self.start(directory)?;
        let messages = self.watch(directory, errors);
        if messages.is_err() {
            let _ = skopeo.kill();
        }
        #[expect(clippy::disallowed_methods, reason = "this process is not PID 1 and waits only for its own child")]
        let status = skopeo.wait()?;
        let messages = messages?;
        if status.success() {
            return Ok(());
        }
        if messages.trim().is_empty() {
            return Err(ImageError::Registry {
                why: format!("skopeo failed: {status}"),
                fix: "pull the image again".to_owned(),
            });
        }
        let (why, fix) = explain(&messages, &self.reference);
        Err(ImageError::Registry { why, fix })
    }

    #[expect(clippy::disallowed_methods, reason = "this process is not PID 1 and waits only for its own child")]
    fn start(&self, directory: &Path) -> Result<(Child, ChildStderr), ImageError> {
        let mut command = Command::new(Paths::SKOPEO);
        if let Some(environment) = &self.environment {
            command.env_clear().envs(environment.iter().map(|(name, value)| (name, value)));
        }
        secret_variables::remove_from(&mut command);
        // skopeo keeps a database of layers in XDG_DATA_HOME, and large temporary files in TMPDIR.
        command.current_dir(directory).env("XDG_DATA_HOME", directory).env("TMPDIR", directory);
        command.args(["copy", "--quiet", "--retry-times", "2"]);
        command.args(self.reference.is_local().then_some("--src-tls-verify=false"));
        command.arg(format!("{}{}", super::SCHEME, self.reference)).arg(format!("oci:{LAYOUT}"));
        let started = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped()).spawn();
        let mut child = started.map_err(|error| match error.kind() {
            std::io::ErrorKind::NotFound => ImageError::Registry {
                why: format!("{} is missing", Paths::SKOPEO),
                fix: "install skopeo in slurminit's image, or pipe `docker save` into `slurminit image import`"
                    .to_owned(),
            },
            _ => ImageError::io(Paths::SKOPEO, error),
        })?;
        let errors = child.stderr.take().ok_or_else(|| ImageError::io(Paths::SKOPEO, Errno::EBADF))?;
        Ok((child, errors))
    }

    /// Watches the download until skopeo closes its standard error, and returns skopeo's messages.
    ///
    /// # Errors
    /// Too little disk space is left, no data arrives for [`STALLED`], or a system call fails.
    fn watch(&self, directory: &Path, mut errors: ChildStderr) -> Result<String, ImageError> {
        let mut checked = Instant::now();
        let mut progress = Progress { received: 0, arrived: checked, reported: checked };
        let mut messages = Vec::new();
        loop {
            let timeout = PollTimeout::try_from(CHECK).unwrap_or(PollTimeout::MAX);
            match poll(&mut [PollFd::new(errors.as_fd(), PollFlags::POLLIN)], timeout) {
                Ok(0) | Err(Errno::EINTR) => {}
                Err(error) => return Err(ImageError::io(Paths::SKOPEO, error)),
                Ok(_) => {
                    let mut chunk = [0; 4096];
                    let read = errors.read(&mut chunk)?;
                    if read == 0 {
                        return Ok(String::from_utf8_lossy(&messages).into_owned());
                    }
                    let rest = MAX_MESSAGES.saturating_sub(messages.len());
                    messages.extend(chunk.iter().take(read.min(rest)));
                }
            }
            let now = Instant::now();
            if now.duration_since(checked) < CHECK {
                continue;
            }
            checked = now;
            self.check_space(directory)?;
            match progress.advance(size(directory), now) {
                Advance::Silent => {}
                Advance::Due => (self.report)(&format!("pulling {}: {} MiB", self.reference, progress.received >> 20)),
                Advance::Stalled => {
                    let (registry, seconds) = (self.reference.registry(), STALLED.as_secs());
                    return Err(ImageError::Registry {
                        why: format!("no data from {registry} for {seconds} s"),
                        fix: "check the network and the registry, then pull the image again".to_owned(),
                    });
                }
            }
        }
    }

    fn check_space(&self, directory: &Path) -> Result<(), ImageError> {
        let status = statvfs(directory).map_err(|error| ImageError::io(directory, error))?;
        let free = status.blocks_available().saturating_mul(status.fragment_size());
        if free < self.reserve {
            let (free, reserve) = (free >> 20, self.reserve >> 20);
            return Err(ImageError::Space { path: directory.to_owned(), free, reserve });
        }
        Ok(())
    }
}

/// The progress of a download.
struct Progress {
    /// The size of the downloaded files, in bytes.
    received: u64,
    /// When the size last changed.
    arrived: Instant,
    /// When the progress was last reported.
    reported: Instant,
}

/// The result of a check of a download.
#[derive(Debug, PartialEq, Eq)]
enum Advance {
    Silent,
    /// The progress must be reported.
    Due,
    /// No data arrives.
    Stalled,
}

impl Progress {
    /// Records the size of the downloaded files at this time.
    fn advance(&mut self, bytes: u64, now: Instant) -> Advance {
        if bytes != self.received {
            (self.received, self.arrived) = (bytes, now);
        } else if now.duration_since(self.arrived) > STALLED {
            return Advance::Stalled;
        }
        if self.received > 0 && now.duration_since(self.reported) >= REPORT {
            self.reported = now;
            return Advance::Due;
        }
        Advance::Silent
    }
}

/// The size of the files below a directory, in bytes.
fn size(directory: &Path) -> u64 {
    let entries = std::fs::read_dir(directory).into_iter().flatten().flatten();
    let size_of = |entry: DirEntry| match entry.metadata() {
        Ok(metadata) if metadata.is_dir() => size(&entry.path()),
        Ok(metadata) => metadata.len(),
        Err(_) => 0,
    };
    entries.map(size_of).sum()
}

/// Texts in the messages of skopeo and of registries, and the fix for each. The first match applies. The fix is shown in addition to the message.
const FIXES: [(&[&str], &str); 9] = [
    (
        &["no space left on device", "disk quota exceeded"],
        "remove images (`slurminit image remove NAME`), or use a larger disk",
    ),
    (
        &["no image found in"],
        "the registry has no image for this machine's architecture under this name; choose another tag",
    ),
    (&["proxyconnect"], "check HTTPS_PROXY and NO_PROXY"),
    (&["toomanyrequests", "429 Too Many Requests"], "log in to REGISTRY (`LOGIN`), or try again later"),
    (
        &["unauthorized", "authentication required", "denied", "401 Unauthorized", "403 Forbidden"],
        "check the name, and log in to REGISTRY: `LOGIN`",
    ),
    (&["manifest unknown", "name unknown", "404 Not Found", "StatusCode: 404"], "check the name and the tag"),
    (
        &["server gave HTTP response to HTTPS client"],
        "REGISTRY does not use TLS; to pull without TLS, add a table [[registry]] with location = \"REGISTRY\" and insecure = true to ~/.config/containers/registries.conf",
    ),
    (
        &["x509:", "tls:"],
        "check the name and dates in REGISTRY's certificate; if this machine does not trust its CA, save the CA certificate as ~/.config/containers/certs.d/REGISTRY/ca.crt, or add it to the system's CA certificates",
    ),
    (
        &[
            "no such host",
            "server misbehaving",
            "dial tcp",
            "connection reset",
            "EOF",
            "timeout",
            "no route",
            "unreachable",
        ],
        "check the network connection from this node to REGISTRY; if a proxy is required, set HTTPS_PROXY",
    ),
];

/// The command that stores the credentials where skopeo looks for them on every machine.
const LOGIN: &str = "skopeo login --authfile ~/.config/containers/auth.json REGISTRY";

/// The last message of skopeo, and the fix.
fn explain(messages: &str, reference: &Reference) -> (String, String) {
    let last = messages.lines().rfind(|line| !line.trim().is_empty()).unwrap_or_default();
    // The format is time="..." level=fatal msg="..."
    let text = last.split_once("msg=").map_or(last, |(_, text)| text);
    let text = text.strip_prefix('"').and_then(|text| text.strip_suffix('"')).unwrap_or(text).replace("\\\"", "\"");
    let fix = FIXES.iter().find(|(texts, _)| texts.iter().any(|part| text.contains(part)));
    let fix = fix.map_or("check the name and the network", |(_, fix)| *fix);
    let fix = fix.replace("LOGIN", LOGIN).replace("REGISTRY", reference.registry());
    (printable::short(&without_queries(&text), 400), fix)
}

/// Removes the queries from URLs: the storage behind a registry is accessed through signed URLs, which are secret until they expire.
fn without_queries(text: &str) -> String {
    let mut shown = String::new();
    let mut is_query = false;
    for character in text.chars() {
        is_query = match character {
            '?' => true,
            '"' | ' ' => false,
            _ => is_query,
        };
        if !is_query {
            shown.push(character);
        }
    }
    shown
}

#[cfg(test)]
mod tests {
    use super::*;

    fn explained(message: &str) -> (String, String) {
        let line = format!("time=\"2026-01-01T00:00:00Z\" level=fatal msg=\"{}\"\n", message.replace('"', "\\\""));
        explain(&line, &"registry.lab:5000/team/tools:1".parse().unwrap())
    }

    /// Messages of skopeo 1.18 and of Debian's docker-registry, Docker Hub and NVIDIA's registry.
    #[test]
    fn each_failure_of_a_registry_has_its_fix() {
        for (message, fix) in [
            (
                "initializing source docker://registry.lab:5000/team/tools:1: pinging container registry registry.lab:5000: Get \"http://registry.lab:5000/v2/\": dial tcp 10.0.0.1:5000: connect: connection refused",
                "network",
            ),
            (
                "pinging container registry registry.lab:5000: Get \"https://registry.lab:5000/v2/\": dial tcp: lookup registry.lab on 127.0.0.11:53: no such host",
                "network",
            ),
            (
                "pinging container registry registry.lab:5000: Get \"https://registry.lab:5000/v2/\": http: server gave HTTP response to HTTPS client",
                "insecure = true",
            ),
            (
                "pinging container registry registry.lab:5000: Get \"https://registry.lab:5000/v2/\": tls: failed to verify certificate: x509: certificate signed by unknown authority",
                "ca.crt",
            ),
            (
                "reading manifest 1 in registry.lab:5000/team/tools: unauthorized: authentication required",
                "skopeo login",
            ),
            ("reading manifest 1 in docker.io/team/tools: requested access to the resource is denied", "skopeo login"),
            ("reading manifest 1 in registry.lab:5000/team/tools: manifest unknown", "the tag"),
            (
                "reading manifest 1 in registry.lab:5000/team/tools: name unknown: repository name not known to registry",
                "the tag",
            ),
            (
                "choosing image instance: no image found in image index for architecture \"amd64\", variant \"\", OS \"linux\"",
                "architecture",
            ),
            (
                "reading manifest 1 in docker.io/x/y: toomanyrequests: You have reached your unauthenticated pull rate limit",
                "later",
            ),
            ("writing blob: write /x/oci-put-blob1: no space left on device", "larger disk"),
            (
                "pinging container registry x: Get \"https://x/v2/\": proxyconnect tcp: dial tcp 10.0.0.1:3128: connect: connection refused",
                "HTTPS_PROXY",
            ),
            ("proxyconnect tcp: tls: first record does not look like a TLS handshake", "HTTPS_PROXY"),
            ("something new", "check"),
        ] {
            let (why, found) = explained(message);
            assert_eq!(why, message);
            assert!(found.contains(fix), "{message}: {found}");
            assert!(!found.contains("REGISTRY") && !found.contains("LOGIN"), "{found}");
        }
    }

    #[test]
    fn hides_signed_urls() {
        let (why, _) = explained("Get \"https://storage.lab/blob?X-Amz-Signature=secret&x=secret\": EOF");
        assert_eq!(why, "Get \"https://storage.lab/blob\": EOF");
    }

    fn download(reserve: u64) -> Download {
        Download { reference: "registry.lab/tools:1".parse().unwrap(), environment: None, report: |_| {}, reserve }
    }

    /// Watches a download in which the script replaces skopeo.
    #[expect(clippy::disallowed_methods, reason = "a test is not PID 1, so it may have children")]
    fn watched(script: &str) -> String {
        let directory = tempfile::tempdir().unwrap();
        let mut child = Command::new("sh").args(["-c", script]).stderr(Stdio::piped()).spawn().unwrap();
        let errors = child.stderr.take().unwrap();
        let messages = download(0).watch(directory.path(), errors).unwrap();
        child.wait().unwrap();
        messages
    }

    #[test]
    fn reads_messages_until_download_ends() {
        assert_eq!(watched("printf 'one\\n' >&2; printf 'two' >&2"), "one\ntwo");
        assert_eq!(watched("head -c 100000 /dev/zero | tr '\\0' x >&2").len(), 65_536);
    }

    #[test]
    fn download_is_reported_every_10_s_and_given_up_after_120_s_without_data() {
        let start = Instant::now();
        let mut progress = Progress { received: 0, arrived: start, reported: start };
        for (second, bytes, expected) in [
            // A download that has not begun is not reported.
            (10, 0, Advance::Silent),
            (12, 1, Advance::Due),
            (21, 2, Advance::Silent),
            (22, 2, Advance::Due),
            (31, 3, Advance::Silent),
            (151, 3, Advance::Due),
            (152, 3, Advance::Stalled),
            (153, 4, Advance::Silent),
            (161, 4, Advance::Due),
        ] {
            let found = progress.advance(bytes, start + Duration::from_secs(second));
            assert_eq!((found, progress.received), (expected, bytes), "{second} s");
        }
    }

    #[test]
    fn download_keeps_reserve_of_disk() {
        let directory = tempfile::tempdir().unwrap();
        assert!(download(0).check_space(directory.path()).is_ok());
        let full = download(u64::MAX).check_space(directory.path());
        assert!(matches!(full, Err(ImageError::Space { reserve, .. }) if reserve == u64::MAX >> 20), "{full:?}");
    }

    #[test]
    fn size_includes_files_of_subdirectories() {
        let directory = tempfile::tempdir().unwrap();
        std::fs::create_dir_all(directory.path().join("a/b")).unwrap();
        for (name, bytes) in [("x", 10), ("a/y", 200), ("a/b/z", 3000)] {
            std::fs::write(directory.path().join(name), vec![0; bytes]).unwrap();
        }
        assert_eq!(size(directory.path()), 3210);
        assert_eq!(size(&directory.path().join("missing")), 0);
    }
}
