//! Pods under Docker: what the kubelet creates from a template, as far as a container can see it.
//!
//! As in Kubernetes, each pod has an extra container that only holds its network and its volumes, so that these outlive
//! the main container.

use std::process::Command;
use std::time::{Duration, Instant};

use tempfile::TempDir;

use super::names::{Names, Registration};
use super::template::{Init, Mount, Probe, Source, Template};
use crate::docker::{Container, DEMO, FULL, Image, Outcome, PLAIN, Volume, directory, docker, unique};

/// DNS search domains of the namespace: a Service is `NAME.DOMAIN`; pods look up incomplete names in all three.
const SEARCH: [&str; 3] = ["slurm.svc.cluster.local", "svc.cluster.local", "cluster.local"];

/// A network with pod addresses and names, and the operator's key, configuration and claims.
pub(crate) struct Namespace {
    claims: Vec<Volume>,
    names: Names,
    network: Network,
    last: u8,
    key: String,
    config: String,
}

/// A network with addresses chosen by the test: the kubelet writes a pod's address into its /etc/hosts.
struct Network {
    name: String,
    prefix: String,
}

impl Network {
    /// Docker allows chosen addresses only with an explicit subnet. The engine has chosen the same subnet just before,
    /// because its firewall forwards only those.
    #[track_caller]
    fn new() -> Self {
        let name = unique("pods");
        let created = (0..20).find_map(|_| {
            docker(["network", "create", &name]).ok();
            let format = "{{(index .IPAM.Config 0).Subnet}}";
            let subnet = docker(["network", "inspect", "--format", format, &name]).ok();
            docker(["network", "rm", &name]).ok();
            let (prefix, _) = subnet.split_once('/')?.0.rsplit_once('.')?;
            let recreated = docker(["network", "create", "--subnet", &format!("{prefix}.0/24"), &name]);
            (recreated.code == 0).then(|| prefix.to_owned())
        });
        Self { name, prefix: created.expect("other tests took every subnet") }
    }
}

impl Drop for Network {
    fn drop(&mut self) {
        docker(["network", "rm", &self.name]);
    }
}

/// A pod. The main container is dropped first.
pub(crate) struct Pod {
    pub(crate) container: Container,
    holder: Container,
    _names: Registration,
    _volumes: Vec<Volume>,
    _files: TempDir,
    pub(crate) address: String,
}

impl Namespace {
    /// `config` is slurminit.toml.
    pub(crate) fn new(config: &str) -> Self {
        let key = unique("a-key-of-some-length").repeat(3);
        let network = Network::new();
        // Docker assigns the first address to the host.
        let names = Names::serve(&format!("{}.1", network.prefix));
        Self { claims: Vec::new(), network, names, last: 1, key, config: config.to_owned() }
    }

    /// A container in the network that is not a pod.
    pub(crate) fn client(&self, image: &'static str) -> Image {
        Image::new(image).with(["--network", &self.network.name])
    }

    /// Starts a pod of a StatefulSet without waiting until it is ready.
    #[track_caller]
    pub(crate) fn start(&mut self, template: &Template, number: u64) -> Pod {
        let name = format!("{}-{number}", template.name);
        self.last += 1;
        let address = format!("{}.{}", self.network.prefix, self.last);
        let mut volumes = Vec::new();
        let mut held: Vec<(&Mount, String)> = Vec::new();
        for mount in &template.mounts {
            let volume = match &mount.source {
                Source::Claim => self.claim(&format!("{}-{name}", mount.name)),
                Source::Shared => self.claim(&mount.name),
                source => {
                    volumes.push(volume(source));
                    volumes[volumes.len() - 1].name.clone()
                }
            };
            held.push((mount, volume));
        }
        let holder = self.holder(&name, &address, &held);
        held.iter().for_each(|(mount, _)| self.fill(&holder, mount, number % 2 == 1));
        template.init.iter().for_each(|init| run_init_container(template, init, &held));
        let fqdn = format!("{name}.{}.{}", template.domain, SEARCH[0]);
        let hosts = format!("# Kubernetes-managed hosts file.\n127.0.0.1\tlocalhost\n{address}\t{fqdn}\t{name}\n");
        let gpu = "[[gpu]]\nname = \"Simulated NVIDIA H200\"\n".repeat(usize::try_from(template.gpus).expect("fits"));
        let resolv = format!("search {}\nnameserver {}.1\noptions ndots:5\n", SEARCH.join(" "), self.network.prefix);
        let files = directory(&[("hosts", &hosts), ("resolv.conf", &resolv), ("gpus", &gpu)]);
        let names = template.services.iter().flat_map(|service| {
            let of_service = (format!("{}.{}", service.name, SEARCH[0]), service.has_address);
            // A headless Service gives each pod its own name.
            std::iter::once(of_service).chain((!service.has_address).then(|| (fqdn.clone(), false)))
        });
        let names = self.names.set(&name, &address, names);
        let container = container(template, &holder, &held, &files).start();
        Pod { container, holder, _names: names, _volumes: volumes, _files: files, address }
    }

