//! One container with the real slurmd, its NVML plugin, the fake driver and slurminit: the demo image.

use std::io::Write;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use tempfile::TempDir;

use super::machine::Machine;

/// The image that `docker/test` builds, unless `SLURMINIT_DEMO_IMAGE` names another.
fn image() -> String {
    let tests = std::env::var("SLURMINIT_TEST_IMAGE").unwrap_or_else(|_| "slurminit:test".to_owned());
    std::env::var("SLURMINIT_DEMO_IMAGE").unwrap_or_else(|_| format!("{tests}-demo"))
}

const MIG_MINORS: &str = "/proc/driver/nvidia-caps/mig-minors";

/// A running container; removed on drop.
pub(crate) struct Container {
    id: String,
}

/// The result of a command.
pub(crate) struct Outcome {
    pub(crate) ok: bool,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

impl From<Output> for Outcome {
    fn from(output: Output) -> Self {
        let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
        Self { ok: output.status.success(), stdout: text(output.stdout), stderr: text(output.stderr) }
    }
}

impl Container {
    /// Starts the container with munged, which slurmd needs even to list its GPUs.
    pub(crate) fn start() -> Self {
        let image = image();
        let run = std::env::var("SLURMINIT_TEST_RUN").unwrap_or_else(|_| std::process::id().to_string());
        let label = format!("slurminit.test={run}");
        let started = docker(&[
            "run",
            "--detach",
            "--rm",
            "--label",
            &label,
            "--hostname",
            "localhost",
            // Needed only for MIG_MINORS, because Docker does not mount below /proc.
            "--cap-add",
            "SYS_ADMIN",
            "--security-opt",
            "apparmor=unconfined",
            "--entrypoint",
            "sleep",
            &image,
            "infinity",
        ]);
        assert!(started.ok, "{image} does not start; docker/test builds it\n{}", started.stderr);
        let container = Self { id: started.stdout.trim().to_owned() };
        let munge = container.run("runuser -u munge -- mungekey && runuser -u munge -- munged");
        assert!(munge.ok, "munged: {}", munge.stderr);
        let driver = container.run("mount -t tmpfs none /proc/driver && mkdir /proc/driver/nvidia-caps");
        assert!(driver.ok, "/proc/driver: {}", driver.stderr);
        container
    }

    /// Runs a shell script.
    pub(crate) fn run(&self, script: &str) -> Outcome {
        docker(&["exec", &self.id, "sh", "-euc", script])
    }

    /// Installs this machine in the container: files below /machine, device files, and GPUs.
    pub(crate) fn install_machine(&self, machine: &Machine) {
        let files = TempDir::new().unwrap();
        machine.write_tree(files.path()).unwrap();
        // Device files open only below /dev: the container's own file system is mounted nodev.
        let cleared = self.run(
            "rm -rf /machine /dev/nvidia[0-9]* /dev/nvidia-caps && mkdir /dev/nvidia-caps && mkdir /machine && ln -s /usr /machine/usr && ln -s /dev /machine/dev",
        );
        assert!(cleared.ok, "{}", cleared.stderr);
        let copied = docker(&["cp", &format!("{}/.", files.path().display()), &format!("{}:/machine", self.id)]);
        assert!(copied.ok, "{}", copied.stderr);
        for minor in machine.device_files {
            let made = self.run(&format!("mknod -m 0666 /dev/nvidia{minor} c 1 3"));
            assert!(made.ok, "{}", made.stderr);
        }
        for capability in machine.capability_files() {
            let made = self.run(&format!("mknod -m 0444 /dev/nvidia-caps/nvidia-cap{capability} c 1 3"));
            assert!(made.ok, "{}", made.stderr);
        }
        // Slurm's plugin always reads this path; slurminit's `--root` does not apply to it.
        self.write(Path::new(MIG_MINORS), &machine.mig_minors());
        self.write(Path::new("/etc/fake-nvml.toml"), machine.gpus);
    }

    /// Writes one file.
    pub(crate) fn write(&self, path: &Path, text: &str) {
        let mut child = Command::new("docker")
            .args(["exec", "--interactive", &self.id, "sh", "-c", "cat > \"$0\""])
            .arg(path)
            .stdin(Stdio::piped())
            .spawn()
            .unwrap();
        child.stdin.take().unwrap().write_all(text.as_bytes()).unwrap();
        assert!(child.wait().unwrap().success(), "cannot write {} in the container", path.display());
    }
}

impl Drop for Container {
    fn drop(&mut self) {
        docker(&["rm", "--force", &self.id]);
    }
}

fn docker(arguments: &[&str]) -> Outcome {
    match Command::new("docker").args(arguments).output() {
        Ok(output) => output.into(),
        Err(error) => panic!("cannot run docker: {error}"),
    }
}
