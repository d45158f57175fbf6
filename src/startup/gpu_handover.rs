//! Kills processes that still have a GPU open when the GPU is given to a job of another user.
//!
//! Runs only if the job's user is the only one who may open the GPU's device file (`install::give_device_file`). Other users cannot open the
//! file any more, but a process that already has it open, or mapped, can still use it. Such a process is killed if its descriptors or mappings
//! show the file, unless it belongs to root, to the job's user or to the user of the GPU watchers. A process that hides what it has open
//! (PR_SET_DUMPABLE; see `open_files::Evidence::Hidden`) is killed only if its user was given this GPU at some time since the container's
//! start, and if it does not belong to a login session. Otherwise one user could cause the hidden processes of other users to be killed.
//!
//! NVIDIA's libraries open every GPU that they may open, so a program that uses one GPU of a user also has the GPUs of the user's other
//! jobs open. A process of a running job is therefore spared if its user has another GPU now, and the job is logged if the process shows
//! the file.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;

use sys::leftovers::look;
use sys::open_files::{self, SearchTarget};
use sys::proc::{self, Process, Processes};
use sys::users;

use model::message;
use model::message::Report;

use crate::stopped::{self, Stopped};

/// The timeout for killing all processes.
const DEADLINE: Duration = Duration::from_secs(3);
/// Maximum number of killed processes that the log names. Further ones are only counted.
const MAX_NAMED: usize = 10;

/// The file that records which users were given which GPUs, with a line for each pair: `UID DEVICE`.
const RECORD: &str = "gpu-users";

/// The result of ending other users' processes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Outcome {
    /// Messages for the log.
    pub reports: Vec<Report>,
    /// Whether no process is left that has to be killed.
    pub is_clear: bool,
}

/// Ends the processes of other users that have, or may have, one of these device files open, with the exceptions that the module's
/// documentation names. `run` is the directory of the record of GPU users.
pub fn end_other_users(job: u32, devices: &BTreeSet<String>, user: u32, run: &Path) -> Outcome {
    let begin = Instant::now();
    // The search by path is reliable: only root can create or rename a file in /dev.
    let device_files = SearchTarget::Files(devices.clone());
    let (former_uids, other_gpu_uids) = (former_users(run, devices), holders_of_other_gpus(run, devices));
    // The GPU watchers are spared: they have no rights except to open GPUs.
    let watcher = users::local(install::WATCHER_USER).map(|user| user.uid);
    let others = |process: &Process| process.uid != user && Some(process.uid) != watcher;
    let adopters = proc::ancestors().map(|ancestor| ancestor.pid).collect();
    let mut spared: BTreeSet<(u32, u32)> = BTreeSet::new();
    let mut holders = || -> Vec<(Process, bool)> {
        let processes = open_files::user_processes().into_iter().filter(others).collect();
        let mut found = open_files::find(processes, &device_files);
        found.hidden.retain(|process| former_uids.contains(&process.uid) && !is_login(process, &adopters));
        if found.proven.is_empty() && found.hidden.is_empty() {
            return Vec::new();
        }
        let all = Processes::read();
        let job_with_a_gpu = |process: &Process| all.job(process).filter(|_| other_gpu_uids.contains(&process.uid));
        let (kept, proven): (Vec<_>, Vec<_>) =
            found.proven.into_iter().partition(|process| job_with_a_gpu(process).is_some());
        spared.extend(kept.iter().filter_map(|process| Some((job_with_a_gpu(process)?, process.uid))));
        let hidden = found.hidden.into_iter().filter(|process| job_with_a_gpu(process).is_none());
        proven.into_iter().map(|process| (process, true)).chain(hidden.map(|process| (process, false))).collect()
    };
    let (mut stopped, mut ended) = (Stopped::default(), BTreeMap::new());
    let mut remaining = holders();
    while !remaining.is_empty() && begin.elapsed() < DEADLINE {
        // A stopped process cannot fork, or pass the file on.
        stopped.stop_all(&remaining.iter().map(|(process, _)| process.uid).collect());
        for (process, is_proven) in holders() {
            if let Some(handle) = process.handle() {
                handle.send(Signal::SIGKILL);
                stopped::await_end(&handle);
                ended.insert(process.key(), (process, is_proven));
            }
        }
        remaining = holders();
    }
    stopped.finish();
    remaining.iter().for_each(|(process, _)| drop(ended.remove(&process.key())));
    let ended: Vec<(Process, bool)> = ended.into_values().collect();
    let mut reports = reports(job, devices, &ended, &remaining);
    reports.extend(spared.iter().map(|(holder, uid)| {
        Report::info(message!(
            "gpu-kept-open",
            "preparing {devices} for job {job}: job {holder} of {user} has one of these GPUs open and can use it until job {holder} ends",
            devices = device_list(devices),
            job,
            holder,
            user = users::display_name(*uid)
        ))
    }));
    Outcome { reports, is_clear: remaining.is_empty() }
}

