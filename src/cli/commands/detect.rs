//! `slurminit detect`: shows the GPUs, CPUs and memory that this container can use.

pub(super) mod table;

use std::path::{Path, PathBuf};
use std::time::Duration;

use super::Configuration;
use doctor::facts::CudaFacts;
use doctor::look;
use doctor::requirements::{Requirement, RequirementFacts, requirements};
use images::runtime::{self, Backend};
use model::inventory::Inventory;
use model::printable;
use probe::Options;

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Print everything as JSON
    #[arg(long)]
    json: bool,
    /// Look for /proc, /sys, /dev, /usr and other directories below this directory
    #[arg(long, value_name = "DIR", default_value = "/")]
    root: PathBuf,
    /// Timeout of the detection; with several GPUs, NVIDIA's driver may take up to 2.5 times as long
    #[arg(long, value_name = "SECONDS", default_value = "10", value_parser = parse_seconds)]
    timeout: Duration,
}

/// The output of `--json`.
#[derive(serde::Serialize)]
struct Output<'a> {
    #[serde(flatten)]
    inventory: &'a Inventory,
    requirements: &'a [Requirement],
    #[serde(skip_serializing_if = "Option::is_none")]
    images: Option<Images>,
}

/// How jobs of this container run in container images.
#[derive(serde::Serialize)]
pub(super) struct Images {
    backend: Option<Backend>,
    reason: String,
}

impl Images {
    pub(super) fn detect() -> Self {
        match runtime::backend() {
            Ok((backend, reason)) => Self { backend: Some(backend), reason },
            Err(reason) => Self { backend: None, reason },
        }
    }

    /// The name of the backend, without the reason.
    pub(super) fn name(&self) -> &'static str {
        match self.backend {
            Some(Backend::Namespaces) => "user namespaces",
            Some(Backend::Proot) => "PRoot",
            None => "none",
        }
    }

    /// The backend with the reason, as text.
    pub(super) fn text(&self) -> String {
        let reason = printable::line(&self.reason);
        match self.backend {
            Some(Backend::Namespaces) => "user namespaces".to_owned(),
            Some(Backend::Proot) => format!("PRoot; no user namespaces ({reason})"),
            None => format!("none: no PRoot, and no user namespaces ({reason})"),
        }
    }
}

pub(super) fn parse_seconds(text: &str) -> Result<Duration, String> {
    let seconds = text.parse::<f64>().ok().filter(|seconds| (0.01..=3600.0).contains(seconds));
    seconds.map(Duration::from_secs_f64).ok_or_else(|| "expected a number of seconds from 0.01 to 3600".to_owned())
}

/// Missing GPUs do not fail this verb.
pub(crate) fn run(args: Args, configuration: &Configuration) -> anyhow::Result<()> {
    let root = args.root.display();
    anyhow::ensure!(args.root.is_dir(), "--root {root}: no such directory; use one that contains proc, sys and dev");
    let root = args.root;
    let inventory =
        probe::detect(&Options { conditions: true, ..Options::from_environment(root.clone(), args.timeout) });
    // A broken configuration must not hide the hardware.
    let config = configuration.load();
    let minimum = config.as_ref().map(|config| config.gpu.clone()).map_err(ToString::to_string);
    let has_cuda = inventory.cuda_driver().is_some();
    let (environment, cuda) = (look::environment(), if has_cuda { look::cuda(&root) } else { CudaFacts::default() });
    let facts = RequirementFacts { inventory: &inventory, environment: &environment, cuda: &cuda, minimum: &minimum };
    let requirements = requirements(&facts);
    // Only for this container: below another --root, it is unknown whether jobs can use container images.
    let images = (root == Path::new("/")).then(Images::detect);
    let text = if args.json {
        super::json(&Output { inventory: &inventory, requirements: &requirements, images })?
    } else {
        // The JSON contains the detected GPUs unchanged; only the table marks those that the configuration does not offer to jobs.
        let selected = config.as_ref().ok().map(|config| plan::select(config, &inventory, &mut Vec::new()));
        table::render(selected.as_ref().unwrap_or(&inventory), &requirements, images.as_ref())
    };
    super::print(&text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_names_backend_of_images_and_why_it_is_not_the_faster_one() {
        let text = |backend| Images { backend, reason: "EPERM\n".to_owned() }.text();
        let why = "no user namespaces (EPERM\\x0a)";
        assert_eq!(text(Some(Backend::Namespaces)), "user namespaces");
        assert_eq!(text(Some(Backend::Proot)), format!("PRoot; {why}"));
        assert_eq!(text(None), format!("none: no PRoot, and {why}"));
    }
}
