use super::*;
use crate::proc::Step;

const ALICE: u32 = 1000;

fn process(pid: i32, parent: i32, session: i32, uid: u32, role: Role) -> Process {
    Process { pid, parent, session, start: 1, uid, gid: uid, role, is_marked: uid == ALICE, ..Process::default() }
}

/// slurmd is PID 10; job 8 of alice has step 20 and task 21.
fn machine(more: &[Process]) -> Processes {
    let base = [
        process(1, 0, 1, 0, Role::Other),
        process(10, 1, 10, 0, Role::Daemon),
        process(20, 10, 20, 0, Role::Step(Some(Step { job: 8, name: "batch".to_owned() }))),
        process(21, 20, 21, ALICE, Role::Other),
    ];
    base.into_iter().chain(more.iter().cloned()).collect()
}

/// `machine` without job 8.
fn idle_machine(more: &[Process]) -> Processes {
    [process(1, 0, 1, 0, Role::Other), process(10, 1, 10, 0, Role::Daemon)]
        .into_iter()
        .chain(more.iter().cloned())
        .collect()
}

fn orphan(pid: i32) -> Process {
    process(pid, 1, pid, ALICE, Role::Other)
}

fn job() -> Job {
    Job { id: 7, uid: ALICE, devices: ["/dev/nvidia0".to_owned()].into() }
}

fn evidence_of(pid: i32, job: Option<u32>, devices: &[&str]) -> BTreeMap<i32, Evidence> {
    [(pid, Evidence { job, is_script: false, devices: devices.iter().map(ToString::to_string).collect() })].into()
}

fn leftover_pids(all: &Processes, evidence: &BTreeMap<i32, Evidence>) -> Vec<i32> {
    leftovers(all, &job(), evidence, &BTreeSet::new()).into_iter().collect()
}

#[test]
fn orphan_is_leftover_only_after_its_job_ended() {
    let all = machine(&[orphan(30)]);
    assert_eq!(leftover_pids(&all, &evidence_of(30, Some(7), &[])), [30]);
    assert_eq!(leftover_pids(&all, &evidence_of(30, Some(8), &[])), [0; 0]);
    let evidence = evidence_of(30, Some(8), &["/dev/nvidia0"]);
    assert_eq!(leftover_pids(&all, &evidence), [0; 0], "nvidia-smi in job 8 opens every GPU");
}

#[test]
fn process_of_unknown_job_is_leftover_by_gpu_or_only_job() {
    for unknown in [None, Some(999)] {
        assert_eq!(leftover_pids(&machine(&[orphan(30)]), &evidence_of(30, unknown, &[])), [0; 0]);
        assert_eq!(leftover_pids(&machine(&[orphan(30)]), &evidence_of(30, unknown, &["/dev/nvidia1"])), [0; 0]);
        assert_eq!(leftover_pids(&machine(&[orphan(30)]), &evidence_of(30, unknown, &["/dev/nvidia0"])), [30]);
        assert_eq!(leftover_pids(&idle_machine(&[orphan(30)]), &evidence_of(30, unknown, &[])), [30]);
    }
    assert_eq!(leftover_pids(&idle_machine(&[orphan(30)]), &BTreeMap::new()), [30], "nothing could be read");
}

#[test]
fn infers_job_of_process_from_relatives() {
    // A daemon of job 8 that overwrote its environment and opened every GPU, with a child in its own session.
    let ray = [orphan(30), process(31, 30, 31, ALICE, Role::Other)];
    let mut evidence = evidence_of(30, Some(8), &[]);
    evidence.extend(evidence_of(31, None, &["/dev/nvidia0"]));
    assert_eq!(leftover_pids(&machine(&ray), &evidence), [0; 0]);
    // The same daemon, of job 7.
    let mut evidence = evidence_of(30, Some(7), &[]);
    evidence.extend(evidence_of(31, None, &[]));
    assert_eq!(leftover_pids(&machine(&ray), &evidence), [30, 31]);
    let mate = [orphan(30), process(31, 1, 30, ALICE, Role::Other)];
    assert_eq!(leftover_pids(&machine(&mate), &evidence), [30, 31]);
}

