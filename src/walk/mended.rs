//! What was repaired on the way.

use std::fmt;
use std::path::PathBuf;

/// One thing that others could have used against root, and can no more.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Mended {
    /// Others could write to a directory.
    Closed {
        /// The directory.
        path: PathBuf,
        /// The mode that it had.
        mode: u32,
    },
    /// A directory was somebody else's.
    Taken {
        /// The directory.
        path: PathBuf,
        /// Its former owner.
        uid: u32,
        /// Whose it is now.
        now: u32,
    },
    /// Something lay in the place of what root wants there.
    Removed {
        /// Its path.
        path: PathBuf,
    },
    /// What others could have put into a directory is gone.
    Emptied {
        /// The directory.
        path: PathBuf,
    },
    /// A file has a second name elsewhere, or a link or pipe lies among files that change their owner.
    LeftAlone {
        /// Its path.
        path: PathBuf,
    },
}

impl Mended {
    /// Whether it is worth a warning: somebody may have made use of it before. A volume that is new and everybody's
    /// (Kubernetes' `emptyDir`) is nothing to worry about.
    pub fn is_doubtful(&self) -> bool {
        !matches!(self, Self::Closed { .. } | Self::Emptied { .. })
    }

    /// What there is left to do.
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
