//! `slurminit jobs reclaim`: jobs that slurmctld lists as running, but that have no process.

use std::os::unix::net::UnixListener;

use super::fake::{Fake, columns, job};

const DISABLED: &str = "Requested operation is presently disabled";

/// A line of squeue about a running job: batch flag, session, node of the script, host of the client, restarts.
fn held(id: &str, used: &str, batch: &str, host: &str, restarts: &str) -> String {
    let last = [(batch, 4), (used, 16), ("4000000", 16), ("c1", 256), (host, 256), (restarts, 16)];
    columns(&[&[(id, 16), ("RUNNING", 16), ("N/A", 16), (id, 32)], &last[..]].concat())
}

/// A cluster whose squeue lists these jobs.
fn cluster(jobs: &str) -> Fake {
    Fake::new()
        .config("BatchStartTimeout = 10 sec")
        .reply("squeue *--Format*", &[jobs])
        .reply("squeue *--states=PENDING*", &[&job("70", "PENDING")])
        .reply("scontrol update *", &[""])
        .reply("scancel *", &[""])
}

fn comment(why: &str) -> String {
    format!("scontrol update jobid=70 admincomment=slurminit: {why}")
}

fn reclaim(fake: &Fake, options: &[&str]) -> Vec<String> {
    fake.succeed(&[&["jobs", "--node", "c1", "reclaim"], options].concat());
    fake.changes()
}

const NO_SCRIPT: &str = "the job's script ended, or was about to start, while slurmctld or slurmd was down";
const NO_CLIENT: &str = "the job's srun or salloc no longer runs";

#[test]
fn batch_job_without_script_is_requeued_held_or_cancelled() {
    let requeue = "scontrol requeue incomplete 70";
    let fake = cluster(&held("70", "1:00", "1", "c1", "0")).reply("scontrol requeue *", &[""]);
    let soon = "scontrol update jobid=70 starttime=now+1";
    assert_eq!(reclaim(&fake, &[]), [requeue, &comment(NO_SCRIPT), soon]);
    let fake = cluster(&held("70", "1:00", "1", "c1", "5")).reply("scontrol requeuehold *", &[""]);
    assert_eq!(reclaim(&fake, &[]), ["scontrol requeuehold incomplete 70", &comment(NO_SCRIPT)]);
    let fake = cluster(&held("70", "1:00", "1", "c1", "4")).fail("scontrol requeue *", DISABLED);
    assert_eq!(reclaim(&fake, &[]), [requeue, &comment(NO_SCRIPT), "scancel 70"], "--no-requeue");
}

#[test]
fn allocation_without_client_is_cancelled_unless_it_never_had_one() {
    let host = nix::unistd::gethostname().unwrap().into_string().unwrap();
    let notify = format!("scontrol notify 70 slurminit: {NO_CLIENT}");
    let jobs = held("70", "1:00:00", "0", &host, "0");
    let fake = cluster(&jobs).reply("scontrol notify *", &[""]);
    assert_eq!(reclaim(&fake, &[]), [&*notify, &comment(NO_CLIENT), "scancel 70"]);
    let fake = cluster(&jobs).fail("scontrol notify *", DISABLED);
    assert_eq!(reclaim(&fake, &[]), [notify], "salloc --no-shell");
    let fake = cluster(&held("70", "1:00:00", "0", "another-host", "0"));
    assert_eq!(reclaim(&fake, &[]), [""; 0]);
    assert_eq!(reclaim(&cluster(""), &[]), [""; 0]);
}

#[test]
fn job_with_socket_of_dead_slurmstepd_is_requeued() {
    if !nix::unistd::geteuid().is_root() {
        return;
    }
    let jobs = held("70", "1:00", "1", "c1", "0") + &held("71", "1:00", "1", "c1", "0");
    let fake = cluster(&jobs).reply("scontrol requeue *", &[""]);
    let socket = fake.path("spool/c1_70.4294967291");
    drop(UnixListener::bind(&socket).unwrap());
    let changes = reclaim(&fake, &["--dead-steps"]);
    assert_eq!(changes[0], "scontrol requeue incomplete 70");
    assert_eq!(changes.len(), 3, "{changes:?}");
    assert!(!socket.exists());
}
