//! slurminit's own metrics (`slurminit_*`).

use std::collections::BTreeMap;

use super::exposition::{Family, Kind};
use super::gpus::uuid;
use crate::overview::seen::{Files, Slurm};
use faults::report::{Count, GpuReport};
use faults::usage::UserUse;
use machine::{Part, Snapshot, UnitState};

use Kind::{Counter, Gauge};

/// The states of a daemon or service.
const STATES: [UnitState; 7] = [
    UnitState::Waiting,
    UnitState::Starting,
    UnitState::Ready,
    UnitState::Stopping,
    UnitState::BackingOff,
    UnitState::Finished,
    UnitState::GivenUp,
];

/// slurminit's own families. `slurm` is slurmctld's answer, or why there is none.
pub(super) fn families(files: &Files, slurm: Result<&Slurm, &str>) -> Vec<Family> {
    let mut all = vec![
        Family::new("slurminit_build_info", Gauge, "slurminit's version, as a label.")
            .with(&[("version", env!("CARGO_PKG_VERSION"))], 1_u64),
        Family::new("slurminit_slurm_up", Gauge, "Whether the last queries to slurmctld succeeded.")
            .with(&[], slurm.is_ok()),
        Family::new("slurminit_slurm_answer_seconds", Gauge, "Duration of the queries to slurmctld.")
            .with(&[], slurm.ok().map(|slurm| slurm.took.as_secs_f64())),
        Family::new(
            "slurminit_gpu_report_age_seconds",
            Gauge,
            "Age of the last GPU sample; before the first sample, slurminit's uptime.",
        )
        .with(&[], files.report_age()),
    ];
    if let Some(snapshot) = &files.snapshot {
        all.extend(daemons(snapshot, files.uptime_ms));
        all.extend(boot(snapshot));
    }
    let gpus = files.report.as_ref().map_or(&[][..], |report| &report.gpus);
    all.extend(faults(gpus));
    all.extend(allocation(gpus, files.now));
    all.extend(files.report.iter().flat_map(|report| users(&report.users)));
    all
}

/// The GPU use of each user's jobs. Individual jobs have no series.
#[expect(clippy::cast_precision_loss, reason = "Prometheus has no other numbers")]
fn users(users: &BTreeMap<String, UserUse>) -> [Family; 3] {
    let family = |name: &str, help, value: fn(&UserUse) -> f64| {
        let mut family = Family::new(format!("slurminit_user_{name}_total"), Counter, help);
        users.iter().for_each(|(user, of_user)| family.add(&[("user", user)], value(of_user)));
        family
    };
    [
        family(
            "gpu_seconds",
            "GPU time of the user's jobs on this node, as far as samples cover it, summed over the GPUs.",
            |of| of.gpu_ms as f64 / 1000.0,
        ),
        family("gpu_used_seconds", "GPU time of the user's jobs in which a kernel ran, summed over the GPUs.", |of| {
            of.busy as f64 / 100_000.0
        }),
        family("gpu_energy_joules", "Energy that GPUs consumed while the user's jobs had them.", |of| {
            of.energy_mj as f64 / 1000.0
        }),
    ]
}

#[expect(clippy::cast_precision_loss, reason = "no container runs so long")]
fn daemons(snapshot: &Snapshot, uptime_ms: u64) -> Vec<Family> {
    let mut up = Family::new("slurminit_daemon_up", Gauge, "Whether a daemon or service is ready.");
    let mut restarts = Family::new("slurminit_daemon_restarts_total", Counter, "Restarts of a daemon or service.");
    let mut state = Family::new("slurminit_daemon_state", Gauge, "1 for the current state of a daemon or service.");
    for unit in &snapshot.units {
        up.add(&[("daemon", &unit.name)], unit.is_up());
        restarts.add(&[("daemon", &unit.name)], unit.restarts);
        for known in STATES {
            let word = known.to_string();
            state.add(&[("daemon", &unit.name), ("state", &word)], unit.state == known);
        }
    }
    vec![
        Family::new(
            "slurminit_ready",
            Gauge,
            "Whether the container is ready; a node that remains drained counts as ready.",
        )
        .with(&[], snapshot.ready),
        Family::new("slurminit_uptime_seconds", Gauge, "Uptime of slurminit.").with(&[], uptime_ms as f64 / 1000.0),
        Family::new("slurminit_reloads_total", Counter, "Requested reloads.").with(&[], snapshot.reload.asked),
        up,
        restarts,
        state,
    ]
}

#[expect(clippy::cast_precision_loss, reason = "no start takes so long")]
fn boot(snapshot: &Snapshot) -> Vec<Family> {
    let mut parts = Family::new("slurminit_boot_part_seconds", Gauge, "Duration of a part of the start.");
    let mut ready =
        Family::new("slurminit_boot_ready_seconds", Gauge, "Time from slurminit's start until the node was ready.");
    for span in &snapshot.timeline {
        let until = span.until_us.filter(|_| span.part != Part::Command);
        parts.add(&[("part", &part(&span.part))], until.map(|until| until.saturating_sub(span.from_us) as f64 / 1e6));
        if span.part == Part::Node {
            ready.add(&[], until.map(|until| until as f64 / 1e6));
        }
    }
    vec![parts, ready]
}

fn part(part: &Part) -> String {
    match part {
        Part::Hook(number) => format!("hook {number}"),
        Part::Prepare => "prepare".to_owned(),
        Part::Key => "key".to_owned(),
        Part::Detection => "detection".to_owned(),
        Part::Files => "files".to_owned(),
        Part::Unit(name) => name.clone(),
        Part::Jobs => "jobs".to_owned(),
        Part::Node => "node".to_owned(),
        Part::TestJob => "test-job".to_owned(),
        Part::Command => "command".to_owned(),
    }
}

