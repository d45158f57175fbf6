//! The vendors' probes: each is a module that implements [`VendorProbe`].

pub mod amd;
pub mod intel;
pub mod nvidia;

use std::io;
use std::path::Path;
use std::time::{Duration, Instant};

use super::live::{self, SendLine, pause};
use super::{Options, ProbeResult, job_map};
use faults::sample::Identity;
use model::inventory::{Condition, Finding, Gpu, Kind, Obstacle, Readings, Traits, Vendor};
use sys::sandbox::{Sandbox, SandboxError};

/// The probe of a vendor.
pub fn probe_of(vendor: Vendor) -> &'static dyn VendorProbe {
    match vendor {
        Vendor::Nvidia => &nvidia::Nvidia,
        Vendor::Amd => &amd::Amd,
        Vendor::Intel => &intel::Intel,
    }
}

/// The deadlines of a detection.
#[derive(Clone, Copy, Debug)]
pub struct Deadlines {
    /// The deadline for the first answer of a vendor's library. If it passes, the kernel's files are read instead.
    pub library: Instant,
    /// The deadline for reading the kernel's files.
    pub files: Instant,
    /// The time limit of a vendor's library for each GPU, whose first use can take seconds.
    pub each_gpu: Duration,
    /// The deadline for all GPUs together, if the library reports them one by one.
    pub all_gpus: Instant,
}

impl Deadlines {
    /// The deadline for reading the kernel's files after a library has failed, even if it failed late.
    pub fn for_files(&self) -> Instant {
        self.files.max(Instant::now() + self.each_gpu / 6)
    }
}

/// Completes a started detection.
pub type Finish = Box<dyn FnOnce(Deadlines) -> ProbeResult>;

/// A vendor's GPUs in this container. Without a vendor library, everything is read from the kernel's files.
pub trait VendorProbe: Sync {
    /// Whether GPUs of the vendor may exist: a cheap test of paths, which saves starting a process.
    fn has_traces(&self, root: &Path) -> bool;

    /// Reads the kernel's files, and opens each device as a job would. Call it only inside the sandbox.
    fn probe(&self, root: &Path) -> ProbeResult;

    /// The GPUs, from the kernel's files alone. No device is opened, because that would wake or initialize it.
    fn list(&self, root: &Path) -> Vec<Gpu>;

    /// Starts a detection in a child process; `None` if there is nothing to detect.
    fn start(&'static self, vendor: Vendor, options: &Options) -> Option<Finish> {
        if !self.has_traces(&options.root) {
            return None;
        }
        let sandbox = Sandbox::start(|| self.probe(&options.root));
        Some(Box::new(move |deadlines| {
            sandbox.finish(deadlines.files).unwrap_or_else(|why| failed_probe(vendor, &why))
        }))
    }

    /// Samples the GPUs until `send` fails; with [`live::Options::only`], samples one GPU once.
    ///
    /// # Errors
    /// The process that reads the lines has ended, or waiting for events failed.
    fn watch(&self, options: &live::Options, send: SendLine<'_>) -> io::Result<()> {
        live::watch_files(options, send)
    }

    /// The condition and measurements of a GPU.
    fn sample(&self, _root: &Path, gpu: &Gpu) -> (Condition, Readings) {
        (Condition { index: gpu.index, ..Condition::default() }, Readings::default())
    }

    /// The name and format of a device's file in the map of [`job_map`]; `None` for a device of another vendor, or whose
    /// number is unknown.
    fn map_entry(&self, _root: &Path, _device: &str) -> Option<(String, job_map::Format)> {
        None
    }

    /// The events that the kernel's driver reports.
    fn events(&self) -> Box<dyn Events> {
        Box::new(NoEvents)
    }
}

/// Events of a driver between two samples.
pub trait Events {
    /// Subscribes to the events of these GPUs, if not yet subscribed.
    fn follow(&mut self, root: &Path, gpus: &[Identity]);

    /// Forwards the events until the deadline.
    ///
    /// # Errors
    /// The process that reads the lines has ended, or waiting for events failed.
    fn receive(&mut self, until: Instant, send: SendLine<'_>) -> io::Result<()>;
}

/// A driver that reports no events.
struct NoEvents;

impl Events for NoEvents {
    fn follow(&mut self, _: &Path, _: &[Identity]) {}

    fn receive(&mut self, until: Instant, _: SendLine<'_>) -> io::Result<()> {
        pause(until.saturating_duration_since(Instant::now()));
        Ok(())
    }
}

fn failed_probe(vendor: Vendor, why: &SandboxError) -> ProbeResult {
    let (cause, fix) = match why {
        SandboxError::NotStarted(_) | SandboxError::Unreadable(_) => SandboxError::NO_PROCESS,
        _ => Obstacle::Hang.cause_and_fix(vendor),
    };
    let Traits { interface, maker, .. } = vendor.traits();
    let what = format!("the query of {interface} {why}; no {maker} GPU is used");
    ProbeResult { findings: vec![Finding::warning(Kind::DriverFails, what, cause, fix)], ..ProbeResult::default() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_have_time_even_after_a_late_library() {
        let (now, second) = (Instant::now(), Duration::from_secs(1));
        let deadline = |files| Deadlines { library: now, files, each_gpu: 60 * second, all_gpus: now }.for_files();
        let later = now + 3600 * second;
        assert_eq!(deadline(later), later);
        let late = deadline(now) - now;
        assert!((10 * second..40 * second).contains(&late), "{late:?}");
    }

    #[test]
    fn failed_probe_distinguishes_hung_driver_from_missing_process() {
        let finding = |why: &SandboxError| failed_probe(Vendor::Amd, why).findings.remove(0);
        let hung = finding(&SandboxError::TimedOut(Duration::from_secs(7)));
        assert_eq!((hung.kind, hung.fix.as_str()), (Kind::DriverFails, Obstacle::Hang.cause_and_fix(Vendor::Amd).1));
        let without_process = finding(&SandboxError::NotStarted(nix::errno::Errno::EAGAIN));
        assert_eq!(without_process.cause, SandboxError::NO_PROCESS.0);
    }
}
