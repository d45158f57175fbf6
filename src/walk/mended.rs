//! Repairs made during a walk.

use std::fmt;
use std::path::PathBuf;

/// Something that other users could have exploited against root until now.
#[derive(Clone, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "the text of each is below, in `Display`")]
pub enum Mended {
    Closed { path: PathBuf, mode: u32 },
    Taken { path: PathBuf, uid: u32, now: u32 },
    Removed { path: PathBuf },
    Emptied { path: PathBuf },
    LeftAlone { path: PathBuf },
}

impl Mended {
    /// Whether this deserves a warning, because it may have been exploited already. A new world-writable volume
    /// (Kubernetes' `emptyDir`) does not.
    pub fn is_doubtful(&self) -> bool {
        !matches!(self, Self::Closed { .. } | Self::Emptied { .. })
    }

    /// What is left for the operator to do.
    pub fn repair(&self) -> &'static str {
        match self {
            Self::Closed { .. } | Self::Emptied { .. } => "nothing to do",
            Self::Taken { .. } => "nothing to do; if you do not trust the former owner, begin with a new volume",
            Self::Removed { .. } => "nothing to do; find out who put it there",
            Self::LeftAlone { .. } => "remove it, or replace it by a copy: cp -p FILE FILE.copy && mv FILE.copy FILE",
        }
    }
}

impl fmt::Display for Mended {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Closed { path, mode } => {
                write!(f, "others could write to {} (mode {mode:04o}), and can no more", path.display())
            }
            Self::Taken { path, uid, now } => write!(
                f,
                "{} belonged to uid {uid}, who could change what is in it; it belongs to uid {now} now",
                path.display()
            ),
            Self::Removed { path } => {
                write!(f, "{} was put there by somebody other than root, and is removed", path.display())
            }
            Self::Emptied { path } => {
                write!(f, "{} was emptied: others than root could have put there what was in it", path.display())
            }
            Self::LeftAlone { path } => write!(
                f,
                "{} keeps its owner: it is a link, or has a second name elsewhere, and what that is may be no daemon's",
                path.display()
            ),
        }
    }
}
