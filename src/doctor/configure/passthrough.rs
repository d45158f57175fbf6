//! The trial: runs a container with the GPUs and reads what it reports.

use super::situation::FileGpus;
use model::inventory::{Access, Inventory, Kind, Obstacle, Vendor};
use sys::tool::answer::{Answer, first_line};

/// Docker's CDI name for all NVIDIA GPUs.
pub const CDI_ALL: &str = "nvidia.com/gpu=all";

/// How Docker passes GPUs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PassMethod {
    /// `--gpus all`: through NVIDIA's runtime hook.
    Gpus,
    /// `--device nvidia.com/gpu=all`: the engine reads the toolkit's CDI specification itself.
    Cdi,
    /// By device files.
    Files(FileGpus),
}

/// The result of the trial.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Trial {
    /// No trial was made, for this reason.
    NotTried(&'static str),
    /// The container could use this number of GPUs.
    Works(usize),
    /// The container could not use the GPUs.
    Fails(Failure),
}

/// Why a container cannot use the GPUs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// The component at fault.
    pub part: Part,
    /// The message of Docker or of the container.
    pub words: String,
}

/// A component that can be at fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// Docker itself.
    Engine,
    /// The toolkit that passes the GPUs.
    Toolkit,
    /// The GPU's driver on the host.
    Driver,
    /// A missing device file.
    Device,
    /// A missing permission.
    Permission,
}

