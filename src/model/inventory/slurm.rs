//! The Slurm of this image: its release, its plugins and its behaviors.
//!
//! Everything that depends on the release is in two tables of this module, which docs/reference/versions.md shows. `advisories` lists the
//! known security holes.

pub mod advisories;

use std::fmt;

use serde::{Deserialize, Serialize};

/// The Slurm installed in this image.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SlurmInstall {
    /// The version; `None` if neither the image's version file nor `slurmd -V` contains it.
    pub version: Option<SlurmVersion>,
    /// The last number of the version: 5 in 24.11.5. `None` if it is unknown, or does not determine the fixes that this Slurm contains.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub patch: Option<u16>,
    /// The version of Debian's package; `None` for a Slurm from source.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub package: Option<String>,
    /// The installed plugins that affect the configuration, such as `gpu_nvml` or `cgroup_v2`; `mpi_pmix` and `cli_filter_lua` only if they can work:
    /// their libraries exist, and for `mpi_pmix` /tmp is writable.
    pub plugins: Vec<String>,
    /// Whether slurmd is patched to read a login environment without namespaces (docker/slurm-patches).
    #[serde(default)]
    pub forks_for_login: bool,
}

impl SlurmInstall {
    /// Whether the plugin `name` (without `.so`) is installed.
    pub fn has_plugin(&self, name: &str) -> bool {
        self.plugins.iter().any(|plugin| plugin == name)
    }

    /// Whether this Slurm has the behavior. For an unknown release, returns the safe assumption from the table.
    pub fn does(&self, behavior: Behavior) -> bool {
        let row = behavior.row();
        self.version.map_or(row.if_unknown, |version| version >= row.release)
    }
}

/// A Slurm release, year and month: `24.11`. Patch releases do not change the meaning of a configuration file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct SlurmVersion {
    /// Two-digit year.
    pub year: u16,
    /// Month.
    pub month: u16,
}

impl SlurmVersion {
    const fn new(year: u16, month: u16) -> Self {
        Self { year, month }
    }

    /// The protocol number of the release, which Slurm writes into messages and state files (`slurm_protocol_common.h`). Valid from 24.05 on:
    /// since then, there is a release each May and November.
    pub fn protocol(self) -> u8 {
        let half_years = self.year.saturating_sub(24) * 2 + u16::from(self.month >= 11);
        u8::try_from(41 + half_years).unwrap_or(u8::MAX)
    }

    /// The protocol number of the oldest state files that the release can read (SLURM_MIN_PROTOCOL_VERSION).
    pub fn oldest_protocol(self) -> u8 {
        self.protocol().saturating_sub(3)
    }

    /// The release with this protocol number; `None` for releases before 22.05.
    pub fn of_protocol(number: u8) -> Option<Self> {
        match number {
            ..38 => None,
            38 => Some(Self::new(22, 5)),
            39 => Some(Self::new(23, 2)),
            40 => Some(Self::new(23, 11)),
            41.. => {
                let half_years = u16::from(number - 41);
                Some(Self::new(24 + half_years / 2, if half_years % 2 == 0 { 5 } else { 11 }))
            }
        }
    }

    /// The latest supported release that can read state files with this protocol number.
    pub fn latest_that_reads(number: u8) -> Option<Self> {
        let reads = |release: &Self| (release.oldest_protocol()..=release.protocol()).contains(&number);
        RELEASES.iter().rev().map(|release| release.version).find(reads)
    }
}

impl fmt::Display for SlurmVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:02}.{:02}", self.year, self.month)
    }
}

/// A behavior that only newer releases have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Behavior {
    /// GetEnvTimeout was removed, and slurmd no longer reads the login environment from a file.
    NoGetEnvTimeout,
    /// A daemon waits until its announcement of a successor has been read (`BARRIER=1`).
    SuccessorBarrier,
    /// slurmctld and slurmd serve HTTP on their regular ports.
    HttpEndpoints,
}

/// A row of the table of behaviors.
#[derive(Clone, Copy, Debug)]
pub struct BehaviorRow {
    /// The first release with the behavior.
    pub release: SlurmVersion,
    /// The assumption for an unknown release.
    pub if_unknown: bool,
    /// The description for docs/reference/versions.md.
    pub description: &'static str,
    /// How slurminit handles the behavior, for docs/reference/versions.md.
    pub handling: &'static str,
}

impl Behavior {
    /// All behaviors, by release.
    pub const ALL: [Self; 3] = [Self::NoGetEnvTimeout, Self::SuccessorBarrier, Self::HttpEndpoints];

