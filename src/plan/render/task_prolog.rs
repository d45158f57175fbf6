//! The script that Slurm runs before each task.

use std::fmt::Write as _;

use crate::{TaskProlog, TaskVariable};
use model::inventory::Vendor;

use crate::HEADER;

/// Sets OMP_NUM_THREADS. Steps inherit its value from their batch script but have other CPUs, so a value that slurminit set is replaced,
/// and any other is kept. If the number of tasks differs between nodes, the first node's number is used.
const THREADS: &str = r#"# The container has a CPU quota. By default OpenMP would start a thread for each CPU that it sees.
if [ "${OMP_NUM_THREADS-unset}" = "${SLURMINIT_OMP_NUM_THREADS-unset}" ]; then
    tasks=
    [ -z "$SLURM_NTASKS" ] || tasks=${SLURM_STEP_TASKS_PER_NODE:-$SLURM_TASKS_PER_NODE}
    tasks=${tasks%%[!0-9]*}
    cpus=${SLURM_CPUS_ON_NODE:-1}
    threads=${SLURM_CPUS_PER_TASK:-$((cpus / ${tasks:-1}))}
    [ "$threads" -le "$cpus" ] || threads=$cpus
    [ "$threads" -ge 1 ] || threads=1
    echo "export OMP_NUM_THREADS=$threads"
    echo "export SLURMINIT_OMP_NUM_THREADS=$threads"
fi
"#;

/// The text of the script. It uses POSIX sh only, because no other interpreter is guaranteed in the image.
pub(super) fn text(prolog: &TaskProlog) -> String {
    let has = |vendor| prolog.names.iter().any(|(own, _)| *own == vendor);
    let vendors: Vec<Vendor> = Vendor::ALL.into_iter().filter(|vendor| has(*vendor)).collect();
    let mut text = format!("#!/bin/sh\n{HEADER}\n");
    for TaskVariable { name, value, is_default } in &prolog.variables {
        // A default does not replace the job's own value, even an empty one. Any other variable is replaced only if it is set: without
        // PMIx, PMIX_HOSTNAME has no meaning.
        let kept = if *is_default { format!("[ -n \"${{{name}+set}}\" ]") } else { format!("[ -z \"${name}\" ]") };
        let _ = writeln!(text, "{kept} || echo \"export {name}={value}\"");
    }
    if prolog.counts_threads {
        text.push_str(THREADS);
    }
    let Some(first) = vendors.first().copied() else { return text };
    let rules: Vec<&str> = vendors.iter().map(|vendor| vendor.traits().runtime.selection_rule).collect();
    let lists: Vec<String> = vendors.iter().map(|vendor| format!("{vendor}=")).collect();
    let _ = write!(
        text,
        "# Slurm numbers devices by the lines of gres.conf. {rules}.\n\
         [ -n \"${variable}\" ] || exit 0\n\
         devices=${variable}\n\
         set -f\nIFS=,\n{lists}\n",
        rules = rules.join(", "),
        variable = first.traits().runtime.variable,
        lists = lists.join(" "),
    );
    if prolog.counts_from_zero {
        text.push_str(&numbers_within_the_step(prolog, &vendors));
    }
    text.push_str("for device in $devices; do\n");
    if prolog.counts_from_zero {
        text.push_str(
            "    # Slurm numbers the devices of a step from 0; $step maps each number to its number on the node.\n\
            \x20   set -- $step\n\
            \x20   case $device in\n\
            \x20       *[!0-9]* | '') ;;\n\
            \x20       *) [ \"$device\" -ge $# ] || { shift \"$device\"; device=$1; } ;;\n\
            \x20   esac\n",
        );
    }
    text.push_str("    case $device in\n");
    for (position, (vendor, name)) in prolog.names.iter().enumerate() {
        let name = match vendor {
            _ if prolog.counts_from_zero && has_numbers(prolog, *vendor) => format!("$number_{position}"),
            _ => name.clone(),
        };
        let _ = writeln!(text, "        {position}) {} ;;", append(*vendor, &name));
    }
    let _ = writeln!(text, "        *) {} ;;\n    esac\ndone", append(first, "$device"));
    for vendor in &vendors {
        let (runtime, list) = (&vendor.traits().runtime, vendor.as_str());
        let export = format!("echo \"export {}=${list}\"", runtime.variable);
        // A job on one vendor's GPUs must not have the variable of another vendor set: HIP also reads CUDA_VISIBLE_DEVICES.
        let _ = match vendors.len() {
            1 => writeln!(text, "{export}"),
            _ => writeln!(text, "if [ -n \"${list}\" ]; then {export}; else echo \"unset {}\"; fi", runtime.variable),
        };
        for (name, value) in runtime.settings.iter().filter(|_| has_numbers(prolog, *vendor)) {
            let _ = writeln!(text, "echo \"export {name}={value}\"");
        }
    }
    text
}

/// The shell assignment that appends a name to the list of its vendor.
fn append(vendor: Vendor, name: &str) -> String {
    format!("{vendor}=${{{vendor}:+${vendor},}}{name}")
}

/// Whether the runtime selects the vendor's devices by number.
fn has_numbers(prolog: &TaskProlog, vendor: Vendor) -> bool {
    prolog.names.iter().filter(|(own, _)| *own == vendor).all(|(_, name)| name.parse::<u32>().is_ok())
}

/// The shell lines that compute the number of each GPU within the step. With a device cgroup, a step cannot open other jobs' GPUs. A
/// runtime that uses numbers then counts only the step's GPUs, in its own order, and GPUs that are not GRES, because Slurm denies only GRES
/// devices (24.11, cgroup/v2, ebpf.c).
fn numbers_within_the_step(prolog: &TaskProlog, vendors: &[Vendor]) -> String {
    let mut text = "step=${SLURM_STEP_GPUS-$SLURM_JOB_GPUS}\n".to_owned();
    for vendor in vendors.iter().copied().filter(|vendor| has_numbers(prolog, *vendor)) {
        let own = prolog.names.iter().enumerate().filter(|(_, (whose, _))| *whose == vendor);
        let mut own: Vec<(u32, usize)> =
            own.map(|(position, (_, name))| (name.parse().unwrap_or(u32::MAX), position)).collect();
        own.sort_unstable();
        let maker = vendor.traits().maker;
        let _ = writeln!(text, "# {maker}'s runtime numbers the step's GPUs and excluded GPUs, from 0.\ncount=0");
        let mut next = 0;
        for (number, position) in own {
            if number > next {
                let _ = writeln!(text, "count=$((count + {})) # excluded GPUs", number - next);
            }
            next = number.saturating_add(1);
            let _ = writeln!(
                text,
                "case ,$step, in *,{position},*) number_{position}=$count; count=$((count + 1)) ;; esac"
            );
        }
    }
    text
}

#[cfg(test)]
mod tests;
