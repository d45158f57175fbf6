//! A machine that is simulated for a container, and the expected GPU resources.

use super::kfd::{self, Chip};
use super::listing;
use super::tree::Tree;
use crate::docker::{Container, DEMO, Image, Outcome, PLAIN, is_built};

/// A row of the table.
pub(crate) struct Machine {
    pub(crate) name: &'static str,
    image: &'static str,
    tree: Tree,
    devices: Vec<String>,
    denied: Vec<String>,
    options: Vec<String>,
    sockets: u32,
    pub(crate) expected: Observed,
}

/// The GPU resources that a user observes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Observed {
    /// The node's Gres in `sinfo`.
    pub(crate) gres: String,
    /// The file of gres.conf's last line.
    pub(crate) last_file: String,
    /// The environment variable of a job on the first device.
    pub(crate) first: String,
    /// The environment variable of a job on the last device.
    pub(crate) last: String,
}

impl Machine {
    fn new(name: &'static str, image: &'static str) -> Self {
        let (devices, denied, options) = (Vec::new(), Vec::new(), Vec::new());
        Self { name, image, tree: Tree::new(), devices, denied, options, sockets: 0, expected: Observed::default() }
    }

    /// A machine with NVIDIA GPUs, reported by the simulated NVML.
    pub(crate) fn nvidia(name: &'static str, nvml: &str) -> Self {
        let mut machine = Self::new(name, DEMO).devices(["nvidiactl"]);
        machine.tree.file("etc/fake-nvml.toml", nvml);
        machine
    }

    /// NVIDIA GPUs in WSL2: one device file for all GPUs, no minors, and the library at WSL2's path.
    pub(crate) fn wsl(name: &'static str, nvml: &str) -> Self {
        let library = harness::fake_nvml();
        let mut machine = Self::new(name, PLAIN).devices(["dxg"]);
        machine.tree.copy(&library, "usr/lib/wsl/lib/libnvidia-ml.so.1");
        machine.tree.file("etc/fake-nvml.toml", &format!("{nvml}\n[[fault]]\nat = 'minor'\nkind = 'not-supported'"));
        machine
    }

    /// A machine with AMD GPUs.
    pub(crate) fn amd(name: &'static str, chips: &[Chip]) -> Self {
        Self::new(name, PLAIN).with_amd(chips)
    }

    /// A machine with AMD GPUs from a topology listing, with these render nodes.
    pub(crate) fn listed(name: &'static str, listing: &str, minors: &[u32]) -> Self {
        let mut machine = Self::new(name, PLAIN).devices(["kfd"]);
        for (path, text) in listing::files(listing) {
            machine.tree.file(&format!("{}/{path}", kfd::NODES), text.trim_end());
        }
        machine.devices.extend(minors.iter().map(|minor| format!("dri/renderD{minor}")));
        machine
    }

    /// A machine without NVML and KFD.
    pub(crate) fn plain(name: &'static str) -> Self {
        Self::new(name, PLAIN)
    }

    /// Adds AMD GPUs, with one render node per partition.
    pub(crate) fn with_amd(mut self, chips: &[Chip]) -> Self {
        let last = chips.iter().map(|chip| chip.socket).max().unwrap_or_default();
        kfd::write(&mut self.tree, last + 1, chips);
        self.devices.push("kfd".to_owned());
        for chip in chips {
            self.devices.extend((0..chip.partitions).map(|partition| format!("dri/renderD{}", chip.minor + partition)));
        }
        self
    }

    /// Whether this part of docker/test uses the machine's image.
    pub(crate) fn is_built(&self) -> bool {
        is_built(self.image)
    }

    /// Simulates one or two sockets instead of the host's.
    pub(crate) fn sockets(mut self, sockets: u32) -> Self {
        self.tree.sockets(sockets);
        self.sockets = sockets;
        self.option(["--cpuset-cpus", "0-1"])
    }

    /// Adds files below `/dev` that can be opened.
    pub(crate) fn devices<const N: usize>(mut self, names: [&str; N]) -> Self {
        self.devices.extend(names.map(str::to_owned));
        self
    }

    /// Adds `/dev/nvidia0` and so on.
    pub(crate) fn gpus(mut self, count: u32) -> Self {
        self.devices.extend((0..count).map(|minor| format!("nvidia{minor}")));
        self
    }

    /// Removes a file below `/dev`.
    pub(crate) fn without(mut self, name: &str) -> Self {
        self.devices.retain(|device| device != name);
        self
    }

    /// Adds a file below `/dev` that the container's device rules deny.
    pub(crate) fn denied(mut self, name: &str) -> Self {
        self = self.without(name);
        self.denied.push(name.to_owned());
        self
    }

    /// Adds a file below `/sys`, `/proc` or `/etc`.
    pub(crate) fn file(mut self, path: &str, text: &str) -> Self {
        self.tree.file(path, text);
        self
    }

    /// Adds MIG instances: `mig-minors`, and a capability file for each number in it.
    pub(crate) fn mig(mut self, minors: &str) -> Self {
        self.tree.file("proc/driver/nvidia-caps/mig-minors", minors.trim_end());
        let numbers = minors.split_whitespace().filter(|word| word.bytes().all(|byte| byte.is_ascii_digit()));
        self.devices.extend(numbers.map(|number| format!("nvidia-caps/nvidia-cap{number}")));
        self
    }

    /// Sets slurminit.toml.
    pub(crate) fn config(self, toml: &str) -> Self {
        self.file("config/slurminit.toml", toml)
    }

