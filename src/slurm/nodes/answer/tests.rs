use super::*;
use crate::nodes::answer::GpuState::{Allocated, Free, Shared, Unavailable};

/// Output of Slurm 24.11.
const NODES: &str = r#"{"nodes": [
  {"name": "c10", "state": ["IDLE", "DRAIN", "DYNAMIC_NORM"], "reason": "fan\nNodeName=x \u001b[2J", "gres": "gpu:nvidia:1",
   "gres_used": "gpu:nvidia:0(IDX:N/A)", "cpus": 4, "effective_cpus": 4, "alloc_cpus": 0, "real_memory": 900, "partitions": ["any"],
   "extra": "somebody's text"},
  {"name": "c2", "state": ["MIXED", "DYNAMIC_NORM"], "reason": "", "gres": "gpu:nvidia:2,gpu:amd:1,shard:8", "cpus": 8,
   "gres_used": "gpu:nvidia:2(IDX:0-1),gpu:amd:0(IDX:N/A),shard:0(0/8)", "alloc_cpus": 2, "real_memory": 900, "alloc_memory": 64,
   "extra": "{\"gpus\":[{\"n\":2,\"model\":\"NVIDIA H200\",\"mib\":143771},{\"n\":1,\"model\":\"AMD MI210\",\"mib\":65520}]}"},
  {"name": "c1", "state": ["DOWN", "NOT_RESPONDING"], "reason": "Not responding", "gres": "gpu:nvidia:1", "gres_used": "gpu:nvidia:0"},
  {"name": "c3", "state": ["IDLE"], "gres": "", "gres_used": "", "extra": "{\"gpus\":[{\"n\":9,\"model\":\"none\"}]}"},
  {"state": ["IDLE"]}, 7]}"#;

/// Job 17 is on two nodes, which are not in name order.
const JOBS: &str = r#"{"jobs": [
  {"job_id": 17, "job_state": ["RUNNING"], "user_name": "alice", "nodes": "c[2,1]", "gres_detail": ["gpu:nvidia:1(IDX:1),gpu:amd:0(IDX:)", ""],
   "job_resources": {"nodes": {"allocation": [{"name": "c2"}, {"name": "c1"}]}}},
  {"job_id": 18, "job_state": ["CANCELLED", "COMPLETING"], "user_name": "", "user_id": 1003, "nodes": "c2", "gres_detail": ["gpu:nvidia:1(IDX:0)"],
   "job_resources": {"nodes": {"allocation": [{"name": "c2"}]}}},
  {"job_id": 19, "job_state": ["RUNNING"], "user_name": "eve", "gres_detail": [], "job_resources": null}, {"user_name": "nobody"}]}"#;

fn cluster() -> ClusterNodes {
    ClusterNodes::parse(NODES, JOBS).unwrap()
}

fn states(node: &ClusterNode) -> Vec<String> {
    let word = |gpu: &NodeGpu| match &gpu.state {
        Allocated { job: Some(job) } => format!("{} of {}", job.job, job.user),
        Allocated { job: None } => "somebody's".to_owned(),
        Free => "free".to_owned(),
        Shared { jobs } => {
            format!("shared by {}", jobs.iter().map(|job| job.user.as_str()).collect::<Vec<_>>().join(","))
        }
        Unavailable => "unavailable".to_owned(),
    };
    node.gpus.iter().map(word).collect()
}

#[test]
fn assigns_gpus_of_all_nodes() {
    let cluster = cluster();
    let names: Vec<&str> = cluster.nodes.iter().map(|node| node.name.as_str()).collect();
    assert_eq!(names, ["c1", "c2", "c3", "c10"]);
    let node = cluster.node("c2").unwrap();
    assert_eq!(states(node), ["18 of 1003", "17 of alice", "free"]);
    let models: Vec<_> = node.gpus.iter().map(|gpu| (gpu.model.as_deref(), gpu.memory_mib)).collect();
    assert_eq!(
        models,
        [(Some("NVIDIA H200"), Some(143_771)), (Some("NVIDIA H200"), Some(143_771)), (Some("AMD MI210"), Some(65_520))]
    );
    assert_eq!(node.jobs.iter().map(|job| job.job).collect::<Vec<_>>(), [17, 18]);
    assert_eq!((node.cpus, node.cpus_allocated, node.memory_allocated_mib), (8, 2, 64));
    // The node's report is ignored, because its number of GPUs differs from Slurm's.
    assert_eq!(cluster.node("c3").unwrap().gpus, []);
    let drained = cluster.node("c10").unwrap();
    assert_eq!((drained.report.state.as_str(), drained.drained), ("drained", true));
    assert_eq!(drained.report.reason, "fan\\x0aNodeName=x \\x1b[2J");
    assert_eq!((states(drained), &drained.gpus[0].model), (vec!["unavailable".to_owned()], &None));
    let down = cluster.node("c1").unwrap();
    assert_eq!((down.report.state.as_str(), down.report.responding), ("down", false));
    assert_eq!(cluster.node("c4").unwrap_err().to_string(), "no node named c4; the cluster has c1, c2, c3, c10");
}

