//! Translates a StatefulSet's template into options of `docker run`.

use std::time::Duration;

use serde_json::Value;

use super::fields::{Fields, documents};

const UNCONFINED: &str = "--security-opt=seccomp=unconfined";

/// A StatefulSet, and the Services that select its pods.
#[derive(Debug)]
pub(crate) struct Template {
    pub(crate) name: String,
    pub(crate) replicas: u64,
    /// The Service that gives each pod its own name.
    pub(crate) domain: String,
    pub(crate) services: Vec<Service>,
    /// Options of `docker run`.
    pub(crate) options: Vec<String>,
    pub(crate) mounts: Vec<Mount>,
    pub(crate) gpus: u64,
    /// The tag of the main container's image.
    pub(crate) tag: String,
    /// The init containers, which run to completion before the main one.
    pub(crate) init: Vec<Init>,
    pub(crate) startup: Probe,
    pub(crate) ready: Probe,
    pub(crate) live: Probe,
    pub(crate) pre_stop: Option<Vec<String>>,
    pub(crate) grace: Duration,
}

/// A Service that gives pods a name.
#[derive(Debug)]
pub(crate) struct Service {
    pub(crate) name: String,
    /// Whether the name resolves even while there is no pod.
    pub(crate) has_address: bool,
}

/// An init container, which prepares a volume.
#[derive(Debug)]
pub(crate) struct Init {
    pub(crate) options: Vec<String>,
    pub(crate) mounts: Vec<Mount>,
    pub(crate) command: Vec<String>,
}

