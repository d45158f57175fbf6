//! Configuration by hand, step by step as the documents have it, and back again.

use std::fs;
use std::path::Path;
use std::process::Command;

use tempfile::TempDir;

use crate::docker::{Container, DEMO, Image, PLAIN, Volume, directory};

/// The directory of compose.yaml, with nothing in its `config`.
fn project() -> TempDir {
    let project = directory(&[]);
    fs::create_dir(project.path().join("config")).expect("a directory in it");
    project
}

/// A line of the documents, typed in the directory of compose.yaml.
#[track_caller]
fn typed(project: &TempDir, line: &str) {
    let output = Command::new("sh").args(["-c", line]).current_dir(project).output().expect("a shell");
    assert!(output.status.success(), "{line}: {output:?}");
}

/// What compose.yaml makes of the project, as far as it matters.
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

    /// With the GPU section in compose.yaml.
    fn with_gpu(&self, image: &str) -> Image {
        self.image(image).with(["--device", "/dev/null:/dev/nvidia0"])
    }

    /// As after `docker compose build --build-arg GPU_TYPE=nvidia`: the type is what that image has besides.
    fn rebuilt_with_gpu(&self) -> Image {
        self.with_gpu(PLAIN).with(["--env", "GPU_TYPE=nvidia"])
    }

    /// A slurm.conf of one's own begins as the generated one; then the documents' three changes.
    fn edit_slurm_conf(&self, generated: &str) {
        let node = "NodeName=localhost CPUs=1 RealMemory=4096 Gres=gpu:nvidia:1 State=UNKNOWN";
        let lines = generated.lines().filter(|line| !line.starts_with("GresTypes=")).map(|line| {
            if line.starts_with("NodeName=") { format!("GresTypes=gpu\n{node}\n") } else { format!("{line}\n") }
        });
        let text: String = lines.chain(["# USER_CUSTOMIZED=true\n".to_owned()]).collect();
        assert_eq!(text.matches(node).count(), 1, "{generated}");
        fs::write(self.path("slurm.conf"), text).expect("the file");
    }

    fn path(&self, name: &str) -> std::path::PathBuf {
        self.project.path().join("config").join(name)
    }
}

/// The documents' "Verification Commands" and "Running GPU Jobs".
#[track_caller]
fn has_one_gpu(container: &Container) {
    let log = || container.log();
    let said = container.sh("sinfo -o '%n %G'");
    assert_eq!(
        said.lines().last().unwrap_or_default().split("(S:").next(),
        Some("localhost gpu:nvidia:1"),
        "{}",
        log()
    );
    assert!(container.sh("scontrol show node=localhost | grep Gres").contains("Gres=gpu:nvidia:1"));
    for line in ["srun --gres=gpu:1 printenv", "srun --gres=gpu:nvidia:1 printenv"] {
        assert_eq!(container.sh(&format!("{line} CUDA_VISIBLE_DEVICES")), "0", "{line}: {}", log());
    }
    container.sh("sbatch --wait --gres=gpu:1 --output /dev/null --wrap true");
    assert_ne!(container.exec(&["srun", "--gres=gpu:2", "true"]).code, 0, "there is one");
    assert_eq!(container.sh("sinfo --noheader -o %T"), "idle", "{}", log());
}

fn installed(container: &Container, name: &str) -> String {
    container.exec(&["cat", &format!("/etc/slurm/{name}")]).ok()
}

fn read(path: &Path) -> String {
    fs::read_to_string(path).expect("the file is there")
}

