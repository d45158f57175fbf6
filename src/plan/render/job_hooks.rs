//! The lines that run the operator's commands for a job, and that update the GPU-to-job map.

use std::path::Path;

use config::{JobHook, OnHookFailure};

use super::quoted;

/// A shell command line for each hook.
pub(super) fn lines(name: &str, hooks: &[JobHook]) -> String {
    hooks.iter().map(|hook| line(name, hook)).collect()
}

fn line(name: &str, hook: &JobHook) -> String {
    let command = hook.command.iter().map(|word| quoted(word)).collect::<Vec<_>>().join(" ");
    let end = match hook.on_failure {
        OnHookFailure::Warn => "",
        OnHookFailure::Drain => " || exit 1",
    };
    format!("slurminit hook {name} --timeout {} -- {command}{end}\n", hook.timeout.as_secs_f64())
}

/// The line that updates the GPU-to-job map for a job with GPUs; empty without a directory.
pub(super) fn job_map(when: &str, dir: Option<&Path>) -> String {
    let line = |dir: &Path| {
        let dir = quoted(&dir.to_string_lossy());
        format!("[ -z \"$SLURM_JOB_GPUS\" ] || slurminit job-map {when} {dir}\n")
    };
    dir.map(line).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use std::process::Command;
    use std::time::Duration;

    use super::*;

    #[test]
    fn passes_hook_command_as_separate_arguments() {
        let arguments = ["/bin/x", "a b", "it's", "$(reboot)", "`id`", "\\", "", "new\nline", ";", "\u{fc}"];
        let command: Vec<String> = arguments.iter().map(ToString::to_string).collect();
        for (on_failure, last) in [(OnHookFailure::Warn, "went on"), (OnHookFailure::Drain, "")] {
            let hook = JobHook { command: command.clone(), timeout: Duration::from_millis(1500), on_failure };
            let script = format!(
                "slurminit() {{ printf '%s|' \"$@\"; return 1; }}\n{}printf 'went on'",
                lines("pre_job", &[hook])
            );
            let output = sys::tool::output(Command::new("sh").args(["-c", &script]), Duration::from_secs(20)).unwrap();
            let printed = String::from_utf8(output.stdout).unwrap();
            assert_eq!(printed, format!("hook|pre_job|--timeout|1.5|--|{}|{last}", arguments.join("|")));
            assert_eq!(output.status.success(), on_failure == OnHookFailure::Warn);
        }
    }
}