#[test]
fn partly_used_gpu_is_not_free() {
    let nodes = r#"{"nodes": [{"name": "c1", "state": ["MIXED"], "gres": "gpu:nvidia:3,shard:nvidia:12",
        "gres_used": "gpu:nvidia:1(IDX:1),shard:nvidia:3(3/4,0/4,0/4)"}]}"#;
    let job = |id: u64, user: &str, detail: &str| {
        serde_json::json!({"job_id": id, "job_state": ["RUNNING"], "user_name": user, "gres_detail": [detail],
            "job_resources": {"nodes": {"allocation": [{"name": "c1"}]}}})
    };
    let jobs = [
        job(1, "alice", "shard:2(2/4,0/4,0/4)"),
        job(2, "bob", "shard:1(1/4,0/4,0/4)"),
        job(3, "eve", "gpu:nvidia:1(IDX:1)"),
    ];
    let cluster = ClusterNodes::parse(nodes, &serde_json::json!({"jobs": jobs}).to_string()).unwrap();
    assert_eq!(states(&cluster.nodes[0]), ["shared by alice,bob", "3 of eve", "free"]);
}

#[test]
fn double_claimed_gpu_has_no_owner_and_bad_json_is_error() {
    let claim = r#"{"job_id": 9, "job_state": ["RUNNING"], "user_name": "eve", "gres_detail": ["gpu:nvidia:1(IDX:1)"],
        "job_resources": {"nodes": {"allocation": [{"name": "c2"}]}}}"#;
    let jobs = JOBS.replacen("{\"jobs\": [", &format!("{{\"jobs\": [{claim}, "), 1);
    let cluster = ClusterNodes::parse(NODES, &jobs).unwrap();
    assert_eq!(states(cluster.node("c2").unwrap()), ["18 of 1003", "somebody's", "free"]);
    for wrong in ["", "[]", "{}", "{\"nodes\": 7}", "slurm_load_node error"] {
        assert!(ClusterNodes::parse(wrong, JOBS).is_err(), "{wrong}");
    }
    assert!(ClusterNodes::parse(NODES, "{}").is_err());
    let one = ClusterNodes::parse(r#"{"nodes": [{"name": "c1", "state": ["IDLE"]}]}"#, "{\"jobs\": []}").unwrap();
    assert_eq!(one.node("c2").unwrap_err().to_string(), "no node named c2; the cluster has c1");
    let none = ClusterNodes::parse("{\"nodes\": []}", "{\"jobs\": []}").unwrap();
    assert_eq!(none.node("c1").unwrap_err().to_string(), "no node named c1; the cluster has no nodes yet");
}

#[test]
fn state_is_sinfos_without_marks() {
    let word = |words: &[&str]| state(&words.iter().map(|word| (*word).to_owned()).collect::<Vec<_>>());
    assert_eq!(word(&["ALLOCATED", "DRAIN"]), "draining");
    assert_eq!(word(&["IDLE", "COMPLETING", "DRAIN"]), "draining");
    assert_eq!(word(&["DOWN", "DRAIN"]), "drained");
    assert_eq!(word(&["IDLE", "COMPLETING"]), "completing");
    assert_eq!(word(&["IDLE", "FAIL"]), "fail");
    assert_eq!(word(&["MIXED", "FAIL"]), "failing");
    assert_eq!(word(&["DOWN", "INVALID_REG"]), "down");
    assert_eq!(word(&["IDLE", "INVALID_REG"]), "inval");
    assert_eq!(word(&["MIXED", "DYNAMIC_NORM", "PLANNED"]), "mixed");
    assert_eq!(word(&["ALLOCATED", "PLANNED"]), "allocated");
    assert_eq!(word(&["IDLE", "DYNAMIC_NORM", "PLANNED"]), "planned");
    assert_eq!(word(&[]), "unknown");
}

proptest::proptest! {
    #[test]
    fn parses_any_text_without_panic(name in ".{0,40}", gres in ".{0,60}", extra in ".{0,60}", detail in ".{0,40}") {
        let node = serde_json::json!({"nodes": [{"name": name, "state": [extra], "reason": gres, "gres": gres, "gres_used": detail,
            "extra": extra, "partitions": [name]}]});
        let job = serde_json::json!({"jobs": [{"job_id": 1, "job_state": "RUNNING", "user_name": extra, "gres_detail": [detail],
            "job_resources": {"nodes": {"allocation": [{"name": name}]}}}]});
        let cluster = ClusterNodes::parse(&node.to_string(), &job.to_string()).unwrap();
        let all = serde_json::to_string(&cluster).unwrap();
        for node in &cluster.nodes {
            proptest::prop_assert!(!node.name.contains(printable::is_active) && !node.report.reason.contains(printable::is_active));
            proptest::prop_assert!(node.gpus.len() <= gres::MAX_GPUS);
        }
        proptest::prop_assert!(!printable::json(&all).contains(printable::is_active));
    }
}
