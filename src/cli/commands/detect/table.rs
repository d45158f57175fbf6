//! The inventory as text. Hardware names are untrusted, so all text is escaped for the terminal.

use super::Images;
use doctor::requirements::Requirement;
use doctor::{Observation, Verdict};
use model::inventory::{Access, CgroupVersion, CpuSet, Driver, Gpu, Inventory, MigInstance, Severity};
use model::printable;

/// The report, with a newline at the end.
pub(super) fn render(inventory: &Inventory, requirements: &[Requirement], images: Option<&Images>) -> String {
    let mut lines = vec![];
    if inventory.gpus.is_empty() {
        lines.push("no GPU".to_owned());
    } else {
        lines.extend(gpu_table(&inventory.gpus));
        lines.extend(inventory.gpus.iter().filter_map(links));
        lines.extend(inventory.gpus.iter().flat_map(instances));
    }
    lines.push(String::new());
    lines.extend(inventory.drivers.iter().map(driver));
    lines.extend(host(inventory).map(|(name, value)| format!("{name:<8} {}", printable::line(&value))));
    lines.extend(images.map(|images| format!("{:<8} {}", "images", images.text())));
    lines.extend(requirement_lines(requirements));
    for finding in &inventory.findings {
        let severity = match finding.severity {
            Severity::Info => "note",
            Severity::Warning => "warning",
            Severity::Error => "error",
        };
        lines.push(String::new());
        lines.push(format!("{severity}: {}", printable::line(&finding.what)));
        lines.push(format!("  cause:  {}", printable::line(&finding.cause)));
        lines.push(format!("  fix:    {}", printable::line(&finding.fix)));
    }
    lines.join("\n") + "\n"
}

/// Met requirements of the same name share a line. Each unmet requirement has its own line, followed by its cause and fix, if any.
fn requirement_lines(requirements: &[Requirement]) -> Vec<String> {
    if requirements.is_empty() {
        return Vec::new();
    }
    let mut lines = vec![String::new(), "REQUIREMENTS".to_owned()];
    for group in requirements.chunk_by(|one, next| one.name == next.name) {
        let is_met = |requirement: &&Requirement| requirement.observation.verdict == Verdict::Ok;
        let met: Vec<&Requirement> = group.iter().filter(is_met).collect();
        if let Some(first) = met.first() {
            let count = if met.len() > 1 { format!(" (and {} more)", met.len() - 1) } else { String::new() };
            lines.push(format!("{:<7}  {:<12}  {}{count}", "ok", first.name, printable::line(&first.observation.seen)));
        }
        for Requirement { name, observation } in group.iter().filter(|requirement| !is_met(requirement)) {
            lines.extend(unmet_requirement(name, observation));
        }
    }
    lines
}

fn unmet_requirement(name: &str, Observation { verdict, seen, cause, fix, .. }: &Observation) -> Vec<String> {
    let verdict = match verdict {
        Verdict::Ok => "ok",
        Verdict::Note => "note",
        Verdict::CouldNotLook => "unknown",
        Verdict::Warn => "warn",
        Verdict::Fail => "FAIL",
    };
    let first = format!("{verdict:<7}  {name:<12}  {}", printable::line(seen));
    let cause = cause.as_ref().map(|cause| format!("  cause:  {}", printable::line(cause)));
    let fix = fix.as_ref().map(|fix| format!("  fix:    {}", printable::line(fix)));
    std::iter::once(first).chain(cause).chain(fix).collect()
}

const HEADER: [&str; 9] = ["GPU", "DEVICE", "MODEL", "MEMORY", "COMPUTE", "PCI", "NUMA", "CPUS", "ACCESS"];

fn gpu_table(gpus: &[Gpu]) -> Vec<String> {
    let rows: Vec<[String; 9]> = std::iter::once(HEADER.map(str::to_owned)).chain(gpus.iter().map(row)).collect();
    let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0);
    let widths: Vec<usize> = (0..HEADER.len()).map(width).collect();
    let line = |row: &[String; 9]| {
        let cells: Vec<String> = row.iter().zip(&widths).map(|(cell, width)| format!("{cell:<width$}")).collect();
        cells.join("  ").trim_end().to_owned()
    };
    rows.iter().map(line).collect()
}

