//! gres.conf.

use std::fmt::Write as _;

use crate::plan::{AutoDetect, DevicePath, FileName, GresLine, Plan};

use super::header;

pub(super) fn text(plan: &Plan) -> String {
    let mut text = header(FileName::GresConf);
    let _ = writeln!(text, "AutoDetect={}", plan.gres.auto_detect.as_str());
    for line in &plan.gres.lines {
        let _ = writeln!(text, "# {}", line.comment);
        if plan.gres.auto_detect == AutoDetect::Off {
            let _ = writeln!(text, "{} Flags={}", gres_line(line), plan.gres.flags());
        }
    }
    if plan.gres.lines.is_empty() {
        text.push_str("# This container has no GPU that a job could be given.\n");
    }
    text
}

/// No NodeName: the file is this node's own, and Slurm 24.11 wants none then.
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
