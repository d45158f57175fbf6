//! The node's line: CPUs, topology, memory, TmpDisk, features and host.

use std::net::IpAddr;

use config::{Config, FeatureName, NodeName, SimulatedGroup};
use model::inventory::{Cpu, CpuSet, Finding, Gpu, Inventory, Kind, Memory};

use super::names::HostName;
use super::{GresPlan, Reasons, Setting, cluster};

/// The NodeName line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodePlan {
    /// The value of NodeName.
    pub name: NodeName,
    /// The value of NodeHostname. `None` for a dynamic node, and for a real node that is named `localhost` or after its host, because
    /// slurmd finds its line by these names.
    pub host: Option<HostName>,
    /// The loopback address: the value of NodeAddr, which is set together with NodeHostname.
    pub address: IpAddr,
    /// The number of CPUs, at most as many as the container may use. Simulated nodes may claim more.
    pub cpus: u32,
    /// Sockets, cores and threads, if the container has the whole machine.
    pub topology: Option<Topology>,
    /// RealMemory in MiB; `None` if the memory size was not detected.
    pub memory_mib: Option<u64>,
    /// TmpDisk in MiB, which jobs can request with `--tmp`.
    pub tmp_disk_mib: Option<u64>,
    /// Gres, such as `gpu:nvidia:2`; empty without GPUs.
    pub gres: String,
    /// The node's features.
    pub features: Vec<FeatureName>,
    /// The simulated nodes of this line.
    pub simulated: Option<SimulatedGroup>,
}

/// The layout of a whole, uniform machine, as Slurm describes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Topology {
    /// The number of sockets.
    pub sockets: u32,
    /// The number of cores per socket.
    pub cores_per_socket: u32,
    /// The number of threads per core.
    pub threads_per_core: u32,
}

/// Plans everything except Gres, features and host (see [`NodePlan::with_gpus`]).
pub(super) fn plan(config: &Config, inventory: &Inventory, reasons: &mut Reasons) -> NodePlan {
    let available = available_cpus(&inventory.cpu);
    let cpus = match config.node.cpus {
        Some(wanted) if wanted > available => {
            reasons.warn(
                Kind::Settings,
                format!(
                    "`[node] cpus = {wanted}` exceeds this container's CPU count of {available}; using {available}"
                ),
                "Slurm drains a node with fewer CPUs than configured",
                format!(
                    "set `cpus` to at most {available}, or raise the container's limit, if it has one (docker run --cpus or --cpuset-cpus, limits.cpu of a pod)"
                ),
            );
            available
        }
        Some(wanted) => wanted.max(1),
        None => available,
    };
    reasons.decide(format!("CPUs={cpus}"), cpu_reason(config, &inventory.cpu, cpus));

    let topology = match topology(&inventory.cpu, cpus) {
        Ok(topology) => {
            let Topology { sockets, cores_per_socket, threads_per_core } = topology;
            reasons.decide(
                format!("Sockets={sockets} CoresPerSocket={cores_per_socket} ThreadsPerCore={threads_per_core}"),
                "the container has the whole machine",
            );
            Some(topology)
        }
        Err(why) => {
            reasons.decide("sockets, cores and threads left out", why);
            None
        }
    };
    let memory_mib = memory(config, inventory, reasons);
    let tmp_disk_mib = tmp_disk(config, inventory, reasons);
    NodePlan {
        name: cluster::node_name(config, inventory),
        host: None,
        address: inventory.loopback(),
        cpus,
        topology,
        memory_mib,
        tmp_disk_mib,
        gres: String::new(),
        features: Vec::new(),
        simulated: None,
    }
}

impl NodePlan {
    /// The node's name, or those of the simulated nodes.
    pub fn names(&self) -> &str {
        self.simulated.as_ref().map_or(self.name.as_str(), |group| group.each.name.as_str())
    }

