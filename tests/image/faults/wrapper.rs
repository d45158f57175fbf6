//! Shells around the daemons and a service, for what these cannot be made to do at will.

/// What runs as each daemon, and as the service.
pub(super) fn command(target: &str) -> &'static str {
    match target {
        "munged" => "munged --foreground --seed-file=/run/munge/munged.seed",
        "slurmctld" => "slurmctld -D",
        "slurmd" => "slurmd -D",
        _ => "tail -f /dev/null",
    }
}

/// The name of its process.
pub(super) fn process(target: &'static str) -> &'static str {
    if target == "service" { "tail" } else { target }
}

/// As it is without a wrapper.
pub(super) fn plain(target: &str) -> String {
    if target == "service" { settings(target, "exec tail -f /dev/null") } else { String::new() }
}

/// USR1 makes it exit with 1; `/tmp/wrapper` has its number.
pub(super) fn exits_at_will(target: &str) -> String {
    let command = command(target);
    let script = format!(
        "{command} & c=$!; echo $$ >/tmp/wrapper; trap 'kill -KILL $c; exit 1' USR1; trap 'kill -TERM $c' TERM; wait $c; wait $c"
    );
    settings(target, &script)
}

/// TERM does not end it, and nobody waits long for that.
pub(super) fn ignores_term(target: &str) -> String {
    let script = match target {
        // Its whole group is told.
        "service" => "trap : TERM; while :; do sleep 1; done".to_owned(),
        _ => format!("trap : TERM; {} & c=$!; while kill -0 $c; do wait $c; done", command(target)),
    };
    settings(target, &script) + "stop_timeout = 1\n"
}

/// The gate of the library holds it before it starts. It hands over at a reconfiguration as it would without a wrapper.
pub(super) fn gated(target: &str) -> String {
    settings(target, &format!(". /config/library; gate; exec {}", command(target).replace("-D", "--systemd")))
}

/// The table of slurminit.toml in which a shell with this script is the daemon or the service.
pub(super) fn settings(target: &str, script: &str) -> String {
    let table =
        if target == "service" { "[[service]]\nname = \"service\"".to_owned() } else { format!("[daemon.{target}]") };
    format!("{table}\ncommand = [\"sh\", \"-c\", \"{script}\"]\n")
}

/// A service that is asked whether it does its work; `/tmp/service` has its number.
pub(super) fn asked_service() -> String {
    let beat = "echo $$ >/tmp/service; while :; do touch /tmp/beat; sleep 0.3; done";
    let test = "test $(( $(date +%s) - $(stat -c %Y /tmp/beat) )) -le 2";
    settings("service", beat) + &format!("liveness = {{ command = [\"sh\", \"-c\", \"{test}\"] }}\n")
}
