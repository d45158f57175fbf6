//! Values by field ID.

use std::ffi::{c_int, c_uint, c_ulonglong};

use nvml_wrapper_sys::bindings::{self as sys, nvmlDevice_t, nvmlReturn_t as Code};

use crate::device::with_gpu;
use crate::fault::At;
use crate::machine::Gpu;

/// Value of a field (`NVML_FI_DEV_...` in nvml.h); `None` if it is not supported.
fn value(gpu: &Gpu, field: c_uint) -> Option<Value> {
    let condition = &gpu.condition;
    match field {
        field if gpu.lacks_fields.contains(&field) => None,
        142 | 143 => Some(Value::Short(0)),
        144 => Some(Value::Short(condition.remap_pending.into())),
        145 => Some(Value::Short(condition.remap_failed.into())),
        197 => condition.pcie_bytes.map(|(sent, _)| Value::Long(sent)),
        198 => condition.pcie_bytes.map(|(_, received)| Value::Long(received)),
        230 => condition.recovery_action.map(Value::Short),
        _ => None,
    }
}

enum Value {
    Short(c_uint),
    Long(c_ulonglong),
}

/// Field values, with one return code per field.
///
/// # Safety
/// `values` holds `count` fields.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetFieldValues(
    device: nvmlDevice_t,
    count: c_int,
    values: *mut sys::nvmlFieldValue_t,
) -> Code {
    with_gpu(device, At::Fields, |_, gpu, _| {
        let count = usize::try_from(count).unwrap_or_default();
        if values.is_null() || count == 0 {
            return Err(sys::nvmlReturn_enum_NVML_ERROR_INVALID_ARGUMENT);
        }
        // SAFETY: not null, and the caller upholds NVML's contract.
        for field in unsafe { std::slice::from_raw_parts_mut(values, count) } {
            field.valueType = sys::nvmlValueType_enum_NVML_VALUE_TYPE_UNSIGNED_INT;
            field.nvmlReturn = match value(gpu, field.fieldId) {
                Some(Value::Short(value)) => {
                    field.value.uiVal = value;
                    sys::nvmlReturn_enum_NVML_SUCCESS
                }
                Some(Value::Long(value)) => {
                    field.valueType = sys::nvmlValueType_enum_NVML_VALUE_TYPE_UNSIGNED_LONG_LONG;
                    field.value.ullVal = value;
                    sys::nvmlReturn_enum_NVML_SUCCESS
                }
                None => sys::nvmlReturn_enum_NVML_ERROR_NOT_SUPPORTED,
            };
        }
        Ok(())
    })
}
