//! NVIDIA: hardware, driver, toolkit, trial.

use super::{Nvidia, Smi, Toolkit};
use crate::configure::assess::Fixes;
use crate::configure::choice::{GpuId, unknown_gpu};
use crate::configure::host_gpus::HostGpus;
use crate::configure::passthrough::{PassMethod, Trial};
use crate::configure::situation::{Engine, EngineInfo, PlatformKind, Situation};
use model::cuda::{newest_major, oldest_driver};
use model::inventory::gres::counted;
use model::inventory::{Observations, Vendor};

const REGISTER: &str = "sudo nvidia-ctk runtime configure --runtime=docker && sudo systemctl restart docker";
const REGISTER_ROOTLESS: &str = "nvidia-ctk runtime configure --runtime=docker --config=$HOME/.config/docker/daemon.json; systemctl --user restart docker";
const GENERATE_CDI: &str = "sudo nvidia-ctk cdi generate --output=/etc/cdi/nvidia.yaml";
const NO_CGROUPS: &str = "sudo nvidia-ctk config --set nvidia-container-cli.no-cgroups --in-place";
const CHECK_FILES: &str = "check the modes of /dev/nvidia* on the host (ls -l) and SELinux's log (sudo ausearch -m avc); update nvidia-container-toolkit";
const UPDATE_WINDOWS: &str = "install the current NVIDIA driver in Windows, then `wsl --update` and `wsl --shutdown`; do not install a Linux driver in WSL2";
const ALLOW_CGROUPS: &str = "sudo nvidia-ctk config --set nvidia-container-cli.no-cgroups=false --in-place && \
    sudo systemctl restart docker";

impl HostGpus for Nvidia {
    fn vendor(&self) -> Vendor {
        Vendor::Nvidia
    }

    fn is_present(&self) -> bool {
        self.pci_count > 0 || !self.gpus.is_empty() || self.has_wsl_library
    }

    /// On WSL2, the existence of `/dev/dxg` does not show whether the GPU is NVIDIA's.
    fn may_be_present(&self) -> bool {
        self.is_present() || self.has_dxg
    }

    fn is_ready(&self, situation: &Situation) -> bool {
        self.is_present() && !self.hardware(situation).iter().any(Observations::has_failed)
    }

    fn check(&self, id: &GpuId) -> Result<(), String> {
        let uuids: Vec<&str> = self.gpus.iter().filter_map(|gpu| gpu.uuid.as_deref()).collect();
        let is_known = match id.index() {
            Some(index) => index < self.gpus.len(),
            None if id.as_str().starts_with("GPU-") => uuids.len() < self.gpus.len() || uuids.contains(&id.as_str()),
            None => self.mig_ids.is_empty() || self.mig_ids.iter().any(|mig| mig == id.as_str()),
        };
        // Without a driver the GPUs are unknown, and the user may be preparing for another host.
        if is_known || self.gpus.is_empty() { Ok(()) } else { Err(unknown_gpu(id, self.gpus.len())) }
    }

    fn pass_method(&self, situation: &Situation) -> PassMethod {
        pass_method(&self.toolkit, situation)
    }

    fn hardware(&self, situation: &Situation) -> Vec<Observations> {
        if let Smi::Fails(message) = &self.smi {
            let (cause, fix) = if message.contains("version mismatch") {
                ("the driver was updated and the old kernel module is still loaded", "reboot the host")
            } else if situation.platform.kind == PlatformKind::Wsl2 {
                ("the Windows driver is incompatible with this version of WSL2, or the GPU has failed", UPDATE_WINDOWS)
            } else {
                (
                    "the driver is not loaded, hangs or does not match the kernel, or the GPU has failed",
                    "see dmesg | grep -i -e nvrm -e xid; re-install the driver, or reboot the host",
                )
            };
            return vec![Observations::fail(format!("nvidia-smi fails: {message}"), cause, fix)];
        }
        if self.gpus.is_empty() {
            return vec![no_driver(self, situation)];
        }
        let mut checks = vec![];
        let version = self.driver.as_deref().unwrap_or("of unknown version");
        let list = format!("{}, driver {version}", list(self));
        match self.driver.as_deref().and_then(newest_major) {
            Some(0) => checks.push(Observations::fail(
                format!("{list}: the driver is too old"),
                format!("CUDA 11 needs driver {}, and CUDA 12 needs {}", oldest_driver(11), oldest_driver(12)),
                "install a newer driver (Ubuntu: sudo ubuntu-drivers install; Debian: sudo apt-get install nvidia-driver) and reboot",
            )),
            Some(11) => checks.push(Observations::warn(
                format!("{list}: CUDA 12 programs will not run"),
                format!("CUDA 12 requires driver {} or newer", oldest_driver(12)),
                "for CUDA 12, install a newer driver (Ubuntu: sudo ubuntu-drivers install; Debian: sudo apt-get install nvidia-driver) and reboot",
            )),
            _ => checks.push(Observations::ok(list)),
        }
        if !self.mig_ids.is_empty() {
            let ids = self.mig_ids.join(", ");
            checks.push(Observations::note(format!(
                "MIG instances: {ids}; select some with slurminit configure --gpus, otherwise all are passed to the container"
            )));
        }
        checks
    }

