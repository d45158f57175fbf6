//! The format of jobstats in a job's AdminComment: `JS1:` and base64 of gzip of JSON (`jobstats.py`, `reportseff`).
//!
//! Each node has its own key, so the nodes of a job share one text. The record is under the key `slurminit`, which jobstats ignores.
//! Nothing may follow the base64: Python 3.13 would decode that, too, and both programs would fail. So any other text of the comment (the
//! note) becomes the job's SystemComment.

use std::io::{Read as _, Write as _};

use anyhow::Context as _;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use flate2::Compression;
use flate2::read::GzDecoder;
use flate2::write::GzEncoder;
use serde_json::{Map, Value, json};

use faults::usage::{GpuUse, JobRecord, without_marks};

const PREFIX: &str = "JS1:";
/// The maximum size of the JSON: a text of another program must not fill the memory.
const MAX_BYTES: u64 = 1 << 20;

/// The mean CPU time and memory of a job per node, as Slurm has recorded them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct HostUse {
    pub(super) cpu_seconds: u64,
    pub(super) memory_mib: u64,
}

/// The records in a comment.
pub fn records(comment: &str) -> Vec<JobRecord> {
    let nodes = split(comment).0.map(|mut stats| stats["nodes"].take());
    let Some(Value::Object(nodes)) = nodes else { return Vec::new() };
    nodes.into_iter().filter_map(|(_, mut node)| serde_json::from_value(node["slurminit"].take()).ok()).collect()
}

/// Merges this record into the previous comment, which may contain records of other nodes. Returns the new comment, and the note of the
/// previous comment, which may be empty.
///
/// # Errors
/// Never: writing to memory cannot fail.
pub(super) fn merge(comment: &str, record: &JobRecord, host: Option<HostUse>) -> anyhow::Result<(String, String)> {
    let comment = without_marks(comment);
    let (stats, note) = split(&comment);
    let seconds = record.job.end.unwrap_or(record.job.start).saturating_sub(record.job.start);
    let mut nodes = match stats.map(|mut stats| stats["nodes"].take()) {
        Some(Value::Object(nodes)) => nodes,
        _ => Map::new(),
    };
    // The entries of an earlier run of the job have another start time.
    nodes.retain(|_, node| node["slurminit"]["start"].as_u64().is_none_or(|start| start == record.job.start));
    nodes.insert(record.node.clone(), node(record, host));
    let gpus = nodes.values().filter_map(|node| node["gpu_total_memory"].as_object()).map(Map::len).sum::<usize>();
    let stats = json!({ "nodes": nodes, "total_time": seconds, "gpus": gpus });
    Ok((format!("{PREFIX}{}", encode(&stats.to_string())?), note.to_owned()))
}

/// Whether the comment contains this record.
pub(super) fn has(comment: &str, record: &JobRecord) -> bool {
    // A record in memory also has values that are not stored, so compare what is stored.
    split(comment).0.is_some_and(|stats| stats["nodes"][&record.node]["slurminit"] == json!(record))
}

/// Splits a comment into the JSON and the rest.
fn split(comment: &str) -> (Option<Value>, &str) {
    let Some(text) = comment.strip_prefix(PREFIX) else { return (None, comment.trim()) };
    let (text, note) = text.split_once(' ').unwrap_or((text, ""));
    (decode(text).ok(), note.trim())
}

fn node(record: &JobRecord, host: Option<HostUse>) -> Value {
    let by_gpu = |value: &dyn Fn(&GpuUse) -> Option<Value>| {
        // All instances of a GPU have its index.
        let key = |gpu: &GpuUse| match record.gpus.iter().filter(|other| other.part.index == gpu.part.index).count() {
            1 => gpu.part.index.to_string(),
            _ => format!("{}:{}", gpu.part.index, gpu.part.id),
        };
        // The values of a shared GPU include the use by other jobs.
        let own = record.gpus.iter().filter(|gpu| !gpu.is_shared);
        let values = own.filter_map(|gpu| Some((key(gpu), value(gpu)?)));
        Value::Object(values.collect())
    };
    // reportseff 2.10 fails at a key without its counterpart, and at a total memory of 0.
    let total = |gpu: &GpuUse| gpu.part.memory_mib.filter(|mib| *mib > 0);
    let mut value = json!({
        "gpu_total_memory": by_gpu(&|gpu| Some(json!(total(gpu)? << 20))),
        "gpu_used_memory": by_gpu(&|gpu| total(gpu).map(|_| json!(gpu.peak_memory_mib << 20))),
        "gpu_utilization": by_gpu(&|gpu| gpu.mean_percent().map(|percent| json!((percent * 10.0).round() / 10.0))),
        "slurminit": record,
    });
    if let Some(host) = host.filter(|_| record.job.cpus > 0) {
        (value["cpus"], value["total_time"]) = (json!(record.job.cpus), json!(host.cpu_seconds));
    }
    if let Some(host) = host.filter(|_| record.job.memory_mib > 0) {
        value["total_memory"] = json!(record.job.memory_mib << 20);
        value["used_memory"] = json!(host.memory_mib << 20);
    }
    value
}

