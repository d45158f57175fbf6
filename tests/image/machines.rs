//! Every kind of machine: detected, booted on the real Slurm, with a job on its first and its last device.

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

use machine::{Machine, Seen};

#[test]
#[ignore = "needs Docker and the images: run docker/test"]
fn job_on_first_and_last_device_of_every_machine_sees_right_variable_on_each_debian() {
    let machines = rows::machines();
    let mut wrong = String::new();
    // SLURMINIT_MACHINE: a part of the name of the machines to look at.
    let wanted = std::env::var("SLURMINIT_MACHINE").unwrap_or_default();
    let here: Vec<_> = machines.iter().filter(|machine| machine.is_built() && machine.name.contains(&wanted)).collect();
    assert!(!here.is_empty(), "no machine is called {wanted:?}");
    for machine in &here {
        match machine.look() {
            Ok(seen) if seen == machine.expected => {}
            Ok(seen) => wrong += &format!("\n## {}\n{seen:#?}\nexpected: {:#?}\n", machine.name, machine.expected),
            Err(said) => wrong += &format!("\n## {}\n{said}\n", machine.name),
        }
    }
    assert!(wrong.is_empty(), "{wrong}");
    harness::write_evidence(&table_of(&here));
}

/// A batch script with GPUs of both vendors has both variables, a step of it that has one vendor's has that, and a job
/// without a GPU none.
#[test]
#[ignore = "needs Docker and the images: run docker/test"]
fn each_step_on_both_vendors_sees_its_variables_on_each_debian() {
    let machines = rows::machines();
    let names = ["2 H200 and 2 MI210", "2 H200 and 2 MI210, Debian 12 (Slurm 22.05)"];
    for machine in machines.iter().filter(|machine| names.contains(&machine.name) && machine.is_built()) {
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

/// Topologies with all that the kernel writes, links and caches' counts included.
#[test]
#[ignore = "needs Docker and the images: run docker/test"]
fn listed_machines_give_a_job_their_last_partition() {
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
        assert_eq!(machine.look().as_ref(), Ok(&machine.expected), "{name}");
    }
}

fn table_of(machines: &[&Machine]) -> String {
    let mut table = "| machine | `sinfo -o %G` | last file | job on the first device | job on the last device |\n\
                     |---|---|---|---|---|\n"
        .to_owned();
    for Machine { name, expected: Seen { gres, last_file, first, last }, .. } in machines {
        table += &format!("| {name} | `{gres}` | `{last_file}` | `{first}` | `{last}` |\n");
    }
    table
}
