//! The record of an imported image.

use serde::{Deserialize, Serialize};

use super::ImageName;
use super::manifest::Configuration;

/// The contents of `image.json`, which is beside the image's files.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct ImageRecord {
    /// The name of the image in its directory of images.
    pub name: String,
    /// The reference to the image, such as `docker.io/library/debian:13`; empty if unknown, as for a file tree.
    pub reference: String,
    /// The digest of its manifest or configuration; empty for a file tree.
    pub digest: String,
    /// The CPU architecture: `amd64` or `arm64`.
    pub architecture: String,
    /// The build time of the image (RFC 3339); empty if unknown.
    pub created: String,
    /// The number of layers.
    pub layers: usize,
    /// The number of entries in all layers: files, directories, links, and special files that were left out. Entries that a later layer replaces
    /// or removes are included.
    pub files: u64,
    /// The number of device nodes and FIFOs outside of /dev that were left out.
    pub skipped: u64,
    /// The size of the files in all layers, in bytes, including those that a later layer replaces or removes.
    pub bytes: u64,
    /// The user of the image's program. Jobs ignore it and run as their own user.
    pub user: String,
    /// The program of the image, which jobs do not run automatically; empty if `command` contains it.
    pub entrypoint: Vec<String>,
    /// The arguments of the image's program; without `entrypoint`, the program and its arguments.
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
        // Entries without a name, without `=` or with a NUL byte are not valid in an environment.
        let is_variable =
            |variable: &String| variable.contains('=') && !variable.starts_with('=') && !variable.contains('\0');
        self.environment = process.env.unwrap_or_default().into_iter().filter(is_variable).collect();
        self.directory = process.working_dir;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn record_has_the_images_program_without_invalid_variables() {
        let text = r#"{
            "created": "2026-01-01T00:00:00Z",
            "config": {
                "User": "65534", "WorkingDir": "/srv", "Entrypoint": ["a"], "Cmd": ["b", "c"],
                "Env": ["A=1", "B=", "C=x=y", "D", "=E", "F=\u0000", ""]
            }
        }"#;
        let mut record = ImageRecord { layers: 3, ..ImageRecord::default() };
        record.set_configuration(serde_json::from_str(text).unwrap());
        let texts = |all: &[&str]| all.iter().map(|text| (*text).to_owned()).collect::<Vec<_>>();
        let expected = ImageRecord {
            created: "2026-01-01T00:00:00Z".to_owned(),
            user: "65534".to_owned(),
            directory: "/srv".to_owned(),
            entrypoint: texts(&["a"]),
            command: texts(&["b", "c"]),
            environment: texts(&["A=1", "B=", "C=x=y"]),
            layers: 3,
            ..ImageRecord::default()
        };
        assert_eq!(record, expected);
    }

    #[test]
    fn record_has_the_name_of_its_directory() {
        let name: ImageName = "tools".parse().unwrap();
        let record = ImageRecord::parse(r#"{"name": "other", "layers": 2, "new": 1}"#, &name).unwrap();
        assert_eq!(record, ImageRecord { name: "tools".to_owned(), layers: 2, ..ImageRecord::default() });
        assert_eq!(ImageRecord::parse("{", &name), None);
    }
}
