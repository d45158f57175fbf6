//! The checks of the user's files, at their limits.

use super::*;
use config::Config;
use model::inventory::{CgroupVersion, Cpu, Gpu, Memory, Severity};

/// A slurm.conf that fits the machine of [`machine`].
const FITTING: &str =
    "# USER_CUSTOMIZED=true\nSlurmctldHost=box\nProctrackType=proctrack/linuxproc\nGetEnvTimeout=0\nGresTypes=gpu\n";
const NODE: &str = "NodeName=box CPUs=4 RealMemory=5000 TmpDisk=900 Gres=gpu:nvidia:2";

/// 2 cores of 2 threads, 8000 MiB of which the container gets 6000, and 2 GPUs.
fn machine() -> Inventory {
    let gpu = |index: u32| Gpu {
        index,
        uuid: Some(format!("GPU-{index}")),
        model: Some("NVIDIA H200".to_owned()),
        device_file: Some(format!("/dev/nvidia{index}").into()),
        ..Gpu::default()
    };
    let core = |first: u32| [first, first + 1].into_iter().collect();
    Inventory {
        hostname: "box".to_owned(),
        cpu: Cpu { allowed: (0..4).collect(), sockets: vec![vec![core(0), core(2)]], ..Cpu::default() },
        memory: Memory { total_mib: 8000, limit_mib: Some(6000), ..Memory::default() },
        scratch_mib: Some(1000),
        gpus: vec![gpu(0), gpu(1)],
        ..Inventory::default()
    }
}

/// The user files as applied. Paths with `missing` do not exist.
fn checked(texts: &[(FileName, &str)], toml: &str, inventory: &Inventory) -> Customized {
    let config = Config::parse(toml, Path::new("slurminit.toml")).unwrap();
    let file = |(name, text): &(FileName, &str)| {
        let path = PathBuf::from(format!("/config/{name}"));
        UserFile::new(*name, Origin::Config, path, text, &|_| Err("not found".to_owned()))
    };
    let files: Vec<UserFile> = texts.iter().map(file).collect();
    let state = |path: &Path| match path.to_string_lossy().contains("missing")
        || path.to_string_lossy().starts_with("/etc/slurm/topology.")
    {
        true => FileState::Missing,
        false => FileState::Program,
    };
    let names = Names { hostname: inventory.hostname.clone(), ..Names::default() };
    let mut plan = crate::plan(&config, inventory).unwrap();
    plan.apply_user_files(&config, select_user_files(&config, &files), inventory, &names, &state)
}

/// Each problem as severity and text, and the one at which a daemon exits.
fn problems(texts: &[(FileName, &str)], toml: &str, inventory: &Inventory) -> (Vec<String>, Option<String>) {
    let customized = checked(texts, toml, inventory);
    let text = |finding: &Finding| {
        let severity = match finding.severity {
            Severity::Info => "info",
            Severity::Warning => "warning",
            Severity::Error => "error",
        };
        format!("{severity} {}", finding.what)
    };
    (customized.findings.iter().map(text).collect(), customized.fatal.map(|fatal| fatal.what))
}

/// The problems of a slurm.conf with these lines and this node.
fn findings(lines: &str, node: &str) -> Vec<String> {
    problems(&[(FileName::SlurmConf, &format!("{FITTING}{lines}\n{node}\n"))], "", &machine()).0
}

fn fatal(slurm_conf: &str, change: impl FnOnce(&mut Inventory)) -> Option<String> {
    let mut inventory = machine();
    change(&mut inventory);
    problems(&[(FileName::SlurmConf, &format!("# USER_CUSTOMIZED=true\n{slurm_conf}\n"))], "", &inventory).1
}

/// Asserts that there is no problem, or one with this severity and text.
fn assert_problem(actual: &[String], expected: &str, case: &str) {
    let (severity, text) = expected.split_once(' ').unwrap_or_default();
    let fits = |one: &String| one.starts_with(severity) && one.contains(text);
    assert!(actual.len() == usize::from(!expected.is_empty()) && actual.iter().all(fits), "{case}: {actual:?}");
}

