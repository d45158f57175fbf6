//! What happens to the node, and when its GPUs come back.

use crate::faults::report::Release;
use crate::prepared::AwaitedGpu;

use super::*;

#[test]
fn loses_and_regains_one_gpu() {
    let mut world = World::new(4);
    world.jobs[1] = Some(7);
    world.lost(3);
    assert!(world.drained.as_deref().is_some_and(|reason| reason.starts_with("GPU 3 (0000:13:00.0): the GPU is lost")));
    assert_eq!(world.offered.len(), 4, "job 7 would be aborted");
    assert!(world.health.report(1).node.is_some_and(|node| node.ends_with("have ended: 7")));
    world.lost(3);
    world.jobs[1] = None;
    world.lost(3);
    assert_eq!((world.offered.clone(), world.drained.clone()), (vec![0, 1, 2], None));
    assert!(world.health.report(1).gpus[3].is_out);
    // A job that runs on the others is not disturbed by its return, and one look is no proof.
    world.jobs[0] = Some(8);
    world.look(&[]);
    world.look(&[]);
    world.look(&[]);
    assert_eq!((world.offered.len(), world.drained.clone()), (3, None));
    world.jobs[0] = None;
    world.look(&[]);
    world.look(&[]);
    assert_eq!((world.offered.len(), world.drained.clone()), (4, None));
    assert_eq!(world.health.report(1).node, None);
    assert!(world.log.iter().any(|line| line.contains("all 4 GPUs available to jobs again")));
}

#[test]
fn recovered_gpu_does_not_wait_forever() {
    let mut world = World::new(2);
    world.lost(1);
    assert_eq!(world.offered, [0]);
    world.jobs[0] = Some(9);
    for _ in 0..800 {
        world.look(&[]);
    }
    assert!(world.drained.as_deref().is_some_and(|reason| reason.starts_with("GPU 1 recovered")));
    world.jobs[0] = None;
    world.look(&[]);
    assert_eq!((world.offered.len(), world.drained), (2, None));
}

#[test]
fn keeps_administrators_drain() {
    let mut world = World::new(2);
    world.drained = Some("fan".to_owned());
    world.lost(0);
    assert_eq!((world.offered.clone(), world.drained.as_deref()), (vec![1], Some("fan")));
    (0..3).for_each(|_| world.look(&[]));
    assert_eq!((world.offered.len(), world.drained.as_deref()), (2, Some("fan")));
}

#[test]
fn node_whose_number_of_gpus_cannot_change_is_drained_until_gpu_is_back() {
    let mut world = World::with(2, "", Recount::Never);
    world.lost(0);
    (0..20).for_each(|_| world.lost(0));
    assert_eq!(world.offered.len(), 2);
    assert!(
        world.drained.is_some()
            && world.health.report(1).node.is_some_and(|node| node.contains("restart this container"))
    );
    // A node that an operator resumes is drained again, because jobs would fail on it.
    world.drained = None;
    (0..3).for_each(|_| world.lost(0));
    assert!(world.drained.is_some());
    (0..3).for_each(|_| world.look(&[]));
    assert_eq!(world.drained, None);
}

#[test]
fn node_that_controller_has_to_forget_waits_for_all_of_its_jobs() {
    let mut world = World::with(2, "", Recount::WithoutJobs);
    (world.jobs[1], world.has_other_job) = (Some(7), true);
    world.lost(0);
    (0..5).for_each(|_| world.lost(0));
    world.jobs[1] = None;
    (0..5).for_each(|_| world.lost(0));
    assert!(world.drained.is_some() && world.offered.len() == 2);
    let doing = world.health.report(1).node.unwrap();
    assert!(doing.contains("until all of its jobs have ended"), "{doing}");
    world.has_other_job = false;
    world.lost(0);
    assert_eq!((world.offered.clone(), world.drained.clone()), (vec![1], None));
    // Back: a job without a GPU is waited for, too.
    world.has_other_job = true;
    (0..5).for_each(|_| world.look(&[]));
    assert_eq!((world.offered.len(), world.drained.clone()), (1, None));
    world.has_other_job = false;
    (0..2).for_each(|_| world.look(&[]));
    assert_eq!((world.offered.len(), world.drained), (2, None));
}

#[test]
fn retries_failed_reload_with_backoff() {
    let mut world = World::new(1);
    world.reload_fails = true;
    (0..1000).for_each(|_| world.lost(0));
    let tries = world.log.iter().filter(|line| line.contains("could not change the node's GPU count")).count();
    assert!((8..20).contains(&tries), "{tries}");
    assert!(world.drained.is_some());
    world.reload_fails = false;
    (0..130).for_each(|_| world.lost(0));
    assert_eq!((world.offered.len(), world.drained), (0, None));
}