    /// Adds Gres, Feature and NodeHostname, which depend on the GPUs and the host.
    pub(super) fn with_gpus(
        mut self,
        config: &Config,
        inventory: &Inventory,
        gres: &GresPlan,
        host: &HostName,
        reasons: &mut Reasons,
    ) -> Self {
        self.gres = gres.node_gres();
        let of_group = self.simulated.as_ref().map(|group| &group.each.features[..]).unwrap_or_default();
        self.features = features(config, inventory, of_group);
        if !self.features.is_empty() {
            let names: Vec<&str> = self.features.iter().map(FeatureName::as_str).collect();
            reasons.decide(
                format!("Feature={}", names.join(",")),
                "vendor, model, compute capability and driver of the GPUs, and configured features, for --constraint",
            );
        }
        let short = host.as_str().split('.').next().unwrap_or_default();
        let has_its_name = [host.as_str(), short, "localhost"].contains(&self.name.as_str());
        if self.simulated.is_some() || !config.has_dynamic_node() && !has_its_name {
            self.host = Some(host.clone());
            reasons.decide(format!("NodeHostname={host}"), "slurmd finds its line by the host name");
        }
        self
    }
}

/// The number of CPUs that jobs can use at the same time: the size of the cpuset, at most the quota (rounded down), at least 1.
fn available_cpus(cpu: &Cpu) -> u32 {
    let allowed = u32::try_from(cpu.allowed.len()).unwrap_or(u32::MAX);
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a float cast saturates, NaN is 0")]
    let quota = cpu.quota.map_or(u32::MAX, |quota| quota as u32);
    allowed.min(quota).max(1)
}

fn cpu_reason(config: &Config, cpu: &Cpu, cpus: u32) -> String {
    if config.node.cpus == Some(cpus) {
        return "set by `[node] cpus`".to_owned();
    }
    match cpu.quota {
        Some(quota) if f64::from(cpus) <= quota.max(1.0) && (cpus as usize) < cpu.allowed.len() => {
            format!(
                "the container's CPU quota is {quota} of {} CPUs (Slurm counts whole CPUs, at least 1)",
                cpu.allowed.len()
            )
        }
        _ if cpu.allowed.is_empty() => "the allowed CPUs are unknown; assuming one".to_owned(),
        _ => format!("the CPUs that the container may use: {}", cpu.allowed),
    }
}

/// The machine's layout, or why it is left out.
fn topology(cpu: &Cpu, cpus: u32) -> Result<Topology, String> {
    let cores: Vec<&CpuSet> = cpu.sockets.iter().flatten().collect();
    let (Some(first_socket), Some(first_core)) = (cpu.sockets.first(), cores.first()) else {
        return Err("unknown machine topology".to_owned());
    };
    let all: usize = cores.iter().map(|core| core.len()).sum();
    if cores.iter().any(|core| core.iter().any(|cpu_number| !cpu.allowed.contains(cpu_number))) {
        return Err("the container's cpuset contains only some of the machine's CPUs".to_owned());
    }
    if all != cpus as usize {
        return Err(format!("jobs get {cpus} of the machine's {all} CPUs at a time, but not always the same ones"));
    }
    if cpu.sockets.iter().any(|socket| socket.len() != first_socket.len())
        || cores.iter().any(|core| core.len() != first_core.len())
        || first_core.is_empty()
    {
        return Err("sockets or cores are not uniform".to_owned());
    }
    let count = |number: usize| u32::try_from(number).unwrap_or(u32::MAX);
    Ok(Topology {
        sockets: count(cpu.sockets.len()),
        cores_per_socket: count(first_socket.len()),
        threads_per_core: count(first_core.len()),
    })
}

/// Plans RealMemory, in MiB.
fn memory(config: &Config, inventory: &Inventory, reasons: &mut Reasons) -> Option<u64> {
    let usable = inventory.memory.usable_mib();
    if usable == 0 {
        reasons.decide("no RealMemory", "could not read the memory size");
        return None;
    }
    let is_limit = inventory.memory.is_limited();
    let whose = match inventory.memory {
        _ if is_limit => "the container's limit".to_owned(),
        Memory { gpu_mib: 0, .. } => "the machine's memory".to_owned(),
        Memory { gpu_mib, .. } => format!("the machine's memory, without the {gpu_mib} MiB of its GPUs,"),
    };
    if let Some(wanted) = config.node.memory_mib {
        let memory = wanted.clamp(1, usable);
        if wanted > usable {
            reasons.warn(
                Kind::RealMemory,
                format!("`[node] memory_mib = {wanted}` exceeds the {usable} MiB of this container; using {usable}"),
                format!("{whose} is {usable} MiB"),
                "lower memory_mib, or raise the container's limit, if it has one (docker run --memory, limits.memory of a pod)",
            );
        }
        let why = match wanted > usable {
            true => format!("{whose} is {usable} MiB; `[node] memory_mib` exceeds it"),
            false => "set by `[node] memory_mib`".to_owned(),
        };
        reasons.decide(format!("RealMemory={memory}"), why);
        return Some(memory);
    }
    let (reserve, why) = match config.node.reserve_mib {
        Some(wanted) => (wanted.min(usable - 1), "([node] reserve_mib)"),
        None if is_limit => (default_reserve(usable, true), "for the daemons"),
        None => (default_reserve(usable, false), "for the system and the daemons"),
    };
    let memory = usable - reserve;
    reasons.decide(format!("RealMemory={memory}"), format!("{whose} is {usable} MiB; {reserve} MiB reserved {why}"));
    Some(memory)
}

