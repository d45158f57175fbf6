//! `slurminit image pull`: skopeo downloads an image from a registry, and streams it into the import.

use std::io::Read as _;
use std::process::{Child, Command, Stdio};
use std::thread::JoinHandle;

use anyhow::Context as _;

/// Limit of skopeo's messages, in bytes. The rest is discarded.
const MAX_MESSAGES: u64 = 64 << 10;

/// The scheme of a registry, the only one that is accepted.
const SCHEME: &str = "docker://";

/// A running download.
pub(super) struct Pull {
    skopeo: Child,
    messages: JoinHandle<String>,
}

impl Pull {
    /// Starts the download of `reference`, such as `docker://ghcr.io/owner/image:tag`; the scheme may be missing.
    #[expect(clippy::disallowed_methods, reason = "this process is not PID 1 and waits only for its own child")]
    pub(super) fn start(reference: &str) -> anyhow::Result<Self> {
        let name = reference.strip_prefix(SCHEME).unwrap_or(reference);
        let mut command = Command::new("skopeo");
        command.args(["copy", "--quiet", &format!("{SCHEME}{name}"), "docker-archive:/dev/stdout"]);
        let mut skopeo = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().context(
            "skopeo is not installed here: add the package to your image, or pipe `docker save` into `slurminit image import`",
        )?;
        let errors = skopeo.stderr.take().context("skopeo has no standard error")?;
        let messages = std::thread::spawn(move || {
            let mut text = Vec::new();
            let mut errors = errors.take(MAX_MESSAGES);
            let _ = errors.read_to_end(&mut text);
            // A full pipe would block skopeo.
            let _ = std::io::copy(&mut errors.into_inner(), &mut std::io::sink());
            String::from_utf8_lossy(&text).trim().to_owned()
        });
        Ok(Self { skopeo, messages })
    }

    /// The archive.
    pub(super) fn archive(&mut self) -> anyhow::Result<impl std::io::Read + use<>> {
        self.skopeo.stdout.take().context("skopeo has no standard output")
    }

    /// Waits for the end of the download, after the archive was read or dropped.
    ///
    /// # Errors
    /// skopeo failed; the error contains its last message.
    #[expect(clippy::disallowed_methods, reason = "this process is not PID 1 and waits only for its own child")]
    pub(super) fn finish(mut self) -> anyhow::Result<()> {
        let status = self.skopeo.wait()?;
        let messages = self.messages.join().unwrap_or_default();
        let last = messages.lines().last().unwrap_or("no message");
        anyhow::ensure!(status.success(), "skopeo: {status}: {}", model::printable::short(last, 400));
        Ok(())
    }
}
