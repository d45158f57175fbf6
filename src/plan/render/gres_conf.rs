//! Renders gres.conf.

use std::fmt::Write as _;

use crate::{AutoDetect, DevicePath, FileName, GresLine, GresPlan, NodesPlan, Plan};
use config::Sharing;

use super::header;

pub(super) fn text(plan: &Plan) -> String {
    let mut text = header(FileName::GresConf);
    let _ = writeln!(text, "AutoDetect={}", plan.nodes.gres.auto_detect.as_str());
    for NodesPlan { node, gres } in plan.kinds() {
        let of = if plan.other_nodes.is_empty() { String::new() } else { format!("NodeName={} ", node.names()) };
        for line in &gres.lines {
            let _ = writeln!(text, "# {}", line.comment);
            if gres.auto_detect == AutoDetect::Off {
                let _ = writeln!(text, "{of}{} Flags={}", gres_line(line), gres.flags());
            }
        }
        text.push_str(&shared_lines(gres, &of));
    }
    text.push_str(&cloud_lines(plan));
    if plan.kinds().all(|kind| kind.gres.lines.is_empty()) {
        text.push_str("# No GPU for jobs in this container.\n");
    }
    text
}

/// The lines of shared GRES. Slurm gives each record the type and cores of the GPU with the same file.
fn shared_lines(gres: &GresPlan, of: &str) -> String {
    let mut text = String::new();
    let Some(sharing) = gres.sharing else { return text };
    let (name, each) = (sharing.gres(), sharing.count_per_gpu());
    let flags = match sharing {
        Sharing::Shards(_) => "",
        // Without the flag, only one of the node's GPUs is shared at a time.
        Sharing::Mps => " Flags=all_sharing",
    };
    let unit = match sharing {
        Sharing::Shards(_) => "shards",
        Sharing::Mps => "units of MPS",
    };
    let _ = writeln!(text, "# Shared GPUs: {each} {unit} per GPU.");
    if gres.auto_detect != AutoDetect::Off {
        let _ = writeln!(text, "{of}Name={name} Count={}", u64::from(each) * gres.shared().count() as u64);
        return text;
    }
    for (line, _) in gres.shared() {
        let files: Vec<&str> = line.files.iter().map(DevicePath::as_str).collect();
        let _ = writeln!(text, "{of}Name={name} Count={each} File={}{flags}", files.join(","));
    }
    text
}

/// The GPUs of autoscaled nodes, which slurmctld needs in advance. It only counts the files, which need not exist.
fn cloud_lines(plan: &Plan) -> String {
    let mut text = String::new();
    let Some(autoscale) = plan.autoscale.as_ref().filter(|autoscale| !autoscale.scripts.is_empty()) else {
        return text;
    };
    for nodes in &autoscale.nodes {
        if let Some(gpus) = &nodes.gpus {
            let (name, last) = (&nodes.name, gpus.count - 1);
            let _ = writeln!(text, "NodeName={name} Name=gpu Type={} File=/dev/nvidia[0-{last}]", gpus.gres_type);
        }
    }
    text
}

/// A line for one device, without a NodeName.
fn gres_line(line: &GresLine) -> String {
    let files: Vec<&str> = line.files.iter().map(DevicePath::as_str).collect();
    let key = if files.len() == 1 { "File" } else { "MultipleFiles" };
    let mut text = format!("Name=gpu Type={} {key}={}", line.gres_type, files.join(","));
    if let Some(cores) = &line.cores {
        let _ = write!(text, " Cores={cores}");
    }
    let links: Vec<String> = line.links.iter().map(i64::to_string).collect();
    if !links.is_empty() {
        let _ = write!(text, " Links={}", links.join(","));
    }
    text
}
