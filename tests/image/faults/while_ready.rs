//! A daemon that fails while jobs run.

use super::case::Case;

const DAEMONS: [(&str, &str); 4] =
    [("munged", "munged"), ("slurmctld", "slurmctld"), ("slurmd", "slurmd"), ("service", "tail")];

pub(super) fn cases() -> Vec<Case> {
    let each = DAEMONS.into_iter().flat_map(|(target, process)| each(target, process));
    each.chain(helper()).chain([hung_service()]).collect()
}

/// slurmctld answers a ping without its helper, and would find out with the first script that is to run.
fn helper() -> impl Iterator<Item = Case> {
    [("KILL", "is dead"), ("SEGV", "is dead"), ("STOP", "is stopped")].into_iter().map(|(signal, says)| Case {
        jobs: true,
        inject: format!("kill -{signal} $old; old=$(pid slurmctld)"),
        until: "renewed slurmctld".to_owned(),
        says: format!("slurmctld lives and does not answer: its helper slurmscriptd {says}").leak(),
        ..Case::new("slurmscriptd", "ready", signal)
    })
}

/// A service is asked if the operator says how.
fn hung_service() -> Case {
    let beat = "echo $$ >/tmp/service; while :; do touch /tmp/beat; sleep 0.3; done";
    let test = "test $(( $(date +%s) - $(stat -c %Y /tmp/beat) )) -le 2";
    Case {
        toml: format!(
            "[[service]]\nname = \"service\"\ncommand = [\"sh\", \"-c\", \"{beat}\"]\n\
             liveness = {{ command = [\"sh\", \"-c\", \"{test}\"] }}\n"
        ),
        jobs: true,
        inject: "was=$(cat /tmp/service); kill -STOP $was".to_owned(),
        until: "[ \"$(cat /tmp/service)\" != \"$was\" ]".to_owned(),
        says: "service lives and does not answer",
        ..Case::new("service", "ready", "STOP")
    }
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
    let stop = (target != "service").then(|| case("STOP", signal("STOP"), "NAME lives and does not answer"));
    let by_term = if target == "service" { "NAME was killed by signal 15" } else { "NAME exited with code 0" };
    let mut cases = vec![
        case("KILL", signal("KILL"), "NAME was killed by signal 9 (SIGKILL)"),
        case("SEGV", signal("SEGV"), "NAME was killed by signal 11 (SIGSEGV)"),
        case("TERM by another", signal("TERM"), by_term),
        Case {
            toml: wrapped,
            ..case("exit 1", format!("old=$(pid {process}); kill -USR1 $(cat /tmp/wrapper)"), "NAME exited with code 1")
        },
    ];
    cases.extend(stop);
    cases
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