#[test]
fn agent_that_was_killed_leaves_nothing_behind() {
    let mut world = World::new(2);
    world.jobs[1] = Some(3);
    world.event(0, 79);
    assert!(world.drained.is_some());
    // A restart during a drain: the next agent knows the reason and continues.
    let former = world.health.report(1);
    world.health = HealthController::new(Faults::default(), 5000, Recount::WithoutGpuJobs, Some(&former), &[]);
    world.health.offer(world.offer());
    world.look(&[]);
    assert_eq!(world.offered.len(), 2);
    world.jobs[1] = None;
    world.look(&[]);
    assert_eq!((world.offered.clone(), world.drained.clone()), (vec![1], None));
    // Restarted on purpose, it has forgotten the fault: the GPU comes back.
    let mut former = world.health.report(1);
    let out = vec![LeftOutGpu { gpu: identity(0), reason: String::new() }];
    former.gpus.iter_mut().for_each(|gpu| gpu.faults.clear());
    world.health = HealthController::new(Faults::default(), 5000, Recount::WithoutGpuJobs, Some(&former), &out);
    world.health.offer(world.offer());
    (0..4).for_each(|_| world.look(&[]));
    assert_eq!((world.offered.len(), world.drained.clone()), (2, None));
}

#[test]
fn repeats_resume_until_slurmctld_keeps_it() {
    let mut world = World::new(2);
    world.lost(1);
    assert_eq!((world.offered.clone(), world.drained.clone()), (vec![0], None));
    // Killed before it had saved that, and back.
    world.drained = Some("GPU 1: lost".to_owned());
    world.lost(1);
    world.is_away = true;
    (0..5).for_each(|_| world.lost(1));
    world.is_away = false;
    (0..2).for_each(|_| world.lost(1));
    assert_eq!((world.offered.clone(), world.drained.clone()), (vec![0], None));
    // Away just when the GPU is back, and the node resumed.
    (0..4).for_each(|_| world.lost(1));
    world.drained = Some("GPU 1 recovered".to_owned());
    world.look(&[]);
    world.look(&[]);
    assert_eq!((world.offered.len(), world.drained.clone()), (2, None));
    world.drained = Some("GPU 1 recovered".to_owned());
    (0..4).for_each(|_| world.look(&[]));
    assert_eq!(world.drained, None);
    // Once the resume is saved, the agent does not query again, and leaves an administrator's drain alone.
    (0..4).for_each(|_| world.look(&[]));
    world.drained = Some("fan".to_owned());
    let asked = world.asked;
    (0..20).for_each(|_| world.look(&[]));
    assert_eq!((world.asked, world.health.next(), world.drained.as_deref()), (asked, None, Some("fan")));
}

#[test]
fn person_who_drains_node_after_it_was_resumed_is_not_overruled() {
    let mut world = World::new(2);
    world.lost(1);
    world.drained = Some("fan".to_owned());
    (0..10).for_each(|_| world.lost(1));
    assert_eq!((world.drained.as_deref(), world.health.next()), (Some("fan"), None));
}

/// AMD's partitions have one address and no UUID.
#[test]
fn distinguishes_partitions_of_a_gpu_by_render_node() {
    let part = |index: u32| Identity {
        vendor: Vendor::Amd,
        index,
        pci_address: "0000:0a:00.0".parse().ok(),
        file: Some(format!("/dev/dri/renderD{}", 128 + index)),
        ..Identity::default()
    };
    let offered = |index: u32| Offered {
        pci_address: Some("0000:0a:00.0".to_owned()),
        file: format!("/dev/dri/renderD{}", 128 + index),
    };
    let mut health = HealthController::new(Faults::default(), 5000, Recount::WithoutGpuJobs, None, &[]);
    health.offer((0..4).map(offered).collect());
    let now = Clock::default();
    health.listed(now, Vendor::Amd, (0..4).map(part).collect());
    health.done(now, Vendor::Amd);
    let report = health.report(1);
    assert_eq!(report.gpus.iter().map(|gpu| gpu.offered.clone()).collect::<Vec<_>>(), [[0], [1], [2], [3]]);
    // One of them goes.
    health.listed(now, Vendor::Amd, (0..3).map(part).collect());
    health.done(now, Vendor::Amd);
    let faults: Vec<usize> = health.report(1).gpus.iter().map(|gpu| gpu.faults.len()).collect();
    assert_eq!(faults, [0, 0, 0, 1]);
    // A MIG instance has its GPU's address and a file of its own.
    let whole = Identity { file: Some("/dev/nvidia0".to_owned()), ..identity(0) };
    let instance = |file: &str| Offered { pci_address: Some("0000:10:00.0".to_owned()), file: file.to_owned() };
    let all = [
        instance("/dev/nvidia-caps/nvidia-cap12"),
        instance("/dev/nvidia-caps/nvidia-cap21"),
        instance("/dev/nvidia1"),
    ];
    assert_eq!(whole.indices(&all), [0, 1]);
}