#[test]
fn node_may_have_what_the_machine_has_and_no_more() {
    let overrides = "SlurmdParameters=config_overrides";
    for (lines, change, expected) in [
        ("", ("", ""), ""),
        ("", ("RealMemory=5000", "RealMemory=6000"), ""),
        ("", ("RealMemory=5000", "RealMemory=6001"), "warning RealMemory=6001, but only 6000"),
        ("", ("RealMemory=5000", "RealMemory=8000"), "warning RealMemory=8000"),
        ("", ("RealMemory=5000", "RealMemory=8001"), "error RealMemory=8001"),
        (overrides, ("RealMemory=5000", "RealMemory=8001"), "warning RealMemory=8001"),
        ("", ("CPUs=4", "CPUs=5"), "error CPUs=5, but this machine has only 4"),
        ("", ("CPUs=4", "Procs=5"), "error Procs=5"),
        (overrides, ("CPUs=4", "CPUs=5"), "info CPUs=5"),
        ("", ("CPUs=4", "Sockets=1 CoresPerSocket=2 ThreadsPerCore=2"), ""),
        ("", ("CPUs=4", "Sockets=2 CoresPerSocket=2 ThreadsPerCore=2"), "error (8 CPUs)"),
        ("", ("CPUs=4", "Boards=2 SocketsPerBoard=1 CoresPerSocket=4"), "error (8 CPUs)"),
        ("", ("CPUs=4", "Boards=2 Sockets=1 CoresPerSocket=4"), ""),
        ("", ("TmpDisk=900", "TmpDisk=1000"), ""),
        ("", ("TmpDisk=900", "TmpDisk=1001"), "error TmpDisk=1001"),
        (overrides, ("TmpDisk=900", "TmpDisk=1001"), ""),
        ("TmpFS=/tmp", ("TmpDisk=900", "TmpDisk=1001"), "error TmpDisk=1001"),
        ("TmpFS=/scratch", ("TmpDisk=900", "TmpDisk=1001"), ""),
        ("", ("nvidia:2", "nvidia:1"), "warning a GPU count of 1 in Gres=, but the available count is 2"),
        ("", ("nvidia:2", "nvidia:3"), "error a GPU count of 3 in Gres=, but the available count is only 2"),
        ("", ("gpu:nvidia:2", "gpu:a100:2"), "error a count of 2 for GPU type a100 in Gres=, but 0"),
        ("", ("gpu:nvidia:2", "gpu:2"), ""),
        ("GresTypes=mps", ("", ""), "error gpu is missing from GresTypes"),
        ("GetEnvTimeout=2", ("", ""), "warning GetEnvTimeout is not 0"),
        ("SlurmctldPort=7000", ("", ""), "error SlurmctldPort=7000, but slurminit uses 6817"),
        ("SlurmdPort=6818", ("", ""), ""),
        ("HealthCheckProgram=/missing", ("", ""), "warning HealthCheckProgram=/missing"),
    ] {
        assert_problem(&findings(lines, &NODE.replace(change.0, change.1)), expected, &format!("{lines} {change:?}"));
    }
}

#[test]
fn one_controller_must_be_this_host() {
    let found = |text: &str| problems(&[(FileName::SlurmConf, &format!("{text}{NODE}\n"))], "", &machine()).0;
    let other = FITTING.replace("SlurmctldHost=box", "SlurmctldHost=other");
    assert_problem(&found(&other), "error SlurmctldHost=other, but this host is box", "other");
    assert_problem(&found(&format!("{other}SlurmctldHost=box(10.0.0.1)\n")), "", "backup");
}

#[test]
fn gres_conf_names_existing_devices_once() {
    let found = |gres: &str, node: &str| {
        let slurm = format!("{FITTING}{node}\n");
        problems(&[(FileName::SlurmConf, &slurm), (FileName::GresConf, gres)], "", &machine()).0
    };
    let both = "Name=gpu Type=nvidia File=/dev/nvidia0\nName=gpu Type=nvidia File=/dev/nvidia1";
    let twice = "Name=gpu Type=nvidia File=/dev/nvidia0\nName=gpu Type=nvidia File=/dev/nvidia0\n";
    for (gres, expected) in [
        (both.to_owned(), ""),
        (twice.to_owned(), "error duplicate File=/dev/nvidia0"),
        (both.replace("nvidia1", "missing"), "error File=/dev/missing does not exist"),
        (format!("{both} Cores=0-1\n"), ""),
        (format!("{both} Cores=0-2\n"), "error Cores=0-2, but the last core of this machine is 1"),
        (both.replacen("Type=nvidia", "Type=a100", 1), "error a count of 2 for GPU type nvidia in Gres=, but 1"),
    ] {
        assert_problem(&found(&gres, NODE), expected, &gres);
    }
    assert_problem(
        &found("Name=gpu Count=1\n", &NODE.replace("gpu:nvidia:2", "gpu:1")),
        "error a GPU has no File=",
        "",
    );
}

