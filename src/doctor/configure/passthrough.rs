//! The trial of a container with the GPUs: its arguments, and the interpretation of its output.

use super::situation::FileGpus;
use model::inventory::{Access, Inventory, Kind, Obstacle, Vendor};
use sys::tool::answer::{Answer, first_line};

/// Docker's CDI name for all NVIDIA GPUs.
pub const CDI_ALL: &str = "nvidia.com/gpu=all";

/// How Docker passes a vendor's GPUs to a container.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PassMethod {
    /// `--gpus all`: through NVIDIA's runtime hook.
    Gpus,
    /// `--device nvidia.com/gpu=all`: the engine reads the toolkit's CDI specification itself.
    Cdi,
    /// As device files.
    Files(FileGpus),
}

/// The result of the trial.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Trial {
    /// The trial was not run, for this reason.
    Skipped(&'static str),
    /// The container could use this number of GPUs.
    Passed(usize),
    /// The container could not use the GPUs.
    Failed(Failure),
}

/// Why a container cannot use the GPUs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// The component at fault.
    pub component: Component,
    /// The message of Docker or of the container, or a description.
    pub message: String,
}

/// A component that can be at fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Component {
    /// The Docker engine or the image, or a component that the message does not identify.
    Engine,
    /// The toolkit that passes the GPUs.
    Toolkit,
    /// The GPU's driver on the host.
    Driver,
    /// A device file that is missing in the container; also used if the reason why the container has no usable GPU matches no other component.
    Device,
    /// The permission to open a device file.
    Permission,
}

impl Component {
    /// The component's name in the report.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Engine => "the engine",
            Self::Toolkit => "the toolkit",
            Self::Driver => "the driver",
            Self::Device => "a device",
            Self::Permission => "a permission",
        }
    }
}

/// The arguments of `docker` for a trial.
pub fn arguments(method: &PassMethod, image: &str, container: &str) -> Vec<String> {
    let mut arguments = vec!["run".to_owned(), "--rm".to_owned(), "--name".to_owned(), container.to_owned()];
    let mut option = |name: &str, value: &str| arguments.extend([name.to_owned(), value.to_owned()]);
    match method {
        PassMethod::Gpus => option("--gpus", "all"),
        PassMethod::Cdi => option("--device", CDI_ALL),
        PassMethod::Files(gpus) => {
            for device in gpus.files.shared.into_iter().chain(["/dev/dri"]) {
                option("--device", device);
            }
            if let Some((security, _)) = gpus.files.security {
                option("--security-opt", security);
            }
            for group in gpus.groups() {
                option("--group-add", &group.to_string());
            }
        }
    }
    option("--entrypoint", "slurminit");
    arguments.extend([image, "detect", "--json"].map(str::to_owned));
    arguments
}

/// Interprets the output of the trial.
pub fn interpret(vendor: Vendor, answer: &Answer) -> Trial {
    let failed = |component, message: String| Trial::Failed(Failure { component, message });
    match answer {
        Answer::Missing => Trial::Skipped("docker command not found"),
        Answer::Silent => failed(Component::Engine, "the container timed out".to_owned()),
        Answer::Ended { succeeded: false, stdout, stderr } => {
            failed(failed_component(stderr), first_line([cause_line(stderr), stderr, stdout]))
        }
        Answer::Ended { stdout, .. } => match serde_json::from_str::<Inventory>(stdout) {
            Err(_) => {
                failed(Component::Engine, format!("unparsable output of the image: {}", first_line([stdout.as_str()])))
            }
            Ok(inventory) => interpret_inventory(vendor, &inventory),
        },
    }
}

/// The line with the cause: Docker embeds the message of NVIDIA's hook in a longer message.
fn cause_line(stderr: &str) -> &str {
    stderr.lines().find(|line| line.contains("nvidia-container-cli:")).unwrap_or("")
}

fn interpret_inventory(vendor: Vendor, inventory: &Inventory) -> Trial {
    let usable = inventory.usable_gpus().filter(|gpu| gpu.vendor == vendor).count();
    if usable > 0 {
        return Trial::Passed(usable);
    }
    let gpus = || inventory.gpus.iter().filter(|gpu| gpu.vendor == vendor);
    let reasons = gpus().filter_map(|gpu| match &gpu.access {
        Access::Unusable { reason, .. } => Some(reason.as_str()),
        Access::Usable => None,
    });
    let findings = inventory.findings.iter().map(|finding| finding.what.as_str());
    let messages: Vec<&str> = reasons.chain(findings).collect();
    let has_obstacle =
        |kinds: &[Obstacle]| gpus().filter_map(|gpu| gpu.access.obstacle()).any(|obstacle| kinds.contains(&obstacle));
    let is_driver_problem = |kind| matches!(kind, Kind::NvmlVersions | Kind::DriverNotLoaded);
    let component = if has_obstacle(&[Obstacle::Denied, Obstacle::Mode]) {
        Component::Permission
    } else if has_obstacle(&[Obstacle::NoDriver, Obstacle::Lost, Obstacle::Hang])
        || inventory.findings.iter().any(|finding| is_driver_problem(finding.kind))
    {
        Component::Driver
    } else {
        Component::Device
    };
    let messages = if messages.is_empty() { vec!["no GPU in the container"] } else { messages };
    Trial::Failed(Failure { component, message: first_line(messages) })
}

