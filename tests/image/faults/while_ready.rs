//! A daemon that fails while jobs run.

use super::case::Case;

const DAEMONS: [(&str, &str); 4] =
    [("munged", "munged"), ("slurmctld", "slurmctld"), ("slurmd", "slurmd"), ("service", "tail")];

pub(super) fn cases() -> Vec<Case> {
    DAEMONS.into_iter().flat_map(|(target, process)| each(target, process)).collect()
}

fn each(target: &'static str, process: &'static str) -> Vec<Case> {
    let service =
        format!("[[service]]\nname = \"service\"\ncommand = {WRAPPED}\n", WRAPPED = wrapped("tail -f /dev/null"));
    let plain = match target {
        "service" => "[[service]]\nname = \"service\"\ncommand = [\"tail\", \"-f\", \"/dev/null\"]\n".to_owned(),
        _ => String::new(),
    };
    let wrapped = match target {
        "munged" => daemon(target, "munged --foreground --seed-file=/run/munge/munged.seed"),
        "slurmctld" | "slurmd" => daemon(target, &format!("{target} -D")),
        _ => service,
    };
    let case = |fault, inject: String, says: &str| Case {
        toml: plain.clone(),
        jobs: true,
        inject,
        until: format!("renewed {process}"),
        says: says.replace("NAME", target).leak(),
        ..Case::new(target, "ready", fault)
    };
    let signal = |signal| format!("old=$(pid {process}); kill -{signal} $old");
    let by_term = if target == "service" { "NAME was killed by signal 15" } else { "NAME exited with code 0" };
    vec![
        case("KILL", signal("KILL"), "NAME was killed by signal 9 (SIGKILL)"),
        case("SEGV", signal("SEGV"), "NAME was killed by signal 11 (SIGSEGV)"),
        case("TERM by another", signal("TERM"), by_term),
        Case {
            toml: wrapped,
            ..case("exit 1", format!("old=$(pid {process}); kill -USR1 $(cat /tmp/wrapper)"), "NAME exited with code 1")
        },
    ]
}

fn daemon(target: &str, command: &str) -> String {
    format!("[daemon.{target}]\ncommand = {}\n", wrapped(command))
}

/// No daemon of Slurm's can be made to exit with 1 at will: a shell around it can.
fn wrapped(command: &str) -> String {
    format!(
        "[\"sh\", \"-c\", \"{command} & c=$!; echo $$ >/tmp/wrapper; trap 'kill -KILL $c; exit 1' USR1; \
         trap 'kill -TERM $c' TERM; wait $c; wait $c\"]"
    )
}