#[test]
fn processes_outside_slurmd_are_not_leftovers() {
    let shell = Process { is_marked: false, ..orphan(30) };
    let evidence = evidence_of(30, Some(7), &["/dev/nvidia0"]);
    assert_eq!(leftover_pids(&idle_machine(std::slice::from_ref(&shell)), &evidence), [0; 0]);
    assert!(!idle_machine(&[shell, orphan(31)]).user_has_only(&job(), &[31].into()));
    assert!(idle_machine(&[orphan(31)]).user_has_only(&job(), &[31].into()));
    assert!(!machine(&[orphan(31)]).user_has_only(&job(), &[31].into()));
}

/// The parent of the script exited before the process list was read.
#[test]
fn root_scripts_of_slurmd_are_not_leftovers() {
    let script = |uid| {
        let orphan = Process { uid, ..orphan(30) };
        let evidence = [(30, Evidence { job: Some(7), is_script: true, ..Evidence::default() })].into();
        leftovers(&idle_machine(&[orphan]), &Job { uid, ..job() }, &evidence, &BTreeSet::new()).len()
    };
    assert_eq!([script(0), script(ALICE)], [0, 1]);
}

#[test]
fn processes_of_other_users_are_not_leftovers() {
    let bob = Process { uid: 1001, is_marked: true, ..orphan(30) };
    assert_eq!(leftover_pids(&idle_machine(&[bob]), &evidence_of(30, Some(7), &["/dev/nvidia0"])), [0; 0]);
}

#[test]
fn starting_step_and_root_epilog_are_not_leftovers() {
    let task = process(31, 30, 31, ALICE, Role::Other);
    let starting = process(30, 10, 30, 0, Role::Step(None));
    assert_eq!(leftover_pids(&idle_machine(&[starting.clone(), task]), &evidence_of(31, Some(7), &[])), [0; 0]);
    // The user of the step is not known yet.
    assert_eq!(leftover_pids(&idle_machine(&[starting, orphan(32)]), &evidence_of(32, None, &[])), [0; 0]);
    // Root's own epilog has the job's ID in its environment.
    let root = Job { uid: 0, ..job() };
    let epilog = Process { is_marked: true, ..process(40, 10, 10, 0, Role::Other) };
    let evidence = evidence_of(40, Some(7), &[]);
    assert!(leftovers(&idle_machine(&[epilog]), &root, &evidence, &BTreeSet::new()).is_empty());
    assert!(!idle_machine(&[]).user_has_only(&root, &BTreeSet::new()));
}

#[test]
fn script_that_started_slurmd_is_not_leftover_of_root_job() {
    let root = Job { uid: 0, ..job() };
    let script = Process { is_marked: true, ..process(9, 1, 9, 0, Role::Other) };
    let slurmd = Process { is_marked: true, ..process(10, 9, 9, 0, Role::Daemon) };
    let orphan = Process { is_marked: true, ..process(30, 1, 30, 0, Role::Other) };
    let all = [process(1, 0, 1, 0, Role::Other), script, slurmd, orphan].into_iter().collect();
    assert_eq!(leftovers(&all, &root, &BTreeMap::new(), &BTreeSet::new()), [30].into());
}

#[test]
fn user_process_named_slurmstepd_is_leftover() {
    // Only root's processes get the role, so a forged name does not protect a process.
    let forged = Process { name: "slurmstepd".to_owned(), ..orphan(30) };
    assert_eq!(leftover_pids(&idle_machine(&[forged]), &evidence_of(30, Some(7), &[])), [30]);
}

#[test]
fn recognizes_gpu_by_path() {
    for gpu in ["/dev/nvidia0", "/dev/nvidia-caps/nvidia-cap12", "/dev/dri/renderD128", "/dev/kfd", "/dev/dxg"] {
        assert!(is_gpu_device_file(gpu), "{gpu}");
    }
    for other in ["/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia", "/dev/null", "/tmp/dev/nvidia0", "/dev/nvidia0 "]
    {
        assert!(!is_gpu_device_file(other), "{other}");
    }
}
