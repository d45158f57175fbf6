//! Each test is a day of one GPU: samples, and slurmctld's answers.

use proptest::prelude::*;

use super::*;
use model::inventory::{Condition, InstanceReadings, Readings};

const INTERVAL: u64 = 5_000;

fn usage() -> Usage {
    restarted(None)
}

fn restarted(former: Option<&Usage>) -> Usage {
    // The state is saved to a file and read again.
    let former = former.map(|former| serde_json::from_str(&serde_json::to_string(former).unwrap()).unwrap());
    let mut usage = Usage::new(former, "c1", INTERVAL);
    let offered = |index: u32, instance: Option<&str>| OfferedGpu {
        index,
        instance: instance.map(str::to_owned),
        file: format!("/dev/nvidia{index}"),
        ..OfferedGpu::default()
    };
    let gpu = |index: u32| Identity {
        index,
        uuid: Some(format!("GPU-{index}")),
        file: Some(format!("/dev/nvidia{index}")),
        ..Identity::default()
    };
    usage.set_offered(&[offered(0, None), offered(1, Some("MIG-a")), offered(1, Some("MIG-b"))], &[gpu(0), gpu(1)]);
    usage
}

fn seen(percent: u32, memory_mib: u64, energy_mj: Option<u64>) -> GpuSample {
    GpuSample {
        condition: Condition {
            utilization: Some(percent),
            memory_mib: Some((memory_mib, 81_920)),
            ..Condition::default()
        },
        readings: Readings { power_mw: Some(100_000), energy_mj, ..Readings::default() },
        trouble: None,
    }
}

fn job(job: u64, start: u64, end: Option<u64>) -> Job {
    let state = if end.is_some() { "COMPLETED" } else { "RUNNING" }.to_owned();
    let gpus = if end.is_some() { Vec::new() } else { vec![0] };
    Job { job, start, end, state, gpus, ..Job::default() }
}

fn sample(usage: &mut Usage, seconds: u64, percent: u32) {
    usage.add_sample(seconds * 1000, "GPU-0", &seen(percent, 1024, None));
}

#[test]
fn attributes_samples_before_the_answer_and_none_after_the_end() {
    let mut usage = usage();
    for at in (5..=60).step_by(5) {
        sample(&mut usage, at, if at <= 12 || at > 40 { 0 } else { 80 });
    }
    assert_eq!(usage.update(60_000, vec![job(7, 12, None)]), []);
    assert!(usage.has_jobs());
    let running = usage.running(60_000);
    assert_eq!(running[0].gpus[0].measured_ms, 48_000);
    // The job ended at 42, which slurmctld reports later.
    let mut usage = restarted(None);
    for at in (5..=20).step_by(5) {
        sample(&mut usage, at, 80);
    }
    usage.update(20_000, vec![job(7, 12, None)]);
    for at in (25..=60).step_by(5) {
        sample(&mut usage, at, if at <= 40 { 80 } else { 0 });
    }
    let ended = usage.update(60_000, vec![job(7, 12, Some(42))]);
    let gpu = &ended[0].gpus[0];
    assert_eq!((gpu.measured_ms, gpu.mean_percent(), gpu.idle_ms, gpu.peak_percent), (30_000, Some(80.0), 0, 80));
    assert_eq!((gpu.energy_mj, gpu.mean_memory_mib()), (Some(3_000_000), Some(1024)));
    assert!(!usage.has_jobs() && usage.update(61_000, vec![job(7, 12, Some(42))]).is_empty(), "recorded once");
}

#[test]
fn mail_is_requested_for_end_or_failure() {
    let is_requested = |mail: &[&str], state: &str, end| {
        let mail = mail.iter().map(ToString::to_string).collect();
        Job { mail, state: state.to_owned(), ..job(7, 0, end) }.is_mail_requested()
    };
    assert!(is_requested(&["END"], "COMPLETED", Some(9)) && is_requested(&["BEGIN", "FAIL"], "TIMEOUT", Some(9)));
    assert!(!is_requested(&["FAIL"], "COMPLETED", Some(9)) && !is_requested(&["BEGIN"], "FAILED", Some(9)));
    assert!(!is_requested(&["END", "FAIL"], "RUNNING", None) && !is_requested(&[], "FAILED", Some(9)));
}