fn device_list(devices: &BTreeSet<String>) -> String {
    devices.iter().map(String::as_str).collect::<Vec<_>>().join(", ")
}

/// Whether the process belongs to a login session: its parent is a daemon of root, such as sshd. It hides its descriptors because it once
/// had root's rights. A job's process has slurmstepd as its parent. The parent of a user's own process does not belong to root, or is an
/// adopter: the kernel reparents orphans to an ancestor of the daemons.
fn is_login(process: &Process, adopters: &BTreeSet<i32>) -> bool {
    process.parent > 1
        && !adopters.contains(&process.parent)
        && proc::is_root_process(process.parent)
        && !look::is_slurmd_or_descendant(process.pid)
}

fn reports(
    job: u32,
    devices: &BTreeSet<String>,
    ended: &[(Process, bool)],
    remaining: &[(Process, bool)],
) -> Vec<Report> {
    let devices = device_list(devices);
    let killed = |(process, is_proven): &(Process, bool)| {
        let (pid, name, user) = (process.pid, &process.name, users::display_name(process.uid));
        Report::warn(match is_proven {
            true => message!(
                "gpu-user-killed",
                "preparing {devices} for job {job}: killed process {pid} ({name}) of {user}, which still had one of these GPUs open",
                devices,
                job,
                pid,
                name,
                user
            ),
            false => message!(
                "gpu-user-killed",
                "preparing {devices} for job {job}: killed process {pid} ({name}) of {user}, who was given one of these GPUs before; could not check whether the process still had it open",
                devices,
                job,
                pid,
                name,
                user
            ),
        })
    };
    let mut reports: Vec<Report> = ended.iter().take(MAX_NAMED).map(killed).collect();
    if ended.len() > MAX_NAMED {
        reports.push(Report::warn(message!(
            "gpu-users-killed",
            "preparing {devices} for job {job}: further processes killed: {count}",
            devices,
            job,
            count = ended.len() - MAX_NAMED
        )));
    }
    if let Some((process, _)) = remaining.first() {
        reports.push(Report::error(message!(
            "gpu-withheld",
            "withholding {devices} from job {job}: cannot kill process {pid} ({name}) of {user}; reset the GPU or reboot the host",
            devices,
            job,
            pid = process.pid,
            name = process.name,
            user = users::display_name(process.uid)
        )));
    }
    reports
}

/// The users who were given one of these devices at some time since the container's start.
fn former_users(run: &Path, devices: &BTreeSet<String>) -> BTreeSet<u32> {
    let text = fs::read_to_string(record(run)).unwrap_or_default();
    let entries = text.lines().filter_map(|line| line.split_once(' '));
    entries.filter(|(_, device)| devices.contains(*device)).filter_map(|(uid, _)| uid.parse().ok()).collect()
}

/// Whether the Prolog has given the device to a user since the container's start.
pub fn was_given(run: &Path, device: &str) -> bool {
    !former_users(run, &BTreeSet::from([device.to_owned()])).is_empty()
}

