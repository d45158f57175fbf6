use super::*;

const ALICE: u32 = 1000;

fn process(pid: i32, parent: i32, session: i32, uid: u32, role: Role) -> Process {
    let (name, is_marked) = (String::new(), uid == ALICE);
    Process { pid, parent, session, start: 1, uid, gid: uid, name, role, is_marked }
}

/// slurmd is 10; job 8 of alice has the step 20 and the task 21.
fn machine(more: &[Process]) -> Processes {
    let base = [
        process(1, 0, 1, 0, Role::Other),
        process(10, 1, 10, 0, Role::Daemon),
        process(20, 10, 20, 0, Role::Step(Some(8))),
        process(21, 20, 21, ALICE, Role::Other),
    ];
    base.into_iter().chain(more.iter().cloned()).collect()
}

/// The same machine without job 8.
fn alone(more: &[Process]) -> Processes {
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

fn left(all: &Processes, evidence: &BTreeMap<i32, Evidence>) -> Vec<i32> {
    leftovers(all, &job(), evidence, &BTreeSet::new()).into_iter().collect()
}

#[test]
fn orphan_of_ended_job_is_leftover_and_of_running_job_is_not() {
    let all = machine(&[orphan(30)]);
    assert_eq!(left(&all, &evidence_of(30, Some(7), &[])), [30]);
    assert_eq!(left(&all, &evidence_of(30, Some(8), &[])), [0; 0]);
    assert_eq!(left(&all, &evidence_of(30, Some(8), &["/dev/nvidia0"])), [0; 0], "nvidia-smi in job 8 opens every GPU");
}

#[test]
fn silent_process_is_leftover_if_it_holds_job_gpu_or_user_has_no_other_job() {
    for silent in [None, Some(999)] {
        assert_eq!(left(&machine(&[orphan(30)]), &evidence_of(30, silent, &[])), [0; 0]);
        assert_eq!(left(&machine(&[orphan(30)]), &evidence_of(30, silent, &["/dev/nvidia1"])), [0; 0]);
        assert_eq!(left(&machine(&[orphan(30)]), &evidence_of(30, silent, &["/dev/nvidia0"])), [30]);
        assert_eq!(left(&alone(&[orphan(30)]), &evidence_of(30, silent, &[])), [30]);
    }
    assert_eq!(left(&alone(&[orphan(30)]), &BTreeMap::new()), [30], "nothing could be read");
}

#[test]
fn infers_owner_of_silent_process_from_relatives() {
    // A daemon of job 8 that overwrote its environment and opened every GPU, with a child in its own session.
    let ray = [orphan(30), process(31, 30, 31, ALICE, Role::Other)];
    let mut evidence = evidence_of(30, Some(8), &[]);
    evidence.extend(evidence_of(31, None, &["/dev/nvidia0"]));
    assert_eq!(left(&machine(&ray), &evidence), [0; 0]);
    // The same daemon, of job 7.
    let mut evidence = evidence_of(30, Some(7), &[]);
    evidence.extend(evidence_of(31, None, &[]));
    assert_eq!(left(&machine(&ray), &evidence), [30, 31]);
    let mate = [orphan(30), process(31, 1, 30, ALICE, Role::Other)];
    assert_eq!(left(&machine(&mate), &evidence), [30, 31]);
}

#[test]
fn processes_outside_slurmd_are_no_leftovers() {
    let shell = Process { is_marked: false, ..orphan(30) };
    assert_eq!(left(&alone(std::slice::from_ref(&shell)), &evidence_of(30, Some(7), &["/dev/nvidia0"])), [0; 0]);
    assert!(!alone(&[shell, orphan(31)]).is_all_of_user(&job(), &[31].into()));
    assert!(alone(&[orphan(31)]).is_all_of_user(&job(), &[31].into()));
    assert!(!machine(&[orphan(31)]).is_all_of_user(&job(), &[31].into()));
}

/// Its parent was gone when it was read.
#[test]
fn slurmds_root_scripts_are_no_leftovers() {
    let script = |uid| {
        let orphan = Process { uid, ..orphan(30) };
        let evidence = [(30, Evidence { job: Some(7), is_script: true, ..Evidence::default() })].into();
        leftovers(&alone(&[orphan]), &Job { uid, ..job() }, &evidence, &BTreeSet::new()).len()
    };
    assert_eq!([script(0), script(ALICE)], [0, 1]);
}

#[test]
fn another_user_is_left_alone() {
    let bob = Process { uid: 1001, is_marked: true, ..orphan(30) };
    assert_eq!(left(&alone(&[bob]), &evidence_of(30, Some(7), &["/dev/nvidia0"])), [0; 0]);
}

#[test]
fn leaves_slurms_own_duties_to_slurm() {
    let task = process(31, 30, 31, ALICE, Role::Other);
    let starting = process(30, 10, 30, 0, Role::Step(None));
    assert_eq!(left(&alone(&[starting.clone(), task]), &evidence_of(31, Some(7), &[])), [0; 0]);
    // The user of the step is not known yet.
    assert_eq!(left(&alone(&[starting, orphan(32)]), &evidence_of(32, None, &[])), [0; 0]);
    // Root's own epilog has the job's ID in its environment.
    let root = Job { uid: 0, ..job() };
    let epilog = Process { is_marked: true, ..process(40, 10, 10, 0, Role::Other) };
    let evidence = evidence_of(40, Some(7), &[]);
    assert!(leftovers(&alone(&[epilog]), &root, &evidence, &BTreeSet::new()).is_empty());
    assert!(!alone(&[]).is_all_of_user(&root, &BTreeSet::new()));
}

#[test]
fn script_that_started_slurmd_is_no_leftover_of_root_job() {
    let root = Job { uid: 0, ..job() };
    let script = Process { is_marked: true, ..process(9, 1, 9, 0, Role::Other) };
    let slurmd = Process { is_marked: true, ..process(10, 9, 9, 0, Role::Daemon) };
    let orphan = Process { is_marked: true, ..process(30, 1, 30, 0, Role::Other) };
    let all = [process(1, 0, 1, 0, Role::Other), script, slurmd, orphan].into_iter().collect();
    assert_eq!(leftovers(&all, &root, &BTreeMap::new(), &BTreeSet::new()), [30].into());
}

#[test]
fn user_may_name_process_slurmstepd() {
    // Only root's processes get the role, so a forged name does not protect a process.
    assert_eq!(
        left(&alone(&[Process { name: "slurmstepd".to_owned(), ..orphan(30) }]), &evidence_of(30, Some(7), &[])),
        [30]
    );
}

#[test]
fn recognizes_gpu_by_path() {
    for gpu in ["/dev/nvidia0", "/dev/nvidia-caps/nvidia-cap12", "/dev/dri/renderD128", "/dev/kfd", "/dev/dxg"] {
        assert!(is_gpu(gpu), "{gpu}");
    }
    for other in ["/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia", "/dev/null", "/tmp/dev/nvidia0", "/dev/nvidia0 "]
    {
        assert!(!is_gpu(other), "{other}");
    }
}

#[test]
fn foreign_name_cannot_move_cursor() {
    assert_eq!(printable("a\x1b[2J\n\u{202e}b"), "a?[2J??b");
}
