//! One case of the fault matrix: runs a container, injects a fault and checks the outcome.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::time::{Duration, Instant};

use super::sign::{self, Sign};
use crate::docker::{Container, Image, PLAIN, directory, docker, records};

/// One row of the table.
#[derive(Clone, Debug)]
pub(super) struct Case {
    /// The target of the fault: a daemon, a disk, the clock.
    pub(super) target: &'static str,
    /// `starting`, `ready`, `reloading` or `stopping`.
    pub(super) phase: &'static str,
    /// The name of the fault.
    pub(super) fault: &'static str,
    /// The image with the options of `docker run`.
    pub(super) image: Image,
    pub(super) toml: String,
    /// Whether to submit a held job and a counting job before the fault.
    pub(super) jobs: bool,
    /// The shell line that injects the fault.
    pub(super) inject: String,
    /// A shell condition for recovery, in addition to "a job runs".
    pub(super) until: String,
    pub(super) end: End,
    /// The log must have one of these. Empty if the log cannot be read.
    pub(super) signs: Vec<Sign>,
    /// A shell line whose output becomes part of the row; may be empty.
    pub(super) measure: String,
    /// The permitted effect on the counting job, such as `requeued`; empty if none.
    pub(super) job: &'static str,
    /// The saved state that may be lost; empty if none.
    pub(super) data: &'static str,
}

/// The expected end of a case.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum End {
    /// The cluster accepts jobs again.
    Recovers,
    /// The container exits by itself with this code.
    Exits(i32),
    /// The fault happens during a stop. The stop exits with 0, and the next start works.
    Stops,
    /// The cluster recovers only with a restart of the container.
    Restarts,
    /// The next start exits by itself with this code.
    NextExits(i32),
    /// The container is killed after the fault; the next start works.
    Killed,
}

/// The observed outcome of a case.
#[derive(Clone, Debug)]
pub(super) struct Seen {
    pub(super) took: Duration,
    pub(super) job: String,
    pub(super) said: String,
}

/// Timeout in seconds. A longer wait counts as a hang.
const TIMEOUT: u64 = 60;

/// Shell functions for the lines of all cases. A job shares the CPUs, so two jobs fit on one CPU.
pub(crate) const LIBRARY: &str = r#"
pid() { # NAME: the oldest process of that name
    for p in $(ls /proc | grep '^[0-9][0-9]*$' | sort -n); do
        read -r name 2>/dev/null <"/proc/$p/comm" && [ "${name%-wlm}" = "$1" ] && echo "$p" && return
    done
    return 1
}
now() { read -r up _ </proc/uptime; echo "${up%.*}${up#*.}"; } # in hundredths of a second, whatever the clock says
hit_child() { # SIGNAL PID: hits the first process that PID forks from now on
    while :; do
        read -r children <"/proc/$2/task/$2/children"
        for child in $children; do
            read -r name <"/proc/$child/comm" && [ "$name" != sh ] && kill "-$1" "$child" && return
        done
    done
}
renewed() { new=$(pid "$1") && [ "$new" != "$old" ]; }
works() { slurminit health >/dev/null 2>&1 && scontrol ping 2>/dev/null | grep -q 'is UP' && timeout 20 srun --mem=16 true >/dev/null 2>&1; }
# Whatever calls `gate` is held there until the fault is done: once, and only if the gate was shut.
shut() { mkdir -m 777 /tmp/gate; mkfifo -m 666 /tmp/gate/shut /tmp/gate/open; exec 3<>/tmp/gate/shut; }
reached() { read -r _ <&3; start=$(now); }
open() { echo "${1:-:}" >/tmp/gate/open; } # what is held does this first
gate() { mv /tmp/gate/shut /tmp/gate/reached 2>/dev/null || return 0; echo >/tmp/gate/reached; read -r first </tmp/gate/open; eval "$first"; }
in_the_way() { # PROGRAM LINE: does the line each time before the program
    printf '#!/bin/sh\n. /config/library\n%s\nexec /usr/bin/%s "$@"\n' "$2" "$1" >"/usr/local/sbin/$1"; chmod 755 "/usr/local/sbin/$1"
}
reload() { # TOML: has it taken, in the background
    printf "\n$1\n" >>/config/slurminit.toml; { slurminit reload || echo "code $?"; } >/tmp/reload 2>&1 &
}
reloaded() { slurminit status --json | tr -d ' \n' | grep -q "\"outcome\":\"$1\"[^}]*},\"running\":false"; }
count='trap "echo notice >>/tmp/count; exit 0" TERM; while :; do i=$((i+1)); echo $i >>/tmp/count; sleep 0.2; done'
submit() {
    sbatch --quiet --hold --mem=16 --job-name=held --output=/dev/null --wrap true
    sbatch --quiet --mem=16 --job-name=counting --output=/dev/null --wrap "$count"
    until [ -s /tmp/count ]; do sleep 0.05; done
    sha256sum </etc/munge/munge.key >/tmp/key
}
saved() { # slurmctld saves a change within 5 seconds, and at its end
    touch /tmp/mark; sleep 0.05; scontrol update jobname=held comment=saved
    until [ /var/lib/slurm/slurmctld/job_state -nt /tmp/mark ]; do sleep 0.1; done
}
"#;

