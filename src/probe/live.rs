//! Samples the GPUs of one vendor periodically, and receives the driver's events.
//!
//! A watcher is a separate process. The process that reads its lines kills it when a driver hangs.

use std::io;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use super::vendor;
use faults::fault::FaultKind;
use faults::sample::{GpuSample, Identity, Line};
use model::inventory::{Access, Obstacle, Vendor};

/// The maximum plausible power draw: 100 kW.
pub(crate) const MAX_POWER_MW: u64 = 100_000_000;

/// The parameters of a watcher.
#[derive(Clone, Debug)]
pub struct Options {
    /// The directory that contains `/proc`, `/sys` and `/dev`.
    pub root: PathBuf,
    /// The path of NVIDIA's management library, if configured.
    pub library: Option<PathBuf>,
    /// The vendor of the GPUs to sample.
    pub vendor: Vendor,
    /// The sampling interval.
    pub interval: Duration,
    /// GPUs that are listed but neither opened nor queried: they do not respond, or are left to the host's administrator.
    pub closed: Vec<Identity>,
    /// Whether `closed` contains all GPUs of the vendor, so that no vendor library is loaded.
    pub all_closed: bool,
    /// If set, only this GPU is sampled, and only once (NVIDIA only).
    pub only: Option<Identity>,
    /// Whether to also take the measurements that need extra calls (tensor cores, PCI Express), for whole GPUs only.
    pub meters: bool,
}

/// Sends a line to the process that reads the watcher's output. An error ends the watcher.
pub type SendLine<'a> = &'a mut dyn FnMut(&Line) -> io::Result<()>;

/// Samples one GPU, unless [`Options::closed`] contains it.
pub(crate) fn sample_gpu(
    options: &Options,
    identity: &Identity,
    send: SendLine<'_>,
    sample: impl FnOnce() -> GpuSample,
) -> io::Result<()> {
    let gpu = identity.key();
    if options.closed.iter().any(|closed| closed.key() == gpu) {
        return Ok(());
    }
    send(&Line::Asking { gpu: gpu.clone() })?;
    let seen = Box::new(sample());
    send(&Line::Seen { gpu, seen })
}

/// Lists only the closed GPUs, without a vendor library, which may open GPUs when it is initialized.
pub(crate) fn list_closed(options: &Options, send: SendLine<'_>) -> io::Result<()> {
    loop {
        send(&Line::Listed { gpus: options.closed.clone() })?;
        send(&Line::Done)?;
        pause(options.interval);
    }
}

/// The fault if the device cgroup denies the device file, or if no working GPU is behind it; `None` if it is usable, and for all other
/// obstacles, such as a permission error of this user.
pub(crate) fn fault_of_access(access: &Access) -> Option<FaultKind> {
    match access.obstacle()? {
        Obstacle::Denied => Some(FaultKind::DeviceDenied),
        Obstacle::Lost | Obstacle::NoDriver => Some(FaultKind::Lost),
        _ => None,
    }
}

/// Samples the GPUs from the kernel's files until `send` fails.
pub(crate) fn watch_files(options: &Options, send: SendLine<'_>) -> io::Result<()> {
    let (root, vendor) = (&options.root, vendor::probe_of(options.vendor));
    let mut events = vendor.events();
    loop {
        let next = Instant::now() + options.interval;
        // A GPU that was not passed to this container is not monitored.
        let mut gpus = vendor.list(root);
        gpus.retain(|gpu| gpu.access.obstacle() != Some(Obstacle::NotGiven));
        let identities: Vec<Identity> = gpus.iter().map(Identity::from).collect();
        send(&Line::Listed { gpus: identities.clone() })?;
        for (gpu, name) in gpus.iter().zip(&identities) {
            sample_gpu(options, name, send, || {
                let (condition, readings) = vendor.sample(root, gpu);
                GpuSample { trouble: fault_of_access(&gpu.access), condition, readings }
            })?;
        }
        send(&Line::Done)?;
        events.follow(root, &identities);
        events.receive(next, send)?;
    }
}

#[expect(clippy::disallowed_methods, reason = "this process does nothing else, and is ended from outside")]
pub(crate) fn pause(time: Duration) {
    std::thread::sleep(time);
}

#[cfg(test)]
mod tests;
