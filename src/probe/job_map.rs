//! Maps GPUs to jobs for exporters on the host, with one file per GPU or MIG instance in a mounted directory.
//!
//! The file's name is the GPU's number on the host, as the vendor's exporter counts it. NVIDIA's dcgm-exporter
//! (`--hpc-job-mapping-dir`) reads a job ID from each line. It identifies a MIG instance by `GPU.INSTANCE` with the number
//! of the GPU instance (4.8.2 and newer; older releases ignore such a file). AMD's device-metrics-exporter reads the JSON
//! that AMD's own prolog writes (`example/slurm`), with the GPU's number in `CUDA_VISIBLE_DEVICES`.

use std::io::{self, Write as _};
use std::path::Path;

use nix::fcntl::{Flock, FlockArg};
use serde_json::{Value, json};

use crate::vendor;
use model::inventory::Vendor;
use sys::leftovers::Job;
use sys::trusted_path;
use sys::trusted_path::{Dir, UntrustedPath};

/// The lock file of the map. Exporters ignore it, because its name is not a GPU's.
const LOCK_FILE: &str = ".slurminit.lock";
const TEMPORARY_FILE: &str = ".slurminit.new";

/// The job variables that AMD's exporter reads, by Slurm's names.
const JOB_VARIABLES: [&str; 4] = ["SLURM_JOB_USER", "SLURM_JOB_PARTITION", "SLURM_CLUSTER_NAME", "SLURM_JOB_GPUS"];

/// Why the map could not be changed.
#[derive(Debug, thiserror::Error)]
pub enum MapError {
    /// The directory is missing, unreadable, or not trusted.
    #[error(transparent)]
    Directory(#[from] UntrustedPath),
    /// A file cannot be read or written.
    #[error("{0}")]
    File(#[from] io::Error),
}

/// The format of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// A job ID on each line.
    Lines,
    /// A JSON object.
    Json,
}

/// Adds a job to the map. `variable` returns a variable of the job's environment.
///
/// # Errors
/// The directory is not usable, or a file in it cannot be read or written.
pub fn begin(dir: &Path, job: &Job, variable: &dyn Fn(&str) -> Option<String>) -> Result<(), MapError> {
    update_files(dir, job, &|name, format, previous| match format {
        Format::Lines => Some(update_lines(previous, job.id, true)),
        Format::Json => {
            let mut entry = json!({ "SLURM_JOB_ID": job.id.to_string(), "CUDA_VISIBLE_DEVICES": name });
            for name in JOB_VARIABLES {
                entry[name] = Value::String(variable(name).unwrap_or_default());
            }
            Some(format!("{entry}\n"))
        }
    })
}

/// Removes a job from the map.
///
/// # Errors
/// As for [`begin`].
pub fn end(dir: &Path, job: &Job) -> Result<(), MapError> {
    update_files(dir, job, &|_, format, previous| match format {
        Format::Lines => Some(update_lines(previous, job.id, false)).filter(|lines| !lines.is_empty()),
        Format::Json => {
            let entry: Value = serde_json::from_str(previous).unwrap_or_default();
            let is_entry_of_job = entry["SLURM_JOB_ID"].as_str().and_then(|id| id.parse().ok()) == Some(job.id);
            (!is_entry_of_job).then(|| previous.to_owned())
        }
    })
}

/// Removes all jobs on these GPUs and MIG instances from the map.
///
/// # Errors
/// As for [`begin`].
pub fn clear(root: &Path, dir: &Path, devices: &[String]) -> Result<(), MapError> {
    let (dir, _lock) = open(root, dir)?;
    let files = devices.iter().filter_map(|device| map_entry(root, device));
    files.into_iter().try_for_each(|(name, _)| dir.remove(&name)).map_err(MapError::from)
}

/// Replaces the file of each device of the job by the result of `update`; `None` removes the file.
fn update_files(dir: &Path, job: &Job, update: &dyn Fn(&str, Format, &str) -> Option<String>) -> Result<(), MapError> {
    let root = Path::new("/");
    let (dir, _lock) = open(root, dir)?;
    for (name, format) in job.devices.iter().filter_map(|device| map_entry(root, device)) {
        let previous = match dir.read(&name) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Vec::new(),
            read => read?,
        };
        match update(&name, format, &String::from_utf8_lossy(&previous)) {
            None => dir.remove(&name)?,
            Some(text) => {
                dir.remove(TEMPORARY_FILE)?;
                dir.create(TEMPORARY_FILE, 0o644)?.write_all(text.as_bytes())?;
                dir.rename(TEMPORARY_FILE, &name)?;
            }
        }
    }
    Ok(())
}