/// The driver takes seconds for each GPU: the start does not wait for all of them.
#[test]
fn a_gpu_that_answers_after_the_start_is_offered_without_anybody() {
    let mut world = World::new(3);
    world.offered = vec![0];
    let awaited = |index: u32| AwaitedGpu { vendor: NVIDIA, index, pci_address: identity(index).pci_address };
    world.health = HealthController::new(Faults::default(), 5000, Recount::WithoutGpuJobs, None, &[]);
    world.health.offer(world.offer());
    world.health.await_gpus(vec![awaited(1), awaited(2)]);
    // Only their places are known so far.
    for index in 0..3 {
        world.health.opening(world.now, Identity { uuid: None, ..identity(index) });
    }
    world.action();
    assert_eq!((world.offered.len(), world.drained.clone(), world.log.len()), (1, None, 0));
    assert_eq!(world.health.report(1).gpus.len(), 3);
    // One of them answers while a job has a GPU: it waits, and then both are there.
    world.jobs[0] = Some(7);
    world.health.listed(world.now, NVIDIA, world.gpus.clone());
    world.health.seen(world.now, &identity(1).key(), World::well());
    world.action();
    assert_eq!((world.offered.len(), world.health.report(1).gpus.len()), (1, 3), "{:?}", world.log);
    world.look(&[]);
    world.jobs[0] = None;
    world.look(&[]);
    assert_eq!(world.offered, [0, 1, 2]);
    world.health.await_gpus(Vec::new());
    (0..3).for_each(|_| world.look(&[]));
    assert_eq!((world.drained.clone(), world.health.report(1).node), (None, None));
    assert!(world.health.report(1).gpus.iter().all(|gpu| gpu.faults.is_empty() && !gpu.is_out));
}

/// A reload that does not wait for it either is not repeated without end.
#[test]
fn a_gpu_that_no_reload_waits_for_is_tried_once_a_minute() {
    let mut world = World::new(2);
    world.offered = vec![0];
    world.health = HealthController::new(Faults::default(), 5000, Recount::WithoutGpuJobs, None, &[]);
    world.health.offer(world.offer());
    world.health.await_gpus(vec![AwaitedGpu { vendor: NVIDIA, index: 1, pci_address: None }]);
    (0..60).for_each(|_| world.look(&[]));
    let reloads =
        world.log.iter().filter(|line| line.contains("available to jobs") || line.contains("resumed with")).count();
    assert!((4..=7).contains(&reloads), "{reloads}: {:?}", world.log);
}

/// The host's tools refuse to reset a GPU that any process has open.
#[test]
fn a_gpu_that_is_released_waits_for_its_jobs_and_returns_after_a_check() {
    let mut world = World::new(2);
    let gpu = |world: &World| world.health.report(1).gpus[1].clone();
    world.jobs[1] = Some(7);
    world.event(1, 31);
    world.health.release(&[identity(1)]);
    world.look(&[]);
    assert!(world.drained.as_deref().is_some_and(|reason| reason.contains("released for work")), "{:?}", world.drained);
    assert_eq!((gpu(&world).release, world.health.to_close(NVIDIA).len()), (Some(Release::Pending), 0), "a job has it");
    world.jobs[1] = None;
    world.look(&[]);
    assert_eq!((world.offered.clone(), world.drained.clone()), (vec![0], None));
    assert_eq!(world.health.to_close(NVIDIA), [identity(1)]);
    assert_eq!(world.health.to_check(NVIDIA), [], "the host has it");
    assert_eq!(gpu(&world).release, Some(Release::Pending), "it is still open");
    world.health.closed([identity(1).key()].into());
    assert_eq!(gpu(&world).release, Some(Release::Done));
    // It is given back, and the first check still finds a fault.
    world.health.release(&[]);
    assert_eq!((gpu(&world).release, world.health.to_check(NVIDIA)), (Some(Release::Returning), vec![identity(1)]));
    world.action();
    assert_eq!(world.offered, [0], "not before it has answered");
    let broken = Seen { readings: Readings { recovery_action: Some(1), ..Readings::default() }, ..Seen::default() };
    world.look(&[(1, broken)]);
    world.look(&[]);
    assert_eq!((world.offered.clone(), gpu(&world).release), (vec![0], None));
    (0..3).for_each(|_| world.look(&[]));
    assert_eq!((world.offered.clone(), world.drained.clone()), (vec![0, 1], None));
}

/// An XID that no driver takes back ends when the administrator ends it.
#[test]
fn a_gpu_with_a_fault_is_not_kept_open_and_returns_when_it_is_given_back() {
    let mut world = World::new(2);
    let silent = || [(0, Seen::default()), (1, Seen::default())];
    world.look(&silent());
    world.event(1, 62);
    assert_eq!((world.offered.clone(), world.health.to_close(NVIDIA)), (vec![0], vec![identity(1)]));
    assert_eq!(world.health.to_check(NVIDIA), [identity(1)]);
    world.health.release(&[identity(1)]);
    world.look(&silent());
    assert_eq!(world.health.to_check(NVIDIA), []);
    // It is given back too early: the check ends, and finds it lost.
    world.health.release(&[]);
    world.look(&[(1, Seen { trouble: Some(FaultKind::Lost), ..Seen::default() })]);
    assert_eq!(
        (world.health.report(1).gpus[1].release, world.faults(1), world.offered.len()),
        (None, vec![FaultKind::Lost], 1)
    );
    world.health.release(&[identity(1)]);
    world.health.release(&[]);
    (0..2).for_each(|_| world.look(&silent()));
    assert_eq!((world.offered.clone(), world.drained.clone()), (vec![0, 1], None));
}
