//! Collects NVML's answers about one GPU.

use std::cell::Cell;

use nvml_wrapper::error::NvmlError;

use model::inventory::{Access, Obstacle};

/// The answers about one GPU. A failed call loses only its own value, unless the error means that the GPU is gone.
#[derive(Debug, Default)]
pub(crate) struct Answers {
    loss_reason: Cell<Option<&'static str>>,
}

impl Answers {
    /// The value, if the call succeeded.
    pub(crate) fn of<T>(&self, answer: Result<T, NvmlError>) -> Option<T> {
        if let Err(error) = &answer {
            self.loss_reason.set(self.loss_reason.get().or_else(|| loss_reason(error)));
        }
        answer.ok()
    }

    /// The reason why the GPU is unusable, if any call reported that it is gone.
    pub(crate) fn obstacle(&self) -> Option<Access> {
        self.loss_reason.get().map(|reason| Access::unusable(Obstacle::Lost, reason))
    }
}

/// The access to a GPU for which NVML returns no handle.
pub(crate) fn refused_access(error: &NvmlError) -> Access {
    if let Some(reason) = loss_reason(error) {
        return Access::unusable(Obstacle::Lost, reason);
    }
    // NVML also counts GPUs of the machine that this container may not open.
    let obstacle = if matches!(error, NvmlError::NoPermission) { Obstacle::NotGiven } else { Obstacle::Refused };
    Access::unusable(obstacle, format!("NVML lists it but denies access: {error}"))
}

fn loss_reason(error: &NvmlError) -> Option<&'static str> {
    match error {
        NvmlError::GpuLost => Some("NVML reports it as lost"),
        NvmlError::ResetRequired => Some("NVML reports that it needs a reset"),
        _ => None,
    }
}