/// The component that Docker's message points to. The texts are from Docker 20.10 to 28 and NVIDIA's toolkit 1.8 to
/// 1.18.
fn failed_component(stderr: &str) -> Component {
    const CLUES: [(&[&str], Component); 5] = [
        (&["permission denied while trying to connect"], Component::Permission),
        (
            &[
                "could not select device driver",
                "unknown or invalid runtime",
                "unresolvable CDI",
                "CDI device injection",
            ],
            Component::Toolkit,
        ),
        (
            &[
                "driver not loaded",
                "version mismatch",
                "libnvidia-ml.so",
                "nvml error",
                "unsatisfied condition",
                "no adapters were found",
            ],
            Component::Driver,
        ),
        (&["bpf_prog_query", "devices.allow", "operation not permitted", "permission denied"], Component::Permission),
        (
            &["adding custom device", "unknown device", "no such device", "gathering device information"],
            Component::Device,
        ),
    ];
    let stderr = stderr.to_lowercase();
    let is_match = |clues: &[&str]| clues.iter().any(|clue| stderr.contains(&clue.to_lowercase()));
    CLUES.iter().find(|(clues, _)| is_match(clues)).map_or(Component::Engine, |(_, component)| *component)
}

#[cfg(test)]
mod tests {
    use super::*;
    use model::inventory::Finding;

    fn failed(stderr: &str) -> Trial {
        interpret(Vendor::Nvidia, &Answer::Ended { succeeded: false, stdout: String::new(), stderr: stderr.to_owned() })
    }

    #[test]
    fn docker_error_identifies_failed_part() {
        let daemon = "docker: Error response from daemon: ";
        for (error, component) in [
            ("could not select device driver \"\" with capabilities: [[gpu]].", Component::Toolkit),
            ("CDI device injection failed: unresolvable CDI devices nvidia.com/gpu=all", Component::Toolkit),
            ("nvidia-container-cli: initialization error: nvml error: driver not loaded: unknown.", Component::Driver),
            (
                "nvidia-container-cli: initialization error: nvml error: driver/library version mismatch",
                Component::Driver,
            ),
            ("nvidia-container-cli: requirement error: unsatisfied condition: cuda>=12.4", Component::Driver),
            (
                "nvidia-container-cli: mount error: bpf_prog_query(BPF_CGROUP_DEVICE) failed: operation not permitted",
                Component::Permission,
            ),
            ("nvidia-container-cli: device error: 7: unknown device: unknown.", Component::Device),
            (
                "error gathering device information while adding custom device \"/dev/kfd\": no such file or directory.",
                Component::Device,
            ),
            ("no space left on device", Component::Engine),
        ] {
            let Trial::Failed(failure) = failed(&format!("{daemon}{error}\n")) else { panic!("{error}") };
            assert_eq!(failure.component, component, "{error}");
            assert!(failure.message.contains(error), "{}", failure.message);
        }
    }

    #[test]
    fn finding_identifies_failed_part_if_trial_has_no_gpus() {
        let judged = |kind| {
            let finding = Finding::warning(kind, "no answer", "of two releases", "reboot");
            let inventory = Inventory { findings: vec![finding], ..Inventory::default() };
            let stdout = serde_json::to_string(&inventory).unwrap();
            interpret(Vendor::Nvidia, &Answer::Ended { succeeded: true, stdout, stderr: String::new() })
        };
        let failure = |component| Trial::Failed(Failure { component, message: "no answer".to_owned() });
        assert_eq!(judged(Kind::NvmlVersions), failure(Component::Driver));
        assert_eq!(judged(Kind::DriverNotLoaded), failure(Component::Driver));
        assert_eq!(judged(Kind::NvmlLibrary), failure(Component::Device));
    }

    #[test]
    fn shows_last_line_of_hook_output() {
        let Trial::Failed(failure) = failed(
            "docker: Error response from daemon: OCI runtime create failed: stderr: Auto-detected mode as 'legacy'\n\
             nvidia-container-cli: mount error: open failed: /sys/fs/cgroup/devices/user.slice/devices.allow: permission denied\n",
        ) else {
            panic!("the trial did not fail")
        };
        assert_eq!(failure.component, Component::Permission);
        assert!(failure.message.starts_with("nvidia-container-cli: mount error"), "{}", failure.message);
    }
}