/// A volume of a pod and its mount path.
#[derive(Clone, Debug)]
pub(crate) struct Mount {
    pub(crate) name: String,
    pub(crate) path: String,
    pub(crate) is_read_only: bool,
    pub(crate) source: Source,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Source {
    Empty {
        memory: bool,
        bytes: Option<u64>,
    },
    Claim,
    /// A directory of a claim that all pods share.
    Shared,
    Secret {
        name: String,
        mode: u64,
    },
    ConfigMap {
        name: String,
        mode: u64,
    },
}

#[derive(Debug)]
pub(crate) struct Probe {
    pub(crate) command: Vec<String>,
    pub(crate) delay: Duration,
    pub(crate) period: Duration,
    pub(crate) timeout: u64,
    pub(crate) failures: u64,
}

/// The objects that Helm renders for the values of a case; tests/manifests/run compares them.
#[track_caller]
pub(crate) fn objects(name: &str) -> Vec<Value> {
    let file = harness::root().join("tests/manifests/cases").join(name).join("expected.yaml");
    documents(&std::fs::read_to_string(file).expect("the case exists"))
}

/// The objects of a kind.
pub(crate) fn kind<'a>(objects: &'a [Value], kind: &'a str) -> impl Iterator<Item = &'a Value> {
    objects.iter().filter(move |object| object["kind"] == kind)
}

/// The text of a file in a ConfigMap.
#[track_caller]
pub(crate) fn config(objects: &[Value], map: &str, file: &str) -> String {
    let map = kind(objects, "ConfigMap").find(|object| object["metadata"]["name"] == map).expect("the map exists");
    map["data"][file].as_str().expect("a file").to_owned()
}

/// The StatefulSets of these objects. Panics on an unsupported kind.
#[track_caller]
pub(crate) fn templates(objects: &[Value]) -> Vec<Template> {
    const KNOWN: [&str; 7] =
        ["ConfigMap", "NetworkPolicy", "PersistentVolumeClaim", "Pod", "PodDisruptionBudget", "Service", "StatefulSet"];
    let unknown = objects.iter().find(|object| !KNOWN.contains(&object["kind"].as_str().unwrap_or_default()));
    assert_eq!(unknown, None, "tests/image/pods does not support this kind");
    kind(objects, "StatefulSet").map(|set| template(set.clone(), objects)).collect()
}

fn template(set: Value, objects: &[Value]) -> Template {
    let mut object = Fields::of("StatefulSet", set);
    object.ignore(["apiVersion", "kind"]);
    let mut metadata = object.must("metadata");
    metadata.ignore(["labels"]);
    let name = metadata.text("name").expect("a name");
    let mut spec = object.must("spec");
    // The tests start and stop the pods themselves.
    spec.ignore(["podManagementPolicy", "updateStrategy"]);
    let claims = spec.list("volumeClaimTemplates").into_iter().map(claim).collect::<Vec<_>>();
    let mut pod = spec.must("template");
    let labels = pod.must("metadata").must("labels").rest();
    assert_eq!(spec.must("selector").must("matchLabels").rest(), labels, "the set selects its own pods");
    let services = services(objects, &labels);
    let domain = spec.text("serviceName").expect("a serviceName");
    assert!(services.iter().any(|service| service.name == domain), "{domain} is not in {services:?}");

    let mut pod = pod.must("spec");
    // Docker provides neither a token nor variables of Services, and has no nodes to choose from.
    pod.is("automountServiceAccountToken", false);
    pod.is("enableServiceLinks", false);
    pod.ignore(["tolerations"]);
    let grace = Duration::from_secs(pod.number("terminationGracePeriodSeconds").unwrap_or(30));
    let mut volumes: Vec<(String, Source)> = pod.list("volumes").into_iter().map(volume).collect();
    volumes.extend(claims.into_iter().map(|name| (name, Source::Claim)));
    let mut options = Vec::new();
    let pod_profile = pod.fields("securityContext").map(|context| apply_pod_security(context, &mut options));
    let init = pod.list("initContainers").into_iter().map(|container| init(container, &volumes)).collect();
    let [mut container] = <[Fields; 1]>::try_from(pod.list("containers")).expect("one container");
    let image = container.text("image").expect("an image");
    let tag = image.rsplit_once(':').expect("a tag").1.to_owned();
    container.ignore(["name", "imagePullPolicy", "ports"]);
    if let Some(directory) = container.text("workingDir") {
        options.extend(["--workdir".to_owned(), directory]);
    }
    for mut variable in container.list("env") {
        let (name, value) = (variable.text("name"), variable.text("value"));
        options.extend(["--env".to_owned(), format!("{}={}", name.expect("a name"), value.expect("a value"))]);
    }
    let container_profile = apply_container_security(container.must("securityContext"), &mut options);
    // By default Kubernetes applies no profile.
    options.extend(container_profile.or(pod_profile.flatten()).unwrap_or_else(|| vec![UNCONFINED.to_owned()]));
    let gpus = resources(container.must("resources"), &mut options);
    let mounts =
        container.list("volumeMounts").into_iter().map(|mount| self::mount(mount, &volumes)).collect::<Vec<_>>();
    let unused = volumes.iter().find(|(name, _)| mounts.iter().all(|mount| mount.name.split('.').next() != Some(name)));
    assert_eq!(unused, None, "unused volume");
    let startup = probe(container.must("startupProbe"));
    let (ready, live) = (probe(container.must("readinessProbe")), probe(container.must("livenessProbe")));
    let pre_stop =
        container.fields("lifecycle").map(|mut lifecycle| lifecycle.must("preStop").must("exec").texts("command"));
    let replicas = spec.number("replicas").unwrap_or(1);
    Template {
        name,
        replicas,
        domain,
        services,
        options,
        mounts,
        gpus,
        tag,
        init,
        startup,
        ready,
        live,
        pre_stop,
        grace,
    }
}

fn init(mut container: Fields, volumes: &[(String, Source)]) -> Init {
    container.ignore(["name", "image", "imagePullPolicy"]);
    let mut options = Vec::new();
    assert_eq!(apply_container_security(container.must("securityContext"), &mut options), None, "the pod's profile");
    resources(container.must("resources"), &mut options);
    let mounts = container.list("volumeMounts").into_iter().map(|mount| self::mount(mount, volumes)).collect();
    Init { options, mounts, command: container.texts("command") }
}

/// The Services of the pods with these labels.
fn services(objects: &[Value], labels: &[(String, String)]) -> Vec<Service> {
    let service = |object: &Value| {
        let mut object = Fields::of("Service", object.clone());
        object.ignore(["apiVersion", "kind"]);
        let mut metadata = object.must("metadata");
        metadata.ignore(["labels"]);
        let name = metadata.text("name");
        let mut spec = object.must("spec");
        // names.rs does not restrict the ports.
        spec.ignore(["ports"]);
        let has_address = spec.text("type").is_some();
        if has_address && !spec.flag("publishNotReadyAddresses") {
            // A Service for clients of one pod gives no pod a name.
            spec.ignore(["selector"]);
            return None;
        }
        if !has_address {
            spec.is("clusterIP", "None");
            // names.rs registers each pod when it starts.
            spec.is("publishNotReadyAddresses", true);
        }
        let selector = spec.must("selector").rest();
        let name = name.filter(|_| selector.iter().all(|label| labels.contains(label)))?;
        Some(Service { name, has_address })
    };
    kind(objects, "Service").filter_map(service).collect()
}

fn claim(mut claim: Fields) -> String {
    // The kind of storage does not matter: the tests use Docker volumes.
    claim.ignore(["apiVersion", "kind", "spec"]);
    claim.must("metadata").text("name").expect("a name")
}

fn volume(mut volume: Fields) -> (String, Source) {
    let name = volume.text("name").expect("a name");
    let mode = |fields: &mut Fields| fields.number("defaultMode").unwrap_or(0o644);
    let source = if let Some(mut empty) = volume.fields("emptyDir") {
        let memory = empty.text("medium").is_some_and(|medium| medium == "Memory");
        Source::Empty { memory, bytes: empty.text("sizeLimit").map(|size| bytes(&size)) }
    } else if let Some(mut claim) = volume.fields("persistentVolumeClaim") {
        claim.ignore(["claimName"]);
        Source::Shared
    } else if let Some(mut secret) = volume.fields("secret") {
        for mut item in secret.list("items") {
            assert_eq!(item.text("key"), item.text("path"), "a file has the name of its key");
        }
        Source::Secret { name: secret.text("secretName").expect("a name"), mode: mode(&mut secret) }
    } else {
        let mut map = volume.must("configMap");
        Source::ConfigMap { name: map.text("name").expect("a name"), mode: mode(&mut map) }
    };
    (name, source)
}

fn mount(mut mount: Fields, volumes: &[(String, Source)]) -> Mount {
    let (name, path) = (mount.text("name").expect("a name"), mount.text("mountPath").expect("a path"));
    let (_, source) = volumes.iter().find(|(volume, _)| *volume == name).expect("a volume of that name");
    let is_read_only = mount.flag("readOnly");
    let is_config = matches!(source, Source::Secret { .. } | Source::ConfigMap { .. });
    // The Docker volume of each directory of a claim.
    let name = mount.text("subPath").map_or(name.clone(), |directory| format!("{name}.{directory}"));
    assert_eq!(is_read_only, is_config, "{path}: Secrets and ConfigMaps must be read-only, other volumes writable");
    Mount { name, path, is_read_only, source: source.clone() }
}

/// Adds the options of a pod's security context; returns its seccomp profile.
fn apply_pod_security(mut context: Fields, options: &mut Vec<String>) -> Option<Vec<String>> {
    let groups = context.texts("supplementalGroups");
    options.extend(groups.into_iter().flat_map(|group| ["--group-add".to_owned(), group]));
    seccomp(&mut context)
}

fn seccomp(context: &mut Fields) -> Option<Vec<String>> {
    let profile = context.fields("seccompProfile")?.text("type").expect("a type");
    match profile.as_str() {
        // Docker's default profile, which containerd uses as well.
        "RuntimeDefault" => Some(Vec::new()),
        "Unconfined" => Some(vec![UNCONFINED.to_owned()]),
        other => panic!("seccompProfile {other}"),
    }
}

/// Adds the options of a container's security context; returns its seccomp profile.
fn apply_container_security(mut context: Fields, options: &mut Vec<String>) -> Option<Vec<String>> {
    let profile = seccomp(&mut context);
    context.is("privileged", false);
    context.is("allowPrivilegeEscalation", false);
    context.is("readOnlyRootFilesystem", true);
    let user = [context.number("runAsUser"), context.number("runAsGroup")].map(|id| id.expect("a number").to_string());
    options.extend(["--read-only", "--security-opt=no-new-privileges", "--user"].map(str::to_owned));
    options.push(user.join(":"));
    let mut capabilities = context.must("capabilities");
    let option = |option: &str, names: Vec<String>| {
        names.into_iter().map(move |name| format!("{option}={name}")).collect::<Vec<_>>()
    };
    options.extend(option("--cap-drop", capabilities.texts("drop")));
    options.extend(option("--cap-add", capabilities.texts("add")));
    profile
}

/// Adds the options for resources; returns the number of requested GPUs.
fn resources(mut resources: Fields, options: &mut Vec<String>) -> u64 {
    let mut requests = resources.must("requests");
    // Only the scheduler uses this value.
    requests.ignore(["memory"]);
    if let Some(shares) = requests.text("cpu").map(|cpus| millicores(&cpus) * 1024 / 1000) {
        options.push(format!("--cpu-shares={}", shares.max(2)));
    }
    let mut limits = resources.must("limits");
    if let Some(memory) = limits.text("memory") {
        options.push(format!("--memory={}", bytes(&memory)));
    }
    if let Some(cpus) = limits.text("cpu") {
        options.push("--cpu-period=100000".to_owned());
        options.push(format!("--cpu-quota={}", millicores(&cpus) * 100));
    }
    limits.number("nvidia.com/gpu").or_else(|| limits.number("amd.com/gpu")).unwrap_or(0)
}

fn millicores(cpus: &str) -> u64 {
    let (number, factor) = cpus.strip_suffix('m').map_or((cpus, 1000), |number| (number, 1));
    number.parse::<u64>().expect("whole CPUs or millicores") * factor
}

fn bytes(quantity: &str) -> u64 {
    let (number, unit) = quantity.split_at(quantity.find(|c: char| !c.is_ascii_digit()).unwrap_or(quantity.len()));
    let shift = ["", "Ki", "Mi", "Gi"].iter().position(|known| *known == unit).expect("Ki, Mi or Gi");
    number.parse::<u64>().expect("a number") << (10 * shift)
}

fn probe(mut probe: Fields) -> Probe {
    let mut seconds = |name: &str, default: u64| probe.number(name).unwrap_or(default);
    let (delay, period) = (seconds("initialDelaySeconds", 0), seconds("periodSeconds", 10));
    let (timeout, failures) = (seconds("timeoutSeconds", 1), seconds("failureThreshold", 3));
    let (delay, period) = (Duration::from_secs(delay), Duration::from_secs(period));
    Probe { command: probe.must("exec").texts("command"), delay, period, timeout, failures }
}
