//! Faults outside the daemons: disks, saved state, the munge key, memory, processes, the clock, the log.

use super::case::{Case, End};
use super::sign::Sign;
use crate::docker::{Image, PLAIN, docker, tag};

pub(super) fn cases() -> Vec<Case> {
    [disks(), state(), key(), memory(), processes(), clock(), log()].concat()
}

fn disks() -> Vec<Case> {
    let full = |target, path: &str, options: &str| {
        let case = Case::new(target, "ready", "disk full, then space again");
        Case { image: case.image.with(["--tmpfs", &format!("{path}:{options}")]), jobs: true, ..case }
    };
    let fill = |path: &str| format!("dd if=/dev/zero of={path}/filler bs=1k 2>/dev/null");
    vec![
        Case {
            // slurmctld saves a change within 5 s and then logs the failure.
            inject: format!(
                "{}; ! sbatch --mem=16 --output=/dev/null --wrap true; scontrol update jobname=held comment=full; sleep 6; \
                 rm /var/lib/slurm/slurmctld/filler",
                fill("/var/lib/slurm/slurmctld")
            ),
            signs: vec![Sign::Words("Can't save state, error writing file")],
            ..full("saved state", "/var/lib/slurm/slurmctld", "size=2m")
        },
        Case {
            // slurmd detects it at the next batch job. Slurm drains the node and does not resume it; a restart does.
            inject: format!(
                "{}; sbatch --quiet --mem=16 --output=/dev/null --wrap true; until sinfo --noheader --format=%E | grep -q 'is full'; do sleep 0.2; done; \
                 rm /var/lib/slurm/slurmd/filler; kill -TERM 1",
                fill("/var/lib/slurm/slurmd")
            ),
            end: End::Restarts,
            signs: vec![Sign::Words("SlurmdSpoolDir is full")],
            ..full("spool of slurmd", "/var/lib/slurm/slurmd", "exec,size=1m")
        },
        Case {
            inject: format!(
                "{}; old=$(pid slurmd); kill -KILL $old; until renewed slurmd; do sleep 0.1; done; rm /run/filler",
                fill("/run")
            ),
            signs: Sign::ended("slurmd", "SIGKILL"),
            ..full("/run", "/run", "size=1m")
        },
        Case {
            inject: format!(
                "{}; old=$(pid slurmctld); kill -KILL $old; until renewed slurmctld; do sleep 0.1; done; rm /etc/slurm/filler",
                fill("/etc/slurm")
            ),
            signs: Sign::ended("slurmctld", "SIGKILL"),
            ..full("/etc/slurm", "/etc/slurm", "exec,size=64k")
        },
        Case {
            image: Case::new("", "", "").image.with(["--tmpfs", "/etc/slurm:size=4k"]),
            end: End::Exits(104),
            signs: vec![Sign::event("start-refused").with("what", "/etc/slurm/gres.conf")],
            ..Case::new("/etc/slurm", "starting", "disk full")
        },
    ]
}

/// A pre_start hook corrupts the state before the second start.
fn state() -> Vec<Case> {
    let corrupted = |fault, line: &str, sign| Case {
        toml: format!(
            "[[hooks.pre_start]]\ncommand = [\"sh\", \"-c\", \"[ ! -e /var/lib/slurm/slurmctld/job_state ] || {{ {line}; }}\"]\n"
        ),
        jobs: true,
        inject: "kill -TERM 1".to_owned(),
        end: End::NextExits(101),
        signs: vec![sign],
        ..Case::new("saved state", "starting", fault)
    };
    vec![
        Case {
            end: End::NextExits(78),
            ..corrupted(
                "of another cluster",
                "printf other >/var/lib/slurm/slurmctld/clustername",
                Sign::event("start-refused").with("what", "/var/lib/slurm/slurmctld"),
            )
        },
        corrupted(
            "job_state cut in half",
            "truncate -s 700 /var/lib/slurm/slurmctld/job_state",
            Sign::Words("start with '-i'"),
        ),
        corrupted(
            "node_state cut in half",
            "truncate -s 150 /var/lib/slurm/slurmctld/node_state",
            Sign::Words("start with '-i'"),
        ),
        // Slurm keeps a backup of each file, some seconds older, in which the job is still running.
        Case {
            inject: "kill -TERM 1".to_owned(),
            end: End::Restarts,
            job: "requeued",
            ..corrupted(
                "every file empty",
                "truncate -s 0 /var/lib/slurm/slurmctld/*_state",
                Sign::Words("Trying backup state save file"),
            )
        },
    ]
}

fn key() -> Vec<Case> {
    let changed = |fault, line: &str| Case {
        jobs: true,
        inject: format!("old=$(pid munged); {line}; kill -KILL $old"),
        until: "renewed munged".to_owned(),
        signs: Sign::ended("munged", "SIGKILL"),
        ..Case::new("munge key", "ready", fault)
    };
    let other = "head -c 128 /dev/urandom >/etc/munge/munge.key";
    vec![
        Case { data: "the old key", ..changed("another key, then munged dies", other) },
        Case {
            end: End::Exits(100),
            signs: vec![Sign::of("munged", "unit-given-up")],
            ..changed("cut to 8 bytes, then munged dies", "truncate -s 8 /etc/munge/munge.key")
        },
    ]
}