#[test]
fn samples_after_the_query_count_in_the_next_answer() {
    let mut usage = usage();
    sample(&mut usage, 5, 50);
    sample(&mut usage, 10, 50);
    usage.update(7_000, vec![job(7, 0, None)]);
    usage.update(11_000, vec![job(7, 0, None)]);
    assert_eq!(usage.running(11_000)[0].gpus[0].measured_ms, 10_000);
}

#[test]
fn errors_count_for_job_that_has_the_gpu() {
    let mut usage = usage();
    sample(&mut usage, 5, 50);
    usage.update(6_000, vec![job(7, 0, None)]);
    usage.add_error("GPU-0");
    usage.add_error("GPU-0");
    usage.add_error("GPU-1");
    sample(&mut usage, 10, 70);
    assert_eq!(usage.running(10_000)[0].gpus[0].errors, 2);
    assert_eq!((usage.history("GPU-0", 10_000), usage.history("GPU-1", 10_000)), (vec![Some(60)], vec![]));
}

#[test]
fn restart_loses_no_sample_that_was_saved() {
    let mut usage = usage();
    sample(&mut usage, 5, 50);
    usage.update(6_000, vec![job(7, 0, None)]);
    for at in [10, 15, 20] {
        sample(&mut usage, at, 50);
    }
    // The container was killed, and slurmctld has requeued the job.
    let mut usage = restarted(Some(&usage));
    let ended = usage.update(60_000, vec![job(7, 58, None)]);
    assert_eq!(
        (ended[0].job.state.as_str(), ended[0].job.end, ended[0].gpus[0].measured_ms),
        ("REQUEUED", Some(20), 20_000)
    );
    assert_eq!(usage.running(60_000)[0].job.start, 58);
    // A job that slurmctld no longer reports is lost.
    sample(&mut usage, 65, 50);
    let ended = usage.update(70_000, Vec::new());
    assert_eq!((ended[0].job.state.as_str(), ended[0].job.end), ("LOST", Some(65)));
}

#[test]
fn distinguishes_instances_and_shared_gpus() {
    let mut usage = usage();
    let instance = |uuid: &str, percent: u32| InstanceReadings {
        uuid: Some(uuid.to_owned()),
        sm_ppm: Some(percent * 10_000),
        memory_used: Some(1 << 30),
        ..InstanceReadings::default()
    };
    let instances = vec![instance("MIG-a", 30), instance("MIG-b", 60)];
    let mut seen = seen(0, 0, None);
    seen.readings = Readings { instances, ..Readings::default() };
    for at in [5_000, 10_000] {
        usage.add_error("GPU-1");
        usage.add_sample(at, "GPU-1", &seen);
        usage.add_sample(at, "GPU-0", &self::seen(90, 1, None));
    }
    let shared = Job { shared: vec![(0, 250_000)], gpus: Vec::new(), ..job(8, 5, None) };
    usage.update(10_000, vec![Job { gpus: vec![2], ..job(7, 5, None) }, shared]);
    let running = usage.running(10_000);
    let of = |run: usize| {
        (running[run].gpus[0].part.id.as_str(), running[run].gpus[0].mean_percent(), running[run].gpus[0].is_shared)
    };
    assert_eq!((of(0), of(1)), (("MIG-b", Some(60.0), false), ("GPU-0", Some(90.0), true)));
    assert_eq!((running[0].gpus[0].energy_mj, running[0].gpus[0].peak_memory_mib), (None, 1024));
    assert_eq!(
        (running[0].gpus[0].errors, running[1].gpus[0].errors),
        (2, 0),
        "an error of the GPU counts for its instances"
    );
    // The users' sums are those of the GPUs: a quarter of GPU 0, and the instance.
    let all = usage.users()[""];
    assert_eq!((all.gpu_ms, all.busy), (5_000 + 1_250, 5_000 * 60 + 1_250 * 90));
}

#[test]
fn energy_is_counter_increase_or_power_times_time() {
    let mut usage = usage();
    for (at, counter) in
        [(5, Some(1_000_000)), (10, Some(3_000_000)), (15, Some(7)), (20, Some(1_000_007)), (25, Some(u64::MAX))]
    {
        usage.add_sample(at * 1000, "GPU-0", &seen(1, 1, counter));
    }
    usage.update(25_000, vec![job(7, 5, None)]);
    // 2 kJ, 100 W for 5 s after the counter's reset, 1 kJ, 100 W for 5 s instead of the absurd value.
    assert_eq!(usage.running(25_000)[0].gpus[0].energy_mj, Some(2_000_000 + 500_000 + 1_000_000 + 500_000));
}