#[test]
#[ignore = "needs Docker and the images: run docker/test"]
fn both_files_by_hand_rebuild_and_back_again() {
    let cluster = Cluster::new();
    // Built without a GPU, and now there is one: it says which build to make.
    let first = cluster.with_gpu(PLAIN).serve();
    assert!(first.log().contains("--build-arg GPU_TYPE=nvidia"), "{}", first.log());
    let generated = installed(&first, "slurm.conf");
    drop(first);

    typed(&cluster.project, r#"echo "NodeName=localhost Name=gpu Type=nvidia File=/dev/nvidia0" > config/gres.conf"#);
    cluster.edit_slurm_conf(&generated);
    let own = [read(&cluster.path("slurm.conf")), read(&cluster.path("gres.conf"))];
    let second = cluster.rebuilt_with_gpu().serve();
    has_one_gpu(&second);
    assert_eq!([installed(&second, "slurm.conf"), installed(&second, "gres.conf")], own);
    assert!(!second.log().contains("--build-arg"), "{}", second.log());
    // "Mark as custom to prevent auto-regeneration", also at the starts after this one.
    second.stop();
    drop(second);
    let third = cluster.rebuilt_with_gpu().serve();
    has_one_gpu(&third);
    drop(third);
    assert_eq!(
        [read(&cluster.path("slurm.conf")), read(&cluster.path("gres.conf"))],
        own,
        "the user's own are as before"
    );

    typed(&cluster.project, "rm config/slurm.conf config/gres.conf");
    let back = cluster.rebuilt_with_gpu().serve();
    has_one_gpu(&back);
    assert!(installed(&back, "gres.conf").contains("AutoDetect=off"));
    assert!(!installed(&back, "slurm.conf").contains("USER_CUSTOMIZED=true\n"));
    drop(back);
    let without = cluster.image(PLAIN).serve();
    assert_eq!(without.sh("sinfo --noheader -o '%n %G %T'"), "localhost (null) idle", "{}", without.log());
}

/// "If automatic detection doesn't work for your setup": NVML counts no GPU, and the device file is there.
#[test]
#[ignore = "needs Docker and the images: run docker/test"]
fn files_hold_where_detection_finds_nothing() {
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
    typed(&cluster.project, r#"echo "NodeName=localhost Name=gpu Type=nvidia File=/dev/nvidia0" > config/gres.conf"#);
    cluster.edit_slurm_conf(&generated);
    has_one_gpu(&image().serve());
}

#[test]
#[ignore = "needs Docker and the images: run docker/test"]
fn autodetect_by_hand() {
    let cluster = Cluster::new();
    let image = || cluster.image(DEMO).with(["--env", "DEMO_GPUS=1"]);
    let detected = image().serve();
    let generated = installed(&detected, "slurm.conf");
    drop(detected);
    typed(&cluster.project, r#"echo "AutoDetect=nvml" > config/gres.conf"#);
    cluster.edit_slurm_conf(&generated);
    let container = image().serve();
    assert_eq!(installed(&container, "gres.conf"), "AutoDetect=nvml\n");
    has_one_gpu(&container);
}

/// "Slurm says 'Invalid GRES specification'": files of one's own that name GPUs which are not there; the documents remove them.
#[test]
#[ignore = "needs Docker and the images: run docker/test"]
fn files_that_are_wrong_are_removed_and_all_is_well() {
    let cluster = Cluster::new();
    let generated = {
        let detected = cluster.rebuilt_with_gpu().serve();
        installed(&detected, "slurm.conf")
    };
    cluster.edit_slurm_conf(&generated);
    typed(&cluster.project, "sed -i s/Gres=gpu:nvidia:1/Gres=gpu:nvidia:2/ config/slurm.conf");
    let wrong = cluster.rebuilt_with_gpu().start();
    wrong.until("sinfo --noheader -o %T 2>/dev/null | grep -q inval");
    let said = wrong.log();
    assert!(said.contains("Gres="), "{said}");
    assert!(said.contains("Gres=gpu:nvidia:1"), "{said}");
    wrong.stop();
    drop(wrong);

    typed(&cluster.project, "rm -f config/slurm.conf config/gres.conf");
    has_one_gpu(&cluster.rebuilt_with_gpu().serve());
}
