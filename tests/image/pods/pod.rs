//! Pods under Docker: what the kubelet makes of a template, as far as a container sees it.
//!
//! As in Kubernetes a pod has a container of its own that does nothing but hold its network and its volumes, so that these outlive
//! the end of the other one.

use std::process::Command;
use std::time::{Duration, Instant};

use tempfile::TempDir;

use super::names::Names;
use super::template::{Mount, Probe, Source, Template};
use crate::docker::{ACCOUNTING, Container, DEMO, Image, LOGIN, Outcome, PLAIN, Volume, directory, docker, unique};

/// The namespace's names: a Service is `NAME.DOMAIN`, and a pod looks up names that are not complete in all three.
const SEARCH: [&str; 3] = ["slurm.svc.cluster.local", "svc.cluster.local", "cluster.local"];

/// A network in which pods have addresses and names, and what the operator put there.
pub(crate) struct Namespace {
    claims: Vec<Volume>,
    names: Names,
    network: Network,
    last: u8,
    key: String,
    config: String,
}

/// A network in which the test chooses the addresses: the kubelet writes a pod's into its /etc/hosts.
struct Network {
    name: String,
    prefix: String,
}

impl Network {
    /// Docker allows chosen addresses only where the subnet was given. The subnet is one that the engine itself chose a moment before: its
    /// firewall forwards those.
    #[track_caller]
    fn new() -> Self {
        let name = unique("pods");
        let created = (0..20).find_map(|_| {
            docker(["network", "create", &name]).ok();
            let format = "{{(index .IPAM.Config 0).Subnet}}";
            let subnet = docker(["network", "inspect", "--format", format, &name]).ok();
            docker(["network", "rm", &name]).ok();
            let (prefix, _) = subnet.split_once('/')?.0.rsplit_once('.')?;
            let again = docker(["network", "create", "--subnet", &format!("{prefix}.0/24"), &name]);
            (again.code == 0).then(|| prefix.to_owned())
        });
        Self { name, prefix: created.expect("other tests took each subnet") }
    }
}

impl Drop for Network {
    fn drop(&mut self) {
        docker(["network", "rm", &self.name]);
    }
}

/// A pod. Its container goes first.
pub(crate) struct Pod {
    pub(crate) container: Container,
    holder: Container,
    _volumes: Vec<Volume>,
    _files: TempDir,
    pub(crate) address: String,
}

impl Namespace {
    /// `config` is slurminit.toml.
    pub(crate) fn new(config: &str) -> Self {
        let key = unique("a-key-of-some-length").repeat(3);
        let network = Network::new();
        // Docker gives the first address to this machine.
        let names = Names::serve(&format!("{}.1", network.prefix));
        Self { claims: Vec::new(), network, names, last: 1, key, config: config.to_owned() }
    }

    /// A container that is no pod of the cluster.
    pub(crate) fn client(&self, image: &'static str) -> Image {
        Image::new(image).with(["--network", &self.network.name])
    }