fn row(gpu: &Gpu) -> [String; 9] {
    let access = match (&gpu.access, &gpu.mig) {
        (Access::Usable, None) => "usable".to_owned(),
        (Access::Usable, Some(instances)) if instances.is_empty() => "MIG mode without an instance".to_owned(),
        (Access::Usable, Some(_)) => "usable as MIG instances".to_owned(),
        (Access::Unusable { reason, obstacle }, _) if obstacle.is_seen_by_runtime() => format!("left out: {reason}"),
        (Access::Unusable { reason, .. }, _) => format!("UNUSABLE: {reason}"),
    };
    let cells = [
        format!("{} {}", gpu.vendor, gpu.index),
        or_dash(gpu.device_file.as_ref().map(|path| path.display())),
        or_dash(gpu.model.as_ref()),
        or_dash(gpu.memory_mib.map(|mib| format!("{mib} MiB{}", if gpu.shares_memory { ", shared" } else { "" }))),
        or_dash(gpu.compute.as_ref()),
        or_dash(gpu.pci_address),
        or_dash(gpu.numa_node),
        or_dash(gpu.cpus.as_ref()),
        access,
    ];
    cells.map(|cell| printable::line(&cell).into_owned())
}

fn or_dash(value: Option<impl ToString>) -> String {
    value.map_or_else(|| "-".to_owned(), |value| value.to_string())
}

/// One line for each MIG instance.
fn instances(gpu: &Gpu) -> Vec<String> {
    let line = |instance: &MigInstance| {
        let access = match &instance.access {
            Access::Usable => "usable".to_owned(),
            Access::Unusable { reason, .. } => format!("UNUSABLE: {reason}"),
        };
        let memory = or_dash(instance.memory_mib.map(|mib| format!("{mib} MiB")));
        let (profile, uuid) = (or_dash(instance.profile.as_ref()), or_dash(instance.uuid.as_ref()));
        let text = format!("{} {} has MIG {profile}, {memory}, {uuid}: {access}", gpu.vendor, gpu.index);
        printable::line(&text).into_owned()
    };
    gpu.mig.iter().flatten().map(line).collect()
}

fn links(gpu: &Gpu) -> Option<String> {
    let peers: Vec<String> = gpu.links.iter().map(|(peer, count)| format!("{count} to GPU {peer}")).collect();
    (!peers.is_empty()).then(|| format!("{} {} has NVLinks: {}", gpu.vendor, gpu.index, peers.join(", ")))
}

fn driver(driver: &Driver) -> String {
    let version = driver.version.as_deref().unwrap_or("of unknown version");
    let cuda = driver.cuda_version.as_ref().map(|cuda| format!(", CUDA {cuda}")).unwrap_or_default();
    printable::line(&format!("{:<8} {} {version}{cuda}, through {}", "driver", driver.vendor, driver.source.label()))
        .into_owned()
}

fn host(inventory: &Inventory) -> impl Iterator<Item = (&'static str, String)> {
    let Inventory { hostname, cpu, memory, cgroup, slurm, .. } = inventory;
    let cores: usize = cpu.sockets.iter().map(Vec::len).sum();
    let quota = cpu.quota.map(|cpus| format!(", CPU quota {cpus}")).unwrap_or_default();
    let machine_cpus: usize = cpu.sockets.iter().flatten().map(CpuSet::len).sum();
    let cpus = format!(
        "{} allowed ({}){quota}; the machine: sockets {}, cores {cores}, CPUs {machine_cpus}",
        cpu.allowed.len(),
        cpu.allowed,
        cpu.sockets.len(),
    );
    let limit = memory.limit_mib.map_or_else(|| "no limit".to_owned(), |limit| format!("limit {limit} MiB"));
    let gpu_memory = match memory.gpu_mib {
        0 => String::new(),
        gpu_memory => format!(", plus {gpu_memory} MiB of GPU memory"),
    };
    let memory =
        format!("{} MiB usable; the machine has {} MiB{gpu_memory}, {limit}", memory.usable_mib(), memory.total_mib);
    let version = match cgroup.version {
        CgroupVersion::None => "none",
        CgroupVersion::V1 => "v1",
        CgroupVersion::V2 => "v2",
    };
    let writable = if cgroup.writable { "writable" } else { "read-only" };
    let cgroup = format!("{version}, {writable}: {}", cgroup.controllers.join(" "));
    let plugins = format!("; plugins: {}", slurm.plugins.join(" "));
    let patch = slurm.patch.map(|patch| format!(".{patch}")).unwrap_or_default();
    let version = slurm.version.map(|version| slurm.package.clone().unwrap_or_else(|| format!("{version}{patch}")));
    let slurm = version.map_or_else(|| "not found".to_owned(), |version| format!("{version}{plugins}"));
    [("host", hostname.clone()), ("CPUs", cpus), ("memory", memory), ("cgroup", cgroup), ("Slurm", slurm)].into_iter()
}

#[cfg(test)]
mod tests {
    use super::*;
    use model::inventory::{
        Cgroup, Cpu, Finding, Kind, Memory, Obstacle, Platform, SlurmInstall, SlurmVersion, Source, Vendor,
    };

