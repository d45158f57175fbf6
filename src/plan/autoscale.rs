//! Autoscaled nodes, which slurmctld starts and stops with the operator's commands.
//!
//! They are CLOUD nodes in slurm.conf, so that jobs can request their resources while they are powered down.

use std::path::PathBuf;

use config::{CloudNodes, Config, Role};
use model::exit_code;

use super::settings::Settings;
use super::{FileName, Refusal};

/// Autoscaled nodes and their start and stop scripts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Autoscale {
    /// The nodes.
    pub nodes: Vec<CloudNodes>,
    /// The scripts that slurmctld calls; only the controller's container has them.
    pub scripts: Vec<PowerScript>,
}

/// A script with which slurmctld starts or stops nodes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PowerScript {
    /// The script's file name.
    pub name: FileName,
    /// The operator's command.
    pub command: Vec<String>,
    /// The timeout in seconds.
    pub limit: u64,
}

impl Autoscale {
    /// Plans autoscaling; `None` without autoscaled nodes, or if this container does not belong to a cluster of several containers.
    pub(super) fn plan(config: &Config) -> Option<Self> {
        let autoscale = &config.autoscale;
        if autoscale.nodes.is_empty() || !config.shares_a_cluster() {
            return None;
        }
        let script = |name, command: &Vec<String>, limit: std::time::Duration| PowerScript {
            name,
            command: command.clone(),
            limit: limit.as_secs().max(1),
        };
        let scripts = match config.role {
            Role::Controller | Role::All => vec![
                script(FileName::Resume, &autoscale.resume, autoscale.resume_timeout),
                script(FileName::Suspend, &autoscale.suspend, autoscale.suspend_timeout),
            ],
            Role::Compute | Role::Login | Role::None => Vec::new(),
        };
        Some(Self { nodes: autoscale.nodes.clone(), scripts })
    }
}

/// Adds the slurm.conf keys for starting and stopping nodes. slurm.conf is the same in all containers; only the
/// controller's container has the scripts.
pub(super) fn settings(settings: &mut Settings, config: &Config) {
    let autoscale = &config.autoscale;
    let path = |name: FileName| -> PathBuf { config.paths.slurm.join(name.as_str()) };
    settings.add_because("ResumeProgram", path(FileName::Resume).display(), "starts nodes for jobs ([autoscale])");
    settings.add_because("SuspendProgram", path(FileName::Suspend).display(), "stops idle nodes");
    let why = "stops a node that did not start in time, so that the start can be retried";
    settings.add_because("ResumeFailProgram", path(FileName::Suspend).display(), why);
    settings.add("SuspendTime", autoscale.idle.as_secs().max(1));
    settings.add("ResumeTimeout", autoscale.resume_timeout.as_secs().max(1));
    settings.add("SuspendTimeout", autoscale.suspend_timeout.as_secs().max(1));
    settings.add("ResumeRate", 0);
    settings.add("SuspendRate", 0);
    settings.add_because("SuspendExcStates", "DYNAMIC_NORM", "dynamic nodes are not powered down");
    settings.add_because("PrivateData", "cloud", "powered-down nodes are shown");
}

