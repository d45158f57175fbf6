//! A directory whose size is limited from outside, such as an emptyDir of Kubernetes.

use std::fmt;
use std::path::{Component, PathBuf};
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// A directory and its limit, such as `/tmp=10240`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct DirectoryLimit {
    /// The absolute path, without `..` and control characters.
    pub path: PathBuf,
    /// The limit in MiB.
    pub mib: u64,
}

impl fmt::Display for DirectoryLimit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}={}", self.path.display(), self.mib)
    }
}

impl FromStr for DirectoryLimit {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let parse = || {
            let (path, mib) = text.rsplit_once('=')?;
            let path = PathBuf::from(path);
            let is_plain = path.is_absolute()
                && path.components().skip(1).all(|part| matches!(part, Component::Normal(_)))
                && !path.to_string_lossy().contains(char::is_control);
            Some(Self { path: is_plain.then_some(path)?, mib: mib.parse().ok().filter(|mib| *mib > 0)? })
        };
        parse().ok_or_else(|| {
            format!(
                "`{}` is not valid: expected the absolute path of a directory and a size in MiB, such as \"/tmp=10240\"",
                text.escape_default()
            )
        })
    }
}

model::serde_by_text!(DirectoryLimit);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn takes_absolute_path_and_size() {
        let limit = DirectoryLimit::from_str("/data/a=b=64").unwrap();
        assert_eq!(
            (limit.path.to_str(), limit.mib, limit.to_string().as_str()),
            (Some("/data/a=b"), 64, "/data/a=b=64")
        );
        for bad in ["", "/tmp", "/tmp=", "/tmp=0", "/tmp=-1", "tmp=1", "/data/../tmp=1", "/t\n=1", "=1"] {
            assert!(DirectoryLimit::from_str(bad).is_err(), "{bad:?}");
        }
    }
}