fn encode(json: &str) -> anyhow::Result<String> {
    let mut gzip = GzEncoder::new(Vec::new(), Compression::best());
    gzip.write_all(json.as_bytes())?;
    Ok(STANDARD.encode(gzip.finish()?))
}

fn decode(text: &str) -> anyhow::Result<Value> {
    let gzip = STANDARD.decode(text)?;
    let mut json = Vec::new();
    GzDecoder::new(gzip.as_slice()).take(MAX_BYTES).read_to_end(&mut json)?;
    serde_json::from_slice(&json).context("it is not JSON")
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::Path;

    use super::*;
    use faults::usage::{Job, Part};

    fn record(node: &str) -> JobRecord {
        let gpu = |index| GpuUse {
            part: Part { index, id: format!("GPU-{index}"), memory_mib: Some(1024), ..Part::default() },
            percent_ms: 3,
            busy: 200,
            peak_memory_mib: 512,
            ..GpuUse::default()
        };
        let job = Job { job: 7, start: 100, end: Some(160), cpus: 4, memory_mib: 2, ..Job::default() };
        JobRecord { job, node: node.to_owned(), gpus: vec![gpu(0), gpu(3)] }
    }

    const HOST: HostUse = HostUse { cpu_seconds: 120, memory_mib: 1 };

    #[test]
    fn nodes_merge_into_one_comment_and_the_note_leaves_it() {
        let stopped = "slurminit: the container stopped while this job ran";
        let (first, note) = merge(&format!("{stopped} slurminit-idle:c1=7"), &record("c1"), None).unwrap();
        assert_eq!(note, stopped);
        let (both, none) = merge(&first, &record("c2"), Some(HOST)).unwrap();
        assert_eq!((records(&both), none.as_str()), (vec![record("c1"), record("c2")], ""));
        assert!(has(&both, &record("c1")) && !both.contains(' '), "{both}");
        // Texts of earlier releases contain the note.
        assert_eq!(merge(&format!("{first} {stopped}"), &record("c2"), Some(HOST)).unwrap(), (both.clone(), note));
        let stats = split(&both).0.unwrap();
        assert_eq!((stats["gpus"].as_u64(), stats["total_time"].as_u64()), (Some(4), Some(60)));
        assert_eq!(stats["nodes"]["c1"]["gpu_utilization"], json!({"0": 66.7, "3": 66.7}));
        assert_eq!(stats["nodes"]["c2"]["gpu_used_memory"], json!({"0": 512 << 20, "3": 512 << 20}));
        let c2 = &stats["nodes"]["c2"];
        assert_eq!((&c2["total_time"], &c2["cpus"]), (&json!(120), &json!(4)));
        assert_eq!((&c2["used_memory"], &c2["total_memory"]), (&json!(1 << 20), &json!(2 << 20)));
        assert!(stats["nodes"]["c1"]["cpus"].is_null(), "without a time");
        // A later run replaces the nodes of the earlier one.
        let mut later = record("c3");
        later.job.start = 200;
        assert_eq!(records(&merge(&both, &later, None).unwrap().0), [later]);
    }

    #[test]
    fn reads_the_comments_of_jobstats_and_none_of_other_texts() {
        let theirs = "JS1:H4sIACj7KWIC/1XNQQrCMBCF4bvMOkonIzNpLyOhGUVIGmnSRSm5u1FEcPt/PN4BSw5aYDogaIz+tNoZF+R3qLn6eE2a8rrDxE5wvAgLsYGtaPiJFbRCxCMP5juqj6QdHJE79zg/t37hWvt34gEN3D9487FoewEKn+eojwAAAA==";
        let merged = split(&merge(theirs, &record("c1"), None).unwrap().0).0.unwrap();
        assert_eq!(merged["nodes"].as_object().map(Map::len), Some(2), "{merged}");
        for other in ["", "JS1:", "JS1:Short", "JS1:None", "JS1:!!", "a note"] {
            assert_eq!(records(other), [], "{other}");
            assert_eq!(records(&merge(other, &record("c1"), None).unwrap().0).len(), 1, "{other}");
        }
    }

    /// tests/clients reads the file with reportseff from PyPI.
    #[test]
    fn writes_the_comment_that_reportseff_is_tested_with() {
        let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/clients/reportseff/admincomment");
        let (first, _) = merge("slurminit: a note", &record("c1"), Some(HOST)).unwrap();
        let comment = merge(&first, &record("c2"), Some(HOST)).unwrap().0 + "\n";
        if std::env::var_os("UPDATE").is_some() {
            fs::write(&file, &comment).unwrap();
        }
        // The gzip output may change.
        let known = fs::read_to_string(&file).unwrap();
        assert_eq!(split(known.trim()), split(comment.trim()));
    }
}