#[test]
fn user_owns_marked_files_and_those_beside_a_marked_slurm_conf() {
    let found = |files: &[(FileName, Origin, &str)], toml: &str| {
        let config = Config::parse(toml, Path::new("x")).unwrap();
        let file = |(name, origin, text): &(FileName, Origin, &str)| {
            UserFile::new(*name, *origin, PathBuf::from(format!("/{origin:?}/{name}")), text, &|_| Err(String::new()))
        };
        let chosen = select_user_files(&config, &files.iter().map(file).collect::<Vec<_>>());
        let paths: Vec<String> = chosen.files.iter().map(|file| file.path.display().to_string()).collect();
        let first =
            chosen.findings.first().map(|finding| finding.what.split(' ').nth(2).unwrap_or_default().to_owned());
        (paths.join(" "), first)
    };
    let marked = "#USER_CUSTOMIZED = TRUE\nA=1\n";
    let generated = crate::HEADER;
    let (slurm, gres) = (FileName::SlurmConf, FileName::GresConf);
    let (config, installed, copy) = (Origin::Config, Origin::Slurm, Origin::Copy);
    for (files, toml, paths, finding) in [
        (&[(slurm, config, marked), (gres, config, "")][..], "", "/Config/slurm.conf /Config/gres.conf", None),
        (&[(slurm, installed, marked), (gres, config, "")], "", "/Slurm/slurm.conf", Some("not")),
        (&[(gres, config, marked), (slurm, config, "")], "", "/Config/gres.conf", Some("not")),
        (&[(slurm, config, "")], "user_customized = true", "/Config/slurm.conf", None),
        (&[(slurm, installed, generated)], "user_customized = true", "", None),
        (&[(slurm, installed, "A=1")], "", "", Some("replaced")),
        (&[(slurm, copy, marked)], "", "", Some("removed;")),
    ] {
        assert_eq!(found(files, toml), (paths.to_owned(), finding.map(str::to_owned)), "{files:?}");
    }
}

#[test]
fn refuses_settings_at_which_a_daemon_exits() {
    let fitting = format!("{FITTING}{NODE}");
    let other_node = fitting.replace("NodeName=box", "NodeName=c[1-2]");
    for (slurm_conf, expected) in [
        (fitting.clone(), ""),
        (other_node, "no NodeName line matches this host, box"),
        (FITTING.to_owned(), "no NodeName line"),
        (format!("{fitting}\nTopologyPlugin=topology/tree"), "/etc/slurm/topology.conf, which is missing"),
        (format!("{fitting}\nJobSubmitPlugins=lua"), ""),
        (format!("{fitting}\nSlurmctldPort=6818"), "SlurmctldPort and SlurmdPort are both 6818"),
        (format!("{fitting}\nSlurmctldPort=6819"), ""),
        (format!("{fitting}\nMpiDefault=pmix"), "MpiDefault=pmix: Slurm's plugin mpi_pmix is not installed"),
        (format!("{fitting}\nMpiDefault=none"), ""),
        (format!("{fitting}\nMpiDefault=pmi2"), ""),
        (format!("{fitting}\nSwitchType=switch/hpe"), ""),
        (format!("Include nodes.conf\n{fitting}"), "Include nodes.conf: not found"),
        (format!("{fitting}\nProlog=/missing"), "/missing"),
    ] {
        let actual = fatal(&slurm_conf, |inventory| inventory.slurm.plugins = vec!["mpi_pmi2".to_owned()]);
        let fits = actual.as_ref().map_or(expected.is_empty(), |what| !expected.is_empty() && what.contains(expected));
        assert!(fits, "{slurm_conf}: {actual:?}");
    }
}

