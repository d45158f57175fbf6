//! One case: a container, a fault in it, and what is seen then.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::time::{Duration, Instant};

use super::sign::{self, Sign};
use crate::docker::{Container, Image, PLAIN, directory, docker, records};

/// One row of the table.
#[derive(Clone, Debug)]
pub(super) struct Case {
    /// What is hit: a daemon, a disk, the clock.
    pub(super) target: &'static str,
    /// When: starting, ready, reloading, stopping.
    pub(super) phase: &'static str,
    /// What is done to it.
    pub(super) fault: &'static str,
    /// The image, options of `docker run`, and slurminit.toml.
    pub(super) image: Image,
    pub(super) toml: String,
    /// Whether jobs are submitted before the fault: one that is held, one that counts.
    pub(super) jobs: bool,
    /// The shell line that does it.
    pub(super) inject: String,
    /// A shell condition beside "a job runs": that the fault has been dealt with.
    pub(super) until: String,
    pub(super) end: End,
    /// What the log must have: one of these. Empty if the log cannot be read.
    pub(super) signs: Vec<Sign>,
    /// A shell line whose output is part of the row; empty is none.
    pub(super) measure: String,
    /// What may become of the counting job; empty is nothing.
    pub(super) job: &'static str,
    /// What of the saved state may be lost; empty is nothing.
    pub(super) data: &'static str,
}

/// How it must end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum End {
    /// The cluster takes jobs again.
    Recovers,
    /// The container ends by itself with this code.
    Exits(i32),
    /// The fault comes into a stop; it ends with 0, and the next start works.
    Stops,
    /// A new start of the container is what it takes.
    Restarts,
    /// The next start ends by itself with this code.
    NextExits(i32),
    /// The container is killed after the fault; the next start works.
    Killed,
}

/// What was seen.
#[derive(Clone, Debug)]
pub(super) struct Seen {
    pub(super) took: Duration,
    pub(super) job: String,
    pub(super) said: String,
}

/// Longer than this is a hang.
const PATIENCE: u64 = 60;

/// What the shell lines of all cases may use. A job shares the CPUs, so that one is enough for two.
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

