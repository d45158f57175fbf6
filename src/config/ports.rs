//! The TCP ports on which this container's daemons listen. If two daemons listen on the same
//! port of one address, one of them cannot start.

use std::net::{IpAddr, Ipv4Addr};

use super::error::{Fault, Step};
use super::{Config, Role};

/// A key that sets a port, and the address and port.
type Listener = ([&'static str; 2], IpAddr, u16);

/// Checks that no port is 0, and that no two daemons of this container listen on the same port of one address.
pub(super) fn check(config: &Config) -> Result<(), Fault> {
    let listeners = listeners(config);
    for (index, (key, ip, port)) in listeners.iter().enumerate() {
        let is_same = |(_, other_ip, other): &&Listener| {
            other == port && (other_ip == ip || ip.is_unspecified() || other_ip.is_unspecified())
        };
        let what = match listeners[..index].iter().find(is_same) {
            _ if *port == 0 => "expected a port from 1 to 65535".to_owned(),
            Some((other, ..)) => format!("port {port} is already used by {}", other.join(".")),
            None => continue,
        };
        return Err(Fault::new(key.map(Step::from).to_vec(), what));
    }
    Ok(())
}

fn listeners(config: &Config) -> Vec<Listener> {
    const ALL: IpAddr = IpAddr::V4(Ipv4Addr::UNSPECIFIED);
    let (slurm, role) = (&config.slurm, config.role);
    let runs_slurmctld = matches!(role, Role::All | Role::Controller);
    // The ports of simulated nodes are numbered around those of the other Slurm daemons, and are checked separately.
    let runs_slurmd = matches!(role, Role::All | Role::Compute) && config.simulated().is_none();
    let rest = config.rest.listen.filter(|_| config.runs_rest());
    let metrics = config.metrics.listen.filter(|_| config.runs_metrics());
    let sshd = config.login.port.filter(|_| config.runs_sshd());
    let all = [
        runs_slurmctld.then_some((["slurm", "controller_port"], ALL, slurm.controller_port)),
        runs_slurmd.then_some((["slurm", "daemon_port"], ALL, slurm.daemon_port)),
        config.runs_accounting().then_some((["accounting", "port"], ALL, config.accounting.port)),
        rest.map(|address| (["rest", "listen"], address.ip(), address.port())),
        metrics.map(|address| (["metrics", "listen"], address.ip(), address.port())),
        sshd.map(|port| (["login", "port"], ALL, port.get())),
    ];
    all.into_iter().flatten().collect()
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    #[test]
    fn daemons_of_one_container_have_different_ports() {
        for (text, expected) in [
            ("[slurm]\ndaemon_port = 6817", Err("t:2:15: slurm.daemon_port")),
            ("[slurm]\ncontroller_port = 0", Err("t:2:19: slurm.controller_port")),
            ("[rest]\nlisten = '127.0.0.1:6818'", Err("t:2:10: rest.listen")),
            ("[login]\nport = 6817", Err("t:2:8: login.port")),
            ("[metrics]\nlisten = '127.0.0.1:80'\n[rest]\nlisten = '127.0.0.2:80'", Ok(())),
            ("role = 'compute'\n[slurm]\ndaemon_port = 6817\ncontroller = 'head'", Ok(())),
            ("[simulate]\nnodes = 2\n[slurm]\ndaemon_port = 6817", Ok(())),
        ] {
            let result = Config::parse(text, Path::new("t"));
            match (result, expected) {
                (Ok(_), Ok(())) => {}
                (Err(error), Err(place)) => assert!(error.to_string().starts_with(place), "{error}"),
                (result, _) => unreachable!("{text}: {:?}", result.map(drop)),
            }
        }
    }

    #[test]
    fn number_of_nodes_is_within_slurms_limit() {
        let parse = |count: u64| Config::parse(&format!("[slurm]\nmax_nodes = {count}"), Path::new("t"));
        assert!(parse(65_536).is_ok());
        for bad in [0, 65_537, 4_000_000_000] {
            assert!(parse(bad).is_err(), "{bad}");
        }
    }
}