    fn passthrough_setup(&self, situation: &Situation, trial: &Trial) -> Vec<Observations> {
        if let Trial::Passed(_) = trial {
            return vec![Observations::ok("Docker passes the GPUs to containers".to_owned())];
        }
        std::iter::once(toolkit(self, situation)).chain(cgroups(self, situation)).collect()
    }

    fn fixes(&self, situation: &Situation) -> Fixes {
        Fixes {
            tool: Vendor::Nvidia.traits().mismatch.tool,
            toolkit: match self.pass_method(situation) {
                PassMethod::Cdi => GENERATE_CDI.to_owned(),
                _ => registration(&situation.engine).to_owned(),
            },
            device: "create /dev/nvidia* with nvidia-modprobe -u -c 0; check that Docker's engine runs on this host (docker context ls)",
            permission: if situation.is_rootless() { NO_CGROUPS } else { CHECK_FILES },
        }
    }

    fn missing_in_wsl(&self) -> Option<Observations> {
        (self.has_dxg && !self.has_wsl_library).then(|| {
            Observations::warn(
                "WSL2 has a GPU, but no NVIDIA GPU with a WSL2 driver",
                "AMD and Intel GPUs do not work in WSL2's containers; for NVIDIA the Windows driver is missing or too old",
                "NVIDIA: install the current driver in Windows, then `wsl --update`; AMD or Intel: use native Linux instead of WSL2",
            )
        })
    }
}

/// The method for this host: CDI only if Docker has no NVIDIA runtime, because every supported version of compose
/// can use the runtime.
fn pass_method(toolkit: &Toolkit, situation: &Situation) -> PassMethod {
    let (has_runtime, has_cdi) = match situation.engine.info() {
        Some(info) => (info.runtimes.iter().any(|name| name == "nvidia"), info.has_cdi),
        // Without a running engine, the method follows from the configuration files and the installed programs.
        None => (toolkit.is_in_daemon_json, toolkit.programs.is_empty()),
    };
    if has_cdi && !has_runtime && !toolkit.cdi_specs.is_empty() { PassMethod::Cdi } else { PassMethod::Gpus }
}

/// Lists the models in order of first appearance: `2x NVIDIA H200, 1x NVIDIA A100`.
fn list(nvidia: &Nvidia) -> String {
    let counts = counted(nvidia.gpus.iter().map(|gpu| (gpu.model.as_deref().unwrap_or("NVIDIA GPU"), 1)));
    counts.iter().map(|(model, count)| format!("{count}x {model}")).collect::<Vec<_>>().join(", ")
}

fn no_driver(nvidia: &Nvidia, situation: &Situation) -> Observations {
    if situation.platform.kind == PlatformKind::Wsl2 {
        return Observations::fail(
            "WSL2 has NVIDIA's library, but no GPU responds",
            if nvidia.has_dxg {
                "the Windows driver is incompatible with this version of WSL2"
            } else {
                "WSL2's device /dev/dxg is missing"
            },
            UPDATE_WINDOWS,
        );
    }
    let what = format!("{} on the PCI bus, but NVIDIA's driver is not loaded", plural(nvidia.pci_count));
    let install = "(Ubuntu: sudo ubuntu-drivers install; Debian: sudo apt-get install nvidia-driver) and reboot; check \
                   with nvidia-smi";
    if nvidia.has_nouveau {
        return Observations::fail(
            what,
            "the nouveau driver uses the GPUs, and does not support CUDA",
            format!("install NVIDIA's driver in place of nouveau {install}"),
        );
    }
    Observations::fail(
        what,
        "the driver is not installed, was not built for this kernel, or is blocked by Secure Boot",
        format!("install the driver {install}; for the other causes see dkms status and mokutil --sb-state"),
    )
}

fn plural(gpus: usize) -> String {
    if gpus == 1 { "1 NVIDIA GPU is".to_owned() } else { format!("{gpus} NVIDIA GPUs are") }
}

