//! Shell wrappers around the daemons and a service, for behaviour that cannot be triggered otherwise.

/// The command of each daemon and of the service.
pub(super) fn command(target: &str) -> &'static str {
    match target {
        "munged" => "munged --foreground --seed-file=/run/munge/munged.seed",
        "slurmctld" => "slurmctld -D",
        "slurmd" => "slurmd -D",
        _ => "tail -f /dev/null",
    }
}

/// The name of the target's process.
pub(super) fn process(target: &'static str) -> &'static str {
    if target == "service" { "tail" } else { target }
}

/// The configuration without a wrapper.
pub(super) fn plain(target: &str) -> String {
    if target == "service" { settings(target, "exec tail -f /dev/null") } else { String::new() }
}

/// A wrapper that exits with code 1 on SIGUSR1; `/tmp/wrapper` contains its PID.
pub(super) fn exits_at_will(target: &str) -> String {
    let command = command(target);
    let script = format!(
        "{command} & c=$!; echo $$ >/tmp/wrapper; trap 'kill -KILL $c; exit 1' USR1; trap 'kill -TERM $c' TERM; wait $c; wait $c"
    );
    settings(target, &script)
}

/// A wrapper that ignores SIGTERM, with a stop timeout of 1 s.
pub(super) fn ignores_term(target: &str) -> String {
    let script = match target {
        // The whole process group receives the signal.
        "service" => "trap : TERM; while :; do sleep 1; done".to_owned(),
        _ => format!("trap : TERM; {} & c=$!; while kill -0 $c; do wait $c; done", command(target)),
    };
    settings(target, &script) + "stop_timeout = 1\n"
}

/// Holds the daemon at the library's `gate` before it starts. At a reconfiguration the daemon hands over as it does without a wrapper.
pub(super) fn gated(target: &str) -> String {
    settings(target, &format!(". /config/library; gate; exec {}", command(target).replace("-D", "--systemd")))
}

/// The slurminit.toml table that runs this shell script as the daemon or the service.
pub(super) fn settings(target: &str, script: &str) -> String {
    let table =
        if target == "service" { "[[service]]\nname = \"service\"".to_owned() } else { format!("[daemon.{target}]") };
    format!("{table}\ncommand = [\"sh\", \"-c\", \"{script}\"]\n")
}

/// A service with a liveness command; `/tmp/service` contains its PID.
pub(super) fn service_with_liveness() -> String {
    let beat = "echo $$ >/tmp/service; while :; do touch /tmp/beat; sleep 0.3; done";
    let test = "test $(( $(date +%s) - $(stat -c %Y /tmp/beat) )) -le 2";
    settings("service", beat) + &format!("liveness = {{ command = [\"sh\", \"-c\", \"{test}\"] }}\n")
}