/// Plans TmpDisk. Slurm drains a node if the file system is smaller than configured, so by default a size above 1 GiB is rounded down to
/// whole GiB.
fn tmp_disk(config: &Config, inventory: &Inventory, reasons: &mut Reasons) -> Option<u64> {
    // The size of a file system named by TmpFS is not detected.
    let whole = if config.slurm.conf.get("TmpFS").is_some() { None } else { inventory.scratch_mib };
    let (mib, why) = match (config.node.tmp_disk_mib, whole) {
        (Some(wanted), Some(whole)) if wanted > whole => {
            reasons.warn(
                Kind::Settings,
                format!("`[node] tmp_disk_mib = {wanted}` exceeds the {whole} MiB of /tmp; using {whole}"),
                "Slurm drains a node with a smaller file system than configured",
                format!("set tmp_disk_mib to at most {whole}, or remove it"),
            );
            (whole, "the size of /tmp")
        }
        (Some(wanted), _) => (wanted, "set by `[node] tmp_disk_mib`"),
        (None, Some(whole)) => {
            (if whole > 1024 { whole - whole % 1024 } else { whole }, "the size of /tmp, for `--tmp`")
        }
        (None, None) => return None,
    };
    if mib == 0 {
        return None;
    }
    reasons.decide(format!("TmpDisk={mib}"), why);
    Some(mib)
}

/// The default memory reserve in MiB. Without a limit, it is 4096 MiB, or half of the memory if that is less. For a container with
/// a limit, it only has to suffice for the daemons (13 MiB measured), jobs' slurmstepds and files in memory, so it is a twentieth of the
/// limit: 128 to 1024 MiB. Leaves at least 1024 MiB or seven eighths of the memory for jobs, whichever is less.
fn default_reserve(usable: u64, is_limit: bool) -> u64 {
    let generous = match usable {
        _ if is_limit => (usable / 20).clamp(128, 1024),
        8192.. => 4096,
        _ => usable / 2,
    };
    generous.min(usable.saturating_sub(1024).max(usable / 8))
}

/// Warns of a node that cannot run a job without a memory request, because the default memory for one CPU exceeds the node's memory.
pub(super) fn check_default_memory(node: &NodePlan, settings: &[Setting]) -> Option<Finding> {
    let default = Setting::find(settings, "DefMemPerCPU")?;
    let memory =
        node.memory_mib.filter(|memory| default.value.parse::<u64>().is_ok_and(|default| *memory < default))?;
    let default = &default.value;
    Some(Finding::warning(
        Kind::RealMemory,
        format!("the node has {memory} MiB for jobs; Slurm rejects every job that does not request memory (--mem)"),
        format!("by default a job gets {default} MiB per CPU (DefMemPerCPU)"),
        format!(
            "give the container more memory (docker run --memory, in Kubernetes limits.memory), so that jobs get at least {default} MiB, or set a lower DefMemPerCPU in [slurm.conf]"
        ),
    ))
}

