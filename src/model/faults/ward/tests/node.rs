//! What happens to the node, and when its GPUs come back.

use super::*;

#[test]
fn loses_and_regains_one_gpu() {
    let mut world = World::new(4);
    world.jobs[1] = Some(7);
    world.lost(3);
    assert!(world.drained.as_deref().is_some_and(|reason| reason.starts_with("GPU 3 (0000:13:00.0): the GPU is lost")));
    assert_eq!(world.offered.len(), 4, "job 7 would be aborted");
    assert!(world.ward.report(1).node.is_some_and(|node| node.ends_with("have ended: 7")));
    world.lost(3);
    world.jobs[1] = None;
    world.lost(3);
    assert_eq!((world.offered.clone(), world.drained.clone()), (vec![0, 1, 2], None));
    assert!(world.ward.report(1).gpus[3].is_out);
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
    assert_eq!(world.ward.report(1).node, None);
    assert!(world.said.iter().any(|line| line.contains("all 4 GPUs available to jobs again")));
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
            && world.ward.report(1).node.is_some_and(|node| node.contains("restart this container"))
    );
    // What somebody takes back is drained again, for jobs would fail on it.
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
    let doing = world.ward.report(1).node.unwrap();
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
    let tries = world.said.iter().filter(|line| line.contains("could not change the node's GPU count")).count();
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
    let former = world.ward.report(1);
    world.ward = Ward::new(Faults::default(), 5000, Recount::WithoutGpuJobs, Some(&former), &[]);
    world.ward.offer(world.offer());
    world.look(&[]);
    assert_eq!(world.offered.len(), 2);
    world.jobs[1] = None;
    world.look(&[]);
    assert_eq!((world.offered.clone(), world.drained.clone()), (vec![1], None));
    // Restarted on purpose, it has forgotten the fault: the GPU comes back.
    let mut former = world.ward.report(1);
    let out = vec![Out { gpu: identity(0), reason: String::new() }];
    former.gpus.iter_mut().for_each(|gpu| gpu.faults.clear());
    world.ward = Ward::new(Faults::default(), 5000, Recount::WithoutGpuJobs, Some(&former), &out);
    world.ward.offer(world.offer());
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
    assert_eq!((world.asked, world.ward.next(), world.drained.as_deref()), (asked, None, Some("fan")));
}

#[test]
fn person_who_drains_node_after_it_was_resumed_is_not_overruled() {
    let mut world = World::new(2);
    world.lost(1);
    world.drained = Some("fan".to_owned());
    (0..10).for_each(|_| world.lost(1));
    assert_eq!((world.drained.as_deref(), world.ward.next()), (Some("fan"), None));
}