fn faults(gpus: &[GpuReport]) -> Vec<Family> {
    let mut total = Family::new("slurminit_gpu_faults_total", Counter, "Faults since the start of the container.");
    let mut last = Family::new("slurminit_gpu_fault_last_timestamp_seconds", Gauge, "Time of the last fault.");
    let mut open = Family::new("slurminit_gpu_fault_open", Gauge, "A current fault of the GPU.");
    let mut out = Family::new(
        "slurminit_gpu_out",
        Gauge,
        "Whether the GPU is excluded from jobs: faulty, released, or not yet initialized.",
    );
    for gpu in gpus {
        let uuid = uuid(gpu);
        // All recovery actions are counted under one kind.
        let mut counts = BTreeMap::<String, Count>::new();
        for (kind, each) in &gpu.counts {
            let sum = counts.entry(kind.to_string()).or_default();
            (sum.count, sum.last) = (sum.count.saturating_add(each.count), sum.last.max(each.last));
        }
        for (kind, count) in &counts {
            total.add(&[("uuid", &uuid), ("kind", kind)], count.count);
            last.add(&[("uuid", &uuid), ("kind", kind)], count.last);
        }
        for fault in &gpu.faults {
            open.add(&[("uuid", &uuid), ("kind", &fault.kind.to_string())], 1_u64);
        }
        out.add(&[("uuid", &uuid)], gpu.is_out);
    }
    vec![total, last, open, out]
}

fn allocation(gpus: &[GpuReport], now: u64) -> Vec<Family> {
    let mut allocated = Family::new("slurminit_gpu_allocated", Gauge, "Whether a job has the GPU or a part of it.");
    let mut since =
        Family::new("slurminit_gpu_allocation_seconds", Gauge, "How long the GPU has been allocated or free.");
    let mut info = Family::new("slurminit_gpu_job_info", Gauge, "A job with the GPU or a part of it.");
    for gpu in gpus {
        let uuid = uuid(gpu);
        allocated.add(&[("uuid", &uuid)], !gpu.jobs.is_empty());
        since.add(&[("uuid", &uuid)], (gpu.since > 0).then(|| now.saturating_sub(gpu.since)));
        for job in &gpu.jobs {
            info.add(&[("uuid", &uuid), ("slurmjobid", &job.job.to_string()), ("user", &job.user)], 1_u64);
        }
    }
    vec![allocated, since, info]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metrics::exposition::text;
    use faults::fault::FaultKind;

    #[test]
    fn counts_faults_of_all_recovery_actions() {
        let counts = [(1, Count { count: 2, last: 8 }), (2, Count { count: 3, last: 9 })];
        let counts = counts.map(|(action, count)| (FaultKind::RecoveryAction(action), count)).into();
        let text = text(&faults(&[GpuReport { counts, ..GpuReport::default() }]));
        for line in
            ["faults_total{uuid=\"0\",kind=\"recovery-action\"} 5", "seconds{uuid=\"0\",kind=\"recovery-action\"} 9"]
        {
            assert!(text.contains(line), "{line}: {text}");
        }
    }

    #[test]
    fn start_has_duration_of_each_part_except_command() {
        let span = |part, from_us, until_us| machine::Span { part, from_us, until_us };
        let timeline = vec![
            span(Part::Hook(2), 0, Some(250_000)),
            span(Part::Unit("slurmd".to_owned()), 1_000_000, Some(3_500_000)),
            span(Part::Node, 3_500_000, Some(9_000_000)),
            span(Part::TestJob, 9_000_000, None),
            span(Part::Command, 9_000_000, Some(9_100_000)),
        ];
        let text = text(&boot(&Snapshot { timeline, ..Snapshot::default() }));
        let values: Vec<&str> = text.lines().filter(|line| !line.starts_with('#')).collect();
        let expected = [
            "slurminit_boot_part_seconds{part=\"hook 2\"} 0.25",
            "slurminit_boot_part_seconds{part=\"slurmd\"} 2.5",
            "slurminit_boot_part_seconds{part=\"node\"} 5.5",
            "slurminit_boot_ready_seconds 9",
        ];
        assert_eq!(values, expected);
    }

    #[test]
    fn users_and_allocations_have_seconds_and_joules() {
        let use_of_alice = UserUse { gpu_ms: 5500, busy: 250_000, energy_mj: 7000 };
        let text_of_users = text(&users(&[("alice".to_owned(), use_of_alice)].into()));
        for line in [
            "gpu_seconds_total{user=\"alice\"} 5.5",
            "gpu_used_seconds_total{user=\"alice\"} 2.5",
            "joules_total{user=\"alice\"} 7",
        ] {
            assert!(text_of_users.contains(&format!("{line}\n")), "{line}: {text_of_users}");
        }
        let gpu = |since| GpuReport { since, ..GpuReport::default() };
        let text = text(&allocation(&[gpu(40)], 100));
        assert!(text.contains("slurminit_gpu_allocated{uuid=\"0\"} 0\n"), "{text}");
        assert!(text.contains("slurminit_gpu_allocation_seconds{uuid=\"0\"} 60\n"), "{text}");
        assert!(!self::text(&allocation(&[gpu(0)], 100)).contains("allocation_seconds{"), "it is unknown since when");
    }
}
