//! Repairs of paths that other users could have changed.

use std::path::PathBuf;

/// A path whose owner or mode was wrong, or that other users may have created or changed, with its repair or the reason why it was not repaired.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[expect(missing_docs, reason = "the message describes the variant")]
pub enum RepairedPath {
    #[error("{path} was writable by other users (mode {mode:04o}); write permission removed")]
    Closed { path: PathBuf, mode: u32 },
    #[error("sticky bit was missing on {path} (mode {mode:04o}); set")]
    Sticky { path: PathBuf, mode: u32 },
    #[error("users could not write to {path} (mode {mode:04o}); changed its mode to 1777")]
    Opened { path: PathBuf, mode: u32 },
    #[error("{path} belonged to uid {uid}; changed its owner to uid {new_uid}")]
    OwnerChanged { path: PathBuf, uid: u32, new_uid: u32 },
    #[error("{path} may have been created by a user other than root; removed")]
    Removed { path: PathBuf },
    #[error("{path} was emptied, because users other than root could write to it or to its parent directory")]
    Emptied { path: PathBuf },
    #[error(
        "owner of {path} not changed, because it is a link or device, has several hard links, or is nested too deeply"
    )]
    OwnerKept { path: PathBuf },
}

impl RepairedPath {
    /// Whether the path may have been exploited already, which deserves a warning. A new world-writable volume
    /// (Kubernetes' `emptyDir`) does not.
    pub fn is_suspicious(&self) -> bool {
        !matches!(self, Self::Closed { .. } | Self::Emptied { .. } | Self::Sticky { .. } | Self::Opened { .. })
    }

    /// The remaining action for the operator.
    pub fn fix(&self) -> &'static str {
        match self {
            Self::Closed { .. } | Self::Emptied { .. } | Self::Sticky { .. } => "nothing to do",
            Self::Opened { .. } => "nothing to do; to avoid this message, mount /tmp with --tmpfs /tmp:mode=1777",
            Self::OwnerChanged { .. } => "nothing to do; if you do not trust the previous owner, use a new volume",
            Self::Removed { .. } => "find out who created it",
            Self::OwnerKept { .. } => {
                "remove it; or, if it is a file with several hard links, replace it with a copy: \
                 cp -p FILE FILE.copy && mv FILE.copy FILE"
            }
        }
    }
}
