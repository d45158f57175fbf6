//! Waits for the process that queries NVML. Without persistence mode, the driver initializes each GPU at its first use, which
//! takes seconds.

use std::path::Path;
use std::time::{Duration, Instant};

use super::NvmlProbeError;
use super::nvml::{Detected, Step};
use super::places::BusOrder;
use super::proc;
use crate::vendor::Deadlines;
use model::inventory::{Access, Condition, Driver, Gpu, Obstacle, Source, Vendor};
use model::message;
use sys::report;
use sys::sandbox::{Sandbox, SandboxError};

/// After this time, the progress is logged.
const PROGRESS_DELAY: Duration = Duration::from_secs(2);

/// Receives all answers, each by its deadline. At the first timeout, the GPUs that have not answered are [`Obstacle::Starting`]; before NVML
/// has counted the GPUs, a timeout is an error.
pub(super) fn wait(root: &Path, steps: &mut Sandbox<Step>, deadlines: Deadlines) -> Result<Detected, NvmlProbeError> {
    let (mut deadline, mut count, mut gpus) = (deadlines.library, None, Vec::new());
    let began = Instant::now();
    loop {
        let step = match steps.next(deadline) {
            Ok(step) => step,
            Err(SandboxError::TimedOut(time)) => {
                return count
                    .map(|count| partial_probe(root, gpus, count, time))
                    .ok_or(NvmlProbeError::Sandbox(SandboxError::TimedOut(time)));
            }
            Err(why) => return Err(NvmlProbeError::Sandbox(why)),
        };
        match step {
            Step::Counted(all) => count = Some(all),
            Step::Gpu(gpu) => gpus.push(*gpu),
            Step::Done(probe) => return Ok(*probe),
            Step::Failed(failure) => return Err(NvmlProbeError::Nvml(failure)),
            Step::Conditions(_) => {}
        }
        deadline = (Instant::now() + deadlines.each_gpu).min(deadlines.all_gpus);
        if let Some(all) = count.filter(|_| began.elapsed() >= PROGRESS_DELAY) {
            report_progress(root, &gpus, all);
        }
    }
}

/// The condition of the GPUs, which is the last answer.
pub(super) fn conditions(steps: &mut Sandbox<Step>, deadline: Instant) -> Option<Vec<Condition>> {
    match steps.next(deadline) {
        Ok(Step::Conditions(Ok(conditions))) => Some(conditions),
        _ => None,
    }
}

fn report_progress(root: &Path, gpus: &[Gpu], all: u32) {
    let next = u32::try_from(gpus.len()).unwrap_or(u32::MAX);
    if next < all {
        report::info(message!(
            "gpus-initializing",
            "{ready} of {all} NVIDIA GPUs initialized; waiting for {gpu}",
            ready = next,
            all,
            gpu = display_name(root, next, all)
        ));
    }
}

/// The name of a GPU for messages: `GPU 3 (0000:13:00.0)`.
fn display_name(root: &Path, index: u32, all: u32) -> String {
    let place = BusOrder::read(root, all).identity(root, index).pci_address;
    place.map_or_else(|| format!("GPU {index}"), |address| format!("GPU {index} ({address})"))
}

/// The GPUs that NVML initialized in time, and the others as [`Obstacle::Starting`].
fn partial_probe(root: &Path, mut gpus: Vec<Gpu>, all: u32, time: Duration) -> Detected {
    let first = u32::try_from(gpus.len()).unwrap_or(u32::MAX);
    let names: Vec<String> = (first..all).map(|index| display_name(root, index, all)).collect();
    report::warn(message!(
        "gpus-not-awaited",
        "{ready} of {all} NVIDIA GPUs initialized; not waiting for {gpus}; a GPU becomes available to jobs once it is initialized",
        ready = first,
        all,
        gpus = names.join(", ")
    ));
    let known = proc::probe(root, crate::device::access_without_open);
    let bus_order = BusOrder::read(root, all);
    for index in first..all {
        let identity = bus_order.identity(root, index);
        let gpu = known.gpus.iter().find(|gpu| gpu.pci_address.is_some() && gpu.pci_address == identity.pci_address);
        let reason = format!("not initialized by the driver within {:.1} s", time.as_secs_f64());
        gpus.push(Gpu {
            index,
            mig: None,
            access: Access::unusable(Obstacle::Starting, reason),
            ..gpu.cloned().unwrap_or_else(|| proc::unknown_gpu(index))
        });
    }
    let driver = Driver { vendor: Vendor::Nvidia, source: Source::Nvml, version: None, cuda_version: None };
    Detected {
        driver: known.driver.map_or(driver.clone(), |known| Driver { source: driver.source, ..known }),
        gpus,
        unknown_to_nvml: Vec::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_gpu_by_its_number_and_by_its_address_where_proc_lists_all() {
        let information =
            |address: &str| (format!("proc/driver/nvidia/gpus/{address}/information"), "Device Minor: 0\n");
        let root = crate::tests::tree(&[information("0000:0a:00.0"), information("0000:17:00.0")]);
        assert_eq!(display_name(root.path(), 1, 2), "GPU 1 (0000:17:00.0)");
        assert_eq!(display_name(root.path(), 1, 3), "GPU 1");
    }

    #[test]
    fn gpus_that_did_not_answer_are_starting() {
        let information = |address: &str, minor: u32| {
            (format!("proc/driver/nvidia/gpus/{address}/information"), format!("Device Minor: {minor}\n"))
        };
        let root = crate::tests::tree(&[information("0000:0a:00.0", 0), information("0000:17:00.0", 1)]);
        let answered = Gpu { index: 0, uuid: Some("GPU-0".to_owned()), ..Gpu::default() };
        let found = partial_probe(root.path(), vec![answered.clone()], 2, Duration::from_millis(6_500));
        let [first, second] = found.gpus.as_slice() else { panic!("{found:?}") };
        assert_eq!(first, &answered);
        assert_eq!((second.index, second.minor, second.mig.clone()), (1, Some(1), None));
        let Access::Unusable { reason, obstacle } = &second.access else { panic!("{second:?}") };
        assert!(*obstacle == Obstacle::Starting && reason.contains("6.5 s"), "{reason}");
        assert_eq!(found.driver.source, Source::Nvml);
    }
}
