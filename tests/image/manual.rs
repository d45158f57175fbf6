//! Manual configuration, step by step as documented, and the return to generated files.

use std::fs;
use std::path::Path;
use std::process::Command;

use tempfile::TempDir;

use crate::docker::{Container, DEMO, Image, PLAIN, Volume, directory};

/// The directory of compose.yaml, with an empty `config`.
fn project() -> TempDir {
    let project = directory(&[]);
    fs::create_dir(project.path().join("config")).expect("a config directory");
    project
}

/// Runs a documented shell line in the directory of compose.yaml.
#[track_caller]
fn run(project: &TempDir, line: &str) {
    let output = Command::new("sh").args(["-c", line]).current_dir(project).output().expect("a shell");
    assert!(output.status.success(), "{line}: {output:?}");
}

/// The project with the volumes of compose.yaml.
struct Cluster {
    project: TempDir,
    state: Volume,
    key: Volume,
}

impl Cluster {
    fn new() -> Self {
        Self { project: project(), state: Volume::new("state"), key: Volume::new("key") }
    }

    fn image(&self, image: &str) -> Image {
        let config = self.project.path().join("config");
        let image = Image::new(image).with(["--hostname", "slurminit"]).mount(&config, "/config");
        image.volume(&self.state, "/var/lib/slurm").volume(&self.key, "/etc/munge")
    }

    /// Adds the options of compose.yaml's GPU section to an image.
    fn with_gpu(&self, image: &str) -> Image {
        self.image(image).with(["--device", "/dev/null:/dev/nvidia0"])
    }

    /// An image as after `docker compose build --build-arg GPU_TYPE=nvidia`, which adds only the type.
    fn rebuilt_with_gpu(&self) -> Image {
        self.with_gpu(PLAIN).with(["--env", "GPU_TYPE=nvidia"])
    }

    /// Writes a custom slurm.conf: the generated one with the three documented changes.
    fn edit_slurm_conf(&self, generated: &str) {
        let node = "NodeName=localhost CPUs=1 RealMemory=4096 Gres=gpu:nvidia:1 State=UNKNOWN";
        let lines = generated.lines().filter(|line| !line.starts_with("GresTypes=")).map(|line| {
            if line.starts_with("NodeName=") { format!("GresTypes=gpu\n{node}\n") } else { format!("{line}\n") }
        });
        let text: String = lines.chain(["# USER_CUSTOMIZED=true\n".to_owned()]).collect();
        assert_eq!(text.matches(node).count(), 1, "{generated}");
        fs::write(self.path("slurm.conf"), text).expect("slurm.conf is writable");
    }

    fn path(&self, name: &str) -> std::path::PathBuf {
        self.project.path().join("config").join(name)
    }
}

/// Runs the documented "Verification Commands" and "Running GPU Jobs".
#[track_caller]
fn assert_one_gpu(container: &Container) {
    let log = || container.log();
    let nodes = container.sh("sinfo -o '%n %G'");
    assert_eq!(
        nodes.lines().last().unwrap_or_default().split("(S:").next(),
        Some("localhost gpu:nvidia:1"),
        "{}",
        log()
    );
    assert!(container.sh("scontrol show node=localhost | grep Gres").contains("Gres=gpu:nvidia:1"));
    for line in ["srun --gres=gpu:1 printenv", "srun --gres=gpu:nvidia:1 printenv"] {
        assert_eq!(container.sh(&format!("{line} CUDA_VISIBLE_DEVICES")), "0", "{line}: {}", log());
    }
    container.sh("sbatch --wait --gres=gpu:1 --output /dev/null --wrap true");
    assert_ne!(container.exec(&["srun", "--gres=gpu:2", "true"]).code, 0, "the node has one GPU");
    container.until("[ \"$(sinfo --noheader -o %T)\" = idle ]");
}

fn installed(container: &Container, name: &str) -> String {
    container.exec(&["cat", &format!("/etc/slurm/{name}")]).ok()
}

fn read(path: &Path) -> String {
    fs::read_to_string(path).expect("the file exists")
}

