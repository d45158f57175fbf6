//! Removes variables of one job that must not become the input of another.
//!
//! Slurm's commands read their options from the same variables in which a job finds its allocation. Variables are removed in two cases:
//!
//! 1. The container was started inside a job of another Slurm cluster, or with `SLURM_CONF`. The daemons would read the outer `SLURM_CONF`, and
//!    srun would look for the outer job. slurminit removes these variables from PID 1's environment, and records them, because `docker exec`
//!    passes them to each command.
//! 2. sbatch or salloc runs inside a job. Slurm sets only the variables of the new job's options: `SLURM_MEM_PER_NODE` of the outer job would remain
//!    beside `SLURM_MEM_PER_CPU` of the new one, and srun rejects the combination.

use std::ffi::{OsStr, OsString};
use std::fs;
use std::io::{self, Write as _};
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::path::Path;
use std::process::Command;

use model::paths::Paths;

use crate::trusted_path;

const JOB_ID: &str = "SLURM_JOB_ID";
const CONF: &str = "SLURM_CONF";
/// Variables whose values distinguish a job of this cluster from the outer job.
const IDENTITY: [&str; 3] = [JOB_ID, "SLURMD_NODENAME", "SLURM_CLUSTER_NAME"];
/// Prefixes of a job's variables. `PMI` is for MPI.
const PREFIXES: [&str; 5] = ["SLURM_", "SLURMD_", "SBATCH_MEM_BIND", "SBATCH_CPU_BIND", "PMI"];
/// The file of the recorded variables, in [`Paths::GIVEN`].
const RECORD: &str = "outer-job";
/// The variable that contains an authentication token.
const SECRET: &str = "SLURM_JWT";

/// Prefixes of variables that Slurm sets for what a job requested, and that srun reads as its options (24.11 to 26.05: `set_env_from_opts` and
/// `env_array_for_batch_job` of env.c, `env_vars` of srun's opt.c).
const REQUEST: [&str; 22] = [
    "SLURM_ACCTG_FREQ",
    "SLURM_CPUS_PER_",
    "SLURM_CPU_BIND",
    "SLURM_CPU_FREQ_REQ",
    "SLURM_DISTRIBUTION",
    "SLURM_DIST_",
    "SLURM_EXPORT_ENV",
    "SLURM_GPUS",
    "SLURM_GPU_",
    "SLURM_HINT",
    "SLURM_MEM_",
    "SLURM_NETWORK",
    "SLURM_NPROCS",
    "SLURM_NTASKS",
    "SLURM_OOM_KILL_STEP",
    "SLURM_OVERCOMMIT",
    "SLURM_PROFILE",
    "SLURM_RESERVATION",
    "SLURM_THREADS_PER_CORE",
    "SLURM_TRES_",
    "SLURM_UNBUFFEREDIO",
    "SLURM_LABELIO",
];

/// A variable and its value.
type Variable = (OsString, OsString);

fn has_prefix(name: &OsStr, prefixes: &[&str]) -> bool {
    prefixes.iter().any(|prefix| name.as_bytes().starts_with(prefix.as_bytes()))
}

fn value<'a>(variables: &'a [Variable], name: &str) -> Option<&'a OsStr> {
    variables.iter().find(|(other, _)| other == name).map(|(_, value)| value.as_os_str())
}

/// The variables that must not be set when a cluster starts: those of an outer job, and `SLURM_CONF`, which may name a configuration other
/// than that of the daemons.
fn of_outer_job(variables: &[Variable]) -> Vec<Variable> {
    let is_in_job = value(variables, JOB_ID).is_some();
    let is_dropped = |name: &OsStr| name == CONF || is_in_job && has_prefix(name, &PREFIXES);
    variables.iter().filter(|(name, _)| is_dropped(name)).cloned().collect()
}

/// The variables of this process that must not be set when a cluster starts, and that are to be removed from PID 1's environment.
pub fn variables() -> Vec<OsString> {
    of_outer_job(&environment()).into_iter().map(|(name, _)| name).collect()
}

