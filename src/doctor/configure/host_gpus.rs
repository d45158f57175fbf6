//! The interface to the host's GPUs of one vendor: their checks, and the method that passes them to a container.

use std::fmt;

use super::assess::{Fixes, failed_trial};
use super::choice::GpuId;
use super::passthrough::{Component, PassMethod, Trial};
use super::situation::{PlatformKind, Situation};
use model::inventory::{Observations, Vendor};

/// One vendor's GPUs on this host.
pub trait HostGpus: fmt::Debug {
    /// The vendor of these GPUs.
    fn vendor(&self) -> Vendor;

    /// Whether the host has GPUs of this vendor.
    fn is_present(&self) -> bool;

    /// Whether the host has GPUs of this vendor, or may have some that were not detected.
    fn may_be_present(&self) -> bool {
        self.is_present()
    }

    /// Whether these GPUs are candidates if the user names no vendor.
    fn is_default_choice(&self) -> bool {
        self.is_present()
    }

    /// Whether the GPUs' driver works.
    fn is_ready(&self, situation: &Situation) -> bool;

    /// Checks whether a GPU exists, if the GPUs are known.
    ///
    /// # Errors
    /// The GPU does not exist, or this vendor's GPUs are selected only by number.
    fn check(&self, id: &GpuId) -> Result<(), String>;

    /// The method by which Docker passes the GPUs.
    fn pass_method(&self, situation: &Situation) -> PassMethod;

    /// Checks the hardware and its driver.
    fn hardware(&self, situation: &Situation) -> Vec<Observations>;

    /// Checks the setup of the host for passing the GPUs to containers: software, settings, groups.
    fn passthrough_setup(&self, situation: &Situation, trial: &Trial) -> Vec<Observations>;

    /// The fixes for a failed trial.
    fn fixes(&self, situation: &Situation) -> Fixes;

    /// The result of the trial.
    fn trial_result(&self, situation: &Situation, trial: &Trial) -> Observations {
        match trial {
            Trial::Passed(count) => {
                Observations::ok(format!("GPUs that a container can use: {count} (tested with the image)"))
            }
            Trial::Failed(failure) => {
                let is_explained = matches!(failure.component, Component::Toolkit | Component::Permission)
                    && self.passthrough_setup(situation, trial).iter().any(Observations::has_failed);
                failed_trial(failure, is_explained, &self.fixes(situation))
            }
            Trial::Skipped(why) => Observations::note(format!("not tested with a container: {why}")),
        }
    }

    /// The lines of the report, and whether the GPUs can be passed to containers.
    fn assess(&self, situation: &Situation, trial: &Trial) -> (Vec<Observations>, bool) {
        let mut checks = self.hardware(situation);
        if !self.is_ready(situation) {
            return (checks, false);
        }
        if matches!(situation.platform.kind, PlatformKind::MacOs | PlatformKind::DesktopVm) {
            checks.push(Observations::note("these GPUs are not available in Docker's virtual machine"));
            return (checks, false);
        }
        checks.extend(self.passthrough_setup(situation, trial));
        checks.push(self.trial_result(situation, trial));
        let is_usable = !checks.iter().any(Observations::has_failed);
        (checks, is_usable)
    }

    /// Reports requirements that are missing on WSL2.
    fn missing_in_wsl(&self) -> Option<Observations> {
        None
    }
}
