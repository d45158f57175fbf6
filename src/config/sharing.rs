//! How several jobs can share a GPU.

use serde::Deserialize;

use super::{Fault, GpuSettings};

/// How a GPU that jobs share is divided.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sharing {
    /// Shards, which are only counted: nothing limits a job to its share.
    Shards(Shards),
    /// Percentages, which NVIDIA's MPS enforces.
    Mps,
}

impl Sharing {
    /// The name of Slurm's GRES.
    pub const fn gres(self) -> &'static str {
        match self {
            Self::Shards(_) => "shard",
            Self::Mps => "mps",
        }
    }

    /// The number of shares into which a GPU is divided.
    pub const fn count_per_gpu(self) -> u32 {
        match self {
            Self::Shards(Shards(count)) => count,
            Self::Mps => 100,
        }
    }
}

/// The number of shards per GPU, 1 to 1024.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(try_from = "u32")]
pub struct Shards(u32);

impl TryFrom<u32> for Shards {
    type Error = String;

    fn try_from(count: u32) -> Result<Self, Self::Error> {
        match count {
            1..=1024 => Ok(Self(count)),
            _ => Err(format!("invalid shard count {count}: expected 1 to 1024 per GPU")),
        }
    }
}

/// Checks that only one kind of sharing is configured: Slurm supports only one kind of shared GRES per node (24.11,
/// gres.c: the last one found), and ignores the other.
pub(super) fn check(gpu: &GpuSettings) -> Result<(), Fault> {
    if gpu.shards.is_some() && gpu.mps {
        let what = "`shards` and `mps` are mutually exclusive (one GPU sharing method per node)";
        return Err(Fault::new(vec!["gpu".into(), "mps".into()], what.to_owned()));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use crate::Config;

    #[test]
    fn divides_gpu_into_shards_or_percentages() {
        let sharing = |text: &str| {
            let config = Config::parse(text, Path::new("x")).unwrap();
            config.gpu.sharing().map(|sharing| (sharing.gres(), sharing.count_per_gpu()))
        };
        assert_eq!(sharing(""), None);
        assert_eq!(sharing("[gpu]\nshards = 4"), Some(("shard", 4)));
        assert_eq!(sharing("[gpu]\nmps = true"), Some(("mps", 100)));
    }
}
