//! Compares slurminit's GPU detection with Slurm's own; see tests/differential/differences.md.
#![expect(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]
#![expect(clippy::disallowed_methods, reason = "a test is not PID 1, so it may wait for the commands it runs")]

mod container;
mod listing;
mod machine;
mod mig_machines;
mod partial_machines;
mod tree;

use std::fmt::Write;
use std::path::Path;

use container::{Container, Outcome};
use listing::{Record, records};
use machine::{Expected, Line, MACHINES, Machine};
use mig_machines::MIG_MACHINES;
use partial_machines::PARTIAL_MACHINES;

#[test]
#[ignore = "needs Docker: run docker/test"]
fn gres_lines_match_slurms_own_detection() {
    let container = Container::start();
    let mut wrong = String::new();
    for machine in machines() {
        match compare(&container, machine) {
            Ok(()) => println!("{}: as expected", machine.name),
            Err(difference) => writeln!(wrong, "\n## {}\n{difference}", machine.name).unwrap(),
        }
    }
    assert!(wrong.is_empty(), "{wrong}");
}

#[test]
fn every_difference_is_explained() {
    let explained = include_str!("differential/differences.md");
    for machine in machines() {
        if let Expected::Differs { title, .. } = machine.expected {
            assert!(
                explained.contains(&format!("### {title}\n")),
                "tests/differential/differences.md does not explain `{title}`"
            );
        }
    }
}

fn machines() -> impl Iterator<Item = &'static Machine> {
    MACHINES.iter().chain(MIG_MACHINES).chain(PARTIAL_MACHINES)
}

/// Compares both listings of one machine; `Err` holds the files and both listings if the result is unexpected.
fn compare(container: &Container, machine: &Machine) -> Result<(), String> {
    container.install_machine(machine);
    write_our_files(container)?;
    let files = container.run("cat /etc/slurm/gres.conf; grep ^NodeName /etc/slurm/slurm.conf").stdout;
    let ours = list_gpus(container, machine);
    container.write(Path::new("/etc/slurm/gres.conf"), "AutoDetect=nvml\n");
    let oracle = list_gpus(container, machine);

    let as_expected = match &machine.expected {
        Expected::Same => {
            let listed = records(&oracle.stderr);
            ours.ok && oracle.ok && listed.len() == machine.devices() && records(&ours.stderr) == listed
        }
        Expected::Differs { autodetect, ours: our_lines, .. } => {
            let oracle_as_expected = match autodetect {
                Ok(lines) => oracle.ok && same(&records(&oracle.stderr), lines),
                Err(message) => !oracle.ok && oracle.stderr.contains(message),
            };
            oracle_as_expected && ours.ok && same(&records(&ours.stderr), our_lines)
        }
    };
    if as_expected {
        return Ok(());
    }
    Err(format!(
        "{files}\n-- slurmd -G with these lines\n{}\n-- slurmd -G with AutoDetect=nvml\n{}",
        ours.stderr, oracle.stderr
    ))
}

/// Detects, plans and renders in the container, then puts the files where slurmd reads them.
fn write_our_files(container: &Container) -> Result<(), String> {
    let output = |outcome: Outcome, command: &str| {
        if outcome.ok { Ok(outcome.stdout) } else { Err(format!("{command}: {}", outcome.stderr)) }
    };
    let inventory = output(
        container.run("SLURMINIT_NVML_LIBRARY=libnvidia-ml.so.1 slurminit detect --root /machine --json"),
        "slurminit detect",
    )?;
    container.write(Path::new("/tmp/inventory.json"), &inventory);
    container.write(Path::new("/tmp/slurminit.toml"), "[gpu]\ntype_name = \"model\"\n");
    let render = "slurminit render --config /tmp/slurminit.toml --inventory /tmp/inventory.json";
    let rendered = output(container.run(render), "slurminit render")?;
    for file in rendered.split("==> ").skip(1) {
        let (path, text) = file.split_once(" <==\n").ok_or_else(|| format!("no file in {file:?}"))?;
        container.write(Path::new(path), text);
    }
    Ok(())
}

/// Runs `slurmd -G` with this machine's processors.
fn list_gpus(container: &Container, machine: &Machine) -> Outcome {
    container.run(&format!("HWLOC_SYNTHETIC='{}' slurmd -N localhost -G", machine.hwloc_synthetic()))
}

fn same(records: &[Record], lines: &[Line]) -> bool {
    let line = |record: &Record| [&record.file, &record.gres_type, &record.cores, &record.links].map(String::clone);
    let of_line = |&(file, gres_type, cores, links): &Line| [file, gres_type, cores, links].map(str::to_owned);
    records.iter().map(line).eq(lines.iter().map(of_line))
}