/// At the memory limit the kernel kills the process with the highest OOM score.
fn memory() -> Vec<Case> {
    let killed = |target: &'static str| {
        let case = Case::new(target, "ready", "out of memory");
        Case {
            image: case.image.with(["--memory=400m"]).with(["--memory-swap=400m"]),
            toml: "[node]\nreserve_mib = 100\n".to_owned(),
            jobs: true,
            inject: "echo 1000 >/proc/$old/oom_score_adj; head -c 600M /dev/zero | tail >/dev/null 2>&1".to_owned(),
            until: format!("renewed {target}"),
            signs: Sign::ended(target, "SIGKILL"),
            ..case
        }
    };
    ["munged", "slurmctld", "slurmd"].map(killed).to_vec()
}

fn processes() -> Vec<Case> {
    let bomb = |phase, fault| {
        let case = Case::new("a job", phase, fault);
        Case { image: case.image.with(["--pids-limit=200"]), jobs: true, ..case }
    };
    // When fork(2) fails, shells exit and others fork in their place. Without the limit of 5 s this can last a minute.
    let line = "(sleep 5; : >/tmp/enough) & srun --mem=16 sh -c 'b() { [ -e /tmp/enough ] || { b & b & sleep 3; }; }; b' 2>&1 >/dev/null \
                | head -n 3 >/proc/1/fd/2";
    vec![
        Case { inject: line.to_owned(), signs: vec![Sign::Words("Cannot fork")], ..bomb("ready", "fork bomb under --pids-limit") },
        Case {
            // The job forks only in its first run, because it is requeued and may run again before the next start has been checked.
            inject: "sbatch --quiet --mem=16 --output=/dev/null --wrap \
                     '[ \"$SLURM_RESTART_COUNT\" ] || { b() { b & b & while :; do sleep 1; done; }; b; }'; sleep 2; kill -TERM 1"
                .to_owned(),
            // The counting job is notified only if a process can still be created for that.
            job: "requeued",
            end: End::Stops,
            signs: vec![Sign::event("stop-requested")],
            ..bomb("stopping", "fork bomb under --pids-limit")
        },
    ]
}

/// A container cannot set the clock; libfaketime shifts it for all processes of the container.
fn clock() -> Vec<Case> {
    let image = format!("{PLAIN}-clock");
    let jumps = |fault, by: &str| {
        let case = Case::new("the clock", "ready", fault);
        Case {
            image: Image::new(&image).with(["--hostname", "node1"]),
            jobs: true,
            inject: format!("printf %s {by} >/tmp/faketimerc"),
            signs: vec![Sign::event("clock-set").with("jump", "3600")],
            ..case
        }
    };
    vec![jumps("an hour ahead", "+3600"), jumps("an hour back", "-3600")]
}

/// Builds the image with libfaketime for the clock cases.
pub(crate) fn build() {
    let directory = concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/image/faults");
    let image = tag(PLAIN);
    docker(["build", "--tag", &format!("{image}-clock"), "--build-arg", &format!("IMAGE={image}"), directory]).ok();
}

/// Faults of the log reader. `dd` measures how fast `yes` can write and how fast PID 1 reads. The flood is filtered
/// out.
fn log() -> Vec<Case> {
    let line = "a line of some length that a daemon in trouble writes again and again without a pause";
    let flood = format!(
        "[[service]]\nname = \"flood\"\nrestart = \"never\"\ncommand = [\"sh\", \"-c\", \
         \"until [ -e /tmp/flood ]; do sleep 0.1; done; timeout 8 yes {line} | dd bs=64k 2>/tmp/taken\"]\n"
    );
    let measure = format!(
        "rate() {{ awk '/copied/ {{ printf \"%d\", $1 / $(NF - 3) / 1000000 }}'; }}; \
         offered=$(timeout 1 yes {line} | dd bs=64k of=/dev/null 2>&1 | rate); [ \"$offered\" -ge 100 ] && \
         echo \"the service could write $offered MB/s and wrote $(rate </tmp/taken): it waits for PID 1\""
    );
    let shell = |script: &str| {
        let image = Case::new("", "", "").image.with(["--entrypoint", "sh"]);
        image.command(["-c", script])
    };
    let killed = |fault, status_pattern: &str| Case {
        jobs: true,
        inject: "touch /tmp/flood; sleep 1; old=$(pid slurmctld); kill -KILL $old".to_owned(),
        until: format!("renewed slurmctld && slurminit status | grep -q '{status_pattern}'"),
        ..Case::new("the log", "ready", fault)
    };
    vec![
        Case {
            image: shell("mkfifo /tmp/log; grep -v '\"source\":\"flood\"' </tmp/log & exec slurminit run 2>/tmp/log"),
            toml: flood,
            measure,
            signs: Sign::ended("slurmctld", "SIGKILL"),
            ..killed("flood of a service; slurmctld dies in it", "^flood *finished")
        },
        Case { image: shell("exec slurminit run >&- 2>&-"), ..killed("closed; slurmctld dies", "signal 9") },
    ]
}
