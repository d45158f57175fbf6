//! The script that Slurm runs before a job's first process on a node.

use crate::{HEADER, Prolog};

/// Slurm drains a node whose prolog fails, so the script always exits with code 0, unless a hook with `on_failure = "drain"` fails. The
/// script runs `slurminit prolog` only for jobs that need it, because each run starts a process.
pub(super) fn text(prolog: &Prolog) -> String {
    // A list of several nodes contains a comma or a bracket.
    let (words, needed) = match (prolog.gives_gpus, prolog.names_nodes) {
        (true, true) => ("$SLURM_JOB_GPUS:$SLURM_JOB_NODELIST", "[!:]* | *[,[]*"),
        (true, false) => ("$SLURM_JOB_GPUS", "?*"),
        (false, _) => ("$SLURM_JOB_NODELIST", "*[,[]*"),
    };
    let option = |is_set: bool, name: &'static str| if is_set { name } else { "" };
    let gives = option(prolog.gives_gpus, " --gives-gpus");
    let names = option(prolog.names_nodes, " --names-nodes");
    let call = match prolog.gives_gpus || prolog.names_nodes {
        true => format!("case \"{words}\" in\n    {needed}) slurminit prolog{gives}{names} ;;\nesac\n"),
        false => String::new(),
    };
    let hooks = super::job_hooks::lines("pre_job", &prolog.hooks);
    let job_map = super::job_hooks::job_map("begin", prolog.job_map.as_deref());
    format!(
        "#!/bin/sh\n{HEADER}\n# Slurm sets no PATH. It drains the node if this script fails, even if the cause is SIGTERM from a stopping slurmd.\ntrap 'exit 0' TERM\nexport PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin\n{call}{job_map}{hooks}exit 0\n"
    )
}

#[cfg(test)]
mod tests {
    use std::process::Command;
    use std::time::Duration;

    use super::*;

    /// Whether the script calls slurminit for a job with these GPUs and nodes.
    fn calls(gives_gpus: bool, names_nodes: bool, gpus: Option<&str>, nodes: &str) -> bool {
        let prolog =
            Prolog { path: "/etc/slurm/prolog".into(), gives_gpus, names_nodes, job_map: None, hooks: Vec::new() };
        let script = text(&prolog).replace(" slurminit prolog", " echo called #");
        let mut shell = Command::new("sh");
        shell.args(["-c", &script]).env("SLURM_JOB_NODELIST", nodes).env_remove("SLURM_JOB_GPUS");
        shell.envs(gpus.map(|gpus| ("SLURM_JOB_GPUS", gpus)));
        let output = sys::tool::output(&mut shell, Duration::from_secs(20)).unwrap();
        assert!(output.status.success());
        output.stdout == b"called\n"
    }

    #[test]
    fn calls_slurminit_only_for_jobs_that_need_it() {
        for (gpus, nodes, gives, names) in [
            (Some("0,3"), "gpu0", true, false),
            (Some("10"), "gpu[0-1]", true, true),
            (Some(""), "gpu0", false, false),
            (None, "gpu0", false, false),
            (None, "gpu0,gpu1", false, true),
        ] {
            let seen = [(true, false), (false, true), (true, true)].map(|(g, n)| calls(g, n, gpus, nodes));
            assert_eq!(seen, [gives, names, gives || names], "{gpus:?} {nodes}");
        }
    }
}
