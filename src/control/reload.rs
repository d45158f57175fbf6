//! Requests a reload from PID 1 and waits for its outcome.

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::Context as _;

use crate::{StatusWatcher, client, status};
use machine::protocol::{self, Reply, Request};
use machine::{ASSOCIATIONS_TIMEOUT, LastReload, PhaseName};
use model::supervise::Supervise;

/// The additional time that a reload may take beyond the sum of its deadlines, for a busy machine.
const MARGIN: Duration = Duration::from_secs(30);
/// The longest interval between two reads of the status.
const MAX_READ_INTERVAL: Duration = Duration::from_secs(1);

/// Requests a reload, and waits until it has ended.
///
/// # Errors
/// The request fails or gets an unexpected reply, slurminit stops, or the reload does not end in time.
pub fn reload(run: &Path, deadlines: &Supervise) -> anyhow::Result<LastReload> {
    let watcher = StatusWatcher::of(run);
    let (reply, _) = client::ask(&protocol::socket(run), &Request::Reload)?;
    let Reply::Reloading { asked } = reply else {
        anyhow::bail!(
            "slurminit sent an unexpected reply ({reply:?}); use the version of slurminit that started the cluster"
        )
    };
    let timeout = deadlines.prepare_timeout() + deadlines.ready_timeout * 2 + ASSOCIATIONS_TIMEOUT + MARGIN;
    let start = Instant::now();
    loop {
        let status = status::read(run).ok();
        let reload = status.as_ref().map(|status| &status.snapshot.reload);
        if let Some(last) = reload.and_then(|reload| reload.last.clone()).filter(|last| last.serves >= asked) {
            return Ok(last);
        }
        let is_stopping = status
            .is_some_and(|status| status.snapshot.phase == PhaseName::Stopping || !status::is_process_alive(&status));
        anyhow::ensure!(!is_stopping, "slurminit is stopping or has stopped");
        let left = timeout.checked_sub(start.elapsed()).filter(|left| !left.is_zero());
        let left = left.with_context(|| {
            let seconds = timeout.as_secs();
            format!("the reload did not finish within {seconds} s; see /var/log/slurminit.log or `docker logs`")
        })?;
        // On a full disk the status file is overwritten in place, which causes no event.
        watcher.wait(left.min(MAX_READ_INTERVAL));
    }
}