    /// A volume that outlives its pod. It is world-writable, as with some provisioners.
    fn claim(&mut self, name: &str) -> String {
        let suffix = format!("-{name}");
        if !self.claims.iter().any(|claim| claim.name.ends_with(&suffix)) {
            self.claims.push(Volume::new(name));
        }
        let claim = self.claims.iter().find(|claim| claim.name.ends_with(&suffix));
        claim.expect("the claim exists").name.clone()
    }

    fn holder(&self, name: &str, address: &str, held: &[(&Mount, String)]) -> Container {
        let mut image = Image::new(PLAIN).with(["--hostname", name, "--network", &self.network.name, "--ip", address]);
        image = image.with(["--entrypoint", "sleep"]);
        for (mount, volume) in held {
            let mount = format!("type=volume,src={volume},dst=/volumes/{},volume-nocopy", mount.name);
            image = image.with(["--mount", &mount]);
        }
        image.command(["infinity"]).start()
    }

    /// Disk-backed volumes are world-writable (the kubelet's `empty_dir.go`); memory-backed ones also have a sticky bit,
    /// like any tmpfs. In every second pod no volume has a sticky bit, because nothing may depend on the medium.
    fn fill(&self, holder: &Container, mount: &Mount, is_open: bool) {
        match &mount.source {
            // The directory that the kubelet creates in a claim belongs to root.
            Source::Shared => {}
            Source::Empty { memory: true, .. } if !is_open => {}
            Source::Empty { .. } | Source::Claim => make_world_writable(holder, &mount.name),
            Source::Secret { name, mode } => {
                assert_eq!(name, "slurm-munge-key");
                publish(holder, &mount.name, *mode, "munge.key", &self.key);
            }
            Source::ConfigMap { name, mode } => {
                assert_eq!(name, "slurm-config");
                make_world_writable(holder, &mount.name);
                publish(holder, &mount.name, *mode, "slurminit.toml", &self.config);
            }
        }
    }
}

fn volume(source: &Source) -> Volume {
    let volume = Volume { name: unique("volume") };
    let mut arguments = vec!["volume".to_owned(), "create".to_owned()];
    let size = match source {
        Source::Empty { memory: true, bytes } => Some(bytes.map_or(String::new(), |bytes| format!(",size={bytes}"))),
        Source::Secret { .. } => Some(String::new()),
        _ => None,
    };
    if let Some(size) = size {
        arguments.extend(
            ["type=tmpfs", "device=tmpfs", &format!("o=mode=1777{size}")].map(|option| format!("--opt={option}")),
        );
    }
    docker(arguments.iter().chain([&volume.name])).ok();
    volume
}

fn make_world_writable(holder: &Container, volume: &str) {
    holder.sh(&format!("chmod 0777 /volumes/{volume}"));
}

/// Like the kubelet's `atomic_writer.go`: writes a new directory and replaces the link to it atomically.
fn publish(holder: &Container, volume: &str, mode: u64, file: &str, content: &str) {
    let script = r#"
        cd "/volumes/$1"; old=$(readlink ..data || true); new="..$(date +%Y_%m_%d_%H_%M_%S).$(cat /proc/sys/kernel/random/uuid)"
        mkdir -m 0755 "$new"; printf %s "$4" >"$new/$3"; chmod "$2" "$new/$3"
        ln -s "$new" ..data_tmp; mv -T ..data_tmp ..data
        [ -L "$3" ] || ln -s "..data/$3" "$3"
        [ -z "$old" ] || rm -r "$old""#;
    holder.exec(&["sh", "-ec", script, "publish", volume, &format!("{mode:o}"), file, content]).ok();
}

fn image(template: &Template) -> Image {
    Image::new(match template.tag.as_str() {
        _ if template.gpus > 0 => DEMO,
        "full" => FULL,
        _ => PLAIN,
    })
}

/// Runs an init container to completion.
#[track_caller]
fn run_init_container(template: &Template, init: &Init, held: &[(&Mount, String)]) {
    let mut image = image(template).with(["--network", "none"]);
    image = init.options.iter().fold(image, |image, option| image.with([option]));
    for mount in &init.mounts {
        let (_, volume) = held.iter().find(|(other, _)| other.name == mount.name).expect("a volume of the pod");
        image = image.with(["--mount", &format!("type=volume,src={volume},dst={},volume-nocopy", mount.path)]);
    }
    let (program, arguments) = init.command.split_first().expect("a command");
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    image.with(["--entrypoint", program]).run(&arguments).ok();
}

