//! The nodes as a table.

use std::collections::BTreeMap;

use crate::commands::columns::{Column, dash, device, format_table, wrap};
use model::printable;
use model::queued_job::OwnedJob;
use slurm::nodes::{ClusterNode, ClusterNodes, GpuState, NodeGpu};

const COLUMNS: [Column; 8] = [
    Column::left("NODE", 4, 13),
    Column::left("STATE", 5, 12),
    Column::right("GPU", 3),
    Column::left("DEVICE", 6, 12),
    Column::rest("MODEL"),
    Column::right("MEMORY", 7),
    Column::left("JOB", 4, 9),
    Column::left("USER", 4, 8),
];

pub(super) fn table(cluster: &ClusterNodes) -> String {
    let mut text = wrap(&headline(cluster), "");
    let rows: Vec<[String; 8]> = cluster.nodes.iter().flat_map(rows).collect();
    if !rows.is_empty() {
        text += &format!("\n{}", format_table(&COLUMNS, &rows));
    }
    let notes: String = cluster.nodes.iter().filter_map(note).collect();
    if !notes.is_empty() {
        text += &format!("\n{notes}");
    }
    text
}

/// The first line, such as `3 nodes: 1 drained, 2 idle · 5 GPUs: 3 free · room for 1021 more`.
fn headline(cluster: &ClusterNodes) -> String {
    let count = cluster.nodes.len();
    let slots = cluster.most_nodes.and_then(|limit| limit.checked_sub(count as u64)).filter(|slots| *slots > 0);
    if count == 0 {
        let slots = slots.map(|slots| format!("; room for {slots} (`max_nodes`)")).unwrap_or_default();
        return format!("no nodes yet{slots}");
    }
    let mut states: BTreeMap<&str, usize> = BTreeMap::new();
    cluster.nodes.iter().for_each(|node| *states.entry(&node.report.state).or_default() += 1);
    let states: Vec<String> = states.into_iter().map(|(state, count)| format!("{count} {state}")).collect();
    let gpus = || cluster.nodes.iter().flat_map(|node| &node.gpus);
    let free = gpus().filter(|gpu| gpu.state == GpuState::Free).count();
    let slots = slots.map(|slots| format!(" · room for {slots} more")).unwrap_or_default();
    let (nodes, gpus) = (printable::count(count, "node"), printable::count(gpus().count(), "GPU"));
    format!("{nodes}: {} · {gpus}: {free} free{slots}", states.join(", "))
}

/// One row for each GPU, or one for a node without GPUs.
fn rows(node: &ClusterNode) -> Vec<[String; 8]> {
    let silent_mark = if node.report.responding { "" } else { "*" };
    let state = format!("{}{silent_mark}", node.report.state);
    let row = |gpu: &NodeGpu| {
        let (job, user) = match &gpu.state {
            GpuState::Free => ("free".to_owned(), dash()),
            GpuState::Unavailable => (dash(), dash()),
            GpuState::Shared { jobs } => ("shared".to_owned(), users(jobs)),
            GpuState::Allocated { job: Some(job) } => (job.job.to_string(), job.user.clone()),
            GpuState::Allocated { job: None } => ("in use".to_owned(), "?".to_owned()),
        };
        let model = gpu.model.clone().unwrap_or_else(|| gpu.gres_type.clone());
        let (index, device) = (gpu.index.to_string(), gpu.file.as_deref().map_or_else(dash, device));
        [node.name.clone(), state.clone(), index, device, model, size(gpu.memory_mib), job, user]
    };
    match node.gpus.is_empty() {
        true => vec![[node.name.clone(), state, dash(), dash(), dash(), dash(), dash(), dash()]],
        false => node.gpus.iter().map(row).collect(),
    }
}

/// The user of the jobs on a shared GPU: `several` if the jobs have several users, `?` if no job is listed.
pub(in crate::commands) fn users(jobs: &[OwnedJob]) -> String {
    match jobs.split_first() {
        Some((first, others)) if others.iter().all(|job| job.user == first.user) => first.user.clone(),
        Some(_) => "several".to_owned(),
        None => "?".to_owned(),
    }
}

/// Why the node accepts no jobs; `None` if it accepts jobs.
fn note(node: &ClusterNode) -> Option<String> {
    let silent_note = if node.report.responding { "" } else { "; it does not respond to the controller" };
    (!node.accepts_jobs()).then(|| wrap(&format!("{} is {}{silent_note}", node.name, node.report), "  "))
}

/// Formats memory in GiB, with one decimal place below 10 GiB.
fn size(mib: Option<u64>) -> String {
    match mib {
        None => dash(),
        Some(mib @ 0..10_240) => format!("{}.{} GiB", mib / 1024, mib % 1024 * 10 / 1024),
        Some(mib) => format!("{} GiB", (mib.saturating_add(512)) / 1024),
    }
}

#[cfg(test)]
mod tests;
