//! Container images for jobs.

use std::path::PathBuf;

use serde::Deserialize;

use model::value;

/// The settings of the table `[images]`.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Images {
    /// The directory of the images that root imports for all users.
    #[serde(deserialize_with = "value::plain_directory")]
    pub directory: PathBuf,
    /// Directories of the container that are mounted at the same path for jobs in images.
    #[serde(deserialize_with = "value::plain_directories")]
    pub mounts: Vec<PathBuf>,
}

impl Default for Images {
    fn default() -> Self {
        Self { directory: "/data/images".into(), mounts: Vec::new() }
    }
}
