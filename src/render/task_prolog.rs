//! The script that Slurm runs before each task.

use std::fmt::Write as _;

use crate::inventory::Vendor;
use crate::plan::TaskProlog;

use super::HEADER;

/// POSIX sh: the image has no other interpreter for sure.
pub(super) fn text(prolog: &TaskProlog) -> String {
    let has = |vendor| prolog.names.iter().any(|(own, _)| *own == vendor);
    let vendors: Vec<Vendor> = [Vendor::Nvidia, Vendor::Amd].into_iter().filter(|vendor| has(*vendor)).collect();
    let first = vendors.first().copied().unwrap_or(Vendor::Nvidia);
    let mut text = format!(
        "#!/bin/sh\n{HEADER}\n\
         # Slurm counts the lines of gres.conf. CUDA finds a device by its UUID, ROCr by its number among AMD's.\n\
         [ -n \"${variable}\" ] || exit 0\n\
         devices=${variable}\n\
         set -f\nIFS=,\nnvidia= amd=\n",
        variable = variable(first)
    );
    if prolog.counts_from_zero {
        text.push_str(&numbers_within_the_step(prolog));
    }
    text.push_str("for device in $devices; do\n");
    if prolog.counts_from_zero {
        text.push_str(
            "    # Slurm counts from 0 in each step, whose list says which devices these are.\n\
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
            Vendor::Amd if prolog.counts_from_zero => format!("$number_{position}"),
            _ => name.clone(),
        };
        let _ = writeln!(text, "        {position}) {} ;;", append(*vendor, &name));
    }
    let _ = writeln!(text, "        *) {} ;;\n    esac\ndone", append(first, "$device"));
    for vendor in &vendors {
        let (variable, list) = (variable(*vendor), vendor.as_str());
        // A job on one vendor's GPUs must not see the other's variable: HIP obeys CUDA_VISIBLE_DEVICES, too.
        let _ = match vendors.len() {
            1 => writeln!(text, "echo \"export {variable}=${list}\""),
            _ => writeln!(
                text,
                "if [ -n \"${list}\" ]; then echo \"export {variable}=${list}\"; else echo \"unset {variable}\"; fi"
            ),
        };
    }
    text
}

/// What the vendor's runtime reads.
const fn variable(vendor: Vendor) -> &'static str {
    match vendor {
        Vendor::Nvidia => "CUDA_VISIBLE_DEVICES",
        Vendor::Amd => "ROCR_VISIBLE_DEVICES",
    }
}

/// Puts a name behind the list that has its vendor's name.
fn append(vendor: Vendor, name: &str) -> String {
    format!("{vendor}=${{{vendor}:+${vendor},}}{name}")
}

/// Under a device cgroup a step opens no other GPU's render node, so ROCr counts the step's own, in its own order.
fn numbers_within_the_step(prolog: &TaskProlog) -> String {
    let mut amd: Vec<(u32, usize)> = Vec::new();
    for (position, (vendor, name)) in prolog.names.iter().enumerate() {
        if *vendor == Vendor::Amd {
            amd.push((name.parse().unwrap_or(u32::MAX), position));
        }
    }
    amd.sort_unstable();
    let mut text = "step=${SLURM_STEP_GPUS-$SLURM_JOB_GPUS}\n".to_owned();
    if !amd.is_empty() {
        text.push_str("# ROCr sees the step's GPUs only, and counts them from 0.\ncount=0\n");
    }
    for (_, position) in amd {
        let _ =
            writeln!(text, "case ,$step, in *,{position},*) number_{position}=$count; count=$((count + 1)) ;; esac");
    }
    text
}

#[cfg(test)]
mod tests;