/// Rejects autoscaled nodes in a one-container cluster, autoscaled nodes without commands that start and stop them, and autoscaled nodes with shared
/// GPUs.
pub(super) fn check(config: &Config) -> Result<(), Refusal> {
    let autoscale = &config.autoscale;
    if autoscale.nodes.is_empty() {
        return Ok(());
    }
    let refusal = |what: &str, cause: &str, fix: &str| Err(Refusal::new(exit_code::CONFIG, what, cause, fix));
    if !config.shares_a_cluster() {
        return refusal(
            "[autoscale] has nodes, but this container is a one-container cluster",
            "an autoscaled node is a separate container that connects to a controller",
            "use the role controller, or set SLURMINIT_CONTROLLER to this container's host name",
        );
    }
    if config.gpu.sharing().is_some() && autoscale.nodes.iter().any(|nodes| nodes.gpus.is_some()) {
        return refusal(
            "[autoscale] has nodes with GPUs, but [gpu] shares GPUs among jobs",
            "slurmctld cannot count the shares of powered-down nodes",
            "remove `shards` and `mps` from [gpu], or `gpus` from [[autoscale.nodes]]",
        );
    }
    let starts = matches!(config.role, Role::Controller | Role::All);
    if starts && (autoscale.resume.is_empty() || autoscale.suspend.is_empty()) {
        return refusal(
            "[autoscale] has nodes, but `resume` or `suspend` is not set",
            "slurminit has no built-in way to start or stop machines",
            "set `resume` and `suspend` in [autoscale] (the node names are appended to the commands)",
        );
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use crate::render;
    use crate::{FileName, Text, plan};
    use config::Config;
    use model::inventory::{Inventory, SlurmInstall, SlurmVersion};

    const NODES: &str =
        "[[autoscale.nodes]]\nname = 'b-[1-2]'\ncpus = 4\nmemory_mib = 1000\ngpus = 'nvidia:2'\nfeatures = ['h200']\n";
    const COMMANDS: &str = "[autoscale]\nresume = ['start', \"it's\"]\nsuspend = ['stop']\n";

    fn files(toml: &str) -> Result<Vec<Text>, String> {
        let version = Some(SlurmVersion { year: 24, month: 11 });
        let slurm = SlurmInstall { version, ..SlurmInstall::default() };
        let inventory = Inventory { hostname: "head".to_owned(), slurm, ..Inventory::default() };
        let config = Config::parse(toml, Path::new("x")).unwrap();
        plan(&config, &inventory).map(|plan| render::render(&plan)).map_err(|refusal| refusal.finding.to_string())
    }

    fn text(files: &[Text], name: FileName) -> &str {
        files.iter().find(|file| file.name == name).map_or("", |file| &file.text)
    }

    #[test]
    fn defines_cloud_nodes_that_are_not_running() {
        let shared = "[slurm]\ncontroller = 'head'\n";
        let controller = files(&format!("role = 'controller'\n{shared}{COMMANDS}{NODES}")).unwrap();
        let conf = text(&controller, FileName::SlurmConf);
        assert!(
            conf.contains("NodeName=b-[1-2] CPUs=4 RealMemory=1000 Gres=gpu:nvidia:2 Feature=h200 State=CLOUD\n"),
            "{conf}"
        );
        assert!(conf.contains("SuspendTime=300\n") && conf.contains("ResumeProgram=/etc/slurm/resume\n"), "{conf}");
        let gres = text(&controller, FileName::GresConf);
        assert!(gres.contains("NodeName=b-[1-2] Name=gpu Type=nvidia File=/dev/nvidia[0-1]\n"), "{gres}");
        let resume = text(&controller, FileName::Resume);
        assert!(resume.contains("--limit 600 \"$1\" -- 'start' 'it'\\''s'\n"), "{resume}");
        // A compute container has the same slurm.conf without the commands, but no scripts.
        let compute = files(&format!("role = 'compute'\n{shared}{NODES}")).unwrap();
        assert_eq!(text(&compute, FileName::SlurmConf), conf);
        assert_eq!(text(&compute, FileName::Resume), "");
        assert!(!text(&compute, FileName::GresConf).contains("NodeName"));
    }

    #[test]
    fn rejects_unsupported_autoscale_settings() {
        assert!(files(&format!("{COMMANDS}{NODES}")).unwrap_err().contains("one-container cluster"));
        let shared = format!("role = 'controller'\n{COMMANDS}{NODES}[gpu]\nshards = 4\n");
        assert!(files(&shared).unwrap_err().contains("shares GPUs"));
        assert!(files(&format!("role = 'controller'\n{NODES}")).unwrap_err().contains("set `resume` and `suspend`"));
    }
}