/// A partition that runs two jobs on one CPU.
pub(crate) const PARTITION: &str = "[[partition]]\nname = \"debug\"\nOverSubscribe = \"FORCE:4\"\n";

impl Case {
    pub(super) fn new(target: &'static str, phase: &'static str, fault: &'static str) -> Self {
        Self {
            target,
            phase,
            fault,
            image: Image::new(PLAIN).with(["--hostname", "node1"]),
            toml: String::new(),
            jobs: false,
            inject: "true".to_owned(),
            until: "true".to_owned(),
            end: End::Recovers,
            signs: Vec::new(),
            measure: String::new(),
            job: "",
            data: "",
        }
    }

    pub(super) fn name(&self) -> String {
        format!("{} {} {}", self.target, self.phase, self.fault)
    }

    /// Runs the case. The error includes the end of the log.
    pub(super) fn run(&self) -> Result<Seen, String> {
        let toml = format!("{}\n{PARTITION}", self.toml);
        let files = directory(&[("slurminit.toml", &toml), ("library", LIBRARY)]);
        let begin = Instant::now();
        // The users of all daemons source the library. The mount is writable because reload cases write slurminit.toml.
        fs::set_permissions(files.path(), fs::Permissions::from_mode(0o755)).expect("the test owns the directory");
        let volume = format!("{}:/config", files.path().display());
        let container = self.image.clone().json_log().with(["--volume", &volume]).start();
        let seen = self.observe(&container, begin);
        seen.map_err(|why| format!("{why}\n{}", tail(&container.log())))
    }

    fn observe(&self, container: &Container, begin: Instant) -> Result<Seen, String> {
        if self.phase != "starting" || self.jobs {
            shell(container, "until works; do sleep 0.2; done")?;
        }
        if self.jobs {
            let keeps_slurmctld = ["munged", "slurmd", "service"].contains(&self.target);
            shell(container, if keeps_slurmctld { "submit" } else { "submit; saved" })?;
        }
        if let End::NextExits(code) = self.end {
            return self.next_exit(container, code);
        }
        let mut took = match self.end {
            End::Recovers => self.recover(container)?,
            End::Exits(code) | End::NextExits(code) => self.exit(container, code)?,
            End::Stops | End::Restarts => self.exit(container, 0)?,
            End::Killed => self.kill(container)?,
        };
        if self.phase == "starting" {
            took = begin.elapsed();
        }
        let measured = if self.measure.is_empty() { String::new() } else { shell(container, &self.measure)? };
        let mut job = if self.jobs && matches!(self.end, End::Recovers | End::Killed) {
            self.check_jobs(container)?
        } else {
            String::new()
        };
        match self.end {
            End::Recovers | End::Killed => {
                let code = container.stop();
                ensure(code == 0, || format!("the stop after the fault exited with {code}"))?;
            }
            End::Stops | End::Restarts => {
                docker(["start", &container.name]).ok();
                shell(container, "until works; do sleep 0.2; done")
                    .map_err(|why| format!("at the next start: {why}"))?;
                job = if self.jobs { self.check_jobs(container)? } else { job };
            }
            End::Exits(_) | End::NextExits(_) => {}
        }
        Ok(Seen { took, job, said: self.log_line(container, &measured)? })
    }

    /// Injects the fault and waits until jobs run again. Returns the time measured in the container.
    fn recover(&self, container: &Container) -> Result<Duration, String> {
        let Self { target, inject, until, .. } = self;
        let line = format!(
            "old=$(pid {target}); start=$(now); {inject}; until {{ {until}; }} && works; do sleep 0.05; done; \
             echo $(( ($(now) - start) * 10 ))"
        );
        let printed = shell(container, &line)?;
        let ms = printed.lines().last().and_then(|ms| ms.parse().ok());
        ms.map(Duration::from_millis).ok_or_else(|| format!("printed {printed:?}"))
    }

    /// Injects the fault and waits for the container to exit.
    fn exit(&self, container: &Container, code: i32) -> Result<Duration, String> {
        let begin = Instant::now();
        if matches!(self.end, End::Stops | End::Restarts) {
            // The shell may be killed with the container, so its exit code is ignored.
            let line = format!(". /config/library; old=$(pid {}); {}", self.target, self.inject);
            container.exec(&["timeout", &TIMEOUT.to_string(), "sh", "-c", &line]);
        } else if self.phase != "starting" {
            container.exec(&["sh", "-c", &format!(". /config/library; {}", self.inject)]);
        }
        let waited = std::process::Command::new("timeout")
            .args([&TIMEOUT.to_string(), "docker", "wait", &container.name])
            .output()
            .expect("docker is installed");
        let took = begin.elapsed();
        let printed = String::from_utf8_lossy(&waited.stdout).trim().to_owned();
        ensure(!printed.is_empty(), || format!("HANGS: container still running after {TIMEOUT} s"))?;
        ensure(printed == code.to_string(), || format!("exited with {printed}, not {code}"))?;
        Ok(took)
    }

