//! `slurminit prolog`: runs on each node of a job before its first process there. It gives the job's user the device files of its GPUs,
//! and lets the job find its nodes by their names.
//!
//! slurmd runs it as root through `/etc/slurm/prolog`. It never fails, because Slurm drains a node whose prolog fails. Slurm itself
//! uses addresses. A network of Docker's knows containers by their host names, and nothing is done there. Kubernetes knows a pod only
//! with the name of its Service behind it.

use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;

use anyhow::Context as _;

use config::NodeName;
use model::exit_code;
use probe::own_name::is_container_id;
use sys::tool;
use sys::tool::answer::Answer;

/// How long the controller may take to say where the nodes are.
const PATIENCE: Duration = Duration::from_secs(10);

/// How long a name server may take. Whoever has none that answers waits once: then the names are in /etc/hosts.
const LOOK_UP: Duration = Duration::from_secs(2);

#[derive(Debug, clap::Args)]
pub(crate) struct Args {}

pub(crate) fn run(_args: Args) -> anyhow::Result<u8> {
    let id = std::env::var("SLURM_JOB_ID").unwrap_or_default();
    let tell = |what: &str, error: &anyhow::Error| {
        super::epilog::tell(&model::printable::short(&format!("warning: programs of job {id} {what}: {error:#}"), 400));
    };
    match super::epilog::job() {
        Ok((job, _)) => {
            for file in &job.devices {
                if let Err(error) = install::give_device_file(Path::new(file), job.uid) {
                    tell("may not open one of its GPUs", &anyhow::Error::from(error).context(file.clone()));
                }
            }
        }
        Err(error) => tell("may not open its GPUs", &error),
    }
    if let Err(error) = names() {
        tell("may not find its nodes by their names", &error);
    }
    Ok(exit_code::SUCCESS)
}

fn names() -> anyhow::Result<()> {
    let nodes = std::env::var("SLURM_JOB_NODELIST").context("SLURM_JOB_NODELIST is not in the environment")?;
    if !nodes.contains([',', '[']) {
        return Ok(());
    }
    if !is_container_id(&nix::unistd::gethostname()?.to_string_lossy()) && are_known(&nodes)? {
        return Ok(());
    }
    let said = match tool::ask("scontrol", &["getaddrs", &nodes], PATIENCE) {
        Answer::Ended { succeeded: true, stdout, .. } => stdout,
        Answer::Ended { stderr, .. } => anyhow::bail!("the controller does not say where they are: {}", stderr.trim()),
        Answer::Silent => anyhow::bail!("the controller does not answer"),
        Answer::Missing => anyhow::bail!("scontrol cannot be executed"),
    };
    let nodes: Vec<_> = said.lines().filter_map(node).collect();
    anyhow::ensure!(!nodes.is_empty(), "the controller knows no address of theirs");
    Ok(install::install_nodes_names(Path::new("/"), &nodes)?)
}

/// Whether the names can be looked up without us.
fn are_known(nodes: &str) -> anyhow::Result<bool> {
    let Answer::Ended { succeeded: true, stdout, .. } = tool::ask("scontrol", &["show", "hostnames", nodes], PATIENCE)
    else {
        anyhow::bail!("`scontrol show hostnames {nodes}` fails");
    };
    let names: Vec<&str> = stdout.lines().collect();
    Ok(match install::writer_of_nodes_names(Path::new("/"), &names)? {
        install::Writer::Others => true,
        // The address may be another one by now.
        install::Writer::Us => false,
        install::Writer::Nobody => {
            let question = [["-s", "hosts:dns", "hosts"].as_slice(), &names].concat();
            matches!(tool::ask("getent", &question, LOOK_UP), Answer::Ended { succeeded: true, .. })
        }
    })
}

/// `compute-1: 172.18.0.3:6818` (Slurm 24.11, `info_node.c`).
fn node(line: &str) -> Option<(String, String)> {
    let (name, address) = line.split_once(": ")?;
    let name = NodeName::try_from(name.to_owned()).ok()?;
    let address: SocketAddr = address.trim().parse().ok()?;
    Some((name.to_string(), address.ip().to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_controller_says_is_a_name_and_an_address() {
        let pair = |name: &str, address: &str| Some((name.to_owned(), address.to_owned()));
        assert_eq!(node("compute-1: 172.18.0.3:6818"), pair("compute-1", "172.18.0.3"));
        assert_eq!(node("compute-1: [fd00::3]:6818"), pair("compute-1", "fd00::3"));
        for other in ["", "compute-1: x:6818", "a b: 172.18.0.3:6818", "172.18.0.3:6818"] {
            assert_eq!(node(other), None, "{other}");
        }
    }
}