/// The message about removed variables; `None` if none was removed.
pub fn warning(names: &[OsString]) -> Option<String> {
    let shown: Vec<_> = [JOB_ID, CONF].into_iter().filter(|shown| names.iter().any(|name| name == shown)).collect();
    const CLEAN: &str = "start the container without Slurm's variables (`env --unset`, `apptainer --cleanenv`)";
    let (what, fix) = match (shown.as_slice(), names.len()) {
        ([], _) => return None,
        ([JOB_ID, ..], 1) => (format!("{JOB_ID} of a job in another Slurm cluster is ignored"), CLEAN),
        ([JOB_ID, ..], count) => {
            let what =
                format!("{JOB_ID} and other variables of a job in another Slurm cluster are ignored ({count} in all)");
            (what, CLEAN)
        }
        _ => (
            format!("{CONF} is ignored: the daemons read the configuration in /etc/slurm"),
            "start the container without this variable; to use a slurm.conf of your own, mount it in /config",
        ),
    };
    Some(format!("{what}; fix: {fix}"))
}

/// Records the removed variables. If there are none, removes the record of an earlier start.
pub fn record(root: &Path, names: &[OsString]) -> io::Result<()> {
    let given = Path::new(Paths::GIVEN);
    if names.is_empty() {
        // Without the directory there is no record to remove.
        return trusted_path::open(root, given).map_or(Ok(()), |directory| directory.remove(RECORD));
    }
    let mut repaired = Vec::new();
    let (mut directory, _) = trusted_path::make(root, given, &mut repaired)?;
    directory.set_owner_and_mode(nix::unistd::geteuid().is_root().then_some((0, 0)), 0o755, &mut repaired)?;
    directory.remove(RECORD)?;
    let mut file = directory.create(RECORD, 0o444)?;
    for (name, value) in environment().into_iter().filter(|(name, _)| names.contains(name)) {
        let value = if name == SECRET { OsString::new() } else { value };
        file.write_all(&[name.as_bytes(), b"=", value.as_bytes(), b"\0"].concat())?;
    }
    Ok(())
}

fn parse(record: &[u8]) -> Vec<Variable> {
    let pair = |text: &[u8]| {
        let equals = text.iter().position(|byte| *byte == b'=')?;
        Some((OsString::from_vec(text[..equals].to_vec()), OsString::from_vec(text[equals + 1..].to_vec())))
    };
    record.split(|byte| *byte == 0).filter_map(pair).collect()
}

/// The recorded variables to remove from this process's environment. `SLURM_CONF` is removed if its value is the recorded one. The others are
/// removed only if the values of [`IDENTITY`] are the outer job's too: in a job of this cluster they differ.
fn still_there(variables: &[Variable], recorded: &[Variable]) -> Vec<OsString> {
    let is_same = |name: &str| value(variables, name) == value(recorded, name);
    let is_outer = IDENTITY.iter().all(|name| is_same(name));
    let is_dropped = |(name, was): &&Variable| match name.to_str() {
        Some(SECRET) => is_outer,
        Some(name) => (is_outer || name == CONF) && value(variables, name) == Some(was),
        None => false,
    };
    recorded.iter().filter(is_dropped).map(|(name, _)| name.clone()).collect()
}

fn environment() -> Vec<Variable> {
    std::env::vars_os().collect()
}

/// Removes the variables of an outer job of another Slurm cluster, and the container's `SLURM_CONF`, from a command's environment.
pub fn remove_from(command: &mut Command) {
    // The daemons' environment contains neither variable, so the record is not read there.
    if [JOB_ID, CONF].iter().all(|name| std::env::var_os(name).is_none()) {
        return;
    }
    let record = fs::read(Path::new(Paths::GIVEN).join(RECORD)).unwrap_or_default();
    for name in still_there(&environment(), &parse(&record)) {
        command.env_remove(name);
    }
}

