//! Queries Docker, Kubernetes and the time service of the host.

use serde_json::Value;

use super::{Ask, Scope, output};
use crate::configure::look;
use crate::facts::{HostFacts, ImageFacts, Kubernetes, KubernetesNode, Observed, RunningContainer};
use model::inventory::{Inventory, Vendor};
use sys::tool::answer::Answer;

/// The label in slurminit's images with the GPU type that they were built for.
const GPU_TYPE: &str = "io.slurminit.gpu-type";

pub(super) fn facts(scope: &Scope, inventory: &Inventory) -> HostFacts {
    let ask = scope.ask();
    let situation = look::observe_host(&scope.root, scope.deadline, inventory);
    let trials = look::trials(&scope.image, scope.no_trial, scope.deadline, &situation);
    HostFacts {
        trials,
        image: image(&ask, &scope.image),
        containers: containers(&ask),
        kubernetes: kubernetes(&ask),
        clock: clock(&ask),
        situation,
    }
}

/// The image with its label; `None` if it does not exist.
pub fn image(ask: Ask<'_>, name: &str) -> Observed<Option<ImageFacts>> {
    match ask("docker", &["image", "inspect", "--format", "{{json .Config.Labels}}", name]) {
        Answer::Ended { succeeded: false, stderr, .. } if stderr.to_lowercase().contains("no such") => Ok(None),
        answer => {
            let labels: Value = serde_json::from_str(answer.output_of("docker")?.trim()).unwrap_or_default();
            Ok(Some(ImageFacts { name: name.to_owned(), gpu_type: text(labels.get(GPU_TYPE)) }))
        }
    }
}

fn text(value: Option<&Value>) -> Option<String> {
    value.and_then(Value::as_str).map(str::to_owned)
}

/// Running containers of slurminit's images.
pub fn containers(ask: Ask<'_>) -> Observed<Vec<RunningContainer>> {
    let ids = output(ask, "docker", &["ps", "--quiet", "--filter", &format!("label={GPU_TYPE}")])?;
    let ids: Vec<&str> = ids.split_whitespace().collect();
    if ids.is_empty() {
        return Ok(Vec::new());
    }
    let json = output(ask, "docker", &[&["container", "inspect"], ids.as_slice()].concat())?;
    let containers: Vec<Value> = serde_json::from_str(&json).map_err(|error| format!("docker inspect: {error}"))?;
    Ok(containers.iter().map(container).collect())
}

fn container(json: &Value) -> RunningContainer {
    let list = |pointer: &str| json.pointer(pointer).and_then(Value::as_array).cloned().unwrap_or_default();
    let is_gpu = |device: &Value| {
        let path = device.get("PathOnHost").and_then(Value::as_str).unwrap_or_default();
        ["/dev/nvidia", "/dev/kfd", "/dev/dri", "/dev/dxg"].iter().any(|gpu| path.starts_with(gpu))
    };
    let has_nvidia_runtime = json.pointer("/HostConfig/Runtime").and_then(Value::as_str) == Some("nvidia");
    RunningContainer {
        name: text(json.get("Name")).unwrap_or_default().trim_start_matches('/').to_owned(),
        has_gpu: !list("/HostConfig/DeviceRequests").is_empty()
            || list("/HostConfig/Devices").iter().any(is_gpu)
            || has_nvidia_runtime,
    }
}

/// What Kubernetes reports about nodes and device plugins; `None` without kubectl or a configured cluster.
pub fn kubernetes(ask: Ask<'_>) -> Observed<Option<Kubernetes>> {
    let get =
        |resource: &[&str]| ask("kubectl", &[&["get"], resource, &["--output=json", "--request-timeout=5s"]].concat());
    let json = |answer: Answer| {
        serde_json::from_str::<Value>(&answer.output_of("kubectl")?).map_err(|error| format!("kubectl: {error}"))
    };
    let nodes = match get(&["nodes"]) {
        Answer::Missing => return Ok(None),
        // kubectl without a configuration tries port 8080 of this host.
        Answer::Ended { succeeded: false, stderr, .. } if stderr.contains("localhost:8080") => return Ok(None),
        answer => json(answer)?,
    };
    let daemon_sets = json(get(&["daemonsets", "--all-namespaces"]))?;
    let items = |list: &Value| list.get("items").and_then(Value::as_array).cloned().unwrap_or_default();
    Ok(Some(Kubernetes {
        nodes: items(&nodes).iter().map(node).collect(),
        plugins: items(&daemon_sets).iter().filter_map(plugin).collect(),
    }))
}

fn node(json: &Value) -> KubernetesNode {
    let labels = json.pointer("/metadata/labels").and_then(Value::as_object).cloned().unwrap_or_default();
    let is_gpu = |name: &str| Vendor::ALL.iter().any(|vendor| vendor.traits().kubernetes.contains(&name));
    let is_gpu_label = |(name, value): (&String, &Value)| {
        (is_gpu(name) || name == "nvidia.com/gpu.present") && value.as_str() == Some("true")
    };
    let allocatable = json.pointer("/status/allocatable").and_then(Value::as_object).cloned().unwrap_or_default();
    let is_gpu_resource = |name: &str| is_gpu(name) || name.starts_with("nvidia.com/mig-");
    let gpu_count =
        |(name, value): (&String, &Value)| is_gpu_resource(name).then(|| value.as_str()?.parse::<u64>().ok()).flatten();
    KubernetesNode {
        name: text(json.pointer("/metadata/name")).unwrap_or_default(),
        has_gpu_label: labels.iter().any(is_gpu_label),
        gpus: allocatable.iter().filter_map(gpu_count).sum(),
    }
}

fn plugin(json: &Value) -> Option<(String, u64, u64)> {
    let name = text(json.pointer("/metadata/name")).filter(|name| name.contains("device-plugin"))?;
    let number = |key: &str| json.pointer(&format!("/status/{key}")).and_then(Value::as_u64).unwrap_or(0);
    Some((name, number("numberReady"), number("desiredNumberScheduled")))
}

/// Whether the clock is synchronized (NTP).
pub fn clock(ask: Ask<'_>) -> Observed<bool> {
    let answer = output(ask, "timedatectl", &["show", "--property=NTPSynchronized", "--value"])?;
    match answer.trim() {
        "yes" => Ok(true),
        "no" => Ok(false),
        other => Err(format!("timedatectl reports `{}`", sys::tool::answer::first_line([other]))),
    }
}
