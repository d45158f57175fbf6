//! IMEX channels, through which jobs share GPU memory between machines in one NVLink domain (GB200).
//!
//! Slurm's switch/nvidia_imex (24.05 and newer) gives each job its own channel: slurmd empties the directory of the channels when it
//! starts, and slurmstepd mounts a tmpfs with one channel file there, which needs CAP_SYS_ADMIN (imex_device.c). Without the plugin, jobs
//! open the channels that the container has: the channels are not a GRES, so neither device rules nor the owner of a GPU's file restrict them.

use config::Config;
use model::inventory::{Finding, Inventory, Kind};

use super::{Reasons, Setting};

/// Slurm's plugin for IMEX channels.
const PLUGIN: &str = "switch/nvidia_imex";

pub(super) fn plan(config: &Config, inventory: &Inventory, settings: &[Setting], reasons: &mut Reasons) {
    let has_plugin = Setting::find(settings, "SwitchType").is_some_and(|setting| setting.value == PLUGIN);
    if has_plugin && !inventory.makes_namespaces {
        reasons.warn(
            Kind::Settings,
            format!("jobs on GPUs will fail: [slurm.conf] sets SwitchType={PLUGIN}"),
            "the plugin mounts a directory for each step, which needs CAP_SYS_ADMIN",
            "remove SwitchType, and give the container an IMEX channel (NVIDIA_IMEX_CHANNELS=0)",
        );
    }
    let channels = &inventory.imex_channels;
    let domain = inventory.usable_gpus().find_map(|gpu| gpu.nvlink_domain.as_ref());
    if let (Some(domain), [], false) = (domain, channels.as_slice(), has_plugin) {
        reasons.findings.push(Finding::warning(
            Kind::Container,
            "no IMEX channel: jobs cannot use NVLink between nodes",
            format!(
                "the GPUs are in the NVLink domain {domain}, but /dev/nvidia-caps-imex-channels contains no channel"
            ),
            "on the host, add `options nvidia NVreg_CreateImexChannel0=1` to /etc/modprobe.d/nvidia.conf and reboot; then start the container with NVIDIA_IMEX_CHANNELS=0",
        ));
    }
    if channels.is_empty() || has_plugin {
        return;
    }
    let list: Vec<String> = channels.iter().map(u32::to_string).collect();
    reasons.decide(
        format!("IMEX channels {}", list.join(",")),
        "every job can open the channels: they are not a GRES, and CUDA uses the first one",
    );
    if config.isolates_gpus() {
        reasons.findings.push(Finding::info(
            Kind::Settings,
            "the jobs of all users share one IMEX channel, so GPU memory that a job shares between nodes is not protected from other users",
            "only Slurm's plugin switch/nvidia_imex gives each job its own channel, and it needs CAP_SYS_ADMIN",
            "no action if the users trust each other; otherwise give each group of users its own containers, with their own channel",
        ));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use model::inventory::Gpu;

    /// Decisions and findings about IMEX, one per line.
    fn imex_messages(toml: &str, channels: &[u32], domain: Option<&str>, privileged: bool) -> String {
        let config = Config::parse(toml, std::path::Path::new("t")).unwrap();
        let gpu = Gpu { nvlink_domain: domain.map(str::to_owned), ..Gpu::default() };
        let inventory = Inventory {
            imex_channels: channels.to_vec(),
            gpus: vec![gpu],
            makes_namespaces: privileged,
            hostname: "gpu1".to_owned(),
            ..Inventory::default()
        };
        let plan = crate::plan(&config, &inventory).unwrap();
        let decisions = plan.decisions.iter().map(|decision| decision.what.clone());
        let findings = plan.findings.iter().map(|finding| finding.what.clone());
        let lines = decisions.chain(findings).filter(|line| line.contains("IMEX") || line.starts_with("jobs on GPUs"));
        lines.collect::<Vec<_>>().join("\n")
    }

    #[test]
    fn reports_imex_channels_and_problems() {
        const PLUGIN: &str = "[slurm.conf]\nSwitchType = \"switch/nvidia_imex\"\n";
        let domain = Some("0-1.7");
        assert_eq!(imex_messages("", &[0, 3], domain, false), "IMEX channels 0,3");
        assert_eq!(imex_messages("", &[], None, false), "");
        assert!(imex_messages("", &[], domain, false).starts_with("no IMEX channel"));
        assert!(imex_messages("[gpu]\nisolate = true\n", &[0], domain, false).contains("share one IMEX channel"));
        assert!(imex_messages(PLUGIN, &[0], domain, false).starts_with("jobs on GPUs will fail"));
        assert_eq!(imex_messages(PLUGIN, &[], domain, true), "");
    }
}