fn open(root: &Path, dir: &Path) -> Result<(Dir, Flock<std::fs::File>), MapError> {
    let dir = trusted_path::open(root, dir)?;
    dir.require_ours()?;
    let lock = Flock::lock(dir.open_or_create(LOCK_FILE, 0o600)?, FlockArg::LockExclusive);
    Ok((dir, lock.map_err(|(_, errno)| io::Error::from(errno))?))
}

/// The job IDs in `previous`, one per line, with `job` if it is running, and otherwise without it.
fn update_lines(previous: &str, job: u32, is_running: bool) -> String {
    let others = previous.lines().filter_map(|line| line.trim().parse::<u32>().ok()).filter(|other| *other != job);
    others.chain(is_running.then_some(job)).map(|job| format!("{job}\n")).collect()
}

/// The name and format of a GPU's or a MIG instance's file.
fn map_entry(root: &Path, device: &str) -> Option<(String, Format)> {
    Vendor::ALL.into_iter().find_map(|vendor| vendor::probe_of(vendor).map_entry(root, device))
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn job(id: u32, devices: &[&str]) -> Job {
        Job { id, uid: 1501, devices: devices.iter().map(ToString::to_string).collect() }
    }

    #[test]
    fn maps_jobs_and_clears_only_given_gpus() {
        let temporary = tempfile::tempdir().unwrap();
        let dir = temporary.path();
        let content = |name: &str| fs::read_to_string(dir.join(name)).ok();
        let no_variable = |_: &str| None;
        begin(dir, &job(17, &["/dev/nvidia3", "/dev/nvidia4", "/dev/nvidia-caps/nvidia-cap3"]), &no_variable).unwrap();
        begin(dir, &job(18, &["/dev/nvidia3"]), &no_variable).unwrap();
        begin(dir, &job(18, &["/dev/nvidia3"]), &no_variable).unwrap();
        assert_eq!((content("3").as_deref(), content("4").as_deref()), (Some("17\n18\n"), Some("17\n")));
        end(dir, &job(17, &["/dev/nvidia3", "/dev/nvidia4"])).unwrap();
        assert_eq!((content("3").as_deref(), content("4")), (Some("18\n"), None));
        begin(dir, &job(19, &["/dev/nvidia5"]), &no_variable).unwrap();
        clear(Path::new("/"), dir, &["/dev/nvidia3".to_owned(), "/dev/null".to_owned()]).unwrap();
        assert_eq!((content("3"), content("5").as_deref()), (None, Some("19\n")));
        let names = fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().file_name());
        let mut names: Vec<_> = names.collect();
        names.sort();
        assert_eq!(names, [LOCK_FILE, "5"]);
    }

    #[test]
    fn amd_entry_is_json_with_escaped_user_name() {
        let temporary = tempfile::tempdir().unwrap();
        let dir = temporary.path();
        let variable = |name: &str| (name == "SLURM_JOB_USER").then(|| "a\",\n\"x".to_owned());
        begin(dir, &job(7, &["/dev/dri/renderD130"]), &variable).unwrap();
        let entry: Value = serde_json::from_str(&fs::read_to_string(dir.join("2")).unwrap()).unwrap();
        assert_eq!((&entry["SLURM_JOB_ID"], &entry["SLURM_JOB_USER"]), (&json!("7"), &json!("a\",\n\"x")));
        assert_eq!(entry["CUDA_VISIBLE_DEVICES"], json!("2"));
        end(dir, &job(6, &["/dev/dri/renderD130"])).unwrap();
        assert!(dir.join("2").exists());
        end(dir, &job(7, &["/dev/dri/renderD130"])).unwrap();
        assert!(!dir.join("2").exists());
    }

    #[test]
    fn does_not_write_to_untrusted_directories_or_through_links() {
        use std::os::unix::fs::{PermissionsExt as _, symlink};
        let temporary = tempfile::tempdir().unwrap();
        let target = temporary.path().join("target");
        fs::write(&target, "root's").unwrap();
        let dir = temporary.path().join("map");
        fs::create_dir(&dir).unwrap();
        let begin_job = |dir: &Path| begin(dir, &job(7, &["/dev/nvidia0"]), &|_| None);
        symlink(&target, dir.join("0")).unwrap();
        assert!(begin_job(&dir).is_err());
        assert_eq!(fs::read_to_string(&target).unwrap(), "root's");
        fs::set_permissions(&dir, fs::Permissions::from_mode(0o777)).unwrap();
        assert!(matches!(begin_job(&dir), Err(MapError::Directory(_))));
        assert!(matches!(begin_job(&temporary.path().join("missing")), Err(MapError::Directory(_))));
    }
}
