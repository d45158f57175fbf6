//! Measures, from the kernel's statistics, how long processes ran or waited for a CPU while a daemon did not respond.

use std::collections::BTreeMap;
use std::fs;
use std::time::Duration;

use machine::liveness_result::Liveness;
use sys::proc::parse::field;

/// For each thread, the time on a CPU and in the run queue.
pub(super) struct Work(BTreeMap<String, Duration>);

/// A process is not hung if it worked or waited for a CPU for at least this fraction (1/`BUSY`) of the time: the timers of a hung
/// daemon use a thousandth.
const BUSY: u32 = 10;

impl Work {
    /// The work of the threads of these processes so far.
    pub(super) fn of(pids: &[u32]) -> Self {
        let all = pids.iter().flat_map(|pid| threads(*pid).into_iter().map(move |thread| (*pid, thread)));
        Self(
            all.filter_map(|(pid, thread)| Some((thread.clone(), schedstat(&read(pid, &thread, "schedstat")?)?)))
                .collect(),
        )
    }

    /// The work done since `before`.
    pub(super) fn since(&self, before: &Self) -> Duration {
        let of_thread = |(thread, done): (&String, &Duration)| {
            done.saturating_sub(before.0.get(thread).copied().unwrap_or_default())
        };
        self.0.iter().map(of_thread).sum()
    }
}

/// Judges a process that did not respond during `time`. `work` is the work of the process and of the test command in that time; `None` for
/// a failure that work does not explain. `serves_others`: the process ran and has other clients, which may have kept it busy.
pub(super) fn liveness(pid: i32, work: Option<Duration>, serves_others: bool, time: Duration, why: String) -> Liveness {
    let pid = u32::try_from(pid).unwrap_or_default();
    let threads = threads(pid);
    if threads.is_empty() {
        return Liveness::Unknown("the process has ended".to_owned());
    }
    let statuses: Vec<String> = threads.iter().filter_map(|thread| read(pid, thread, "status")).collect();
    for status in &statuses {
        if let Some(tracer) = field(status, "TracerPid").filter(|tracer| *tracer != "0") {
            return Liveness::Unknown(format!("{why}; process {tracer} is debugging it"));
        }
        if field(status, "State").is_some_and(|state| state.starts_with('D')) {
            return Liveness::Unknown(format!("{why}; it waits in the kernel, probably for a disk or a device"));
        }
    }
    if !statuses.is_empty()
        && statuses.iter().all(|status| field(status, "State").is_some_and(|state| state.starts_with('T')))
    {
        return Liveness::Stopped(format!("{why}; it was stopped by a signal"));
    }
    if serves_others {
        return Liveness::Slow(format!("{why}, but it is running: its clients may keep it busy"));
    }
    let Some(work) = work else { return Liveness::Silent(why) };
    if work * BUSY >= time {
        let work = work.as_secs_f64();
        return Liveness::Slow(format!("{why}, but it and the check used or waited for a CPU for {work:.1} s"));
    }
    // The kernel adds the time in the run queue once the thread runs again, so a thread that waited all the time shows none yet.
    if statuses.iter().any(|status| field(status, "State").is_some_and(|state| state.starts_with('R'))) {
        return Liveness::Slow(format!("{why}, but it is running or waiting for a CPU"));
    }
    Liveness::Silent(why)
}

/// How often the threads of a process were scheduled on a CPU. In a deadlock this count does not change.
pub(super) fn schedule_count(pid: u32) -> u64 {
    let count = |thread: String| read(pid, &thread, "schedstat")?.split_ascii_whitespace().nth(2)?.parse::<u64>().ok();
    threads(pid).into_iter().filter_map(count).sum()
}

fn threads(pid: u32) -> Vec<String> {
    let entries = fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().into_string().ok()).collect()
}

fn read(pid: u32, thread: &str, file: &str) -> Option<String> {
    fs::read_to_string(format!("/proc/{pid}/task/{thread}/{file}")).ok()
}

/// Time on a CPU and time waiting for one, in nanoseconds (the kernel's Documentation/scheduler/sched-stats.rst).
fn schedstat(text: &str) -> Option<Duration> {
    let mut fields = text.split_ascii_whitespace().map_while(|field| field.parse().ok());
    Some(Duration::from_nanos(fields.next()?).saturating_add(Duration::from_nanos(fields.next()?)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn work_is_time_on_cpu_and_in_run_queue_of_each_thread() {
        assert_eq!(schedstat("1500 500 9\n"), Some(Duration::from_nanos(2000)));
        assert_eq!((schedstat(""), schedstat("7"), schedstat("x 1 1")), (None, None, None));
        let work = |threads: &[(&str, u64)]| {
            Work(threads.iter().map(|(thread, ms)| ((*thread).to_owned(), Duration::from_millis(*ms))).collect())
        };
        // A thread that has ended, one that worked, one that slept, and a new one.
        let before = work(&[("1", 900), ("2", 100), ("3", 50)]);
        assert_eq!(work(&[("2", 130), ("3", 50), ("4", 7)]).since(&before), Duration::from_millis(37));
    }

    #[test]
    fn working_thread_of_this_process_is_measured() {
        let pid = std::process::id();
        let (before, scheduled) = (Work::of(&[pid]), schedule_count(pid));
        let begin = std::time::Instant::now();
        while begin.elapsed() < Duration::from_millis(50) {
            std::hint::black_box(begin);
        }
        assert!(Work::of(&[pid]).since(&before) > Duration::from_millis(1));
        assert!(scheduled > 0 && schedule_count(u32::MAX) == 0);
    }

    #[test]
    #[expect(clippy::disallowed_methods, reason = "a test is not PID 1, so it may have children")]
    fn process_that_worked_a_tenth_of_the_time_is_slow() {
        // A process that sleeps, so that only the given work counts.
        let mut sleeper = std::process::Command::new("sleep").arg("600").spawn().unwrap();
        let pid = i32::try_from(sleeper.id()).unwrap();
        while sys::proc::stat(pid).is_none_or(|stat| stat.name != "sleep" || stat.state != 'S') {
            std::thread::yield_now();
        }
        let judge = |work: Option<u64>, serves_others| {
            liveness(
                pid,
                work.map(Duration::from_millis),
                serves_others,
                Duration::from_secs(10),
                "no answer".to_owned(),
            )
        };
        assert!(matches!(judge(Some(1000), false), Liveness::Slow(_)));
        assert!(matches!(judge(Some(999), false), Liveness::Silent(_)));
        assert!(matches!(judge(None, false), Liveness::Silent(_)));
        assert!(matches!(judge(None, true), Liveness::Slow(_)));
        nix::sys::signal::kill(nix::unistd::Pid::from_raw(pid), nix::sys::signal::Signal::SIGSTOP).unwrap();
        while sys::proc::stat(pid).is_some_and(|stat| stat.state != 'T') {
            std::thread::yield_now();
        }
        assert!(matches!(judge(Some(9000), true), Liveness::Stopped(_)));
        sleeper.kill().unwrap();
        sleeper.wait().unwrap();
        assert!(matches!(judge(None, false), Liveness::Unknown(_)));
    }
}
