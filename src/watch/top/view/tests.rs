use ratatui::Terminal;
use ratatui::backend::TestBackend;

use super::*;
use crate::overview::state::{FaultView, SlurmView};
use model::queued_job::OwnedJob;
use slurm::nodes::answer::ClusterNodes;

fn state() -> State {
    let gpu = |index, model: &str| GpuView {
        index,
        model: model.to_owned(),
        memory_mib: Some((33_934, 143_771)),
        utilization: Some(51),
        temperature: Some(52),
        watts: Some(627),
        watts_limit: Some(700),
        for_seconds: Some(90),
        ..GpuView::default()
    };
    let busy = GpuView { jobs: vec![OwnedJob { job: 17, user: "alice".to_owned() }], ..gpu(0, "NVIDIA H200") };
    let lost = GpuView {
        faults: vec!["lost: it fell off the bus".to_owned()],
        is_out: true,
        utilization: None,
        memory_mib: None,
        ..gpu(2, "Some vendor's model with a name that is much too long for this")
    };
    let nodes = r#"{"nodes": [{"name": "c1", "state": ["IDLE", "DRAIN"], "reason": "fan", "cpus": 8}]}"#;
    let job = QueuedJob {
        id: "18_[1-3]".to_owned(),
        state: "PENDING".to_owned(),
        user: "bob".to_owned(),
        time: "0:00".to_owned(),
        partition: "debug".to_owned(),
        name: "train".to_owned(),
        gpus: 2,
        waits_for: "waits for 2 GPUs".to_owned(),
        reason: "Resources".to_owned(),
        ..QueuedJob::default()
    };
    State {
        at: 0,
        version: "0",
        node: "c1".to_owned(),
        is_ready: true,
        simulated_nodes: 0,
        why: String::new(),
        is_simulated: true,
        report_age: Some(3),
        is_stale: false,
        notice: None,
        gpus: vec![busy, gpu(1, "NVIDIA H200"), lost],
        faults: vec![FaultView { age: 60, line: "GPU 2: XID 79".to_owned() }],
        daemons: vec![
            DaemonView {
                name: "slurmctld".to_owned(),
                state: "ready".to_owned(),
                is_up: true,
                for_seconds: Some(7200),
                ..DaemonView::default()
            },
            DaemonView {
                name: "slurmd".to_owned(),
                state: "backing off".to_owned(),
                restarts: 3,
                last_exit: Some("killed by KILL".to_owned()),
                ..DaemonView::default()
            },
        ],
        slurm: Ok(SlurmView {
            nodes: ClusterNodes::parse(nodes, r#"{"jobs": []}"#).unwrap().nodes,
            node_count: 1,
            running: 1,
            pending: 1,
            jobs: vec![job],
            ..SlurmView::default()
        }),
    }
}

fn drawn(state: Option<&State>, width: u16, height: u16, scroll: u16) -> String {
    let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
    terminal.draw(|frame| _ = draw(frame, state, scroll, false)).unwrap();
    terminal.backend().to_string()
}

#[test]
fn fits_into_80_columns_and_24_lines() {
    insta::assert_snapshot!(drawn(Some(&state()), 80, 24, 0));
}

#[test]
fn shows_essential_text_in_60_columns() {
    let text = drawn(Some(&state()), 60, 40, 0);
    for expected in [
        "17 alice 1m",
        "free 1m",
        "33/140 GiB",
        "18_[1-3] bob      train",
        "  2 GPU",
        "waits for 2 GPUs",
        "drained (fan)",
        "killed by",
    ] {
        assert!(text.contains(expected), "{expected}: {text}");
    }
}

#[test]
fn array_is_one_row_until_expanded() {
    let mut state = state();
    let task = |id: &str, state: &str| QueuedJob {
        id: id.to_owned(),
        state: state.to_owned(),
        user: "bob".to_owned(),
        ..QueuedJob::default()
    };
    let Ok(slurm) = &mut state.slurm else { panic!() };
    slurm.jobs = vec![task("20_1", "RUNNING"), task("20_2", "PENDING"), task("21", "RUNNING"), task("20_3", "PENDING")];
    slurm.arrays = vec![ArrayView { id: "20".to_owned(), tasks: 300, running: 1 }];
    let text = drawn(Some(&state), 80, 40, 0);
    assert!(text.contains("20_* bob") && text.contains("1/300 run") && !text.contains("20_2"), "{text}");
    assert!(text.contains("      21 bob") && text.contains("a: tasks of arrays"), "{text}");

    let mut terminal = Terminal::new(TestBackend::new(80, 50)).unwrap();
    terminal.draw(|frame| _ = draw(frame, Some(&state), 0, true)).unwrap();
    let text = terminal.backend().to_string();
    for row in ["20_* bob", "20_1 bob", "20_2 bob", "20_3 bob", "… 297 more tasks", "  21 bob"] {
        assert!(text.contains(row), "{row}: {text}");
    }
}

#[test]
fn wraps_long_text_without_loss() {
    let mut state = state();
    let line = "GPU 2 (NVIDIA H200, 0000:10:00.0): XID 79, GPU fell off the bus; job 17 of alice had it; reset the GPU";
    state.faults = vec![FaultView { age: 60, line: line.to_owned() }];
    (state.is_ready, state.why) = (false, format!("the node is drained: {line}"));
    for width in [40, 60, 80] {
        let text = drawn(Some(&state), width, 60, 0).replace(['"', '\n'], " ");
        let words: Vec<&str> = text.split_whitespace().collect();
        let text = words.join(" ");
        assert_eq!(text.matches(line).count(), 2, "{width}: {text}");
    }
}

#[test]
fn scrolls_and_draws_at_any_size() {
    let mut state = state();
    state.gpus = (0..64).map(|index| GpuView { index, ..state.gpus[0].clone() }).collect();
    assert!(drawn(Some(&state), 80, 24, u16::MAX).contains("slurmd "));
    for (width, height) in [(1, 1), (10, 3), (200, 2), (3, 60)] {
        drawn(Some(&state), width, height, 3);
        drawn(None, width, height, 0);
    }
}

#[test]
fn shows_stale_report_and_unresponsive_slurmctld() {
    let mut state = state();
    (state.is_stale, state.report_age, state.slurm) = (true, Some(120), Err("no answer".to_owned()));
    (state.is_ready, state.why) = (false, "slurmd is backing off".to_owned());
    let text = drawn(Some(&state), 80, 40, 0);
    for expected in
        ["the last GPU report is 2m old", "slurmctld does not respond: no answer", "not ready: slurmd is backing off"]
    {
        assert!(text.contains(expected), "{expected}: {text}");
    }
}