/// The container that the template describes, with the volumes `held`, the kubelet's `files` and the plugin's GPUs.
fn container(template: &Template, holder: &Container, held: &[(&Mount, String)], files: &TempDir) -> Image {
    let mut image = image(template).with(["--network", &format!("container:{}", holder.name)]);
    image = template.options.iter().fold(image, |image, option| image.with([option]));
    for (mount, volume) in held {
        let read_only = if mount.is_read_only { ",readonly" } else { "" };
        let mount = format!("type=volume,src={volume},dst={},volume-nocopy{read_only}", mount.path);
        image = image.with(["--mount", &mount]);
    }
    for file in ["hosts", "resolv.conf"] {
        image = image.with(["--volume", &format!("{}:/etc/{file}", files.path().join(file).display())]);
    }
    if template.gpus > 0 {
        image = image.mount(&files.path().join("gpus"), "/etc/fake-nvml.toml");
        image = image.with(["--device", "/dev/null:/dev/nvidiactl", "--env", &format!("DEMO_GPUS={}", template.gpus)]);
    }
    (0..template.gpus).fold(image, |image, number| image.with(["--device", &format!("/dev/null:/dev/nvidia{number}")]))
}

impl Pod {
    /// Probes like the kubelet until the pod is ready; returns how long that took. Panics where the kubelet would
    /// restart the container.
    #[track_caller]
    pub(crate) fn until_ready(&self, template: &Template) -> Duration {
        let (begin, mut failures, mut tries) = (Instant::now(), 0, 0);
        while self.probe(&template.startup).code != 0 {
            tries += 1;
            assert!(tries < template.startup.failures, "killed by its startup probe\n{}", self.container.log());
            std::thread::sleep(template.startup.period);
        }
        loop {
            if begin.elapsed() >= template.live.delay {
                failures = if self.probe(&template.live).code == 0 { 0 } else { failures + 1 };
                assert!(failures < template.live.failures, "killed by its liveness probe\n{}", self.container.log());
            }
            let next = Instant::now() + template.ready.period;
            let readiness = self.probe(&template.ready);
            if readiness.code == 0 {
                let liveness = self.probe(&template.live);
                assert_eq!(liveness.code, 0, "{liveness:?}");
                return begin.elapsed();
            }
            assert!(begin.elapsed() < Duration::from_secs(90), "not ready: {readiness:?}\n{}", self.container.log());
            std::thread::sleep(next.saturating_duration_since(Instant::now()));
        }
    }

    /// Runs a probe's command; the exit code is 124 after a timeout.
    pub(crate) fn probe(&self, probe: &Probe) -> Outcome {
        let output = Command::new("timeout")
            .args([&probe.timeout.to_string(), "docker", "exec", &self.container.name])
            .args(&probe.command)
            .output()
            .expect("docker is installed");
        Outcome::of(&output)
    }

    /// Like `kubectl delete pod`: the hook, SIGTERM, and SIGKILL after the grace period. Returns how long it took.
    #[track_caller]
    pub(crate) fn delete(self, template: &Template) -> Duration {
        let begin = Instant::now();
        if let Some(command) = &template.pre_stop {
            let grace = template.grace.as_secs().to_string();
            let arguments = ["timeout", &grace].into_iter().chain(command.iter().map(String::as_str));
            self.container.exec(&arguments.collect::<Vec<_>>()).ok();
        }
        let left = template.grace.saturating_sub(begin.elapsed()).as_secs().to_string();
        docker(["stop", "--time", &left, &self.container.name]).ok();
        assert_eq!(self.container.exit_code(), 0, "{}", self.container.log());
        begin.elapsed()
    }

    /// Ends the container and starts it again in the same pod, like the kubelet: `how` is "kill" (a crash) or "stop"
    /// (after a failed liveness probe).
    #[track_caller]
    pub(crate) fn starts_again(&self, how: &str) {
        docker([how, &self.container.name]).ok();
        docker(["start", &self.container.name]).ok();
    }

    /// Updates the pod's ConfigMap volume, like the kubelet after a change of the ConfigMap.
    #[track_caller]
    pub(crate) fn gets_config(&self, template: &Template, toml: &str) {
        let is_config = |mount: &&Mount| matches!(mount.source, Source::ConfigMap { .. });
        let mount = template.mounts.iter().find(is_config).expect("the pod has a configuration");
        publish(&self.holder, &mount.name, 0o644, "slurminit.toml", toml);
    }
}