#[test]
fn suspended_time_and_gaps_do_not_count() {
    let mut usage = usage();
    sample(&mut usage, 5, 40);
    usage.update(6_000, vec![job(7, 0, None)]);
    sample(&mut usage, 10, 0);
    usage.update(11_000, vec![Job { state: "SUSPENDED".to_owned(), ..job(7, 0, None) }]);
    sample(&mut usage, 15, 40);
    // The agent was not running in between.
    sample(&mut usage, 3600, 40);
    usage.update(3_601_000, vec![job(7, 0, None)]);
    let gpu = &usage.running(3_601_000)[0].gpus[0];
    assert_eq!((gpu.mean_percent(), gpu.measured_ms), (Some(40.0), 5_000 + 5_000 + 15_000));
}

/// The policy's steps for a job with this GPU use in each interval. The agent restarts after each answer.
fn idle_steps(policy: &IdlePolicy, percents: &[u32], change: impl Fn(&mut Job)) -> Vec<(usize, IdleAction)> {
    let (mut usage, mut steps) = (usage(), Vec::new());
    for (number, percent) in percents.iter().enumerate() {
        let at = (number as u64 + 1) * 5;
        sample(&mut usage, at, *percent);
        let mut job = Job { nodes: 1, ..job(7, 0, None) };
        change(&mut job);
        usage.update(at * 1000, vec![job]);
        steps.extend(usage.idle(policy, at).into_iter().map(|idle| (number, idle.action)));
        usage = restarted(Some(&usage));
    }
    steps
}

#[test]
fn idle_job_is_warned_then_cancelled_after_a_second_window() {
    let policy = |action| IdlePolicy { action, after: std::time::Duration::from_secs(50), ..IdlePolicy::default() };
    let cancel = policy(IdleAction::Cancel);
    let keep = |_: &mut Job| {};
    assert_eq!(idle_steps(&cancel, &[0; 25], keep), [(9, IdleAction::Warn), (19, IdleAction::Cancel)]);
    assert_eq!(idle_steps(&policy(IdleAction::Warn), &[0; 25], keep), [(9, IdleAction::Warn)]);
    assert_eq!(idle_steps(&policy(IdleAction::Off), &[0; 25], keep), []);
    // A busy moment within the window, and a checkpoint of 45 s.
    let mut busy = [0; 25];
    (busy[8], busy[18]) = (90, 90);
    assert_eq!(idle_steps(&cancel, &busy, keep), []);
    // Use of the GPU ends the warning.
    let mut used = [0; 45];
    used[12..24].fill(90);
    assert_eq!(
        idle_steps(&cancel, &used, keep),
        [(9, IdleAction::Warn), (33, IdleAction::Warn), (43, IdleAction::Cancel)]
    );
    // A suspended job is not judged, and a job with shards is not idle while any job uses the GPU.
    assert_eq!(idle_steps(&cancel, &[0; 25], |job| job.state = "SUSPENDED".to_owned()), []);
    let shards = |job: &mut Job| (job.shared, job.gpus) = (vec![(0, 250_000)], Vec::new());
    assert_eq!(idle_steps(&cancel, &[0; 25], shards), [(9, IdleAction::Warn), (19, IdleAction::Cancel)]);
    assert_eq!(idle_steps(&cancel, &busy, shards), []);
    let exempt = IdlePolicy { except_users: vec![String::new()], ..cancel };
    assert_eq!(idle_steps(&exempt, &[0; 25], keep), []);
}

/// The policy's steps for a job on two nodes with the given GPU use. Both nodes get the same AdminComment; c2 is down from interval `silent` on.
fn idle_steps_of_two_nodes(percents: [&[u32]; 2], silent: usize) -> Vec<(usize, IdleAction)> {
    let after = std::time::Duration::from_secs(80);
    let policy = IdlePolicy { action: IdleAction::Cancel, after, ..IdlePolicy::default() };
    let mut nodes = ["c1", "c2"].map(|node| Usage { node: node.to_owned(), ..usage() });
    let (mut comment, mut steps) = ("a note".to_owned(), Vec::new());
    for (number, percents) in percents[0].iter().zip(percents[1]).map(|(c1, c2)| [*c1, *c2]).enumerate() {
        let at = (number as u64 + 1) * 5;
        for (index, usage) in nodes.iter_mut().enumerate().filter(|(index, _)| *index == 0 || number < silent) {
            sample(usage, at, percents[index]);
            let job = Job { nodes: 2, is_first_node: index == 0, comment: comment.clone(), ..job(7, 0, None) };
            usage.update(at * 1000, vec![job]);
            let idle = usage.idle(&policy, at);
            assert!(index == 0 || idle.is_empty(), "only the first node acts: {idle:?}");
            steps.extend(idle.into_iter().map(|idle| (number, idle.action)));
            for (_, mark) in usage.idle_marks(&policy, at) {
                comment = with_mark(&comment, &usage.node, mark);
            }
        }
        assert_eq!(without_marks(&comment), "a note");
    }
    steps
}

