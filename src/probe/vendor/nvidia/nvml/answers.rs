//! Collects NVML's answers about one GPU.

use std::cell::Cell;

use nvml_wrapper::error::NvmlError;

use model::inventory::{Access, Obstacle};

/// The answers about one GPU. A failed call costs only its own fact, unless the error says that the GPU is gone.
#[derive(Debug, Default)]
pub(crate) struct Answers {
    gone: Cell<Option<&'static str>>,
}

impl Answers {
    /// The value, if the call succeeded.
    pub(crate) fn of<T>(&self, answer: Result<T, NvmlError>) -> Option<T> {
        if let Err(error) = &answer {
            self.gone.set(self.gone.get().or_else(|| gone(error)));
        }
        answer.ok()
    }

    /// The reason why the GPU is unusable, if any call reported that it is gone.
    pub(crate) fn obstacle(&self) -> Option<Access> {
        self.gone.get().map(|reason| Access::unusable(Obstacle::Lost, reason))
    }
}

/// Why a GPU whose handle was refused cannot be used.
pub(crate) fn refused(error: &NvmlError) -> Access {
    if let Some(reason) = gone(error) {
        return Access::unusable(Obstacle::Lost, reason);
    }
    // NVML also counts GPUs of the machine that this container may not open.
    let obstacle = if matches!(error, NvmlError::NoPermission) { Obstacle::NotGiven } else { Obstacle::Refused };
    Access::unusable(obstacle, format!("NVML lists it but denies access: {error}"))
}

fn gone(error: &NvmlError) -> Option<&'static str> {
    match error {
        NvmlError::GpuLost => Some("NVML reports it as lost"),
        NvmlError::ResetRequired => Some("NVML reports that it needs a reset"),
        _ => None,
    }
}
