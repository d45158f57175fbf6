//! Boots each kind of simulated machine with the real Slurm and runs a job on its first and its last device.

#[path = "machines/kfd.rs"]
mod kfd;
#[path = "../kfd/listing.rs"]
mod listing;
#[path = "machines/machine.rs"]
mod machine;
#[path = "machines/nvidia_rows.rs"]
mod nvidia_rows;
#[path = "machines/rows.rs"]
mod rows;
#[path = "machines/sharing.rs"]
mod sharing;
#[path = "machines/tree.rs"]
mod tree;

use machine::{Machine, Observed};

#[test]
#[ignore = "needs Docker and the images: run docker/test"]
fn job_on_first_and_last_device_of_every_machine_sees_right_variable() {
    let machines = rows::machines();
    let mut failures = String::new();
    // SLURMINIT_MACHINE selects the machines whose name contains it.
    let name = std::env::var("SLURMINIT_MACHINE").unwrap_or_default();
    let chosen: Vec<_> = machines.iter().filter(|machine| machine.is_built() && machine.name.contains(&name)).collect();
    assert!(!chosen.is_empty(), "no machine name contains {name:?}");
    for machine in &chosen {
        match machine.run_jobs() {
            Ok(seen) if seen == machine.expected => {}
            Ok(seen) => failures += &format!("\n## {}\n{seen:#?}\nexpected: {:#?}\n", machine.name, machine.expected),
            Err(output) => failures += &format!("\n## {}\n{output}\n", machine.name),
        }
    }
    assert!(failures.is_empty(), "{failures}");
    harness::write_evidence(&table_of(&chosen));
}

/// A batch script with GPUs of both vendors gets both variables. A step with GPUs of one vendor gets only that vendor's variable.
/// A job without a GPU gets none.
#[test]
#[ignore = "needs Docker and the images: run docker/test"]
fn step_sees_only_variables_of_its_vendors() {
    let machines = rows::machines();
    for machine in machines.iter().filter(|machine| machine.name == "2 H200 and 2 MI210") {
        let container = machine.serve();
        let show = r"env | grep -E '^(CUDA|ROCR)_VIS' | sort | cut -d= -f2 | paste -sd' ' -";
        let script = format!(
            "#!/bin/sh\n{show}\nsrun --quiet -n1 --gres=gpu:amd:1 sh -c \"{show}\"\nsrun --quiet -n1 --gres=none sh -c \"{show}\"\n"
        );
        container.sh(&format!("cat > /tmp/job <<'JOB'\n{script}JOB"));
        container.sh("timeout 60 sbatch --wait --output /tmp/out --gres=gpu:nvidia:2,gpu:amd:1 /tmp/job");
        assert_eq!(container.sh("cat /tmp/out"), "0,1 0\n0", "{}", container.log());
        assert_eq!(container.sh(&format!("srun sh -c \"{show}\"")), "");
    }
}

/// Complete topology listings, including the counts of links and caches.
#[test]
#[ignore = "needs Docker and the images: run docker/test"]
fn job_gets_last_partition_of_listed_topologies() {
    let (eight, sixteen): (Vec<u32>, Vec<u32>) =
        ((128..136).collect(), (128..160).filter(|minor| minor % 8 < 4).collect());
    for (name, listing, minors, gres, last_file, last) in [
        ("8 MI210", listing::EIGHT_MI210, eight, "gpu:amd:8", "/dev/dri/renderD135", 7),
        (
            "4 MI308X in 4 partitions",
            listing::FOUR_MI308X_IN_FOUR_PARTITIONS,
            sixteen,
            "gpu:amd:16",
            "/dev/dri/renderD147",
            15,
        ),
    ] {
        let (first, last) = ("ROCR_VISIBLE_DEVICES=0", format!("ROCR_VISIBLE_DEVICES={last}"));
        let machine = Machine::listed(name, listing, &minors).offers(gres, last_file, first, &last);
        assert_eq!(machine.run_jobs().as_ref(), Ok(&machine.expected), "{name}");
    }
}

fn table_of(machines: &[&Machine]) -> String {
    let mut table = "| machine | `sinfo -o %G` | last file | job on the first device | job on the last device |\n\
                     |---|---|---|---|---|\n"
        .to_owned();
    for Machine { name, expected: Observed { gres, last_file, first, last }, .. } in machines {
        table += &format!("| {name} | `{gres}` | `{last_file}` | `{first}` | `{last}` |\n");
    }
    table
}

/// The printed fix works for groups that the image has (44 is Debian's video, 27 sudo) and for others.
#[test]
#[ignore = "needs Docker and the images: run docker/test"]
fn printed_fix_opens_devices_of_groups_to_users() {
    let machine = Machine::amd("an AMD GPU", &[kfd::MI210]);
    for (kfd, render) in [(44, 44), (4242, 4242), (44, 4242), (27, 44)] {
        let container = machine.serve();
        let devices = [("/dev/kfd", kfd), ("/dev/dri/renderD128", render)];
        for (device, group) in devices {
            container.sh(&format!("chgrp {group} {device} && chmod 0660 {device}"));
        }
        container.sh("useradd --create-home ana");
        let inventory: serde_json::Value =
            serde_json::from_str(&container.sh("slurminit detect --json")).expect("the inventory is JSON");
        let findings = inventory["findings"].as_array().expect("a list");
        let finding = findings.iter().find(|finding| finding["kind"] == "gpu-groups").expect("a finding");
        let fix = finding["fix"]
            .as_str()
            .and_then(|fix| fix.strip_prefix("in the image, run: ")?.split_once("; or "))
            .expect("a command");
        let opens = |device: &str| {
            let outcome =
                container.exec(&["setpriv", "--reuid=ana", "--regid=ana", "--init-groups", "test", "-r", device]);
            outcome.code == 0
        };
        assert!(!devices.iter().any(|(device, _)| opens(device)));
        container.sh(&fix.0.replace("USER", "ana"));
        assert!(devices.iter().all(|(device, _)| opens(device)), "{kfd} {render}: {}", fix.0);
    }
}