/// The node's features: vendor, model, compute capability and driver of the GPUs, each once, then the operator's features and those of
/// this group of simulated nodes.
fn features(config: &Config, inventory: &Inventory, of_group: &[FeatureName]) -> Vec<FeatureName> {
    let of_gpu = |gpu: &Gpu| {
        let slurm = &gpu.vendor.traits().slurm;
        let compute = gpu.compute.as_deref().map(|compute| format!("{}{compute}", slurm.compute_prefix));
        let driver = inventory.drivers.iter().find(|driver| driver.vendor == gpu.vendor);
        let branch = driver.and_then(|driver| driver.version.as_deref()?.split('.').next().map(str::to_owned));
        let branch = branch.filter(|_| slurm.driver_is_feature).map(|branch| format!("driver{branch}"));
        [Some(gpu.vendor.to_string()), gpu.model.clone(), compute, branch]
    };
    let mut features = Vec::new();
    let found = inventory.usable_gpus().flat_map(of_gpu).flatten();
    let found = found.filter_map(|name| FeatureName::from_hardware(&name));
    for feature in found.chain(config.node.features.iter().chain(of_group).cloned()) {
        if !features.contains(&feature) {
            features.push(feature);
        }
    }
    features
}

#[cfg(test)]
mod tests {
    use super::*;

    fn planned(toml: &str, total_mib: u64, limit_mib: Option<u64>) -> (Option<u64>, Vec<Kind>) {
        let config = Config::parse(toml, std::path::Path::new("t")).unwrap();
        let memory = Memory { total_mib, limit_mib, ..Memory::default() };
        let inventory = Inventory { memory, hostname: "head".to_owned(), ..Inventory::default() };
        let plan = crate::plan(&config, &inventory).unwrap();
        (plan.nodes.node.memory_mib, plan.findings.iter().map(|finding| finding.kind).collect())
    }

    #[test]
    fn limit_of_container_reserves_less_than_machine() {
        let memory = |total, limit| planned("", total, limit).0.unwrap();
        for (limit, expected) in
            [(256, 224), (512, 448), (1024, 896), (2048, 1920), (4096, 3892), (32_768, 31_744), (921_600, 920_576)]
        {
            assert_eq!(memory(1 << 20, Some(limit)), expected, "{limit}");
        }
        for (total, expected) in [(1024, 896), (4096, 2048), (16_384, 12_288)] {
            assert_eq!(memory(total, None), expected, "{total}");
            assert_eq!(memory(total, Some(total)), expected, "a limit as large as the machine");
        }
        assert_eq!(planned("[node]\nreserve_mib = 96\n", 1 << 20, Some(1024)).0, Some(928));
    }

    #[test]
    fn warns_of_node_below_default_memory_of_jobs() {
        let warns = |toml: &str, limit| planned(toml, 1 << 20, Some(limit)).1.contains(&Kind::RealMemory);
        let compute = "role = \"compute\"\n[slurm]\ncontroller = \"head2\"\n";
        assert!(warns(compute, 512) && !warns(compute, 1024));
        assert!(!warns(&format!("{compute}conf = {{ DefMemPerCPU = 256 }}\n"), 512));
        assert!(warns("[slurm.conf]\nDefMemPerCPU = 4096\n", 2048) && !warns("", 256));
    }

    #[test]
    fn tmp_disk_never_exceeds_file_system() {
        let disk = |toml: &str, scratch_mib| {
            let config = Config::parse(toml, std::path::Path::new("t")).unwrap();
            let inventory = Inventory { scratch_mib, hostname: "head".to_owned(), ..Inventory::default() };
            let plan = crate::plan(&config, &inventory).unwrap();
            let warns = plan.findings.iter().any(|finding| finding.what.contains("tmp_disk_mib"));
            (plan.nodes.node.tmp_disk_mib, warns)
        };
        for (toml, scratch_mib, expected) in [
            ("", None, (None, false)),
            ("", Some(0), (None, false)),
            ("", Some(900), (Some(900), false)),
            ("", Some(1024), (Some(1024), false)),
            ("", Some(5 * 1024 + 7), (Some(5 * 1024), false)),
            ("[node]\ntmp_disk_mib = 700", Some(900), (Some(700), false)),
            ("[node]\ntmp_disk_mib = 900", Some(900), (Some(900), false)),
            ("[node]\ntmp_disk_mib = 901", Some(900), (Some(900), true)),
            ("[node]\ntmp_disk_mib = 901", None, (Some(901), false)),
            // The size of a directory that the operator names is unknown.
            ("[slurm.conf]\nTmpFS = '/scratch'", Some(900), (None, false)),
        ] {
            assert_eq!(disk(toml, scratch_mib), expected, "{toml} {scratch_mib:?}");
        }
    }
}