    /// Adds an option of `docker run`.
    pub(crate) fn option<const N: usize>(mut self, option: [&str; N]) -> Self {
        self.options.extend(option.map(str::to_owned));
        self
    }

    /// Sets the expected result.
    pub(crate) fn offers(mut self, gres: &str, last_file: &str, first: &str, last: &str) -> Self {
        let [gres, last_file, first, last] = [gres, last_file, first, last].map(str::to_owned);
        self.expected = Observed { gres, last_file, first, last };
        self
    }

    /// The image, with the options that simulate the machine.
    fn image(&self) -> Image {
        let image = Image::new(self.image)
            .mount(self.tree.path(), "/machine")
            .with(["--cap-add", "SYS_ADMIN", "--security-opt", "apparmor=unconfined", "--hostname", "node1"])
            .with(["--env", &format!("DEVICES={}", self.devices.join(" "))])
            .with(["--env", &format!("DENIED={}", self.denied.join(" "))])
            .with(["--env", "GPU_TYPE=", "--entrypoint", "sh"]);
        let image = match self.sockets {
            0 => image,
            2 => image.with(["--env", "HWLOC_SYNTHETIC=pack:2 core:1 pu:1"]),
            _ => image.with(["--env", "HWLOC_SYNTHETIC=pack:1 core:2 pu:1"]),
        };
        self.options.iter().fold(image, |image, option| image.with([option.as_str()]))
    }

    /// Boots the machine and waits until it is ready.
    pub(crate) fn serve(&self) -> Container {
        self.image().command(["-ec", SIMULATE_MACHINE, "sh"]).serve()
    }

    /// Boots the machine and runs a job on its first and its last device.
    pub(crate) fn run_jobs(&self) -> Result<Observed, String> {
        let types: Vec<(&str, u32)> = self.expected.gres.split(',').filter_map(type_and_count).collect();
        let (Some((first, _)), Some((last, count))) = (types.first(), types.last()) else {
            return Err(format!("no GPU expected: {:?}", self.expected.gres));
        };
        let before_last = (count - 1).to_string();
        let jobs = ["--", "sh", "-ec", RUN_JOBS, "sh", first, last, &before_last];
        let outcome = self.image().run(&[&["-ec", SIMULATE_MACHINE, "sh"], jobs.as_slice()].concat());
        parse(&outcome).ok_or_else(|| format!("exit code {}\n{}{}", outcome.code, outcome.stdout, outcome.stderr))
    }
}

/// Parses a GRES: `gpu:nvidia:2` gives `nvidia` and 2.
fn type_and_count(gres: &str) -> Option<(&str, u32)> {
    let (name, count) = gres.strip_prefix("gpu:")?.rsplit_once(':')?;
    Some((name, count.parse().ok()?))
}

/// Parses the output of [`RUN_JOBS`].
fn parse(outcome: &Outcome) -> Option<Observed> {
    let mut lines = outcome.stdout.lines();
    let mut next = || lines.next().map(str::to_owned);
    // sinfo appends the sockets if there are several.
    let node = next()?;
    let gres: Vec<&str> =
        node.strip_prefix("idle ")?.split(',').map(|one| one.split("(S:").next().unwrap_or(one)).collect();
    // `(S:0,2)` contains a comma.
    let gres = gres.into_iter().filter(|one| one.starts_with("gpu:")).collect::<Vec<_>>().join(",");
    let observed = Observed { gres, last_file: next()?, first: next()?, last: next()? };
    (outcome.code == 0 && next().is_none()).then_some(observed)
}

/// Docker cannot mount below `/proc` and `/sys`, so the container mounts there before it executes slurminit.
const SIMULATE_MACHINE: &str = r#"
for directory in sys/class sys/bus/pci/devices sys/devices/system/cpu sys/devices/system/node proc/driver; do
    [ ! -d "/machine/$directory" ] || mount --bind "/machine/$directory" "/$directory"
done
for name in $DEVICES $DENIED; do mkdir -p "/dev/$(dirname "$name")"; done
for name in $DEVICES; do [ -e "/dev/$name" ] || mknod -m 0666 "/dev/$name" c 1 3; done
# No container of Docker's may open these numbers.
for name in $DENIED; do mknod -m 0666 "/dev/$name" c 226 200; done
[ ! -d /machine/etc ] || cp /machine/etc/* /etc
[ ! -d /machine/config ] || { mkdir -p /config; cp /machine/config/* /config; }
[ ! -d /machine/usr ] || cp -r /machine/usr/. /usr
exec slurminit run "$@"
"#;

/// Arguments: the first type, the last type, and the number of devices of the last type before the last device.
const RUN_JOBS: &str = r#"
variables() {
    timeout 30 srun --gres="gpu:$1:1" sh -c 'env | grep -E "^(CUDA|ROCR|HIP)_VISIBLE_DEVICES=|^(ZE_AFFINITY_MASK|GPU_DEVICE_ORDINAL)=" | sort | paste -sd " " -'
}
sinfo --noheader -N -o "%T %G"
tail -n 1 /etc/slurm/gres.conf | grep -oE "File(s)?=[^ ]*" | sed "s/.*=//"
variables "$1"
if [ "$3" -gt 0 ]; then
    timeout 60 srun --gres="gpu:$2:$3" sh -c "touch /tmp/held; until [ -e /tmp/done ]; do sleep 0.02; done" &
    until [ -e /tmp/held ]; do sleep 0.02; done
fi
variables "$2"
touch /tmp/done
wait
"#;