fn toolkit(nvidia: &Nvidia, situation: &Situation) -> Observations {
    let toolkit = &nvidia.toolkit;
    if situation.engine.info().is_some_and(|info| info.is_desktop) && situation.platform.kind == PlatformKind::Wsl2 {
        return Observations::ok("Docker Desktop passes the GPUs to containers".to_owned());
    }
    if let Some(info) = situation.engine.info() {
        if info.runtimes.iter().any(|name| name == "nvidia") {
            return Observations::ok("the NVIDIA runtime is registered with Docker".to_owned());
        }
        if pass_method(&nvidia.toolkit, situation) == PassMethod::Cdi {
            return Observations::ok(format!("Docker passes the GPUs through CDI ({})", toolkit.cdi_specs.join(", ")));
        }
        return not_registered(nvidia, situation, info);
    }
    if pass_method(&nvidia.toolkit, situation) == PassMethod::Cdi {
        return Observations::note(format!(
            "CDI specification found ({}): Docker 28.2 and newer use it; versions 25 to 28.1 need the feature \"cdi\"",
            toolkit.cdi_specs.join(", ")
        ));
    }
    match (toolkit.is_in_daemon_json, toolkit.programs.is_empty()) {
        (_, true) => missing_toolkit(&situation.engine),
        (true, false) => {
            Observations::ok("the container toolkit is installed and registered in Docker's configuration".to_owned())
        }
        (false, false) => unregistered_toolkit(&situation.engine),
    }
}

fn not_registered(nvidia: &Nvidia, situation: &Situation, info: &EngineInfo) -> Observations {
    let toolkit = &nvidia.toolkit;
    if toolkit.is_in_daemon_json && !toolkit.programs.is_empty() && !info.is_rootless {
        return Observations::fail(
            "the NVIDIA runtime is not active in Docker",
            "the engine has not been restarted since /etc/docker/daemon.json was changed, or uses another file",
            "sudo systemctl restart docker; if the engine uses another file, first run sudo nvidia-ctk runtime configure --runtime=docker --config=FILE",
        );
    }
    if !toolkit.programs.is_empty() {
        return unregistered_toolkit(&situation.engine);
    }
    if !toolkit.cdi_specs.is_empty() && !info.has_cdi {
        return Observations::fail(
            format!("CDI specification found ({}), but Docker does not use CDI", toolkit.cdi_specs.join(", ")),
            format!(
                "CDI is disabled in engine {}: versions from 25 can enable it, and versions from 28.2 enable it by default",
                info.version
            ),
            "update Docker if it is older than 25; add {\"features\": {\"cdi\": true}} to /etc/docker/daemon.json, then sudo systemctl restart docker \
             (rootless: ~/.config/docker/daemon.json and systemctl --user restart docker)",
        );
    }
    missing_toolkit(&situation.engine)
}

/// The commands that register the toolkit's runtime with this engine.
fn registration(engine: &Engine) -> &'static str {
    if engine.info().is_some_and(|info| info.is_rootless) { REGISTER_ROOTLESS } else { REGISTER }
}

fn missing_toolkit(engine: &Engine) -> Observations {
    Observations::fail(
        "Docker cannot pass NVIDIA GPUs to containers",
        "nvidia-container-toolkit is not installed",
        format!("install nvidia-container-toolkit, then {}", registration(engine)),
    )
}

fn unregistered_toolkit(engine: &Engine) -> Observations {
    Observations::fail(
        "the container toolkit is installed but not registered with Docker",
        "the runtime `nvidia` is not in Docker's configuration",
        registration(engine),
    )
}

/// Checks the toolkit's setting `no-cgroups`: a rootless engine needs the setting; with any other engine it makes the GPUs inaccessible.
fn cgroups(nvidia: &Nvidia, situation: &Situation) -> Option<Observations> {
    situation.engine.info()?;
    match (situation.is_rootless(), nvidia.toolkit.has_no_cgroups, pass_method(&nvidia.toolkit, situation)) {
        (true, false, PassMethod::Gpus) => Some(Observations::fail(
            "the toolkit fails under a rootless Docker",
            "the toolkit sets device rules in cgroups, which a rootless engine cannot change",
            NO_CGROUPS,
        )),
        (false, true, PassMethod::Gpus) => Some(Observations::fail(
            "containers cannot open the GPUs that the toolkit passes",
            "no-cgroups = true, which only a rootless Docker needs: the toolkit sets no device rules",
            ALLOW_CGROUPS,
        )),
        _ => None,
    }
}