#[test]
fn job_on_two_nodes_is_idle_only_if_both_nodes_gpus_are_idle() {
    let idle = [0; 40];
    // c2 sets its mark after c1's answer.
    let (warn, cancel) = ((16, IdleAction::Warn), (32, IdleAction::Cancel));
    assert_eq!(idle_steps_of_two_nodes([&idle, &idle], 40), [warn, cancel]);
    // Either node uses its GPU, or c2 does not respond.
    let busy = [90; 40];
    assert_eq!(idle_steps_of_two_nodes([&idle, &busy], 40), []);
    assert_eq!(idle_steps_of_two_nodes([&busy, &idle], 40), []);
    assert_eq!(idle_steps_of_two_nodes([&idle, &idle], 15), []);
    // c2 confirmed the warning, and nothing after it.
    assert_eq!(idle_steps_of_two_nodes([&idle, &idle], 18), [warn]);
    // c2 was idle, and uses its GPU after the warning: nothing is cancelled before both were idle for a window again.
    let mut later = idle;
    later[24..].fill(90);
    assert_eq!(idle_steps_of_two_nodes([&idle, &later], 40), [warn]);
}

/// An event at one second of the day.
#[derive(Clone, Debug)]
enum Event {
    Sample(u32),
    Answer,
    Restart,
}

proptest! {
    /// Whatever the times of samples, answers and restarts: each ms of the GPU belongs to one job at most, and the mean is between
    /// the lowest and the highest sample.
    #[test]
    fn attributes_each_moment_to_one_job(
        events in proptest::collection::vec(prop_oneof![
            6 => (0..=100_u32).prop_map(Event::Sample), 2 => Just(Event::Answer), 1 => Just(Event::Restart)], 1..120),
        length in 1..40_u64, pause in 1..10_u64,
    ) {
        let mut usage = usage();
        let (mut ended, mut samples) = (Vec::new(), 0);
        let jobs = |now: u64| -> Vec<Job> {
            let begun = (0..now / (length + pause) + 1).map(|number| (number, number * (length + pause) + 1));
            let begun = begun.filter(|(_, start)| *start < now);
            begun.map(|(number, start)| job(number, start, Some(start + length).filter(|end| *end <= now))).collect()
        };
        let mut total = UserUse::default();
        for (second, event) in (1..).zip(&events) {
            let now = usage.users().get("").copied().unwrap_or_default();
            prop_assert!(now.gpu_ms >= total.gpu_ms && now.busy >= total.busy && now.energy_mj >= total.energy_mj);
            total = now;
            match event {
                Event::Sample(percent) => { samples += 1; sample(&mut usage, second, *percent); }
                Event::Answer => ended.extend(usage.update(second * 1000, jobs(second))),
                Event::Restart => usage = restarted(Some(&usage)),
            }
        }
        let now = events.len() as u64;
        ended.extend(usage.update(now * 1000, jobs(now)));
        let all = ended.iter().chain(&usage.running(now * 1000)).cloned().collect::<Vec<_>>();
        let measured: u64 = all.iter().map(|run| run.gpus[0].measured_ms).sum();
        prop_assert!(measured <= now * 1000, "{measured} of {now} s, {samples} samples");
        for run in &all {
            let gpu = &run.gpus[0];
            let end = run.job.end.unwrap_or(now);
            prop_assert!(gpu.measured_ms <= (end - run.job.start) * 1000, "{run:?}");
            prop_assert!(gpu.idle_ms <= gpu.percent_ms && gpu.percent_ms == gpu.measured_ms);
            prop_assert!(gpu.mean_percent().unwrap_or_default() <= f64::from(gpu.peak_percent) + 1e-9);
        }
        let mut runs: Vec<_> = all.iter().map(|run| run.job.run()).collect();
        runs.sort_unstable();
        runs.dedup();
        prop_assert_eq!(runs.len(), all.len());
    }
}