/// Like [`remove_from`], for a command that requests a new allocation. In a job, also removes the variables that contain the options of that
/// job's own request.
pub fn remove_request_from(command: &mut Command) {
    if std::env::var_os(JOB_ID).is_some() {
        std::env::vars_os().filter(|(name, _)| has_prefix(name, &REQUEST)).for_each(|(name, _)| {
            command.env_remove(name);
        });
    }
    remove_from(command);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pairs(text: &str) -> Vec<Variable> {
        parse(text.replace(' ', "\0").as_bytes())
    }

    fn names(variables: &[OsString]) -> String {
        variables.iter().map(|name| name.to_string_lossy()).collect::<Vec<_>>().join(" ")
    }

    const OUTER: &str =
        "SLURM_JOB_ID=7 SLURMD_NODENAME=n1 SLURM_CLUSTER_NAME=big SLURM_CONF=/x SLURM_JWT= SLURM_NTASKS=4";

    #[test]
    fn start_drops_variables_of_outer_job_and_keeps_options() {
        let dropped = |text: &str| {
            of_outer_job(&pairs(text))
                .iter()
                .map(|(name, _)| name.to_string_lossy().into_owned())
                .collect::<Vec<_>>()
                .join(" ")
        };
        assert_eq!(dropped("PATH=/bin SLURMINIT_ROLE=all SLURM_TIME_FORMAT=x SBATCH_ACCOUNT=a"), "");
        assert_eq!(dropped("SLURM_CONF=/x SLURM_TIME_FORMAT=x"), "SLURM_CONF");
        assert_eq!(
            dropped(
                "SLURM_JOB_ID=7 SLURM_MEM_PER_NODE=9 SLURMD_NODENAME=n SLURMINIT_ROLE=all PMIX_RANK=0 PMI_FD=3 SBATCH_ACCOUNT=a"
            ),
            "SLURM_JOB_ID SLURM_MEM_PER_NODE SLURMD_NODENAME PMIX_RANK PMI_FD"
        );
    }

    #[test]
    fn warning_names_the_variable_and_a_fix() {
        assert_eq!(warning(&[]), None);
        let of_conf = warning(&[CONF.into()]).unwrap();
        assert!(of_conf.starts_with("SLURM_CONF is ignored") && of_conf.contains("/config"), "{of_conf}");
        let of_job = warning(&[CONF.into(), JOB_ID.into(), "SLURM_NTASKS".into()]).unwrap();
        assert!(warning(&[JOB_ID.into()]).unwrap().starts_with("SLURM_JOB_ID of a job"));
        assert!(of_job.starts_with("SLURM_JOB_ID and other variables") && of_job.contains("--cleanenv"), "{of_job}");
    }

    #[test]
    fn command_loses_recorded_variables_but_not_those_of_its_own_job() {
        let recorded = pairs(OUTER);
        let dropped = |text: &str| names(&still_there(&pairs(text), &recorded));
        assert_eq!(dropped(OUTER), "SLURM_JOB_ID SLURMD_NODENAME SLURM_CLUSTER_NAME SLURM_CONF SLURM_JWT SLURM_NTASKS");
        // Variables set with `docker exec --env` are kept.
        assert_eq!(
            dropped(&OUTER.replace("NTASKS=4", "NTASKS=2").replace("CONF=/x", "CONF=/y")),
            "SLURM_JOB_ID SLURMD_NODENAME SLURM_CLUSTER_NAME SLURM_JWT"
        );
        // A job of this cluster, even with the same ID.
        assert_eq!(dropped(&OUTER.replace("=big", "=slurm")), "SLURM_CONF");
        assert_eq!(dropped("SLURM_JOB_ID=8 SLURM_NTASKS=4"), "");
        assert_eq!(names(&still_there(&pairs(OUTER), &[])), "");
    }

    #[test]
    fn request_of_a_job_is_not_its_identity() {
        for name in [
            "SLURM_MEM_PER_NODE",
            "SLURM_MEM_PER_CPU",
            "SLURM_CPUS_PER_TASK",
            "SLURM_NTASKS_PER_NODE",
            "SLURM_TRES_PER_TASK",
        ] {
            assert!(has_prefix(OsStr::new(name), &REQUEST), "{name}");
        }
        for name in
            ["SLURM_JOB_ID", "SLURM_CONF", "SLURM_SUBMIT_DIR", "SLURM_JWT", "SLURM_CLUSTERS", "SLURM_TIME_FORMAT"]
        {
            assert!(!has_prefix(OsStr::new(name), &REQUEST), "{name}");
        }
    }

    #[test]
    fn start_without_outer_job_removes_the_record() {
        let root = tempfile::tempdir().unwrap();
        let file = root.path().join(Paths::GIVEN.trim_start_matches('/')).join(RECORD);
        record(root.path(), &[]).unwrap();
        record(root.path(), &["PATH".into()]).unwrap();
        assert!(fs::read(&file).unwrap().starts_with(b"PATH="));
        record(root.path(), &[]).unwrap();
        assert!(!file.exists());
    }
}
