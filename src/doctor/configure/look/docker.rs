//! Detects the container engine and Docker Compose with `docker info`, `docker compose version` and
//! `docker-compose version`.

use std::path::Path;
use std::time::Duration;

use serde_json::Value;

use crate::configure::situation::{Compose, Engine, EngineInfo, Version};
use sys::tool;
use sys::tool::answer::{Answer, first_line};

/// Files that indicate an engine on the host. They are checked if there is no docker command, as in the image.
const ENGINE_FILES: [&str; 5] =
    ["run/docker.sock", "var/run/docker.sock", "usr/bin/dockerd", "usr/bin/docker", "usr/local/bin/docker"];

pub(super) fn engine(root: &Path, deadline: Duration) -> Engine {
    let (stdout, stderr) = match tool::ask("docker", &["info", "--format", "{{json .}}"], deadline) {
        Answer::Missing if ENGINE_FILES.iter().any(|path| root.join(path).exists()) => return Engine::NoClient,
        Answer::Missing => return Engine::Missing,
        Answer::Silent => return Engine::TimedOut,
        Answer::Ended { stdout, stderr, .. } => (stdout, stderr),
    };
    let info: Value = serde_json::from_str(stdout.trim()).unwrap_or_default();
    let text = |key: &str| info.get(key).and_then(Value::as_str).unwrap_or_default().to_owned();
    let list = |key: &str| -> Vec<&str> {
        info.get(key).and_then(Value::as_array).into_iter().flatten().filter_map(Value::as_str).collect()
    };
    let version = text("ServerVersion");
    if version.is_empty() {
        let message = first_line(list("ServerErrors").into_iter().chain([stderr.as_str()]));
        return if message.contains("permission denied") { Engine::PermissionDenied } else { Engine::Stopped(message) };
    }
    Engine::Running(EngineInfo {
        version,
        runtimes: info
            .get("Runtimes")
            .and_then(Value::as_object)
            .into_iter()
            .flatten()
            .map(|(name, _)| name.clone())
            .collect(),
        is_rootless: list("SecurityOptions").iter().any(|option| option.starts_with("name=rootless")),
        is_desktop: text("OperatingSystem").contains("Docker Desktop"),
        kernel: text("KernelVersion"),
        has_cdi: !list("CDISpecDirs").is_empty(),
    })
}

pub(super) fn compose(deadline: Duration, engine: &Engine) -> Compose {
    let version =
        |program: &str, arguments: &[&str]| tool::ask(program, arguments, deadline).output().and_then(Version::find);
    if let Some(version) = version("docker", &["compose", "version", "--short"]) {
        return Compose::Version { command: "docker compose", version };
    }
    if let Some(version) = version("docker-compose", &["version", "--short"]) {
        return Compose::Version { command: "docker-compose", version };
    }
    if *engine == Engine::NoClient { Compose::NoClient } else { Compose::Missing }
}
