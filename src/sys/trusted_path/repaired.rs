//! Repairs made during a walk.

use std::path::PathBuf;

/// Something that other users could have exploited against root until now.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[expect(missing_docs, reason = "each message says what the variant is")]
pub enum RepairedPath {
    #[error("others could write to {path} (mode {mode:04o}), and can no more")]
    Closed { path: PathBuf, mode: u32 },
    #[error("in {path} (mode {mode:04o}) everyone could remove what is another's, and can no more")]
    Sticky { path: PathBuf, mode: u32 },
    #[error("{path} belonged to uid {uid}, who could change what is in it; it belongs to uid {now} now")]
    Taken { path: PathBuf, uid: u32, now: u32 },
    #[error("{path} was put there by somebody other than root, and is removed")]
    Removed { path: PathBuf },
    #[error("{path} was emptied: others than root could have put there what was in it")]
    Emptied { path: PathBuf },
    #[error(
        "{path} keeps its owner: it is a link, or has a second name elsewhere, and what that is may be no daemon's"
    )]
    LeftAlone { path: PathBuf },
}

impl RepairedPath {
    /// Whether this deserves a warning, because it may have been exploited already. A new world-writable volume
    /// (Kubernetes' `emptyDir`) does not.
    pub fn is_doubtful(&self) -> bool {
        !matches!(self, Self::Closed { .. } | Self::Emptied { .. } | Self::Sticky { .. })
    }

    /// What is left for the operator to do.
    pub fn repair(&self) -> &'static str {
        match self {
            Self::Closed { .. } | Self::Emptied { .. } | Self::Sticky { .. } => "nothing to do",
            Self::Taken { .. } => "nothing to do; if you do not trust the former owner, begin with a new volume",
            Self::Removed { .. } => "nothing to do; find out who put it there",
            Self::LeftAlone { .. } => "remove it, or replace it by a copy: cp -p FILE FILE.copy && mv FILE.copy FILE",
        }
    }
}
