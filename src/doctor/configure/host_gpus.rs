//! What the host has of each vendor, and how it reaches a container.

use std::fmt;

use super::choice::GpuId;
use super::passthrough::{Trial, Way};
use super::situation::Situation;
use model::inventory::{Observations, Vendor};

/// One vendor's GPUs on this host.
pub trait HostGpus: fmt::Debug {
    /// The vendor.
    fn vendor(&self) -> Vendor;

    /// Whether the host has any.
    fn is_present(&self) -> bool;

    /// Whether they may be here, though not even the PCI bus has them.
    fn may_be_present(&self) -> bool {
        self.is_present()
    }

    /// Whether a user without a preference can mean them.
    fn can_be_meant(&self) -> bool {
        self.is_present()
    }

    /// Whether a trial can succeed.
    fn can_be_tried(&self) -> bool;

    /// Whether their driver works.
    fn is_ready(&self, seen: &Situation) -> bool;

    /// Checks the name of a GPU, as far as they are known.
    ///
    /// # Errors
    /// There is no such GPU.
    fn check(&self, id: &GpuId) -> Result<(), String>;

    /// How Docker can pass them.
    fn way(&self, seen: &Situation) -> Way;

    /// The hardware and its driver.
    fn hardware(&self, seen: &Situation) -> Vec<Observations>;

    /// What passes them to containers.
    fn passes(&self, seen: &Situation, trial: &Trial) -> Vec<Observations>;

    /// The result of the trial.
    fn tried(&self, seen: &Situation, trial: &Trial) -> Observations;

    /// The lines of the report, and whether they can be passed to containers.
    fn assess(&self, seen: &Situation, trial: &Trial) -> (Vec<Observations>, bool);

    /// What WSL2 lacks of them.
    fn lacks_in_wsl(&self) -> Option<Observations> {
        None
    }
}
