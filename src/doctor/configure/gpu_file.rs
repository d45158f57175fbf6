//! The text of `compose.gpus.yaml`, which the service in `compose.yaml` extends. `compose.override.yaml` belongs to the
//! user.

use std::fmt::Write as _;

use super::choice::{GpuType, Selection};
use super::passthrough::{CDI_ALL, PassMethod};
use super::situation::FileGpus;
use model::inventory::Vendor;

/// The name of the file.
pub const NAME: &str = "compose.gpus.yaml";
/// The variable from which compose.yaml reads the file's name.
pub const VARIABLE: &str = "GPU_COMPOSE_FILE";
/// The names of the user's override file; compose reads only one of them.
pub const OVERRIDES: [&str; 4] =
    ["compose.override.yaml", "compose.override.yml", "docker-compose.override.yml", "docker-compose.override.yaml"];
/// The beginning of the first line of the generated file. A file without it belongs to the user.
pub const MARK: &str = "# Written by slurminit configure";

/// The GPUs that are passed to the container, and the methods.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ContainerGpus {
    /// The GPU type of the image.
    pub gpu_type: GpuType,
    /// The vendors whose GPUs are passed, each with the method.
    pub pass_methods: Vec<(Vendor, PassMethod)>,
    /// The GPUs that the user has selected.
    pub selection: Selection,
}

impl ContainerGpus {
    /// Whether no GPU is passed, so that compose.yaml is sufficient.
    pub fn has_no_gpus(&self) -> bool {
        self.pass_methods.is_empty()
    }

    /// Whether the user's file contains all settings of the generated file except the image. Always true without GPUs.
    pub fn is_covered_by(&self, user_text: &str) -> bool {
        let generated = render(self);
        let is_setting = |line: &&str| !line.starts_with('#') && !line.starts_with("image:");
        let mut lines = generated.lines().map(str::trim).filter(is_setting);
        self.has_no_gpus() || lines.all(|line| user_text.lines().any(|user_line| user_line.trim() == line))
    }
}

/// Renders compose.gpus.yaml.
pub fn render(container_gpus: &ContainerGpus) -> String {
    let ContainerGpus { gpu_type, pass_methods, selection } = container_gpus;
    let mut text = format!(
        "{MARK} for the GPUs of this host; `slurminit configure` replaces it.\n\
         # slurminit does not replace a file with another first line.\n\
         services:\n  slurm:\n    image: slurminit:latest\n    build:\n      args:\n        GPU_TYPE: {}\n",
        gpu_type.as_str()
    );
    let mut file_gpus = Vec::new();
    for (_, method) in pass_methods {
        match method {
            PassMethod::Gpus => text += &reservation("nvidia", "count: all", "", selection),
            PassMethod::Cdi => {
                text += &reservation("cdi", &device_ids([CDI_ALL.to_owned()]), "nvidia.com/gpu=", selection)
            }
            PassMethod::Files(gpus) => file_gpus.push(gpus),
        }
    }
    text + &files_section(&file_gpus, selection)
}

/// Reserves the devices of one of Docker's GPU drivers: all, or the selected ones. `prefix` precedes each selected
/// name.
fn reservation(driver: &str, all_devices: &str, prefix: &str, selection: &Selection) -> String {
    let devices = match selection {
        Selection::All => all_devices.to_owned(),
        Selection::Ids(ids) => device_ids(ids.iter().map(|id| format!("{prefix}{id}"))),
    };
    format!(
        "    deploy:\n      resources:\n        reservations:\n          devices:\n            - driver: {driver}\n              \
         {devices}\n              capabilities: [gpu, compute, utility]\n"
    )
}

fn device_ids(ids: impl IntoIterator<Item = String>) -> String {
    let quoted: Vec<String> = ids.into_iter().map(|id| format!("'{id}'")).collect();
    format!("device_ids: [{}]", quoted.join(", "))
}

fn files_section(file_gpus: &[&FileGpus], selection: &Selection) -> String {
    let mut devices: Vec<&str> = file_gpus.iter().filter_map(|gpus| gpus.files.shared).collect();
    match selection {
        Selection::All => devices.extend(file_gpus.first().map(|_| "/dev/dri")),
        Selection::Ids(ids) => devices.extend(file_gpus.iter().flat_map(|gpus| {
            ids.iter().filter_map(|id| gpus.render_nodes.get(id.index()?)).map(|node| node.path.as_str())
        })),
    }
    let mut groups: Vec<u32> = file_gpus.iter().flat_map(|gpus| gpus.groups()).collect();
    groups.sort_unstable();
    groups.dedup();
    let mut text = list("devices", devices.iter().map(|path| format!("{path}:{path}")));
    if !groups.is_empty() {
        text +=
            "    # The groups that own these files on this host, by number: the container has no group \"render\".\n";
        text += &list("group_add", groups.iter().map(|group| format!("\"{group}\"")));
    }
    let security = || file_gpus.iter().filter_map(|gpus| gpus.files.security);
    for (_, why) in security() {
        let _ = writeln!(text, "    # {why}");
    }
    text + &list("security_opt", security().map(|(option, _)| option.replacen('=', ":", 1)))
}

/// Renders a key of the service whose value is a list; an empty text if the list is empty.
fn list(key: &str, items: impl IntoIterator<Item = String>) -> String {
    let items: String = items.into_iter().map(|item| format!("      - {item}\n")).collect();
    if items.is_empty() { items } else { format!("    {key}:\n{items}") }
}

/// Whether slurminit wrote the file and may replace it.
pub fn is_generated(text: &str) -> bool {
    text.lines().next().is_some_and(|line| line.starts_with(MARK))
}
