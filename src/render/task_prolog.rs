//! The script that Slurm runs before each task.

use std::fmt::Write as _;

use crate::plan::TaskProlog;

use super::HEADER;

/// POSIX sh: the image has no other interpreter for sure.
pub(super) fn text(prolog: &TaskProlog) -> String {
    let mut text = format!(
        "#!/bin/sh\n{HEADER}\n\
         # Slurm counts the devices of gres.conf; CUDA finds MIG instances, and GPUs beside them, by their UUID.\n\
         [ -n \"$CUDA_VISIBLE_DEVICES\" ] || exit 0\n\
         set -f\nIFS=,\nnames=\n\
         for device in $CUDA_VISIBLE_DEVICES; do\n"
    );
    if prolog.counts_from_zero {
        text.push_str(
            "    # Slurm counts from 0 in each step, whose list says which devices these are.\n\
            \x20   set -- ${SLURM_STEP_GPUS-$SLURM_JOB_GPUS}\n\
            \x20   case $device in\n\
            \x20       *[!0-9]* | '') ;;\n\
            \x20       *) [ \"$device\" -ge $# ] || { shift \"$device\"; device=$1; } ;;\n\
            \x20   esac\n",
        );
    }
    text.push_str("    case $device in\n");
    for (position, name) in &prolog.names {
        let _ = writeln!(text, "        {position}) device={name} ;;");
    }
    text.push_str("    esac\n    names=${names:+$names,}$device\ndone\necho \"export CUDA_VISIBLE_DEVICES=$names\"\n");
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What a shell makes of it. The variables: CUDA_VISIBLE_DEVICES, SLURM_STEP_GPUS, SLURM_JOB_GPUS.
    #[expect(clippy::disallowed_methods, reason = "a test is no PID 1: it may wait for the commands that it runs")]
    fn said(counts_from_zero: bool, variables: [&str; 3]) -> String {
        let names = [(0, "GPU-a"), (1, "MIG-b"), (3, "MIG-d")].map(|(position, name)| (position, name.to_owned()));
        let script = text(&TaskProlog { path: "/p".into(), names: names.to_vec(), counts_from_zero });
        let mut command = std::process::Command::new("sh");
        command.arg("-c").arg(script);
        for (name, value) in ["CUDA_VISIBLE_DEVICES", "SLURM_STEP_GPUS", "SLURM_JOB_GPUS"].iter().zip(variables) {
            command.env_remove(name);
            if !value.is_empty() {
                command.env(name, value);
            }
        }
        let output = command.output().unwrap();
        assert!(output.status.success() && output.stderr.is_empty(), "{output:?}");
        String::from_utf8(output.stdout).unwrap()
    }

    #[test]
    fn a_position_becomes_a_name_and_all_else_stays() {
        for (given, expected) in [
            ("0", "export CUDA_VISIBLE_DEVICES=GPU-a\n"),
            ("3,1", "export CUDA_VISIBLE_DEVICES=MIG-d,MIG-b\n"),
            ("2", "export CUDA_VISIBLE_DEVICES=2\n"),
            ("MIG-d", "export CUDA_VISIBLE_DEVICES=MIG-d\n"),
            ("NoDevFiles", "export CUDA_VISIBLE_DEVICES=NoDevFiles\n"),
            ("*", "export CUDA_VISIBLE_DEVICES=*\n"),
            ("", ""),
        ] {
            assert_eq!(said(false, [given, "", ""]), expected, "{given}");
        }
    }

    /// Slurm with ConstrainDevices: `CUDA_VISIBLE_DEVICES=0` is the first of the step's own list.
    #[test]
    fn under_a_device_cgroup_the_steps_list_is_asked() {
        for (variables, expected) in [
            (["0", "3", ""], "MIG-d"),
            (["0,1", "1,3", "0,1,3"], "MIG-b,MIG-d"),
            (["0", "", "1"], "MIG-b"),
            (["1", "0", ""], "MIG-b"),
            (["MIG-d", "0", ""], "MIG-d"),
        ] {
            assert_eq!(said(true, variables), format!("export CUDA_VISIBLE_DEVICES={expected}\n"), "{variables:?}");
        }
    }
}
