//! Renders slurm.conf.

use std::fmt::Write as _;

use crate::{FileName, NodePlan, NodesPlan, Plan, Setting, Topology};
use config::{CloudNodes, FeatureName};

use super::{checksum, header};

pub(super) fn text(plan: &Plan) -> String {
    let text = with_settings(plan, &plan.settings);
    match &plan.shared_settings {
        Some(settings) => checksum::with_checksum_of(text, &with_settings(plan, settings)),
        None => text,
    }
}

fn with_settings(plan: &Plan, settings: &[Setting]) -> String {
    let mut text = header(FileName::SlurmConf);
    for setting in settings {
        if let Some(why) = &setting.why {
            let _ = writeln!(text, "# {why}");
        }
        let _ = writeln!(text, "{}={}", setting.key, quoted(&setting.value));
    }
    match &plan.node_sets {
        None => {
            let _ = writeln!(text, "\n# {}", plan.summary);
            for NodesPlan { node, .. } in plan.kinds() {
                let _ = writeln!(text, "NodeName={}{} State=UNKNOWN", node.names(), line(node));
            }
            text.push('\n');
        }
        Some(sets) => {
            text.push_str("\n# Nodes register dynamically.\n");
            for feature in sets {
                let _ = writeln!(text, "NodeSet={feature} Feature={feature}");
            }
            text.push('\n');
        }
    }
    for nodes in plan.autoscale.iter().flat_map(|autoscale| &autoscale.nodes) {
        text.push_str(&cloud_line(nodes));
    }
    for node in &plan.kept_nodes {
        text.push_str(KEPT);
        push_line(&mut text, "NodeName", &node.name, &node.settings);
    }
    for partition in &plan.partitions {
        if partition.is_kept {
            text.push_str(KEPT);
        }
        push_line(&mut text, "PartitionName", &partition.name, &partition.settings);
    }
    text
}

const KEPT: &str = "# no longer configured; kept until no job uses it\n";

fn push_line(text: &mut String, key: &str, name: &str, settings: &[(String, String)]) {
    let _ = write!(text, "{key}={name}");
    for (key, value) in settings {
        let _ = write!(text, " {key}={}", quoted(value));
    }
    text.push('\n');
}

/// The NodeName line of autoscaled nodes.
fn cloud_line(nodes: &CloudNodes) -> String {
    let mut line = format!("NodeName={} CPUs={} RealMemory={}", nodes.name, nodes.cpus, nodes.memory_mib);
    if let Some(gpus) = &nodes.gpus {
        let _ = write!(line, " Gres=gpu:{}:{}", gpus.gres_type, gpus.count);
    }
    if !nodes.features.is_empty() {
        let _ = write!(line, " Feature={}", joined(&nodes.features));
    }
    line + " State=CLOUD\n"
}

fn joined(features: &[FeatureName]) -> String {
    features.iter().map(FeatureName::as_str).collect::<Vec<_>>().join(",")
}

/// The argument of `slurmd -Z --conf`.
pub(super) fn dynamic_node(node: &NodePlan) -> String {
    line(node).trim_start().to_owned()
}

/// The node's settings after its name, each preceded by a space.
fn line(node: &NodePlan) -> String {
    let mut line = String::new();
    if let Some(host) = &node.host {
        let _ = write!(line, " NodeHostname={host} NodeAddr={}", node.address);
    }
    if let Some(group) = &node.simulated {
        let _ = write!(line, " Port={}", ranges(group.nodes.iter().map(|(_, port)| *port)));
    }
    let _ = write!(line, " CPUs={}", node.cpus);
    if let Some(Topology { sockets, cores_per_socket, threads_per_core }) = node.topology {
        let _ = write!(line, " Sockets={sockets} CoresPerSocket={cores_per_socket} ThreadsPerCore={threads_per_core}");
    }
    if let Some(memory) = node.memory_mib {
        let _ = write!(line, " RealMemory={memory}");
    }
    if let Some(tmp_disk) = node.tmp_disk_mib {
        let _ = write!(line, " TmpDisk={tmp_disk}");
    }
    if !node.gres.is_empty() {
        let _ = write!(line, " Gres={}", node.gres);
    }
    if !node.features.is_empty() {
        let _ = write!(line, " Feature={}", joined(&node.features));
    }
    line
}

/// The ports as a list of numbers and ranges: `6818,6820-6822`.
fn ranges(ports: impl Iterator<Item = u16>) -> String {
    let mut ranges: Vec<(u16, u16)> = Vec::new();
    for port in ports {
        match ranges.last_mut() {
            Some((_, last)) if last.checked_add(1) == Some(port) => *last = port,
            _ => ranges.push((port, port)),
        }
    }
    let range = |(first, last): (u16, u16)| if first == last { first.to_string() } else { format!("{first}-{last}") };
    ranges.into_iter().map(range).collect::<Vec<_>>().join(",")
}

/// Quotes a value if necessary, because Slurm ends an unquoted value at the first space.
fn quoted(value: &str) -> String {
    if value.is_empty() || value.contains(char::is_whitespace) { format!("\"{value}\"") } else { value.to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn consecutive_ports_are_a_range() {
        for (ports, expected) in [
            (&[][..], ""),
            (&[6818], "6818"),
            (&[6818, 6820, 6821, 6822], "6818,6820-6822"),
            (&[6818, 6819, 7000], "6818-6819,7000"),
            (&[65_534, 65_535], "65534-65535"),
        ] {
            assert_eq!(ranges(ports.iter().copied()), expected);
        }
    }
}
