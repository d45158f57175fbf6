use super::*;
use crate::commands::columns::WIDTH;

const NODES: &str = r#"{"nodes": [
  {"name": "compute-1", "state": ["MIXED"], "gres": "gpu:nvidia:3", "gres_used": "gpu:nvidia:2(IDX:0-1)",
   "extra": "{\"gpus\":[{\"n\":2,\"model\":\"NVIDIA H200\",\"mib\":143771,\"gpu\":1,\"file\":\"/dev/nvidia1\"},{\"n\":1,\"model\":\"NVIDIA A100-SXM4-80GB MIG 1g.10gb+me\",\"mib\":9728,\"gpu\":3,\"file\":\"/dev/nvidia-caps/nvidia-cap12\"}]}"},
  {"name": "compute-2", "state": ["IDLE", "DRAIN"], "gres": "gpu:amd:1", "gres_used": "gpu:amd:0",
   "reason": "fan broken, ask Eve about it before anybody touches the machine again\u001b[2J"},
  {"name": "a-node-with-a-name-that-is-too-long-3", "state": ["DOWN", "NOT_RESPONDING"], "gres": "", "reason": "Not responding"}]}"#;
const JOBS: &str = r#"{"jobs": [{"job_id": 67043327, "job_state": ["RUNNING"], "user_name": "a-user-of-a-long-name", "gres_detail": ["gpu:nvidia:1(IDX:1)"],
  "job_resources": {"nodes": {"allocation": [{"name": "compute-1"}]}}}]}"#;

#[test]
fn shows_row_per_gpu_and_reason_of_closed_node() {
    let cluster = ClusterNodes { most_nodes: Some(1024), ..ClusterNodes::parse(NODES, JOBS).unwrap() };
    let text = table(&cluster);
    assert!(text.lines().all(|line| line.chars().count() <= WIDTH), "{text}");
    insta::assert_snapshot!(text);
    insta::assert_snapshot!("json", serde_json::to_string_pretty(&cluster).unwrap());
}

#[test]
fn empty_cluster_shows_maximum_of_nodes() {
    let empty = |most_nodes| table(&ClusterNodes { nodes: Vec::new(), most_nodes });
    assert_eq!(empty(Some(1024)), "no nodes yet; room for 1024 (`max_nodes`)\n");
    assert_eq!(empty(None), "no nodes yet\n");
}

#[test]
fn user_of_shared_gpu_is_named_only_if_there_is_one() {
    let shared = |names: &[&str]| {
        users(&names.iter().map(|user| OwnedJob { job: 7, user: (*user).to_owned() }).collect::<Vec<_>>())
    };
    assert_eq!([shared(&["a"]), shared(&["a", "a"]), shared(&["a", "b"]), shared(&[])], ["a", "a", "several", "?"]);
}
