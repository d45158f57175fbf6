//! GPUs that are passed by their device files: hardware, files, groups, trial.

use super::Fixes;
use crate::configure::choice::{GpuId, index_range, unknown_gpu};
use crate::configure::host_gpus::HostGpus;
use crate::configure::passthrough::{PassMethod, Trial};
use crate::configure::situation::{FileGpus, Situation};
use model::inventory::{Observations, Vendor};

impl HostGpus for FileGpus {
    fn vendor(&self) -> Vendor {
        self.vendor
    }

    fn is_present(&self) -> bool {
        self.pci_count > 0 || self.has_files()
    }

    fn is_default_choice(&self) -> bool {
        self.has_files()
    }

    fn is_ready(&self, _: &Situation) -> bool {
        self.is_complete()
    }

    fn check(&self, id: &GpuId) -> Result<(), String> {
        let count = self.render_nodes.len();
        match id.index() {
            None => {
                let (maker, range) = (self.vendor.traits().maker, index_range(count));
                Err(format!("--gpus {id}: {maker} GPUs are selected by number; this host has {range}"))
            }
            Some(index) if index >= count => Err(unknown_gpu(id, count)),
            Some(_) => Ok(()),
        }
    }

    fn pass_method(&self, _: &Situation) -> PassMethod {
        PassMethod::Files(self.clone())
    }

    fn hardware(&self, _: &Situation) -> Vec<Observations> {
        vec![hardware(self)]
    }

    fn passthrough_setup(&self, situation: &Situation, trial: &Trial) -> Vec<Observations> {
        let rootless = if let Trial::Skipped(_) = trial { rootless(situation, self) } else { None };
        groups(self).into_iter().chain(rootless).collect()
    }

    fn fixes(&self, _: &Situation) -> Fixes {
        Fixes {
            tool: self.vendor.traits().mismatch.tool,
            toolkit: "correct \"default-runtime\" in /etc/docker/daemon.json, then sudo systemctl restart docker"
                .to_owned(),
            device: self.files.missing,
            permission: self.files.rootless,
        }
    }
}

/// Checks the hardware and its driver.
fn hardware(gpus: &FileGpus) -> Observations {
    if !gpus.is_complete() {
        return incomplete(gpus);
    }
    let nodes: Vec<&str> = gpus.render_nodes.iter().map(|node| node.path.as_str()).collect();
    let shared = gpus.files.shared.map(|path| format!("{path} and ")).unwrap_or_default();
    Observations::ok(format!("{shared}{}", nodes.join(", ")))
}

/// Reports that device files are missing. This is only a warning: many processors have an integrated GPU that no runtime
/// supports.
fn incomplete(gpus: &FileGpus) -> Observations {
    let missing = match gpus.files.shared {
        Some(path) if gpus.shared.is_none() => format!("{path} is missing"),
        _ => "its render node in /dev/dri is missing".to_owned(),
    };
    let (cause, fix) = gpus.files.incomplete;
    let maker = gpus.vendor.traits().maker;
    let article = if maker.starts_with(['A', 'I']) { "an" } else { "a" };
    Observations::warn(format!("{article} {maker} GPU is not used: {missing}"), cause, fix)
}

/// Checks the groups that own the device files.
fn groups(gpus: &FileGpus) -> Option<Observations> {
    let root_only = gpus.devices().filter(|device| device.group == 0 && !device.is_world_accessible);
    let root_only: Vec<&str> = root_only.map(|device| device.path.as_str()).collect();
    if !root_only.is_empty() {
        return Some(Observations::warn(
            format!("only root can use {}", root_only.join(", ")),
            "these files belong to the group root, so no group can be passed to the container",
            gpus.files.groups,
        ));
    }
    let group_ids: Vec<String> = gpus.groups().iter().map(ToString::to_string).collect();
    (!group_ids.is_empty())
        .then(|| Observations::ok(format!("device file groups on this host: {}", group_ids.join(", "))))
}

fn rootless(situation: &Situation, gpus: &FileGpus) -> Option<Observations> {
    situation.is_rootless().then(|| {
        Observations::warn(
            "a rootless Docker may not be able to open the GPU's device files",
            "the host's groups do not apply inside a rootless container",
            gpus.files.rootless,
        )
    })
}
