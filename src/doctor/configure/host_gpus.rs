//! The host's GPUs of each vendor, and how they are passed to a container.

use std::fmt;

use super::choice::GpuId;
use super::passthrough::{PassMethod, Trial};
use super::situation::Situation;
use model::inventory::{Observations, Vendor};

/// One vendor's GPUs on this host.
pub trait HostGpus: fmt::Debug {
    /// The vendor.
    fn vendor(&self) -> Vendor;

    /// Whether the host has GPUs of this vendor.
    fn is_present(&self) -> bool;

    /// Whether GPUs may exist although the PCI bus lists none.
    fn may_be_present(&self) -> bool {
        self.is_present()
    }

    /// Whether they are selected without a preference of the user.
    fn is_default_choice(&self) -> bool {
        self.is_present()
    }

    /// Whether a trial can succeed.
    fn can_be_tried(&self) -> bool;

    /// Whether the GPUs' driver works.
    fn is_ready(&self, seen: &Situation) -> bool;

    /// Checks whether a GPU exists, if the GPUs are known.
    ///
    /// # Errors
    /// The GPU does not exist.
    fn check(&self, id: &GpuId) -> Result<(), String>;

    /// The method by which Docker passes the GPUs.
    fn way(&self, seen: &Situation) -> PassMethod;

    /// The hardware and its driver.
    fn hardware(&self, seen: &Situation) -> Vec<Observations>;

    /// The software that passes the GPUs to containers.
    fn passes(&self, seen: &Situation, trial: &Trial) -> Vec<Observations>;

    /// The result of the trial.
    fn tried(&self, seen: &Situation, trial: &Trial) -> Observations;

    /// The lines of the report, and whether the GPUs can be passed to containers.
    fn assess(&self, seen: &Situation, trial: &Trial) -> (Vec<Observations>, bool);

    /// The requirements that are missing on WSL2.
    fn lacks_in_wsl(&self) -> Option<Observations> {
        None
    }
}