#[test]
fn refuses_cgroups_that_end_slurmd() {
    let with = |line: &str| format!("{FITTING}{line}\n{NODE}");
    let v1 = |writable: bool| {
        move |inventory: &mut Inventory| {
            (inventory.cgroup.version, inventory.cgroup.writable) = (CgroupVersion::V1, writable);
        }
    };
    let tracks = fatal(&with("ProctrackType=proctrack/cgroup"), v1(false)).unwrap();
    assert!(tracks.contains("ProctrackType=proctrack/cgroup cannot work here"), "{tracks}");
    let gathers = fatal(&with("JobAcctGatherType=jobacct_gather/cgroup"), v1(false)).unwrap();
    assert!(gathers.contains("JobAcctGatherType=jobacct_gather/cgroup"), "{gathers}");
    let default = fatal(&with("").replace("ProctrackType=proctrack/linuxproc\n", ""), v1(false)).unwrap();
    assert!(default.contains("ProctrackType is not set"), "{default}");
    let mut inventory = machine();
    v1(false)(&mut inventory);
    let (slurm, cgroup) = (with("TaskPlugin=affinity,task/cgroup"), "# USER_CUSTOMIZED=true\nConstrainCores=yes\n");
    let files = [(FileName::SlurmConf, slurm.as_str()), (FileName::CgroupConf, cgroup)];
    let (_, task) = problems(&files, "", &inventory);
    assert!(task.as_ref().is_some_and(|what| what.contains("TaskPlugin=affinity,task/cgroup")), "{task:?}");
    let unconstrained = [files[0], (FileName::CgroupConf, "ConstrainCores=no\n")];
    assert_eq!(problems(&unconstrained, "", &inventory).1, None);
    let disabled = [(FileName::SlurmConf, slurm.as_str()), (FileName::CgroupConf, "CgroupPlugin=disabled\n")];
    let (_, task) = problems(&disabled, "", &inventory);
    assert!(task.as_ref().is_some_and(|what| what.contains("TaskPlugin=affinity,task/cgroup")), "{task:?}");
    // Where jobs fail and slurmd runs, the same settings are reported.
    v1(true)(&mut inventory);
    let found = |line: &str| {
        let (findings, fatal) = problems(&[(FileName::SlurmConf, with(line).as_str()), files[1]], "", &inventory);
        assert_eq!(fatal, None, "{line}");
        findings
    };
    assert_problem(
        &found("JobAcctGatherType=jobacct_gather/cgroup"),
        "error jobacct_gather/cgroup cannot work here",
        "",
    );
    assert_problem(&found("JobAcctGatherType=jobacct_gather/linux"), "", "");
}

#[test]
fn fixes_name_the_setting_to_change() {
    let mut inventory = machine();
    (inventory.cgroup.version, inventory.cgroup.writable) = (CgroupVersion::V1, true);
    let tracking = FITTING.replace("proctrack/linuxproc", "proctrack/cgroup");
    let without_types = FITTING.replace("GresTypes=gpu\n", "");
    let constrained = "# USER_CUSTOMIZED=true\nConstrainCores=yes\n";
    let gathering = "JobAcctGatherType=jobacct_gather/cgroup";
    let gatherer_fix = "write JobAcctGatherType=jobacct_gather/linux";
    for (start, line, expected) in [
        (FITTING, gathering, &[gatherer_fix][..]),
        (tracking.as_str(), "", &["write ProctrackType=proctrack/linuxproc and TaskPlugin="]),
        (tracking.as_str(), gathering, &["write ProctrackType=proctrack/linuxproc and TaskPlugin=", gatherer_fix]),
        (FITTING, "GresTypes=mps", &["add gpu to GresTypes"]),
        (without_types.as_str(), "", &["add the line GresTypes=gpu"]),
    ] {
        let slurm = format!("{start}{line}\n{NODE}");
        let files = [(FileName::SlurmConf, slurm.as_str()), (FileName::CgroupConf, constrained)];
        let findings = checked(&files, "", &inventory).findings;
        let fixes: Vec<&str> = findings.iter().map(|finding| finding.fix.as_str()).collect();
        let fit = |(fix, start): (&&str, &&str)| fix.starts_with(*start);
        assert!(fixes.len() == expected.len() && fixes.iter().zip(expected).all(fit), "{line}: {fixes:?}");
    }
}

#[test]
fn each_role_checks_the_files_of_its_daemons() {
    let slurm = format!(
        "{}{}\n",
        FITTING.replace("SlurmctldHost=box", "SlurmctldHost=other"),
        NODE.replace("CPUs=4", "CPUs=5")
    );
    let found = |role: &str| {
        let toml = format!("role = '{role}'\nslurm.controller = 'box'\n");
        problems(&[(FileName::SlurmConf, &slurm)], &toml, &machine()).0
    };
    assert_problem(&found("compute"), "error CPUs=5", "compute");
    assert_problem(&found("controller"), "error SlurmctldHost=other", "controller");
    assert_problem(&found("login"), "", "login");
}