/// The users who have access to GPUs other than these now.
fn holders_of_other_gpus(run: &Path, devices: &BTreeSet<String>) -> BTreeSet<u32> {
    let text = fs::read_to_string(record(run)).unwrap_or_default();
    let others =
        text.lines().filter_map(|line| Some(line.split_once(' ')?.1)).filter(|device| !devices.contains(*device));
    others.filter_map(|device| install::device_file_user(Path::new(device))).collect()
}

/// Records that the user is given these devices.
///
/// # Errors
/// The record cannot be written.
pub fn record_user(run: &Path, devices: &BTreeSet<String>, user: u32) -> io::Result<()> {
    let is_new = |device: &&String| !former_users(run, &BTreeSet::from([(*device).clone()])).contains(&user);
    let new_lines: String = devices.iter().filter(is_new).map(|device| format!("{user} {device}\n")).collect();
    if new_lines.is_empty() {
        return Ok(());
    }
    // A short text is appended as a whole, even if prologs of several jobs run at the same time.
    let mut options = OpenOptions::new();
    let mut file = options.create(true).append(true).mode(0o600).custom_flags(libc::O_NOFOLLOW).open(record(run))?;
    file.write_all(new_lines.as_bytes())
}

fn record(run: &Path) -> PathBuf {
    run.join(RECORD)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_each_gpu_user_once() {
        let run = tempfile::tempdir().unwrap();
        let set = |names: &[&str]| names.iter().map(ToString::to_string).collect::<BTreeSet<String>>();
        assert_eq!(former_users(run.path(), &set(&["/dev/nvidia0"])), BTreeSet::new());
        for _ in 0..2 {
            record_user(run.path(), &set(&["/dev/nvidia0", "/dev/nvidia1"]), 1000).unwrap();
            record_user(run.path(), &set(&["/dev/nvidia1"]), 1001).unwrap();
        }
        assert_eq!(former_users(run.path(), &set(&["/dev/nvidia0"])), [1000].into());
        assert_eq!(former_users(run.path(), &set(&["/dev/nvidia1"])), [1000, 1001].into());
        assert_eq!(fs::read_to_string(record(run.path())).unwrap().lines().count(), 3);
    }

    #[test]
    fn log_names_ten_killed_processes_and_counts_the_others() {
        let process = |pid| (Process { pid, name: "python3".to_owned(), ..Process::default() }, true);
        let devices = BTreeSet::from(["/dev/nvidia0".to_owned(), "/dev/nvidia1".to_owned()]);
        let texts = |ended: i32, remaining: &[(Process, bool)]| {
            let ended: Vec<_> = (1..=ended).map(process).collect();
            reports(7, &devices, &ended, remaining).into_iter().map(|report| report.message.text).collect::<Vec<_>>()
        };
        assert_eq!(texts(10, &[]).len(), 10);
        let all = texts(12, &[process(99)]);
        assert!(
            all[0].starts_with("preparing /dev/nvidia0, /dev/nvidia1 for job 7: killed process 1 (python3) of "),
            "{}",
            all[0]
        );
        assert_eq!(all[10], "preparing /dev/nvidia0, /dev/nvidia1 for job 7: further processes killed: 2");
        let withheld = "withholding /dev/nvidia0, /dev/nvidia1 from job 7: cannot kill process 99 (python3) of ";
        assert!(all.len() == 12 && all[11].starts_with(withheld), "{all:?}");
    }

    #[test]
    fn gpu_was_given_once_a_user_is_recorded() {
        let run = tempfile::tempdir().unwrap();
        assert!(!was_given(run.path(), "/dev/nvidia0"));
        record_user(run.path(), &BTreeSet::from(["/dev/nvidia0".to_owned()]), 1000).unwrap();
        assert!(was_given(run.path(), "/dev/nvidia0") && !was_given(run.path(), "/dev/nvidia1"));
    }
}