/// Room for two jobs on one CPU.
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

    /// Does it. The error is the whole story.
    pub(super) fn run(&self) -> Result<Seen, String> {
        let toml = format!("{}\n{PARTITION}", self.toml);
        let files = directory(&[("slurminit.toml", &toml), ("library", LIBRARY)]);
        let begin = Instant::now();
        // Daemons read the library, and a reload's case writes slurminit.toml.
        fs::set_permissions(files.path(), fs::Permissions::from_mode(0o755)).expect("a directory of our own");
        let volume = format!("{}:/config", files.path().display());
        let container = self.image.clone().json_log().with(["--volume", &volume]).start();
        let seen = self.watch(&container, begin);
        seen.map_err(|why| format!("{why}\n{}", tail(&container.log())))
    }

    fn watch(&self, container: &Container, begin: Instant) -> Result<Seen, String> {
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
            self.jobs(container)?
        } else {
            String::new()
        };
        match self.end {
            End::Recovers | End::Killed => {
                let code = container.stop();
                ensure(code == 0, || format!("the stop after it gave {code}"))?;
            }
            End::Stops | End::Restarts => {
                docker(["start", &container.name]).ok();
                shell(container, "until works; do sleep 0.2; done")
                    .map_err(|why| format!("at the next start: {why}"))?;
                job = if self.jobs { self.jobs(container)? } else { job };
            }
            End::Exits(_) | End::NextExits(_) => {}
        }
        Ok(Seen { took, job, said: self.said(container, &measured)? })
    }

    /// Injects the fault and waits until jobs run again; measured in the container.
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

    /// Injects the fault and waits for the container's end.
    fn exit(&self, container: &Container, code: i32) -> Result<Duration, String> {
        let begin = Instant::now();
        if matches!(self.end, End::Stops | End::Restarts) {
            // The shell may be killed with the container.
            let line = format!(". /config/library; old=$(pid {}); {}", self.target, self.inject);
            container.exec(&["timeout", &PATIENCE.to_string(), "sh", "-c", &line]);
        } else if self.phase != "starting" {
            container.exec(&["sh", "-c", &format!(". /config/library; {}", self.inject)]);
        }
        let waited = std::process::Command::new("timeout")
            .args([&PATIENCE.to_string(), "docker", "wait", &container.name])
            .output()
            .expect("docker is installed");
        let took = begin.elapsed();
        let printed = String::from_utf8_lossy(&waited.stdout).trim().to_owned();
        ensure(!printed.is_empty(), || format!("HANGS: has not ended after {PATIENCE} s"))?;
        ensure(printed == code.to_string(), || format!("ended with {printed}, not {code}"))?;
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

    /// A clean stop, then a start that finds what a hook has done.
    fn next_exit(&self, container: &Container, code: i32) -> Result<Seen, String> {
        container.stop();
        docker(["start", &container.name]).ok();
        let took = self.exit(container, code)?;
        Ok(Seen { took, job: String::new(), said: self.said(container, "")? })
    }

    /// What became of the counting job; an error if it or the held one or the key should be there and is not.
    fn jobs(&self, container: &Container) -> Result<String, String> {
        let state = shell(
            container,
            "squeue --noheader --format='%j %T' | sort | tr '\\n' ' '; \
             sha256sum </etc/munge/munge.key | cmp -s - /tmp/key && echo same-key; \
             if grep -v notice /tmp/count | awk '$1 != NR { exit 1 }'; then echo gapless; fi",
        )?;
        let said = container.exec(&["sh", "-c", "scontrol --oneliner show job | grep JobName=counting"]).stdout;
        let field = |name: &str| {
            let value = said.split(' ').find_map(|word| word.strip_prefix(name)?.strip_prefix('='));
            value.unwrap_or("unknown").to_owned()
        };
        let (found, restarts) = (field("JobState"), field("Restarts"));
        let became = match (found.as_str(), restarts.as_str()) {
            ("RUNNING", "0") if state.contains("gapless") => "",
            ("COMPLETED", "0") if self.end != End::Recovers => "",
            (_, "1") => "requeued",
            (other, _) => other,
        };
        ensure(became.is_empty() || became == self.job, || {
            format!("the counting job is {found}, restarts {restarts}: {state}\n{said}")
        })?;
        ensure(state.contains("held PENDING"), || format!("the held job is lost: {state}"))?;
        ensure(self.data.contains("key") || state.contains("same-key"), || {
            format!("the munge key is another: {state}")
        })?;
        Ok(became.to_owned())
    }

    /// The line of the log that tells of it.
    fn said(&self, container: &Container, measured: &str) -> Result<String, String> {
        if self.signs.is_empty() {
            return Ok("`slurminit status`, because the log cannot be read".to_owned());
        }
        let log = container.log();
        let line = sign::first(&log, &self.signs).ok_or_else(|| format!("SILENT: no {:?} in the log", self.signs))?;
        if measured.is_empty() {
            return Ok(line);
        }
        let dropped = records(&log).into_iter().filter(|record| record["kind"] == "log-lines-dropped");
        let lost: u64 = dropped.filter_map(|record| record["fields"]["lines"].as_str()?.parse::<u64>().ok()).sum();
        let lost = if lost == 0 { "nothing".to_owned() } else { format!("{lost} lines, as the log says") };
        Ok(format!("{line}; {measured}; lost: {lost}"))
    }
}

/// A shell line with the library, which must end well within [`PATIENCE`]. The shell traces itself, so that a hang names its place.
fn shell(container: &Container, line: &str) -> Result<String, String> {
    let line = format!(". /config/library; {line}");
    let outcome = container.exec(&["timeout", &PATIENCE.to_string(), "sh", "-xc", &line]);
    let trace: Vec<&str> = outcome.stderr.lines().collect();
    let trace = trace[trace.len().saturating_sub(10)..].join("\n");
    match outcome.code {
        0 => Ok(outcome.stdout.trim().to_owned()),
        124 => {
            let state = "cat /tmp/reload; squeue; ps -eo pid,stat,comm,args";
            let state = container.exec(&["timeout", "20", "sh", "-c", state]).stdout;
            Err(format!("HANGS: after {PATIENCE} s still in: {line}\n{}{trace}\n{state}", outcome.stdout))
        }
        code => Err(format!("{code} from: {line}\n{}{trace}", outcome.stdout)),
    }
}

fn ensure(good: bool, why: impl FnOnce() -> String) -> Result<(), String> {
    if good { Ok(()) } else { Err(why()) }
}

fn tail(log: &str) -> String {
    let lines: Vec<&str> = log.lines().collect();
    lines[lines.len().saturating_sub(40)..].join("\n")
}