#[test]
#[ignore = "needs Docker and the images: run docker/test"]
fn custom_files_survive_restart_and_removal_restores_generated_files() {
    let cluster = Cluster::new();
    // An image built without a GPU, with a GPU at run time: the log names the build argument.
    let first = cluster.with_gpu(PLAIN).serve();
    assert!(first.log().contains("--build-arg GPU_TYPE=nvidia"), "{}", first.log());
    let generated = installed(&first, "slurm.conf");
    drop(first);

    run(&cluster.project, r#"echo "NodeName=localhost Name=gpu Type=nvidia File=/dev/nvidia0" > config/gres.conf"#);
    cluster.edit_slurm_conf(&generated);
    let custom = [read(&cluster.path("slurm.conf")), read(&cluster.path("gres.conf"))];
    let second = cluster.rebuilt_with_gpu().serve();
    assert_one_gpu(&second);
    assert_eq!([installed(&second, "slurm.conf"), installed(&second, "gres.conf")], custom);
    assert!(!second.log().contains("--build-arg"), "{}", second.log());
    // "Mark as custom to prevent auto-regeneration" also applies to later starts.
    second.stop();
    drop(second);
    let third = cluster.rebuilt_with_gpu().serve();
    assert_one_gpu(&third);
    drop(third);
    assert_eq!(
        [read(&cluster.path("slurm.conf")), read(&cluster.path("gres.conf"))],
        custom,
        "a start changed the custom files"
    );

    run(&cluster.project, "rm config/slurm.conf config/gres.conf");
    let regenerated = cluster.rebuilt_with_gpu().serve();
    assert_one_gpu(&regenerated);
    assert!(installed(&regenerated, "gres.conf").contains("AutoDetect=off"));
    assert!(!installed(&regenerated, "slurm.conf").contains("USER_CUSTOMIZED=true\n"));
    drop(regenerated);
    let without = cluster.image(PLAIN).serve();
    assert_eq!(without.sh("sinfo --noheader -o '%n %G %T'"), "localhost (null) idle", "{}", without.log());
}

/// "If automatic detection doesn't work for your setup": NVML reports no GPU, but the device file exists.
#[test]
#[ignore = "needs Docker and the images: run docker/test"]
fn custom_files_apply_when_detection_finds_no_gpu() {
    let cluster = Cluster::new();
    let nothing = directory(&[("machine.toml", "")]);
    let image = || {
        let image = cluster.with_gpu(DEMO).mount(&nothing.path().join("machine.toml"), "/etc/fake-nvml.toml");
        image.with(["--device", "/dev/null:/dev/nvidiactl"]).with(["--entrypoint", "slurminit"]).command(["run"])
    };
    let detected = image().serve();
    assert_eq!(detected.sh("sinfo --noheader -o %G"), "(null)", "{}", detected.log());
    let generated = installed(&detected, "slurm.conf");
    drop(detected);
    run(&cluster.project, r#"echo "NodeName=localhost Name=gpu Type=nvidia File=/dev/nvidia0" > config/gres.conf"#);
    cluster.edit_slurm_conf(&generated);
    assert_one_gpu(&image().serve());
}

#[test]
#[ignore = "needs Docker and the images: run docker/test"]
fn custom_gres_conf_can_use_autodetect() {
    let cluster = Cluster::new();
    let image = || cluster.image(DEMO).with(["--env", "DEMO_GPUS=1"]);
    let detected = image().serve();
    let generated = installed(&detected, "slurm.conf");
    drop(detected);
    run(&cluster.project, r#"echo "AutoDetect=nvml" > config/gres.conf"#);
    cluster.edit_slurm_conf(&generated);
    let container = image().serve();
    assert_eq!(installed(&container, "gres.conf"), "AutoDetect=nvml\n");
    assert_one_gpu(&container);
}

/// "Slurm says 'Invalid GRES specification'": custom files name missing GPUs. The documented fix removes them.
#[test]
#[ignore = "needs Docker and the images: run docker/test"]
fn removing_wrong_custom_files_recovers_node() {
    let cluster = Cluster::new();
    let generated = {
        let detected = cluster.rebuilt_with_gpu().serve();
        installed(&detected, "slurm.conf")
    };
    cluster.edit_slurm_conf(&generated);
    run(&cluster.project, "sed -i s/Gres=gpu:nvidia:1/Gres=gpu:nvidia:2/ config/slurm.conf");
    let wrong = cluster.rebuilt_with_gpu().start();
    wrong.until("sinfo --noheader -o %T 2>/dev/null | grep -q inval");
    let log = wrong.log();
    assert!(log.contains("Gres="), "{log}");
    assert!(log.contains("Gres=gpu:nvidia:1"), "{log}");
    wrong.stop();
    drop(wrong);

    run(&cluster.project, "rm -f config/slurm.conf config/gres.conf");
    assert_one_gpu(&cluster.rebuilt_with_gpu().serve());
}
