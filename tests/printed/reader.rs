//! Runs the blocks of a page in a copy of the project, as a reader would type them.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use tempfile::TempDir;

use super::page::{Block, How, Target, session};
use super::shape;
use crate::docker::{DEMO, FULL, PLAIN, directory, label, tag, unique};

pub(crate) struct Reader {
    directory: TempDir,
    /// Compose project name of the cluster.
    project: String,
    is_up: bool,
    /// Whether the cluster has the image of the target `full`.
    is_full: bool,
}

impl Reader {
    pub(crate) fn new(root: &Path) -> Self {
        let reader = Self { directory: directory(&[]), project: unique("printed"), is_up: false, is_full: false };
        for name in ["README.md", "compose.yaml", "config", "docker", "docs"] {
            copy(&root.join(name), &reader.directory.path().join(name));
        }
        // Use the image under test, not another image with the default tag.
        for name in ["compose.yaml", "docker/compose.demo.yaml", "docker/compose.none.yaml"] {
            let path = reader.path(name);
            let text = fs::read_to_string(&path).expect("a Compose file");
            fs::write(&path, reader.with_test_names(&text)).expect("the copy is writable");
        }
        reader
    }

    /// Writes or runs a block.
    pub(crate) fn process(&mut self, block: &Block) -> Result<(), String> {
        if block.how.full && self.is_up && !self.is_full {
            return Err("image=full has to be at the first block of the page that uses its cluster".to_owned());
        }
        self.is_full |= block.how.full;
        match &block.target {
            Target::Skip | Target::Script(_) => return Ok(()),
            Target::File(path) => return self.write(path, &block.text, block.how.fails),
            Target::Host => match block.text.split_once("docker compose ") {
                // The page starts the cluster itself.
                Some((_, first)) if first.starts_with("up ") => self.is_up = true,
                Some(_) => self.start_cluster()?,
                None => {}
            },
            Target::Container => self.start_cluster()?,
            Target::BareContainer => {}
        }
        if !block.is_session {
            let output = self.run_commands(&block.text, &block.target, block.how);
            return check_exit(&output, block.how.fails).map(drop);
        }
        for (command, expected) in session(&block.text) {
            let output = self.run_commands(&command, &block.target, block.how);
            let printed = check_exit(&output, block.how.fails).map_err(|why| format!("{command}: {why}"))?;
            if let Some(why) = shape::difference(&expected, &printed) {
                return Err(format!("{command}: {why}; full output:\n{printed}"));
            }
        }
        Ok(())
    }

    /// Writes a file. Reloads a running cluster if the file is its configuration.
    fn write(&self, path: &str, text: &str, is_refused: bool) -> Result<(), String> {
        let full_path = self.path(path);
        fs::create_dir_all(full_path.parent().expect("a path in the project")).expect("a directory");
        fs::write(full_path, self.with_test_names(text)).expect("a file");
        if text.starts_with("#!/bin/bash") {
            check_exit(&self.run("bash", &["-n", path]), false)?;
        }
        if self.is_up && path == "config/slurminit.toml" {
            let output = self.bash("docker compose exec -T slurm slurminit reload");
            return check_exit(&output, is_refused).map(drop);
        }
        Ok(())
    }

    fn start_cluster(&mut self) -> Result<(), String> {
        if self.is_up {
            return Ok(());
        }
        self.is_up = true;
        let output =
            self.bash("docker compose up -d --no-build && docker compose exec -T slurm slurminit health --wait 60");
        check_exit(&output, false).map(drop)
    }

    fn run_commands(&self, commands: &str, target: &Target, how: How) -> Output {
        let mut commands = self
            .with_test_names(commands)
            .replace("docker run ", &format!("docker run --label {} ", label()))
            .replace("docker network create ", &format!("docker network create --label {} ", label()));
        if how.tty {
            commands = format!("echo exit | script --quiet --return --command '{}' /dev/null", commands.trim_end());
        }
        match target {
            Target::Container => {
                let arguments = ["compose", "exec", "-T", "slurm", "bash", "-eo", "pipefail", "-c", &commands];
                self.run("docker", &arguments)
            }
            Target::BareContainer => {
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
        let mut command = Command::new("timeout");
        if self.is_full {
            command.env("SLURMINIT_IMAGE", tag(FULL));
        }
        command
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

    /// Replaces image, project and volume names, so that tests do not touch a developer's objects on this machine.
    fn with_test_names(&self, text: &str) -> String {
        text.replace("slurminit:latest", &tag(PLAIN))
            .replace("slurminit:demo", &tag(DEMO))
            .replace("slurminit:my-", &format!("{}-my-", tag(PLAIN)))
            .replace("-p slurminit-demo", &format!("-p {}", self.project))
            .replace("slurminit_", &format!("{}_", self.project))
            .replace("network create lab", &format!("network create {}_lab", self.project))
            .replace("--network lab", &format!("--network {}_lab", self.project))
            .replace("-v lab-", &format!("-v {}_lab-", self.project))
            // Container names must be unique in the engine, so they get a prefix. In the network, an alias keeps the name of the page.
            .replace("--name controller ", &format!("--name {}_controller --network-alias controller ", self.project))
            .replace("--name compute-1 ", &format!("--name {}_compute-1 --network-alias compute-1 ", self.project))
            .replace("docker exec controller", &format!("docker exec {}_controller", self.project))
    }

    /// Value of COMPOSE_FILE. Setting it disables Compose's search, so compose.override.yaml is listed explicitly.
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
        // Removes the containers and networks of `docker run`, the images that the page builds, and the volumes.
        self.bash(&format!("docker ps --all --quiet --filter name=^{}_ | xargs -r docker rm --force", self.project));
        self.bash(&format!(
            "docker network ls --quiet --filter name=^{}_lab | xargs -r docker network rm",
            self.project
        ));
        self.bash(&format!("docker images --quiet '{}-my-*' | xargs -r docker rmi --force", tag(PLAIN)));
        self.bash(&format!("docker volume ls --quiet --filter name=^{}_ | xargs -r docker volume rm", self.project));
    }
}

/// The output of a command, or an error if the exit status is not the expected one.
fn check_exit(output: &Output, fails: bool) -> Result<String, String> {
    let text = |bytes| String::from_utf8_lossy(bytes).into_owned();
    let (stdout, stderr) = (text(&output.stdout), text(&output.stderr));
    if output.status.success() == fails {
        return Err(format!("{}\nstdout: {stdout}\nstderr: {stderr}", output.status));
    }
    // Error messages go to standard error.
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
