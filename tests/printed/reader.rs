//! Somebody who reads a page, in a copy of the project, and types what it says.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use tempfile::TempDir;

use crate::docker::{DEMO, PLAIN, directory, label, tag, unique};
use crate::page::{Block, How, session};
use crate::shape;

pub(crate) struct Reader {
    directory: TempDir,
    /// Compose's name of the cluster.
    project: String,
    is_up: bool,
}

impl Reader {
    pub(crate) fn new(root: &Path) -> Self {
        let reader = Self { directory: directory(&[]), project: unique("printed"), is_up: false };
        for name in ["README.md", "compose.yaml", "config", "docker", "docs"] {
            copy(&root.join(name), &reader.directory.path().join(name));
        }
        // The cluster's image, and nobody else's of that name.
        for name in ["compose.yaml", "docker/compose.demo.yaml", "docker/compose.none.yaml"] {
            let path = reader.path(name);
            let text = fs::read_to_string(&path).expect("a file of compose");
            fs::write(&path, reader.named(&text)).expect("the copy can be written");
        }
        reader
    }

    /// Writes or runs a block.
    pub(crate) fn take(&mut self, block: &Block) -> Result<(), String> {
        match &block.how {
            How::Skip => return Ok(()),
            How::File(path) => return self.write(path, &block.text),
            How::OnTheHost => match block.text.split_once("docker compose ") {
                // What the page itself starts needs nothing of ours before it.
                Some((_, first)) if first.starts_with("up ") => self.is_up = true,
                Some(_) => self.come_up()?,
                None => {}
            },
            How::InTheContainer => self.come_up()?,
            How::InABareContainer => {}
        }
        if !block.is_session {
            let output = self.typed(&block.text, &block.how);
            return ended(&output, block.fails).map(drop);
        }
        for (command, shown) in session(&block.text) {
            let output = self.typed(&command, &block.how);
            let printed = ended(&output, block.fails).map_err(|why| format!("{command}: {why}"))?;
            if let Some(why) = shape::difference(&shown, &printed) {
                return Err(format!("{command}: {why}, of:\n{printed}"));
            }
        }
        Ok(())
    }

    /// A change of the configuration is taken before the next block.
    fn write(&self, path: &str, text: &str) -> Result<(), String> {
        let whole = self.path(path);
        fs::create_dir_all(whole.parent().expect("it is in the project")).expect("a directory");
        fs::write(whole, self.named(text)).expect("a file");
        if self.is_up && path == "config/slurminit.toml" {
            let output = self.bash("docker compose exec -T slurm slurminit reload");
            return ended(&output, false).map(drop);
        }
        Ok(())
    }

    fn come_up(&mut self) -> Result<(), String> {
        if self.is_up {
            return Ok(());
        }
        self.is_up = true;
        let output =
            self.bash("docker compose up -d --no-build && docker compose exec -T slurm slurminit health --wait 60");
        ended(&output, false).map(drop)
    }

    fn typed(&self, commands: &str, how: &How) -> Output {
        let commands = self.named(commands);
        match how {
            How::InTheContainer => {
                let arguments = ["compose", "exec", "-T", "slurm", "bash", "-eo", "pipefail", "-c", &commands];
                self.run("docker", &arguments)
            }
            How::InABareContainer => {
                let arguments = [
                    "run",
                    "--rm",
                    "--label",
                    label(),
                    "--entrypoint",
                    "bash",
                    &tag(PLAIN),
                    "-eo",
                    "pipefail",
                    "-c",
                    &commands,
                ];
                self.run("docker", &arguments)
            }
            _ => self.bash(&commands),
        }
    }

    fn bash(&self, commands: &str) -> Output {
        self.run("bash", &["-eo", "pipefail", "-c", commands])
    }

    fn run(&self, program: &str, arguments: &[&str]) -> Output {
        Command::new("timeout")
            .args(["--kill-after=1", "180", program])
            .args(arguments)
            .current_dir(&self.directory)
            .env("COMPOSE_PROJECT_NAME", &self.project)
            .env("COMPOSE_FILE", self.compose_files())
            .env("DEMO_GPUS", "2")
            .env_remove("GPU_COMPOSE_FILE")
            .stdin(Stdio::null())
            .output()
            .expect("timeout is installed")
    }

    /// Names that are this machine's, not the page's: what somebody works with here stays as it is.
    fn named(&self, text: &str) -> String {
        text.replace("slurminit:latest", &tag(PLAIN))
            .replace("slurminit:demo", &tag(DEMO))
            .replace("slurminit:my-", &format!("{}-my-", tag(PLAIN)))
            .replace("-p slurminit-demo", &format!("-p {}", self.project))
            .replace("slurminit_", &format!("{}_", self.project))
    }

    /// Named, so compose does not look for the user's own file by itself.
    fn compose_files(&self) -> &'static str {
        if self.path("compose.override.yaml").exists() {
            "compose.yaml:docker/compose.demo.yaml:compose.override.yaml"
        } else {
            "compose.yaml:docker/compose.demo.yaml"
        }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        if self.is_up {
            self.bash("docker compose down --volumes --timeout 5");
        }
        // Images of the reader's own, and volumes of a `docker run`.
        self.bash(&format!("docker images --quiet '{}-my-*' | xargs -r docker rmi --force", tag(PLAIN)));
        self.bash(&format!("docker volume ls --quiet --filter name=^{}_ | xargs -r docker volume rm", self.project));
    }
}

/// What was printed, if the end is the one that the page leads to expect.
fn ended(output: &Output, fails: bool) -> Result<String, String> {
    let text = |bytes| String::from_utf8_lossy(bytes).into_owned();
    let (stdout, stderr) = (text(&output.stdout), text(&output.stderr));
    if output.status.success() == fails {
        return Err(format!("{}\nstdout: {stdout}\nstderr: {stderr}", output.status));
    }
    // A refusal is on standard error.
    Ok(if fails { stdout + &stderr } else { stdout })
}

fn copy(from: &Path, to: &Path) {
    if !from.is_dir() {
        fs::copy(from, to).expect("a file of the project");
        return;
    }
    fs::create_dir(to).expect("a directory");
    for entry in fs::read_dir(from).expect("a directory of the project") {
        let name = entry.expect("an entry").file_name();
        copy(&from.join(&name), &to.join(&name));
    }
}
