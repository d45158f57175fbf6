//! The text of `compose.gpus.yaml`, which the service of `compose.yaml` extends. `compose.override.yaml` is people's own. PURE.

use std::fmt::Write as _;

use super::choice::{GpuType, Selection};
use super::passthrough::{CDI_ALL, Way};
use super::situation::Amd;

/// The file's name.
pub const NAME: &str = "compose.gpus.yaml";
/// The variable that names the file for compose.yaml.
pub const VARIABLE: &str = "GPU_COMPOSE_FILE";
/// Where it was written before; a file with our first line there would give the GPUs twice.
pub const FORMER_NAME: &str = "compose.override.yaml";
/// The names of people's own file, of which compose reads one.
pub const OVERRIDES: [&str; 4] =
    [FORMER_NAME, "compose.override.yml", "docker-compose.override.yml", "docker-compose.override.yaml"];
/// Its first line. A file without it is the user's.
pub const MARK: &str = "# Written by slurminit configure";

/// What the container is to be given.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wanted {
    /// What the image is built for.
    pub gpu_type: GpuType,
    /// NVIDIA's GPUs, and how.
    pub nvidia: Option<(Way, Selection)>,
    /// AMD's GPUs.
    pub amd: Option<(Amd, Selection)>,
}

impl Wanted {
    /// Whether compose.yaml alone gives it.
    pub fn is_plain(&self) -> bool {
        self.nvidia.is_none() && self.amd.is_none()
    }

    /// Whether a user's own file has every line of ours, as the report asks for, whatever else it has.
    pub fn is_met_by(&self, theirs: &str) -> bool {
        let ours = render(self);
        let is_telling = |line: &&str| !line.starts_with('#') && !line.starts_with("image:");
        let mut lines = ours.lines().map(str::trim).filter(is_telling);
        self.is_plain() || lines.all(|line| theirs.lines().any(|their| their.trim() == line))
    }
}

/// The file.
pub fn render(wanted: &Wanted) -> String {
    let Wanted { gpu_type, nvidia, amd } = wanted;
    let mut text = format!(
        "{MARK} for the GPUs of this host; `slurminit configure` replaces it.\n\
         # A file without the first line is yours, and stays as it is.\n\
         services:\n  slurm:\n    image: slurminit:latest\n    build:\n      args:\n        GPU_TYPE: {}\n",
        gpu_type.as_str()
    );
    if let Some((way, selection)) = nvidia {
        text += &nvidia_section(*way, selection);
    }
    if let Some((amd, selection)) = amd {
        text += &amd_section(amd, selection);
    }
    text
}

fn nvidia_section(way: Way, selection: &Selection) -> String {
    let head = "    deploy:\n      resources:\n        reservations:\n          devices:\n";
    let (driver, which) = match (way, selection) {
        (Way::Gpus, Selection::All) => ("nvidia", "count: all".to_owned()),
        (Way::Gpus, Selection::Ids(ids)) => ("nvidia", device_ids(ids.iter().map(ToString::to_string))),
        (Way::Cdi, Selection::All) => ("cdi", device_ids([CDI_ALL.to_owned()])),
        (Way::Cdi, Selection::Ids(ids)) => ("cdi", device_ids(ids.iter().map(|id| format!("nvidia.com/gpu={id}")))),
    };
    format!(
        "{head}            - driver: {driver}\n              {which}\n              capabilities: [gpu, compute, utility]\n"
    )
}

fn device_ids(ids: impl IntoIterator<Item = String>) -> String {
    let quoted: Vec<String> = ids.into_iter().map(|id| format!("'{id}'")).collect();
    format!("device_ids: [{}]", quoted.join(", "))
}

fn amd_section(amd: &Amd, selection: &Selection) -> String {
    let mut text = "    devices:\n      - /dev/kfd:/dev/kfd\n".to_owned();
    match selection {
        Selection::All => text += "      - /dev/dri:/dev/dri\n",
        Selection::Ids(ids) => {
            for node in ids.iter().filter_map(|id| amd.render_nodes.get(id.index()?)) {
                let _ = writeln!(text, "      - {0}:{0}", node.path);
            }
        }
    }
    let groups = amd.groups();
    if !groups.is_empty() {
        text +=
            "    # The groups that own these files on this host, by number: the container knows no group \"render\".\n";
        text += "    group_add:\n";
        for group in groups {
            let _ = writeln!(text, "      - \"{group}\"");
        }
    }
    text += "    # ROCm sets memory policies (set_mempolicy, mbind), which Docker's profile refuses.\n";
    text += "    security_opt:\n      - seccomp:unconfined\n";
    text
}

/// Whether the text of a file that is there is ours to replace.
pub fn is_ours(text: &str) -> bool {
    text.lines().next().is_some_and(|line| line.starts_with(MARK))
}
