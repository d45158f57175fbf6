//! The engine and compose, according to their own commands.

use std::path::Path;
use std::time::Duration;

use serde::Deserialize;

use crate::configure::situation::{Compose, Engine, EngineInfo, Version};
use sys::tool;
use sys::tool::answer::{Answer, first_line};

/// Signs of an engine on the host, for use inside the image, which has no docker command.
const ENGINE_FILES: [&str; 5] =
    ["run/docker.sock", "var/run/docker.sock", "usr/bin/dockerd", "usr/bin/docker", "usr/local/bin/docker"];

/// The relevant part of `docker info --format '{{json .}}'`.
#[derive(Default, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
struct Info {
    server_version: Option<String>,
    server_errors: Option<Vec<String>>,
    runtimes: Option<serde_json::Map<String, serde_json::Value>>,
    security_options: Option<Vec<String>>,
    operating_system: Option<String>,
    kernel_version: Option<String>,
    #[serde(rename = "CDISpecDirs")]
    cdi_spec_dirs: Option<Vec<String>>,
}

pub(super) fn engine(root: &Path, deadline: Duration) -> Engine {
    let (stdout, stderr) = match tool::ask("docker", &["info", "--format", "{{json .}}"], deadline) {
        Answer::Missing if ENGINE_FILES.iter().any(|path| root.join(path).exists()) => return Engine::NoClient,
        Answer::Missing => return Engine::Missing,
        Answer::Silent => return Engine::TimedOut,
        Answer::Ended { stdout, stderr, .. } => (stdout, stderr),
    };
    let info: Info = serde_json::from_str(stdout.trim()).unwrap_or_default();
    match info.server_version {
        Some(version) if !version.is_empty() => Engine::Running(EngineInfo {
            version,
            runtimes: info.runtimes.unwrap_or_default().into_iter().map(|(name, _)| name).collect(),
            is_rootless: info
                .security_options
                .unwrap_or_default()
                .iter()
                .any(|option| option.starts_with("name=rootless")),
            is_desktop: info.operating_system.is_some_and(|system| system.contains("Docker Desktop")),
            kernel: info.kernel_version.unwrap_or_default(),
            has_cdi: info.cdi_spec_dirs.is_some_and(|directories| !directories.is_empty()),
        }),
        _ => {
            let errors = info.server_errors.unwrap_or_default();
            let message = first_line(errors.iter().map(String::as_str).chain([stderr.as_str()]));
            if message.contains("permission denied") { Engine::PermissionDenied } else { Engine::Stopped(message) }
        }
    }
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
