//! Resets that the driver makes.

use super::*;

/// A GPU that answers.
fn answers(index: usize) -> (usize, Seen) {
    (index, Seen { condition: Condition { temperature: Some(40), ..Condition::default() }, ..Seen::default() })
}

#[test]
fn reports_reset_with_job_and_keeps_gpu() {
    let mut world = World::new(2);
    world.jobs[1] = Some(17);
    world.reset(1, Some("HWS hang\n\u{1b}[31m"));
    let line = world.log.pop().unwrap();
    assert!(
        line.starts_with("GPU 1 (GPU-1, ") && line.contains("HWS hang") && line.contains("job 17 of alice"),
        "{line}"
    );
    assert!(!line.contains(['\n', '\u{1b}']), "{line:?}");
    assert_eq!((world.faults(1), world.drained.clone()), (vec![FaultKind::Reset], None));
    // A second attempt of the driver's is the same reset.
    world.reset(1, Some("HWS hang"));
    world.reset(1, None);
    assert!(world.log.pop().unwrap().ends_with("usable again") && world.log.is_empty());
    (0..20).for_each(|_| world.look(&[]));
    assert_eq!((world.faults(1), world.offered.len(), world.drained.clone()), (vec![], 2, None));
    assert_eq!(world.health.report(1).gpus[1].counts[&FaultKind::Reset].count, 1);
    // The end of a reset whose start was missed, and an unknown GPU.
    world.reset(1, None);
    world.health.reset(world.now, NVIDIA, &Key::default(), &Phase::Ends);
    world.health.reset(world.now, Vendor::Amd, &identity(0).key(), &Phase::Begins { cause: None });
    world.action();
    assert_eq!((world.log.len(), world.faults(0)), (0, vec![]));
}

#[test]
fn reset_that_does_not_end_drains_until_it_does() {
    let mut world = World::new(2);
    world.jobs[1] = Some(7);
    world.reset(0, Some("RAS error"));
    (0..5).for_each(|_| world.look(&[]));
    assert_eq!(world.drained, None, "it takes a while");
    (0..2).for_each(|_| world.look(&[]));
    let reason = world.drained.clone().unwrap();
    assert!(reason.starts_with("GPU 0 (0000:10:00.0): ") && reason.contains("did not finish"), "{reason}");
    world.jobs[1] = None;
    (0..100).for_each(|_| world.look(&[answers(0)]));
    assert_eq!((world.offered.clone(), world.drained.clone()), (vec![1], None));
    world.reset(0, None);
    (0..3).for_each(|_| world.look(&[]));
    assert_eq!((world.offered.len(), world.drained.clone(), world.faults(0)), (2, None, vec![]));
}

#[test]
fn detects_a_missed_reset_end_by_the_gpus_answers() {
    let mut world = World::new(2);
    world.reset(0, Some("MES hang"));
    (0..7).for_each(|_| world.look(&[answers(0)]));
    assert_eq!(world.offered, [1]);
    // The agent dies; the next one keeps the record, and its new process receives events.
    let former = world.health.report(1);
    let out = vec![LeftOutGpu { gpu: identity(0), reason: String::new() }];
    world.health = HealthController::new(Faults::default(), 5000, Recount::WithoutGpuJobs, Some(&former), &out);
    world.health.offer(world.offer());
    world.health.watcher_restarted(NVIDIA);
    (0..50).for_each(|_| world.look(&[]));
    assert_eq!(world.offered, [1], "it does not answer");
    (0..4).for_each(|_| world.look(&[answers(0)]));
    assert_eq!((world.offered.len(), world.drained.clone(), world.faults(0)), (2, None, vec![]));
    // A GPU that was lost and is back was reset, too.
    world.reset(1, Some("unknown"));
    (0..9).for_each(|_| world.lost(1));
    assert_eq!(world.offered, [0]);
    (0..4).for_each(|_| world.look(&[]));
    assert_eq!((world.offered.len(), world.faults(1)), (2, vec![]));
}

#[test]
fn agent_wakes_for_it_and_policy_is_operators() {
    let mut world = World::with(2, "[faults]\nreset = 'drain'\nreset-unfinished = 'count'\n", Recount::WithoutGpuJobs);
    world.jobs[0] = Some(3);
    world.reset(0, Some("user trigger"));
    assert!(world.drained.is_some());
    world.reset(0, None);
    assert_eq!(world.drained, None);
    let mut world = World::with(2, "[faults]\nreset-unfinished = 'count'\n", Recount::WithoutGpuJobs);
    world.reset(0, Some("user trigger"));
    let began = world.now.ms - 300;
    assert_eq!(world.health.next(), Some(began + 30_000));
    (0..9).for_each(|_| world.look(&[]));
    assert_eq!((world.drained.clone(), world.health.next()), (None, None));
    assert_eq!(world.health.report(1).gpus[0].counts[&FaultKind::ResetUnfinished].count, 1);
}
