//! `slurminit jobs join`: the controller's record of a node before its slurmd starts.

use super::fake::{Fake, job};

const CONF: &str = "CPUs=4 RealMemory=8000";
const SHOW: &str = "scontrol --oneliner show node c1";

/// The arguments of slurmd.
fn join(fake: &Fake, options: &[&str]) -> String {
    let fixed = ["jobs", "--node", "c1", "join", "--conf", CONF, "--gpus", "a", "--port", "1"];
    fake.succeed(&[&fixed, options, &["--", "echo", "slurmd"]].concat())
}

fn record(rest: &str) -> String {
    format!("NodeName=c1 CPUAlloc=0 CPUTot=4 RealMemory=8000 Gres=(null) {rest}\n")
}

#[test]
fn unknown_node_joins_with_its_hardware() {
    let fake = Fake::new().fail(SHOW, "Node c1 not found");
    assert_eq!(join(&fake, &[]), format!("slurmd -N c1 --extra a -Z --conf {CONF}\n"));
    assert_eq!(fake.changes(), [""; 0]);
}

#[test]
fn known_node_keeps_record_and_requeues_its_jobs() {
    let fake = Fake::new()
        .reply(SHOW, &[&record("State=IDLE+DYNAMIC_NORM")])
        .reply("sinfo *", &["idle root|none"])
        .reply("scontrol update *", &[""])
        .reply("squeue *--Format*", &[""])
        .reply("squeue *", &[&job("70", "RUNNING")]);
    assert_eq!(join(&fake, &[]), format!("slurmd -N c1 --extra a -Z --conf {CONF}\n"));
    assert_eq!(fake.calls("scontrol update jobid=70 starttime=").len(), 1);
    assert_eq!(fake.calls("scontrol delete"), [""; 0]);
    // A restart of slurmd costs no job.
    let fake = Fake::new().reply(SHOW, &[&record("State=IDLE+DYNAMIC_NORM")]);
    join(&fake, &["--again"]);
    assert_eq!(fake.changes(), [""; 0]);
}

#[test]
fn outdated_record_is_deleted_and_drain_of_administrator_kept() {
    let outdated = "NodeName=c1 CPUAlloc=0 CPUTot=2 RealMemory=8000 Gres=(null) State=IDLE+DRAIN+DYNAMIC_NORM";
    let delete = "scontrol delete nodename=c1";
    let down =
        "scontrol update nodename=c1 state=down reason=slurminit: the node returns with other hardware or features";
    let (fan, none) = (" State=DRAIN Reason=\"fan  x\"", "");
    for (report, options, kept, changes) in [
        ("idle root|none", &[][..], none, vec![down, delete]),
        ("drained root|fan =x", &[], fan, vec![down, delete]),
        ("drained root|fan =x", &["--again"], fan, vec![delete]),
        ("drained slurm|Low CPUs", &["--again"], none, vec![delete]),
    ] {
        let fake = Fake::new()
            .reply(SHOW, &[outdated])
            .reply("sinfo *", &[report])
            .reply("scontrol update *", &[""])
            .reply("scontrol delete *", &[""]);
        assert_eq!(join(&fake, options), format!("slurmd -N c1 --extra a -Z --conf {CONF}{kept}\n"), "{report}");
        assert_eq!(fake.changes(), changes, "{report}");
    }
}

#[test]
fn restart_retries_query_and_deletion_of_outdated_record() {
    let fail_once = |file: &str| format!("[ -e \"$here/{file}\" ] || {{ >\"$here/{file}\"; exit 1; }}");
    let outdated = record("State=IDLE+DYNAMIC_NORM").replace("CPUTot=4", "CPUTot=2");
    let fake = Fake::new()
        .reply_after(&fail_once("shown"), SHOW, &[&outdated])
        .reply("sinfo *", &["idle root|none"])
        .reply("scontrol update *", &[""])
        .reply_after(&fail_once("deleted"), "scontrol delete *", &[""]);
    assert_eq!(join(&fake, &[]), format!("slurmd -N c1 --extra a -Z --conf {CONF}\n"));
    assert_eq!((fake.calls(SHOW).len(), fake.calls("scontrol delete ").len()), (2, 2));
    // The time limit for the first answer applies to restarts only.
    let fake = Fake::new().reply_after(&fail_once("shown"), SHOW, &[&record("State=IDLE+CLOUD")]);
    assert_eq!(join(&fake, &["--again"]), "slurmd -N c1 --extra a\n");
}

#[test]
fn cloud_node_registers_as_booted_only_at_start() {
    let fake = Fake::new().reply(SHOW, &[&record("State=IDLE+CLOUD+POWERING_UP")]);
    assert_eq!(join(&fake, &[]), "slurmd -N c1 --extra a -b\n");
    assert_eq!(join(&fake, &["--again"]), "slurmd -N c1 --extra a\n");
    assert_eq!(fake.changes(), [""; 0]);
}

#[test]
fn cloud_node_with_too_few_resources_is_down_until_promise_is_corrected() {
    let promised =
        |cpus: u64| format!("NodeName=c1 CPUAlloc=0 CPUTot={cpus} RealMemory=8000 State=IDLE+CLOUD+POWERING_UP\n");
    let fake = Fake::new().reply(SHOW, &[&promised(8), &promised(4)]).reply("scontrol update *", &[""]);
    assert_eq!(join(&fake, &[]), "slurmd -N c1 --extra a -b\n");
    let down =
        "scontrol update nodename=c1 state=down reason=slurminit: it has less than [autoscale] promises: CPUs=4 of 8";
    assert_eq!(fake.changes(), [down]);
}