    /// A pod of a StatefulSet, without waiting for it.
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
                source => {
                    volumes.push(volume(source));
                    volumes[volumes.len() - 1].name.clone()
                }
            };
            held.push((mount, volume));
        }
        let holder = self.holder(&name, &address, &held);
        held.iter().for_each(|(mount, _)| self.fill(&holder, mount, number % 2 == 1));
        run_to_its_end(template, &held);
        let fqdn = format!("{name}.{}.{}", template.domain, SEARCH[0]);
        let hosts = format!("# Kubernetes-managed hosts file.\n127.0.0.1\tlocalhost\n{address}\t{fqdn}\t{name}\n");
        let gpu = "[[gpu]]\nname = \"Simulated NVIDIA H200\"\n".repeat(usize::try_from(template.gpus).expect("some"));
        let resolv = format!("search {}\nnameserver {}.1\noptions ndots:5\n", SEARCH.join(" "), self.network.prefix);
        let files = directory(&[("hosts", &hosts), ("resolv.conf", &resolv), ("gpus", &gpu)]);
        let services = template.services.iter().map(|service| format!("{service}.{}", SEARCH[0]));
        self.names.set(&name, &address, services.chain([fqdn]));
        let container = container(template, &holder, &held, &files).start();
        Pod { container, holder, _volumes: volumes, _files: files, address }
    }

    /// A volume that outlives its pod, as open as some that provisioners make.
    fn claim(&mut self, name: &str) -> String {
        let suffix = format!("-{name}");
        if !self.claims.iter().any(|claim| claim.name.ends_with(&suffix)) {
            self.claims.push(Volume::new(name));
        }
        let claim = self.claims.iter().find(|claim| claim.name.ends_with(&suffix));
        claim.expect("it was made").name.clone()
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

    /// Whatever is on a disk is open to all (the kubelet's `empty_dir.go`); what is in memory has the sticky bit, as a tmpfs has it.
    /// Every second pod has all of it without the sticky bit: nothing may depend on the medium.
    fn fill(&self, holder: &Container, mount: &Mount, is_open: bool) {
        match &mount.source {
            Source::Empty { memory: true, .. } if !is_open => {}
            Source::Empty { .. } | Source::Claim => open(holder, &mount.name),
            Source::Secret { name, mode } => {
                assert_eq!(name, "slurm-munge-key");
                publish(holder, &mount.name, *mode, "munge.key", &self.key);
            }
            Source::ConfigMap { name, mode } => {
                assert_eq!(name, "slurm-config");
                open(holder, &mount.name);
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

fn open(holder: &Container, volume: &str) {
    holder.sh(&format!("chmod 0777 /volumes/{volume}"));
}

/// The kubelet's `atomic_writer.go`: a new directory, and a link that is replaced in one go.
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
        "accounting" => ACCOUNTING,
        "login" => LOGIN,
        _ => PLAIN,
    })
}

/// The pod's init container, if it has one.
#[track_caller]
fn run_to_its_end(template: &Template, held: &[(&Mount, String)]) {
    let Some(init) = &template.init else { return };
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

/// The container that the template describes. `held` are its volumes; what the kubelet adds is `files`, and the device plugin's GPUs.
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
    /// Asks as the kubelet does, until the pod is ready. It would have made the container anew if the liveness probe had failed.
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
            let why = self.probe(&template.ready);
            if why.code == 0 {
                let alive = self.probe(&template.live);
                assert_eq!(alive.code, 0, "{alive:?}");
                return begin.elapsed();
            }
            assert!(begin.elapsed() < Duration::from_secs(90), "not ready: {why:?}\n{}", self.container.log());
            std::thread::sleep(next.saturating_duration_since(Instant::now()));
        }
    }

    /// Runs a command of a probe; one that takes too long ends with 124.
    pub(crate) fn probe(&self, probe: &Probe) -> Outcome {
        let output = Command::new("timeout")
            .args([&probe.timeout.to_string(), "docker", "exec", &self.container.name])
            .args(&probe.command)
            .output()
            .expect("docker is installed");
        Outcome::of(&output)
    }

    /// `kubectl delete pod`: the hook, then TERM, and KILL at the end of the grace period. Returns how long it took.
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

    /// Its container ends, and the kubelet starts another one in the same pod: "kill" is a crash, "stop" what follows on a failed liveness probe.
    #[track_caller]
    pub(crate) fn starts_again(&self, how: &str) {
        docker([how, &self.container.name]).ok();
        docker(["start", &self.container.name]).ok();
    }

    /// The operator has changed the ConfigMap, and the kubelet has seen it.
    #[track_caller]
    pub(crate) fn gets_config(&self, template: &Template, toml: &str) {
        let is_config = |mount: &&Mount| matches!(mount.source, Source::ConfigMap { .. });
        let mount = template.mounts.iter().find(is_config).expect("the pod has a configuration");
        publish(&self.holder, &mount.name, 0o644, "slurminit.toml", toml);
    }
}