impl Part {
    /// The name in the report.
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
pub fn arguments(way: &PassMethod, image: &str, container: &str) -> Vec<String> {
    let mut arguments = vec!["run".to_owned(), "--rm".to_owned(), "--name".to_owned(), container.to_owned()];
    let mut option = |name: &str, value: &str| arguments.extend([name.to_owned(), value.to_owned()]);
    match way {
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
pub fn judge(vendor: Vendor, answer: &Answer) -> Trial {
    let fails = |part, words: String| Trial::Fails(Failure { part, words });
    match answer {
        Answer::Missing => Trial::NotTried("no docker command here"),
        Answer::Silent => fails(Part::Engine, "the container timed out".to_owned()),
        Answer::Ended { succeeded: false, stdout, stderr } => {
            fails(blame(stderr), first_line([clue(stderr), stderr, stdout]))
        }
        Answer::Ended { stdout, .. } => match serde_json::from_str::<Inventory>(stdout) {
            Err(_) => fails(Part::Engine, format!("unparsable output of the image: {}", first_line([stdout.as_str()]))),
            Ok(inventory) => judge_inventory(vendor, &inventory),
        },
    }
}

/// The line with the cause: Docker wraps the hook's message in its own.
fn clue(stderr: &str) -> &str {
    stderr.lines().find(|line| line.contains("nvidia-container-cli:")).unwrap_or("")
}

fn judge_inventory(vendor: Vendor, inventory: &Inventory) -> Trial {
    let usable = inventory.usable_gpus().filter(|gpu| gpu.vendor == vendor).count();
    if usable > 0 {
        return Trial::Works(usable);
    }
    let gpus = || inventory.gpus.iter().filter(|gpu| gpu.vendor == vendor);
    let reasons = gpus().filter_map(|gpu| match &gpu.access {
        Access::Unusable { reason, .. } => Some(reason.as_str()),
        Access::Usable => None,
    });
    let findings = inventory.findings.iter().map(|finding| finding.what.as_str());
    let words: Vec<&str> = reasons.chain(findings).collect();
    let is_any = |kinds: &[Obstacle]| gpus().filter_map(|gpu| gpu.access.obstacle()).any(|it| kinds.contains(&it));
    let is_drivers = |kind| matches!(kind, Kind::NvmlVersions | Kind::DriverNotLoaded);
    let part = if is_any(&[Obstacle::Denied, Obstacle::Mode]) {
        Part::Permission
    } else if is_any(&[Obstacle::NoDriver, Obstacle::Lost, Obstacle::Hang])
        || inventory.findings.iter().any(|finding| is_drivers(finding.kind))
    {
        Part::Driver
    } else {
        Part::Device
    };
    let words = if words.is_empty() { vec!["no GPU in the container"] } else { words };
    Trial::Fails(Failure { part, words: first_line(words) })
}

/// The component that Docker's message points to. The texts are from Docker 20.10 to 28 and NVIDIA's toolkit 1.8 to
/// 1.18.
fn blame(stderr: &str) -> Part {
    const CLUES: [(&[&str], Part); 5] = [
        (&["permission denied while trying to connect"], Part::Permission),
        (
            &[
                "could not select device driver",
                "unknown or invalid runtime",
                "unresolvable CDI",
                "CDI device injection",
            ],
            Part::Toolkit,
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
            Part::Driver,
        ),
        (&["bpf_prog_query", "devices.allow", "operation not permitted", "permission denied"], Part::Permission),
        (&["adding custom device", "unknown device", "no such device", "gathering device information"], Part::Device),
    ];
    let stderr = stderr.to_lowercase();
    let points = |clues: &[&str]| clues.iter().any(|clue| stderr.contains(&clue.to_lowercase()));
    CLUES.iter().find(|(clues, _)| points(clues)).map_or(Part::Engine, |(_, part)| *part)
}

#[cfg(test)]
mod tests {
    use super::*;
    use model::inventory::Finding;

    fn failed(stderr: &str) -> Trial {
        judge(Vendor::Nvidia, &Answer::Ended { succeeded: false, stdout: String::new(), stderr: stderr.to_owned() })
    }

    #[test]
    fn docker_error_identifies_failed_part() {
        let daemon = "docker: Error response from daemon: ";
        for (error, part) in [
            ("could not select device driver \"\" with capabilities: [[gpu]].", Part::Toolkit),
            ("CDI device injection failed: unresolvable CDI devices nvidia.com/gpu=all", Part::Toolkit),
            ("nvidia-container-cli: initialization error: nvml error: driver not loaded: unknown.", Part::Driver),
            ("nvidia-container-cli: initialization error: nvml error: driver/library version mismatch", Part::Driver),
            ("nvidia-container-cli: requirement error: unsatisfied condition: cuda>=12.4", Part::Driver),
            (
                "nvidia-container-cli: mount error: bpf_prog_query(BPF_CGROUP_DEVICE) failed: operation not permitted",
                Part::Permission,
            ),
            ("nvidia-container-cli: device error: 7: unknown device: unknown.", Part::Device),
            (
                "error gathering device information while adding custom device \"/dev/kfd\": no such file or directory.",
                Part::Device,
            ),
            ("no space left on device", Part::Engine),
        ] {
            let Trial::Fails(failure) = failed(&format!("{daemon}{error}\n")) else { panic!("{error}") };
            assert_eq!(failure.part, part, "{error}");
            assert!(failure.words.contains(error), "{}", failure.words);
        }
    }

    #[test]
    fn finding_identifies_failed_part_if_trial_has_no_gpus() {
        let judged = |kind| {
            let finding = Finding::warning(kind, "no answer", "of two releases", "reboot");
            let inventory = Inventory { findings: vec![finding], ..Inventory::default() };
            let stdout = serde_json::to_string(&inventory).unwrap();
            judge(Vendor::Nvidia, &Answer::Ended { succeeded: true, stdout, stderr: String::new() })
        };
        let failure = |part| Trial::Fails(Failure { part, words: "no answer".to_owned() });
        assert_eq!(judged(Kind::NvmlVersions), failure(Part::Driver));
        assert_eq!(judged(Kind::DriverNotLoaded), failure(Part::Driver));
        assert_eq!(judged(Kind::NvmlLibrary), failure(Part::Device));
    }

    #[test]
    fn shows_last_line_of_hook_output() {
        let Trial::Fails(failure) = failed(
            "docker: Error response from daemon: OCI runtime create failed: stderr: Auto-detected mode as 'legacy'\n\
             nvidia-container-cli: mount error: open failed: /sys/fs/cgroup/devices/user.slice/devices.allow: permission denied\n",
        ) else {
            panic!("the trial did not fail")
        };
        assert_eq!(failure.part, Part::Permission);
        assert!(failure.words.starts_with("nvidia-container-cli: mount error"), "{}", failure.words);
    }
}