    fn gpu(index: u32, model: &str, access: Access) -> Gpu {
        Gpu {
            vendor: Vendor::Nvidia,
            index,
            minor: Some(index),
            device_file: Some(format!("/dev/nvidia{index}").into()),
            uuid: None,
            model: Some(model.to_owned()),
            pci_address: "0000:17:00.0".parse().ok(),
            memory_mib: Some(143_771),
            shares_memory: false,
            memory_node: None,
            integrated: false,
            compute: Some("9.0".to_owned()),
            cpus: "0-3".parse().ok(),
            numa_node: None,
            links: [(1 - index, 18)].into(),
            mig: None,
            condition: None,
            nvlink_domain: None,
            access,
        }
    }

    #[test]
    fn aligns_table_and_escapes_hostile_names() {
        let unusable = Access::unusable(Obstacle::NotGiven, "/dev/nvidia1 is not in this container");
        let inventory = Inventory {
            platform: Platform::Linux,
            hostname: "node\u{1b}[2J".to_owned(),
            container_name: None,
            device_files: model::inventory::DeviceFiles::Hosts,
            imex_channels: Vec::new(),
            cpu: Cpu {
                allowed: "0-3".parse().unwrap(),
                quota: Some(1.5),
                sockets: vec![vec!["0,2".parse().unwrap(), "1,3".parse().unwrap()]],
                binding_denied: false,
            },
            memory: Memory { total_mib: 64_000, gpu_mib: 0, limit_mib: Some(4096) },
            scratch_mib: None,
            cgroup: Cgroup { version: CgroupVersion::V2, controllers: vec!["cpu".to_owned()], ..Cgroup::default() },
            makes_namespaces: false,
            refuses_peer_memory: false,
            ipv6_alone: false,
            slurm: SlurmInstall {
                version: Some(SlurmVersion { year: 24, month: 11 }),
                plugins: vec!["gpu_nvml".to_owned()],
                ..SlurmInstall::default()
            },
            drivers: vec![Driver {
                vendor: Vendor::Nvidia,
                source: Source::Nvml,
                version: Some("590.48.01".to_owned()),
                cuda_version: Some("13.1".to_owned()),
            }],
            gpus: vec![gpu(0, "NVIDIA H200", Access::Usable), gpu(1, "H\n\u{1b}[31m\u{202e}\"x\"", unusable)],
            findings: vec![Finding::warning(Kind::Other, "w\r", "c", "r")],
        };
        let requirement = |name, verdict, seen: &str, why: Option<&str>| Requirement {
            name,
            observation: Observation {
                verdict,
                seen: seen.to_owned(),
                cause: why.map(str::to_owned),
                fix: why.map(str::to_owned),
                is_usual: false,
            },
        };
        let requirements = [
            requirement("gpu-speed", Verdict::Ok, "GPU 0 is fast", None),
            requirement("gpu-speed", Verdict::Warn, "GPU 1 is \u{1b}[2Jslow", Some("hot\n")),
            requirement("gpu-speed", Verdict::Ok, "GPU 2 is fast", None),
            requirement("ecc", Verdict::Fail, "bad", Some("x")),
        ];
        insta::assert_snapshot!(render(&inventory, &requirements, None), @r#"
        GPU       DEVICE        MODEL                     MEMORY      COMPUTE  PCI           NUMA  CPUS  ACCESS
        nvidia 0  /dev/nvidia0  NVIDIA H200               143771 MiB  9.0      0000:17:00.0  -     0-3   usable
        nvidia 1  /dev/nvidia1  H\x0a\x1b[31m\u{202e}"x"  143771 MiB  9.0      0000:17:00.0  -     0-3   UNUSABLE: /dev/nvidia1 is not in this container
        nvidia 0 has NVLinks: 18 to GPU 1
        nvidia 1 has NVLinks: 18 to GPU 0

        driver   nvidia 590.48.01, CUDA 13.1, through NVML
        host     node\x1b[2J
        CPUs     4 allowed (0-3), CPU quota 1.5; the machine: sockets 1, cores 2, CPUs 4
        memory   4096 MiB usable; the machine has 64000 MiB, limit 4096 MiB
        cgroup   v2, read-only: cpu
        Slurm    24.11; plugins: gpu_nvml

        REQUIREMENTS
        ok       gpu-speed     GPU 0 is fast (and 1 more)
        warn     gpu-speed     GPU 1 is \x1b[2Jslow
          cause:  hot\x0a
          fix:    hot\x0a
        FAIL     ecc           bad
          cause:  x
          fix:    x

        warning: w\x0d
          cause:  c
          fix:    r
        "#);
    }
}
