use super::*;

/// The variables that Slurm sets for a step.
const VARIABLES: [&str; 4] = ["CUDA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "SLURM_STEP_GPUS", "SLURM_JOB_GPUS"];

/// Output of the script with these values of [`VARIABLES`]; empty ones are unset.
#[expect(clippy::disallowed_methods, reason = "a test is not PID 1, so it may wait for the commands it runs")]
fn exports(names: &[(Vendor, &str)], counts_from_zero: bool, variables: [&str; 4]) -> String {
    let names = names.iter().map(|(vendor, name)| (*vendor, (*name).to_owned())).collect();
    let script = text(&TaskProlog {
        path: "/p".into(),
        names,
        counts_from_zero,
        variables: Vec::new(),
        counts_threads: false,
        why: "",
    });
    let mut command = std::process::Command::new("sh");
    command.arg("-ec").arg(script);
    for (name, value) in VARIABLES.iter().zip(variables) {
        command.env_remove(name);
        if !value.is_empty() {
            command.env(name, value);
        }
    }
    let output = command.output().unwrap();
    assert!(output.stderr.is_empty(), "{output:?}");
    String::from_utf8(output.stdout).unwrap()
}

const NVIDIA: [(Vendor, &str); 4] =
    [(Vendor::Nvidia, "GPU-a"), (Vendor::Nvidia, "MIG-b"), (Vendor::Nvidia, "7"), (Vendor::Nvidia, "MIG-d")];

#[test]
fn replaces_positions_and_keeps_other_values() {
    for (given, expected) in [
        ("0", "export CUDA_VISIBLE_DEVICES=GPU-a\n"),
        ("3,1", "export CUDA_VISIBLE_DEVICES=MIG-d,MIG-b\n"),
        ("2", "export CUDA_VISIBLE_DEVICES=7\n"),
        ("4", "export CUDA_VISIBLE_DEVICES=4\n"),
        ("MIG-d", "export CUDA_VISIBLE_DEVICES=MIG-d\n"),
        ("NoDevFiles", "export CUDA_VISIBLE_DEVICES=NoDevFiles\n"),
        ("*", "export CUDA_VISIBLE_DEVICES=*\n"),
    ] {
        assert_eq!(exports(&NVIDIA, false, [given, "", given, ""]), expected, "{given}");
    }
}

/// With ConstrainDevices, `CUDA_VISIBLE_DEVICES=0` is the first GPU in the step's list.
#[test]
fn device_cgroup_positions_refer_to_step_list() {
    for (variables, expected) in [
        (["0", "", "3", ""], "MIG-d"),
        (["0,1", "", "1,3", "0,1,3"], "MIG-b,MIG-d"),
        (["0", "", "", "1"], "MIG-b"),
        (["1", "", "0", ""], "MIG-b"),
        (["MIG-d", "", "0", ""], "MIG-d"),
    ] {
        assert_eq!(
            exports(&NVIDIA, true, variables),
            format!("export CUDA_VISIBLE_DEVICES={expected}\n"),
            "{variables:?}"
        );
    }
}

/// Two NVIDIA GPUs, then three AMD GPUs. Slurm sorts the last one before the second because of its type.
const MIXED: [(Vendor, &str); 5] =
    [(Vendor::Nvidia, "GPU-a"), (Vendor::Nvidia, "GPU-b"), (Vendor::Amd, "0"), (Vendor::Amd, "2"), (Vendor::Amd, "1")];

/// Slurm sets both vendors' variables to the same positions.
fn mixed(counts_from_zero: bool, given: &str, step: &str) -> Vec<String> {
    exports(&MIXED, counts_from_zero, [given, given, step, ""]).lines().map(str::to_owned).collect()
}

#[test]
fn exports_only_variables_of_allocated_vendors() {
    let nvidia = ["export CUDA_VISIBLE_DEVICES=GPU-b", "unset ROCR_VISIBLE_DEVICES"];
    assert_eq!(mixed(false, "1", "1"), nvidia);
    assert_eq!(mixed(false, "3", "3"), ["unset CUDA_VISIBLE_DEVICES", "export ROCR_VISIBLE_DEVICES=2"]);
    let both = ["export CUDA_VISIBLE_DEVICES=GPU-a", "export ROCR_VISIBLE_DEVICES=0,1"];
    assert_eq!(mixed(false, "0,2,4", "0,2,4"), both);
}

#[test]
fn rocr_numbers_count_gpus_that_step_can_open() {
    assert_eq!(mixed(true, "0", "3"), ["unset CUDA_VISIBLE_DEVICES", "export ROCR_VISIBLE_DEVICES=0"]);
    // A task with the second and third GPU of its step, in Slurm's order.
    let task = ["unset CUDA_VISIBLE_DEVICES", "export ROCR_VISIBLE_DEVICES=1,0"];
    assert_eq!(mixed(true, "1,2", "1,3,4"), task);
    let both = ["export CUDA_VISIBLE_DEVICES=GPU-a", "export ROCR_VISIBLE_DEVICES=0,2,1"];
    assert_eq!(mixed(true, "0,1,2,3", "0,2,3,4"), both);
}

#[test]
fn cuda_numbers_count_gpus_that_step_can_open_in_bus_order() {
    let names = [(Vendor::Nvidia, "0"), (Vendor::Nvidia, "2"), (Vendor::Nvidia, "1")];
    let order = "export CUDA_DEVICE_ORDER=PCI_BUS_ID\n";
    let exported = |from_zero, given, step| exports(&names, from_zero, [given, "", step, ""]);
    assert_eq!(exported(false, "1,2", "1,2"), format!("export CUDA_VISIBLE_DEVICES=2,1\n{order}"));
    assert_eq!(exported(true, "0", "1"), format!("export CUDA_VISIBLE_DEVICES=0\n{order}"));
    assert_eq!(exported(true, "0,1", "1,2"), format!("export CUDA_VISIBLE_DEVICES=1,0\n{order}"));
    // GPU 0 is excluded from jobs, but every step can open it.
    let without_first = [(Vendor::Nvidia, "1"), (Vendor::Nvidia, "2")];
    assert_eq!(exports(&without_first, true, ["0", "", "1", ""]), format!("export CUDA_VISIBLE_DEVICES=1\n{order}"));
}

#[test]
fn amd_only_machine_exports_only_rocr_variable() {
    let names = [(Vendor::Amd, "1"), (Vendor::Amd, "0")];
    assert_eq!(exports(&names, false, ["", "0", "0", ""]), "export ROCR_VISIBLE_DEVICES=1\n");
}

#[test]
fn rocr_numbers_include_gpus_excluded_from_jobs() {
    // GPU 0 is not in GRES, so no device rule prevents a step from opening it.
    let names = [(Vendor::Amd, "1"), (Vendor::Amd, "2")];
    assert_eq!(exports(&names, true, ["", "0", "1", ""]), "export ROCR_VISIBLE_DEVICES=1\n");
    assert_eq!(exports(&names, true, ["", "0,1", "0,1", ""]), "export ROCR_VISIBLE_DEVICES=1,2\n");
}

#[test]
fn sets_numbering_variables_of_level_zero() {
    let settings = "export ZE_FLAT_DEVICE_HIERARCHY=COMPOSITE\nexport ZE_ENABLE_PCI_ID_DEVICE_ORDER=1\n";
    let names = [(Vendor::Intel, "0"), (Vendor::Intel, "1")];
    assert_eq!(exports(&names, false, ["", "", "1", ""]), "");
    let script = text(&TaskProlog {
        path: "/p".into(),
        names: names.map(|(vendor, name)| (vendor, name.to_owned())).to_vec(),
        counts_from_zero: false,
        variables: Vec::new(),
        counts_threads: false,
        why: "",
    });
    assert!(script.contains("devices=$ZE_AFFINITY_MASK\n"), "{script}");
    let exported = |mixed: &[(Vendor, &str)], given: &str| exports(mixed, false, [given, "", given, ""]);
    let mixed = [(Vendor::Nvidia, "GPU-a"), (Vendor::Intel, "1")];
    let intel = "unset CUDA_VISIBLE_DEVICES\nexport ZE_AFFINITY_MASK=1\n";
    assert_eq!(exported(&mixed, "1"), format!("{intel}{settings}"));
    let nvidia = "export CUDA_VISIBLE_DEVICES=GPU-a\nunset ZE_AFFINITY_MASK\n";
    assert_eq!(exported(&mixed, "0"), format!("{nvidia}{settings}"));
}

#[test]
fn job_without_gpu_exports_nothing() {
    for names in [&NVIDIA[..], &MIXED[..]] {
        let script = exports(names, false, ["", "", "", ""]);
        assert_eq!(script, "");
    }
}

/// A default keeps the job's value. Other variables are replaced only where Slurm sets them.
#[test]
#[expect(clippy::disallowed_methods, reason = "a test is not PID 1, so it may wait for the commands it runs")]
fn sets_variables_of_mpi_libraries() {
    let exported = |names: Vec<(Vendor, String)>, is_default: bool, given: Option<&str>| {
        let variables = vec![TaskVariable { name: "NAME", value: "$SLURMD_NODENAME", is_default }];
        let (counts_from_zero, counts_threads) = (false, false);
        let script =
            text(&TaskProlog { path: "/p".into(), names, counts_from_zero, variables, counts_threads, why: "" });
        let mut command = std::process::Command::new("sh");
        command.arg("-ec").arg(&script).env("SLURMD_NODENAME", "node2");
        command.env_remove("NAME").env_remove("CUDA_VISIBLE_DEVICES").envs(given.map(|value| ("NAME", value)));
        String::from_utf8(command.output().unwrap().stdout).unwrap()
    };
    let export = "export NAME=node2\n";
    for names in [Vec::new(), vec![(Vendor::Nvidia, "GPU-a".to_owned())]] {
        for (given, expected) in [(None, export), (Some("1"), ""), (Some(""), "")] {
            assert_eq!(exported(names.clone(), true, given), expected, "{given:?}");
        }
        for (given, expected) in [(None, ""), (Some("host"), export)] {
            assert_eq!(exported(names.clone(), false, given), expected, "{given:?}");
        }
    }
}

/// OMP_NUM_THREADS of a task with these variables.
#[expect(clippy::disallowed_methods, reason = "a test is not PID 1, so it may wait for the commands it runs")]
fn threads(variables: &[(&str, &str)]) -> Option<String> {
    let prolog = TaskProlog {
        path: "/p".into(),
        names: vec![(Vendor::Nvidia, "GPU-a".to_owned())],
        counts_from_zero: false,
        variables: Vec::new(),
        counts_threads: true,
        why: "",
    };
    let output = std::process::Command::new("sh")
        .args(["-ec", &text(&prolog)])
        .env_clear()
        .env("PATH", "/usr/bin:/bin")
        .envs(variables.iter().copied())
        .output()
        .unwrap();
    assert!(output.stderr.is_empty(), "{output:?}");
    let text = String::from_utf8(output.stdout).unwrap();
    text.lines().find_map(|line| line.strip_prefix("export OMP_NUM_THREADS=")).map(str::to_owned)
}

#[test]
fn openmp_gets_cpus_of_each_task() {
    type Case = (&'static [(&'static str, &'static str)], Option<&'static str>);
    let cases: [Case; 11] = [
        // sbatch --exclusive, sbatch -c 4, sbatch -n 4, sbatch -n 2 -c 2
        (&[("SLURM_CPUS_ON_NODE", "8"), ("SLURM_TASKS_PER_NODE", "8")], Some("8")),
        (&[("SLURM_CPUS_ON_NODE", "4"), ("SLURM_CPUS_PER_TASK", "4")], Some("4")),
        (&[("SLURM_CPUS_ON_NODE", "4"), ("SLURM_NTASKS", "4"), ("SLURM_TASKS_PER_NODE", "4")], Some("1")),
        (&[("SLURM_CPUS_ON_NODE", "4"), ("SLURM_NTASKS", "2"), ("SLURM_CPUS_PER_TASK", "2")], Some("2")),
        // A step of 6 tasks on two nodes, and one that has fewer CPUs than its job's --cpus-per-task.
        (
            &[
                ("SLURM_CPUS_ON_NODE", "6"),
                ("SLURM_NTASKS", "6"),
                ("SLURM_STEP_TASKS_PER_NODE", "3(x2)"),
                ("SLURM_TASKS_PER_NODE", "1(x2)"),
            ],
            Some("2"),
        ),
        (&[("SLURM_CPUS_ON_NODE", "1"), ("SLURM_CPUS_PER_TASK", "4"), ("SLURM_NTASKS", "1")], Some("1")),
        // More tasks than CPUs.
        (&[("SLURM_CPUS_ON_NODE", "2"), ("SLURM_NTASKS", "4"), ("SLURM_TASKS_PER_NODE", "4")], Some("1")),
        (&[], Some("1")),
        // The user's value is kept. The batch script's own is replaced.
        (&[("SLURM_CPUS_ON_NODE", "4"), ("OMP_NUM_THREADS", "3")], None),
        (&[("SLURM_CPUS_ON_NODE", "4"), ("OMP_NUM_THREADS", "3"), ("SLURMINIT_OMP_NUM_THREADS", "2")], None),
        (&[("SLURM_CPUS_ON_NODE", "4"), ("OMP_NUM_THREADS", "2"), ("SLURMINIT_OMP_NUM_THREADS", "2")], Some("4")),
    ];
    for (variables, expected) in cases {
        assert_eq!(threads(variables).as_deref(), expected, "{variables:?}");
    }
}