    /// The row of the table. The sources are Slurm's RELEASE_NOTES.
    pub const fn row(self) -> BehaviorRow {
        match self {
            Self::NoGetEnvTimeout => BehaviorRow {
                release: SlurmVersion::new(25, 5),
                if_unknown: false,
                description: "`GetEnvTimeout` was removed: without CAP_SYS_ADMIN `sbatch --export=NONE` makes slurmd exit",
                handling: "not set; `docker/build-slurm` patches slurmd to read the environment without namespaces",
            },
            Self::SuccessorBarrier => BehaviorRow {
                release: SlurmVersion::new(25, 11),
                if_unknown: true,
                description: "`BARRIER=1`: a daemon waits until slurminit has read the message that names its successor",
                handling: "slurminit closes the passed descriptor after it has read the message, with all releases",
            },
            Self::HttpEndpoints => BehaviorRow {
                release: SlurmVersion::new(25, 11),
                if_unknown: true,
                description: "`/metrics`, `/livez` and `/readyz` on the ports of slurmctld and slurmd",
                handling: "Slurm's default is unchanged",
            },
        }
    }
}

/// A release that slurminit is tested with.
#[derive(Clone, Copy, Debug)]
pub struct Release {
    /// The release.
    pub version: SlurmVersion,
    /// The version to build from source, with the fixes of all known security holes; `None` if Debian 13's packages are
    /// installed instead.
    pub source: Option<&'static str>,
}

impl Release {
    /// The argument of `docker build` that selects this release; empty for the default.
    pub fn argument(self) -> String {
        self.source.map_or_else(String::new, |source| format!("--build-arg SLURM_VERSION={source}"))
    }
}

/// The supported releases, oldest first. A start with an older one is refused.
pub const RELEASES: [Release; 3] = [
    Release { version: DEFAULT, source: None },
    Release { version: SlurmVersion::new(25, 11), source: Some("25.11.8") },
    Release { version: SlurmVersion::new(26, 5), source: Some("26.05.5") },
];

/// The Slurm of an image built without arguments.
pub const DEFAULT: SlurmVersion = SlurmVersion::new(24, 11);

#[cfg(test)]
mod tests {
    use super::*;

    fn slurm(version: Option<SlurmVersion>) -> SlurmInstall {
        SlurmInstall { version, ..SlurmInstall::default() }
    }

    #[test]
    fn behavior_begins_with_its_release() {
        for behavior in Behavior::ALL {
            let row = behavior.row();
            let before = SlurmVersion { month: row.release.month - 1, ..row.release };
            assert!(slurm(Some(row.release)).does(behavior), "{behavior:?}");
            assert!(!slurm(Some(before)).does(behavior), "{behavior:?}");
            assert_eq!(slurm(None).does(behavior), row.if_unknown, "{behavior:?}");
        }
    }

    /// From `slurm_protocol_common.h` of each release.
    #[test]
    fn protocol_numbers_match_slurm_releases() {
        let table = [(24, 11, 42, 39), (25, 5, 43, 40), (25, 11, 44, 41), (26, 5, 45, 42), (26, 11, 46, 43)];
        for (year, month, number, oldest) in table {
            let release = SlurmVersion::new(year, month);
            assert_eq!((release.protocol(), release.oldest_protocol()), (number, oldest), "{release}");
            assert_eq!(SlurmVersion::of_protocol(number), Some(release));
        }
        for (number, release) in [(38, (22, 5)), (39, (23, 2)), (40, (23, 11)), (41, (24, 5))] {
            assert_eq!(SlurmVersion::of_protocol(number), Some(SlurmVersion::new(release.0, release.1)));
        }
        assert_eq!(SlurmVersion::of_protocol(37), None);
        for (number, release) in
            [(38, None), (39, Some((24, 11))), (40, Some((24, 11))), (41, Some((25, 11))), (42, Some((26, 5)))]
        {
            let expected = release.map(|(year, month)| SlurmVersion::new(year, month));
            assert_eq!(SlurmVersion::latest_that_reads(number), expected, "{number}");
        }
    }

    #[test]
    fn tables_are_sorted_with_one_default_release() {
        assert!(Behavior::ALL.windows(2).all(|pair| pair[0].row().release <= pair[1].row().release));
        assert!(RELEASES.windows(2).all(|pair| pair[0].version < pair[1].version));
        let default: Vec<_> = RELEASES.iter().filter(|release| release.source.is_none()).collect();
        assert!(default.len() == 1 && default[0].version == DEFAULT);
        for (release, source) in RELEASES.iter().filter_map(|release| Some((release, release.source?))) {
            assert!(source.starts_with(&format!("{}.", release.version)), "{source}");
        }
    }
}
