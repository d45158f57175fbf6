//! slurm.conf.

use std::fmt::Write as _;

use crate::plan::{FileName, NodePlan, Plan, Topology};

use super::header;

pub(super) fn text(plan: &Plan) -> String {
    let mut text = header(FileName::SlurmConf);
    for setting in &plan.settings {
        if let Some(why) = &setting.why {
            let _ = writeln!(text, "# {why}");
        }
        let _ = writeln!(text, "{}={}", setting.key, quoted(&setting.value));
    }
    let _ = writeln!(text, "\n# {}\n{}\n", plan.summary, node_line(&plan.node));
    for partition in &plan.partitions {
        let _ = write!(text, "PartitionName={}", partition.name);
        for (key, value) in &partition.settings {
            let _ = write!(text, " {key}={}", quoted(value));
        }
        text.push('\n');
    }
    text
}

fn node_line(node: &NodePlan) -> String {
    let mut line = format!("NodeName={}", node.name);
    if let Some(host) = &node.host {
        let _ = write!(line, " NodeHostname={host} NodeAddr=127.0.0.1");
    }
    let _ = write!(line, " CPUs={}", node.cpus);
    if let Some(Topology { sockets, cores_per_socket, threads_per_core }) = node.topology {
        let _ = write!(line, " Sockets={sockets} CoresPerSocket={cores_per_socket} ThreadsPerCore={threads_per_core}");
    }
    if let Some(memory) = node.memory_mib {
        let _ = write!(line, " RealMemory={memory}");
    }
    if !node.gres.is_empty() {
        let _ = write!(line, " Gres={}", node.gres);
    }
    if !node.features.is_empty() {
        let features: Vec<&str> = node.features.iter().map(|feature| feature.as_str()).collect();
        let _ = write!(line, " Feature={}", features.join(","));
    }
    line.push_str(" State=UNKNOWN");
    line
}

/// Slurm ends a bare value at the first space.
fn quoted(value: &str) -> String {
    if value.contains(char::is_whitespace) { format!("\"{value}\"") } else { value.to_owned() }
}
