//! The record of an imported image.

use serde::{Deserialize, Serialize};

use super::ImageName;
use super::manifest::Configuration;

/// The contents of `image.json`, which is beside the image's files.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct ImageRecord {
    /// The name in this directory of images.
    pub name: String,
    /// The name in its registry: `docker.io/library/debian:13`; empty for a file tree.
    pub reference: String,
    /// The digest of its manifest or configuration; empty for a file tree.
    pub digest: String,
    /// The CPU architecture: `amd64` or `arm64`.
    pub architecture: String,
    /// The build time of the image (RFC 3339); empty if unknown.
    pub created: String,
    /// The number of layers.
    pub layers: usize,
    /// The number of files.
    pub files: u64,
    /// The number of device nodes and FIFOs that were left out.
    pub skipped: u64,
    /// The size of the image's files, in bytes.
    pub bytes: u64,
    /// The user that its program would run as. Jobs always run as their own user.
    pub user: String,
    /// The program of the image, which jobs do not run by themselves.
    pub entrypoint: Vec<String>,
    /// The arguments of the image's program.
    pub command: Vec<String>,
    /// The image's environment variables, `NAME=VALUE`.
    pub environment: Vec<String>,
    /// The working directory of the image's program.
    pub directory: String,
    /// The user who imported the image.
    pub imported_by: String,
    /// The time of the import, in seconds since 1970.
    pub imported_at: u64,
}

impl ImageRecord {
    /// Parses image.json of the image with this name; `None` if it is damaged.
    pub fn parse(text: &str, name: &ImageName) -> Option<Self> {
        let record: Self = serde_json::from_str(text).ok()?;
        Some(Self { name: name.to_string(), ..record })
    }

    /// Copies the image's configuration.
    pub(crate) fn set_configuration(&mut self, configuration: Configuration) {
        let process = configuration.config.unwrap_or_default();
        self.created = configuration.created.unwrap_or_default();
        self.user = process.user;
        self.entrypoint = process.entrypoint.unwrap_or_default();
        self.command = process.cmd.unwrap_or_default();
        // Other texts are not valid in an environment.
        let is_variable =
            |variable: &String| variable.contains('=') && !variable.starts_with('=') && !variable.contains('\0');
        self.environment = process.env.unwrap_or_default().into_iter().filter(is_variable).collect();
        self.directory = process.working_dir;
    }
}
