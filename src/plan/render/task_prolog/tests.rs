use super::*;

/// The variables that Slurm sets for a step.
const VARIABLES: [&str; 4] = ["CUDA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "SLURM_STEP_GPUS", "SLURM_JOB_GPUS"];

/// The [`VARIABLES`] after a shell has run the script; empty ones are left out.
#[expect(clippy::disallowed_methods, reason = "a test is no PID 1: it may wait for the commands that it runs")]
fn exports(names: &[(Vendor, &str)], counts_from_zero: bool, variables: [&str; 4]) -> String {
    let names = names.iter().map(|(vendor, name)| (*vendor, (*name).to_owned())).collect();
    let script = text(&TaskProlog { path: "/p".into(), names, counts_from_zero, variables: Vec::new(), why: "" });
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
fn replaces_position_by_name_and_keeps_everything_else() {
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

/// Slurm with ConstrainDevices: `CUDA_VISIBLE_DEVICES=0` is the first GPU of the step's own list.
#[test]
fn under_a_device_cgroup_the_steps_list_is_asked() {
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
fn job_gets_variable_of_its_vendor() {
    let nvidia = ["export CUDA_VISIBLE_DEVICES=GPU-b", "unset ROCR_VISIBLE_DEVICES"];
    assert_eq!(mixed(false, "1", "1"), nvidia);
    assert_eq!(mixed(false, "3", "3"), ["unset CUDA_VISIBLE_DEVICES", "export ROCR_VISIBLE_DEVICES=2"]);
    let both = ["export CUDA_VISIBLE_DEVICES=GPU-a", "export ROCR_VISIBLE_DEVICES=0,1"];
    assert_eq!(mixed(false, "0,2,4", "0,2,4"), both);
}

#[test]
fn rocr_counts_the_gpus_that_a_step_can_open() {
    assert_eq!(mixed(true, "0", "3"), ["unset CUDA_VISIBLE_DEVICES", "export ROCR_VISIBLE_DEVICES=0"]);
    // A task with the second and third GPU of its step, in Slurm's order.
    let task = ["unset CUDA_VISIBLE_DEVICES", "export ROCR_VISIBLE_DEVICES=1,0"];
    assert_eq!(mixed(true, "1,2", "1,3,4"), task);
    let both = ["export CUDA_VISIBLE_DEVICES=GPU-a", "export ROCR_VISIBLE_DEVICES=0,2,1"];
    assert_eq!(mixed(true, "0,1,2,3", "0,2,3,4"), both);
}

#[test]
fn cuda_counts_the_gpus_that_a_step_can_open_in_bus_order() {
    let names = [(Vendor::Nvidia, "0"), (Vendor::Nvidia, "2"), (Vendor::Nvidia, "1")];
    let order = "export CUDA_DEVICE_ORDER=PCI_BUS_ID\n";
    let seen = |from_zero, given, step| exports(&names, from_zero, [given, "", step, ""]);
    assert_eq!(seen(false, "1,2", "1,2"), format!("export CUDA_VISIBLE_DEVICES=2,1\n{order}"));
    assert_eq!(seen(true, "0", "1"), format!("export CUDA_VISIBLE_DEVICES=0\n{order}"));
    assert_eq!(seen(true, "0,1", "1,2"), format!("export CUDA_VISIBLE_DEVICES=1,0\n{order}"));
    // Number 0 is excluded from jobs, and every step can open it.
    let beside = [(Vendor::Nvidia, "1"), (Vendor::Nvidia, "2")];
    assert_eq!(exports(&beside, true, ["0", "", "1", ""]), format!("export CUDA_VISIBLE_DEVICES=1\n{order}"));
}

#[test]
fn machine_with_amd_alone_has_amds_variable() {
    let names = [(Vendor::Amd, "1"), (Vendor::Amd, "0")];
    assert_eq!(exports(&names, false, ["", "0", "0", ""]), "export ROCR_VISIBLE_DEVICES=1\n");
}

#[test]
fn counts_gpus_that_jobs_may_not_use() {
    // Number 0 is no GRES, so no device rule keeps a step from opening it.
    let names = [(Vendor::Amd, "1"), (Vendor::Amd, "2")];
    assert_eq!(exports(&names, true, ["", "0", "1", ""]), "export ROCR_VISIBLE_DEVICES=1\n");
    assert_eq!(exports(&names, true, ["", "0,1", "0,1", ""]), "export ROCR_VISIBLE_DEVICES=1,2\n");
}

#[test]
fn sets_how_intels_runtime_counts() {
    let settings = "export ZE_FLAT_DEVICE_HIERARCHY=COMPOSITE\nexport ZE_ENABLE_PCI_ID_DEVICE_ORDER=1\n";
    let names = [(Vendor::Intel, "0"), (Vendor::Intel, "1")];
    assert_eq!(exports(&names, false, ["", "", "1", ""]), "");
    let script = text(&TaskProlog {
        path: "/p".into(),
        names: names.map(|(vendor, name)| (vendor, name.to_owned())).to_vec(),
        counts_from_zero: false,
        variables: Vec::new(),
        why: "",
    });
    assert!(script.contains("devices=$ZE_AFFINITY_MASK\n"), "{script}");
    let exports_by = |mixed: &[(Vendor, &str)], given: &str| exports(mixed, false, [given, "", given, ""]);
    let mixed = [(Vendor::Nvidia, "GPU-a"), (Vendor::Intel, "1")];
    let own = "unset CUDA_VISIBLE_DEVICES\nexport ZE_AFFINITY_MASK=1\n";
    assert_eq!(exports_by(&mixed, "1"), format!("{own}{settings}"));
    let others = "export CUDA_VISIBLE_DEVICES=GPU-a\nunset ZE_AFFINITY_MASK\n";
    assert_eq!(exports_by(&mixed, "0"), format!("{others}{settings}"));
}

#[test]
fn job_without_gpu_gets_nothing() {
    for names in [&NVIDIA[..], &MIXED[..]] {
        let script = exports(names, false, ["", "", "", ""]);
        assert_eq!(script, "");
    }
}

/// A default keeps the job's value; Slurm's own value is replaced where Slurm sets one.
#[test]
#[expect(clippy::disallowed_methods, reason = "a test is no PID 1: it may wait for the commands that it runs")]
fn sets_variables_of_mpi_libraries() {
    let said = |names: Vec<(Vendor, String)>, is_default: bool, given: Option<&str>| {
        let variables = vec![TaskVariable { name: "NAME", value: "$SLURMD_NODENAME", is_default }];
        let script = text(&TaskProlog { path: "/p".into(), names, counts_from_zero: false, variables, why: "" });
        let mut command = std::process::Command::new("sh");
        command.arg("-ec").arg(&script).env("SLURMD_NODENAME", "node2");
        command.env_remove("NAME").env_remove("CUDA_VISIBLE_DEVICES").envs(given.map(|value| ("NAME", value)));
        String::from_utf8(command.output().unwrap().stdout).unwrap()
    };
    let export = "export NAME=node2\n";
    for names in [Vec::new(), vec![(Vendor::Nvidia, "GPU-a".to_owned())]] {
        for (given, expected) in [(None, export), (Some("1"), ""), (Some(""), "")] {
            assert_eq!(said(names.clone(), true, given), expected, "{given:?}");
        }
        for (given, expected) in [(None, ""), (Some("host"), export)] {
            assert_eq!(said(names.clone(), false, given), expected, "{given:?}");
        }
    }
}
