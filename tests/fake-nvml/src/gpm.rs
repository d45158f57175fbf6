//! GPM: metrics of a GPU between two samples.

use std::ffi::c_uint;
use std::time::Instant;

use nvml_wrapper_sys::bindings::{self as sys, nvmlDevice_t, nvmlGpmSample_t, nvmlReturn_t as Code};

use crate::answer::{code, put};
use crate::device::with_gpu;
use crate::fault::{Answer, At};
use crate::machine::Gpu;
use crate::state::machine;

/// The data behind a sample handle; `None` until the sample is taken.
type Sample = Option<TakenSample>;

#[derive(Clone, Copy)]
struct TakenSample {
    gpu: u32,
    instance: Option<u32>,
    at: Instant,
    values: Values,
}

/// Multiprocessor and tensor core utilization in percent, PCI Express sent and received in MiB/s.
type Values = [Option<f64>; 4];

/// IDs of the GPM metrics, in the order of [`Values`].
const METRICS: [c_uint; 4] = [
    sys::nvmlGpmMetricId_t_NVML_GPM_METRIC_SM_UTIL,
    sys::nvmlGpmMetricId_t_NVML_GPM_METRIC_ANY_TENSOR_UTIL,
    sys::nvmlGpmMetricId_t_NVML_GPM_METRIC_PCIE_TX_PER_SEC,
    sys::nvmlGpmMetricId_t_NVML_GPM_METRIC_PCIE_RX_PER_SEC,
];

const INVALID: Code = sys::nvmlReturn_enum_NVML_ERROR_INVALID_ARGUMENT;

/// Whether the GPU supports GPM.
///
/// # Safety
/// `out` is null or may be read and written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlGpmQueryDeviceSupport(device: nvmlDevice_t, out: *mut sys::nvmlGpmSupport_t) -> Code {
    with_gpu(device, At::Gpm, |_, gpu, answer| {
        // SAFETY: readable if not null: the caller upholds NVML's contract.
        let version = unsafe { out.as_ref() }.ok_or(INVALID)?.version;
        if version != sys::NVML_GPM_SUPPORT_VERSION {
            return Err(sys::nvmlReturn_enum_NVML_ERROR_ARGUMENT_VERSION_MISMATCH);
        }
        let support = sys::nvmlGpmSupport_t { version, isSupportedDevice: has_gpm(gpu).into() };
        // SAFETY: writable by the same contract.
        unsafe { put(answer, out, support) }
    })
}

fn has_gpm(gpu: &Gpu) -> bool {
    gpu.condition.tensor.is_some() || gpu.mig.instances().iter().any(|instance| instance.busy.is_some())
}

/// Allocates an empty sample.
///
/// # Safety
/// `out` is null or may be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlGpmSampleAlloc(out: *mut nvmlGpmSample_t) -> Code {
    code(|| {
        machine()?;
        let sample: Box<Sample> = Box::default();
        // SAFETY: the caller upholds NVML's contract.
        unsafe { put(Answer::Honest, out, Box::into_raw(sample).cast()) }
    })
}

/// # Safety
/// `sample` is from `nvmlGpmSampleAlloc` and not used again.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlGpmSampleFree(sample: nvmlGpmSample_t) -> Code {
    code(|| {
        if sample.is_null() {
            return Err(INVALID);
        }
        // SAFETY: by this function's contract the pointer is from `nvmlGpmSampleAlloc`, which makes it by `Box::into_raw` of this type.
        drop(unsafe { Box::from_raw(sample.cast::<Sample>()) });
        Ok(())
    })
}

/// Takes a sample.
///
/// # Safety
/// `sample` is from `nvmlGpmSampleAlloc`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlGpmSampleGet(device: nvmlDevice_t, sample: nvmlGpmSample_t) -> Code {
    with_gpu(device, At::Gpm, |_, gpu, _| {
        let condition = &gpu.condition;
        let tensor = condition.tensor.ok_or(sys::nvmlReturn_enum_NVML_ERROR_NOT_SUPPORTED)?;
        let (sent, received) = condition.pcie_mib.unzip();
        // SAFETY: the caller upholds this function's contract.
        unsafe { take(sample, gpu.index, None, [Some(condition.utilization.into()), Some(tensor), sent, received]) }
    })
}

/// Takes a sample of a GPU instance.
///
/// # Safety
/// `sample` is from `nvmlGpmSampleAlloc`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlGpmMigSampleGet(device: nvmlDevice_t, number: c_uint, sample: nvmlGpmSample_t) -> Code {
    with_gpu(device, At::Gpm, |_, gpu, _| {
        let instance = gpu.mig.instances().iter().find(|instance| instance.gi == number).ok_or(INVALID)?;
        let (sm, tensor) = instance.busy.ok_or(sys::nvmlReturn_enum_NVML_ERROR_NOT_SUPPORTED)?;
        // SAFETY: the caller upholds this function's contract.
        unsafe { take(sample, gpu.index, Some(number), [Some(sm), Some(tensor), None, None]) }
    })
}

/// # Safety
/// `sample` is null or from `nvmlGpmSampleAlloc`.
unsafe fn take(sample: nvmlGpmSample_t, gpu: u32, instance: Option<u32>, values: Values) -> Result<(), Code> {
    // SAFETY: by this function's contract the pointer is null or points to a `Sample`.
    let sample = unsafe { sample.cast::<Sample>().as_mut() }.ok_or(INVALID)?;
    *sample = Some(TakenSample { gpu, instance, at: Instant::now(), values });
    Ok(())
}

/// Metrics between two samples of one GPU; the first sample must be older.
///
/// # Safety
/// `request` is null or may be read and written; its samples are null or from `nvmlGpmSampleAlloc`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlGpmMetricsGet(request: *mut sys::nvmlGpmMetricsGet_t) -> Code {
    code(|| {
        machine()?;
        // SAFETY: the caller upholds NVML's contract.
        let request = unsafe { request.as_mut() }.ok_or(INVALID)?;
        if request.version != sys::NVML_GPM_METRICS_GET_VERSION {
            return Err(sys::nvmlReturn_enum_NVML_ERROR_ARGUMENT_VERSION_MISMATCH);
        }
        let [first, second] = [request.sample1, request.sample2].map(|sample| {
            // SAFETY: by this function's contract the pointer is null or points to a `Sample`.
            unsafe { sample.cast::<Sample>().as_ref() }.copied().flatten()
        });
        let (first, second) = first.zip(second).ok_or(INVALID)?;
        if (first.gpu, first.instance) != (second.gpu, second.instance) || first.at >= second.at {
            return Err(INVALID);
        }
        for metric in request.metrics.iter_mut().take(request.numMetrics as usize) {
            let position = METRICS.iter().position(|id| *id == metric.metricId);
            let values = position.and_then(|position| first.values[position].zip(second.values[position]));
            (metric.nvmlReturn, metric.value) = match values {
                Some((first, second)) => (sys::nvmlReturn_enum_NVML_SUCCESS, f64::midpoint(first, second)),
                None => (sys::nvmlReturn_enum_NVML_ERROR_NOT_SUPPORTED, 0.0),
            };
        }
        Ok(())
    })
}