    /// Injects the fault, kills the container and starts it again.
    fn kill(&self, container: &Container) -> Result<Duration, String> {
        shell(container, &self.inject)?;
        let begin = Instant::now();
        docker(["kill", &container.name]).ok();
        docker(["start", &container.name]).ok();
        shell(container, &format!("until works && {{ {}; }}; do sleep 0.2; done", self.until))?;
        Ok(begin.elapsed())
    }

    /// A clean stop, then a start that must exit with `code`.
    fn next_exit(&self, container: &Container, code: i32) -> Result<Seen, String> {
        container.stop();
        docker(["start", &container.name]).ok();
        let took = self.exit(container, code)?;
        Ok(Seen { took, job: String::new(), said: self.log_line(container, "")? })
    }

    /// The effect on the counting job. An error if that is not permitted, or if the held job or the munge key is lost.
    fn check_jobs(&self, container: &Container) -> Result<String, String> {
        let state = shell(
            container,
            "squeue --noheader --format='%j %T' | sort | tr '\\n' ' '; \
             sha256sum </etc/munge/munge.key | cmp -s - /tmp/key && echo same-key; \
             if grep -v notice /tmp/count | awk '$1 != NR { exit 1 }'; then echo gapless; fi",
        )?;
        let shown = container.exec(&["sh", "-c", "scontrol --oneliner show job | grep JobName=counting"]).stdout;
        let field = |name: &str| {
            let value = shown.split(' ').find_map(|word| word.strip_prefix(name)?.strip_prefix('='));
            value.unwrap_or("unknown").to_owned()
        };
        let (job_state, restarts) = (field("JobState"), field("Restarts"));
        let effect = match (job_state.as_str(), restarts.as_str()) {
            ("RUNNING", "0") if state.contains("gapless") => "",
            ("COMPLETED", "0") if self.end != End::Recovers => "",
            (_, "1") => "requeued",
            (other, _) => other,
        };
        ensure(effect.is_empty() || effect == self.job, || {
            format!("the counting job is {job_state}, restarts {restarts}: {state}\n{shown}")
        })?;
        ensure(state.contains("held PENDING"), || format!("the held job is lost: {state}"))?;
        ensure(self.data.contains("key") || state.contains("same-key"), || {
            format!("the munge key has changed: {state}")
        })?;
        Ok(effect.to_owned())
    }

    /// The log line that reports the fault, for the row.
    fn log_line(&self, container: &Container, measured: &str) -> Result<String, String> {
        if self.signs.is_empty() {
            return Ok("`slurminit status`, because the log cannot be read".to_owned());
        }
        let log = container.log();
        let line =
            sign::first(&log, &self.signs).ok_or_else(|| format!("NOT LOGGED: no {:?} in the log", self.signs))?;
        if measured.is_empty() {
            return Ok(line);
        }
        let dropped = records(&log).into_iter().filter(|record| record["kind"] == "log-lines-dropped");
        let lost: u64 = dropped.filter_map(|record| record["fields"]["lines"].as_str()?.parse::<u64>().ok()).sum();
        let lost = if lost == 0 { "nothing".to_owned() } else { format!("{lost} lines, as the log says") };
        Ok(format!("{line}; {measured}; lost: {lost}"))
    }
}

/// Runs a shell line with the library. It must succeed within [`TIMEOUT`]. The trace of the shell shows where it hangs.
fn shell(container: &Container, line: &str) -> Result<String, String> {
    let line = format!(". /config/library; {line}");
    let outcome = container.exec(&["timeout", &TIMEOUT.to_string(), "sh", "-xc", &line]);
    let trace: Vec<&str> = outcome.stderr.lines().collect();
    let trace = trace[trace.len().saturating_sub(10)..].join("\n");
    match outcome.code {
        0 => Ok(outcome.stdout.trim().to_owned()),
        124 => {
            let state = "cat /tmp/reload; squeue; ps -eo pid,stat,comm,args";
            let state = container.exec(&["timeout", "20", "sh", "-c", state]).stdout;
            Err(format!("HANGS: after {TIMEOUT} s still in: {line}\n{}{trace}\n{state}", outcome.stdout))
        }
        code => Err(format!("{code} from: {line}\n{}{trace}", outcome.stdout)),
    }
}

fn ensure(condition: bool, error: impl FnOnce() -> String) -> Result<(), String> {
    if condition { Ok(()) } else { Err(error()) }
}

fn tail(log: &str) -> String {
    let lines: Vec<&str> = log.lines().collect();
    lines[lines.len().saturating_sub(40)..].join("\n")
}
