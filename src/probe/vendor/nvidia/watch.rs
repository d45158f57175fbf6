//! Samples NVIDIA's GPUs through NVML, and receives NVML's events.

use std::collections::BTreeSet;
use std::io;
use std::mem::ManuallyDrop;
use std::path::Path;
use std::time::{Duration, Instant};

use nvml_wrapper::bitmasks::event::EventTypes;
use nvml_wrapper::enums::event::XidError;
use nvml_wrapper::error::NvmlError;
use nvml_wrapper::{Device, EventSet, Nvml};

use super::nvml::{self, Answers, Meters, NvmlFailure};
use super::places::BusOrder;
use super::{condition, proc, readings};
use crate::device;
use crate::live::{self, Options, SendLine, fault_of_access, pause, sample_gpu};
use faults::fault::FaultKind;
use faults::sample::{GpuSample, Identity, Key, Line};
use faults::xid::UNKNOWN_XID;
use model::inventory::{Obstacle, Vendor};

/// The longest wait for an event in one call.
const MAX_EVENT_WAIT: Duration = Duration::from_secs(1);
/// The pause after an event before the next sample, so that related events arrive first.
const AFTER_EVENT: Duration = Duration::from_millis(20);

/// Samples until `send` fails. Without the library, reads the kernel's files. With [`Options::all_closed`], only lists the GPUs.
pub(super) fn watch(options: &Options, send: SendLine<'_>) -> io::Result<()> {
    if options.all_closed {
        return live::list_closed(options, send);
    }
    loop {
        match nvml::load(&options.root, options.library.as_deref()) {
            Ok(nvml) => watch_nvml(options, &ManuallyDrop::new(nvml), send)?,
            Err(NvmlFailure::LibraryMissing(_)) => return live::watch_files(options, send),
            Err(failure) => send(&Line::Trouble { kind: fault_kind(&failure), what: failure.to_string() })?,
        }
        pause(options.interval);
    }
}

/// Samples one GPU once, and opens no other.
pub(super) fn check(options: &Options, gpu: &Identity, send: SendLine<'_>) -> io::Result<()> {
    let nvml = match nvml::load(&options.root, options.library.as_deref()) {
        Ok(nvml) => ManuallyDrop::new(nvml),
        Err(failure) => return send(&Line::Trouble { kind: fault_kind(&failure), what: failure.to_string() }),
    };
    let count = match nvml::count(&nvml) {
        Ok(count) => count,
        Err(failure) => return send(&Line::Trouble { kind: fault_kind(&failure), what: failure.to_string() }),
    };
    let bus_order = BusOrder::read(&options.root, count);
    let index = (0..count).find(|index| bus_order.is_at(*index, gpu));
    let found = index.and_then(|index| identify(options, &nvml, index));
    // Another card in the same slot has another UUID.
    let found = found.filter(|(own, _)| gpu.uuid.is_none() || own.uuid == gpu.uuid);
    let lost = || GpuSample { trouble: Some(FaultKind::Lost), ..GpuSample::default() };
    let seen = found.map_or_else(lost, |(identity, device)| sample(&options.root, &identity, &device));
    send(&Line::Seen { gpu: gpu.key(), seen: Box::new(seen) })
}

fn fault_kind(failure: &NvmlFailure) -> FaultKind {
    match failure {
        NvmlFailure::UnknownError { .. } => FaultKind::DeviceDenied,
        _ => FaultKind::Lost,
    }
}

/// Returns when the library must be initialised again.
fn watch_nvml(options: &Options, nvml: &Nvml, send: SendLine<'_>) -> io::Result<()> {
    let mut events: Option<EventSet<'_>> = None;
    let mut registered = 0;
    let mut opened = BTreeSet::new();
    let mut meters = Meters::new(nvml);
    loop {
        let next = Instant::now() + options.interval;
        let count = match nvml::count(nvml) {
            Ok(count) => count,
            Err(failure) => return send(&Line::Trouble { kind: fault_kind(&failure), what: failure.to_string() }),
        };
        let bus_order = BusOrder::read(&options.root, count);
        let (mut devices, mut gpus) = (Vec::new(), Vec::new());
        for index in 0..count {
            if let Some(closed) = options.closed.iter().find(|closed| bus_order.is_at(index, closed)) {
                gpus.push(closed.clone());
                continue;
            }
            // The first use of a GPU can take seconds.
            if opened.insert(index) {
                send(&Line::Opening { gpu: bus_order.identity(&options.root, index) })?;
            }
            if let Some((identity, device)) = identify(options, nvml, index) {
                gpus.push(identity.clone());
                devices.push((identity, device));
            }
        }
        if devices.len() != registered || events.is_none() {
            registered = devices.len();
            events = register(nvml, &devices);
        }
        send(&Line::Listed { gpus })?;
        for (identity, device) in &devices {
            sample_gpu(options, identity, send, || {
                let mut seen = sample(&options.root, identity, device);
                if seen.trouble.is_none() {
                    meters.read_mig(&identity.key(), device, &mut seen.readings);
                    if options.meters {
                        meters.read(&identity.key(), device, &mut seen.readings);
                    }
                }
                seen
            })?;
        }
        send(&Line::Done)?;
        if !forward_events(events.as_ref(), &devices, next, send)? {
            events = None;
        }
    }
}

/// The identity and handle of a GPU. `None` if NVML returns no handle, or reports that the GPU is lost or needs a reset: a GPU that was listed
/// before is then lost, and a GPU that was not passed to the container is never listed.
fn identify<'a>(options: &Options, nvml: &'a Nvml, index: u32) -> Option<(Identity, Device<'a>)> {
    let device = nvml.device_by_index(index).ok()?;
    let answers = Answers::default();
    let pci_address = answers.of(device.pci_info()).and_then(|info| info.bus_id.parse().ok());
    let minor = answers.of(device.minor_number()).or_else(|| proc::minor_of(&options.root, pci_address?));
    let identity = Identity {
        vendor: Vendor::Nvidia,
        index,
        uuid: answers.of(device.uuid()).and_then(nvml::identifier),
        pci_address,
        model: answers.of(device.name()).and_then(|text| nvml::name(&text)),
        file: minor.and_then(|minor| file_of(&options.root, minor)),
    };
    (answers.obstacle().is_none()).then_some((identity, device))
}

fn file_of(root: &Path, minor: u32) -> Option<String> {
    proc::device_file(root, Some(minor), device::access_without_open).0.map(|file| file.display().to_string())
}

fn sample(root: &Path, identity: &Identity, device: &Device<'_>) -> GpuSample {
    // The driver still answers a process that has the device open, even if new processes are denied access.
    if let Some(trouble) = identity
        .file
        .as_deref()
        .and_then(|file| fault_of_access(&device::access_without_open(&root.join(file.trim_start_matches('/')))))
    {
        return GpuSample { trouble: Some(trouble), ..GpuSample::default() };
    }
    let answers = Answers::default();
    let condition = condition::condition(identity.index, device);
    let readings = readings::of_nvml(device, &answers);
    let is_lost = condition.obstacle == Some(Obstacle::Lost) || answers.obstacle().is_some();
    GpuSample { condition, readings, trouble: is_lost.then_some(FaultKind::Lost) }
}

/// Subscribes to the critical Xid events of these GPUs; `None` if no subscription succeeds.
fn register<'a>(nvml: &'a Nvml, devices: &[(Identity, Device<'a>)]) -> Option<EventSet<'a>> {
    let mut candidates: Vec<&Device<'a>> = devices.iter().map(|(_, device)| device).collect();
    // A GPU that does not support events makes the whole event set fail, so a new set is created without that GPU.
    'new_set: while !candidates.is_empty() {
        let mut set = nvml.create_event_set().ok()?;
        for position in 0..candidates.len() {
            match candidates[position].register_events(EventTypes::CRITICAL_XID_ERROR, set) {
                Ok(same) => set = same,
                Err(_) => {
                    candidates.remove(position);
                    continue 'new_set;
                }
            }
        }
        return Some(set);
    }
    None
}

/// Forwards events until the next sample is due; returns whether the event set, if there is one, is still valid.
fn forward_events(
    events: Option<&EventSet<'_>>,
    devices: &[(Identity, Device<'_>)],
    mut next: Instant,
    send: SendLine<'_>,
) -> io::Result<bool> {
    let Some(events) = events else {
        pause(next.saturating_duration_since(Instant::now()));
        return Ok(true);
    };
    loop {
        let remaining = next.saturating_duration_since(Instant::now());
        if remaining.is_zero() {
            return Ok(true);
        }
        let timeout = remaining.min(MAX_EVENT_WAIT).as_millis().max(1);
        match events.wait(u32::try_from(timeout).unwrap_or(u32::MAX)) {
            Ok(event) => {
                let key = event.device.uuid().ok().and_then(|uuid| key_of(devices, &uuid));
                let xid = event.event_data.map(|xid| match xid {
                    XidError::Value(xid) => u32::try_from(xid).unwrap_or(u32::MAX),
                    XidError::Unknown => UNKNOWN_XID,
                });
                if let Some(xid) = xid {
                    send(&Line::Event { gpu: key, xid })?;
                    next = next.min(Instant::now() + AFTER_EVENT);
                }
            }
            Err(NvmlError::Timeout) => {}
            // The event set may be invalid. The next sample shows which GPU has a fault.
            Err(_) => {
                pause(remaining.min(MAX_EVENT_WAIT));
                return Ok(false);
            }
        }
    }
}

fn key_of(devices: &[(Identity, Device<'_>)], uuid: &str) -> Option<Key> {
    devices.iter().find(|(identity, _)| identity.uuid.as_deref() == Some(uuid)).map(|(identity, _)| identity.key())
}
