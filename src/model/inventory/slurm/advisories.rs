//! The known security holes of the supported releases, and the versions that fix them.
//!
//! The sources are the changes of each release on <https://github.com/SchedMD/slurm/releases>, and the changelog of Debian's package.

use std::cmp::Ordering;

use super::{RELEASES, SlurmInstall, SlurmVersion};
use crate::inventory::{Finding, Kind};

/// Security holes that were published together.
#[derive(Clone, Copy, Debug)]
pub struct Advisory {
    /// The day of publication: `2 September 2026`.
    pub published: &'static str,
    /// The holes, each as a CVE ID or a description.
    pub holes: &'static [&'static str],
    /// The first fixed version of each affected release.
    pub fixes: &'static [Fix],
}

/// The first version of a release that fixes the holes of an advisory.
#[derive(Clone, Copy, Debug)]
pub struct Fix {
    /// The release.
    pub release: SlurmVersion,
    /// The last number of the first version with the fix: 8 for 25.11.8. `None` if SchedMD has published no fix.
    pub patch: Option<u16>,
    /// The first version of Debian's package with the fix, if the fix does not change Slurm's own version number.
    pub package: Option<&'static str>,
}

impl Fix {
    const fn upstream(year: u16, month: u16, patch: u16) -> Self {
        Self { release: SlurmVersion::new(year, month), patch: Some(patch), package: None }
    }

    fn is_in(self, patch: u16, package: Option<&str>) -> bool {
        let has_package = |fixed| package.is_some_and(|installed| compare_packages(installed, fixed).is_ge());
        self.patch.is_some_and(|fixed| patch >= fixed) || self.package.is_some_and(has_package)
    }

    /// The first version with the fix, and the URL of its description.
    fn version(self) -> String {
        let Self { release, patch, package } = self;
        let upstream = patch.map(|patch| {
            let tag = format!("slurm-{:02}-{:02}-{patch}-1", release.year, release.month);
            format!("{release}.{patch} (https://github.com/SchedMD/slurm/releases/tag/{tag})")
        });
        let package = package.map(|package| {
            format!("Debian's {package} (https://security-tracker.debian.org/tracker/source-package/slurm-wlm)")
        });
        [upstream, package].into_iter().flatten().collect::<Vec<_>>().join(", ")
    }
}

/// The advisories, oldest first.
pub const ADVISORIES: [Advisory; 2] = [
    Advisory {
        published: "2 September 2026",
        holes: &[
            "CVE-2026-65107",
            "CVE-2026-65108",
            "CVE-2026-65109",
            "CVE-2026-65138",
            "CVE-2026-65139",
            "CVE-2026-65140",
            "CVE-2026-65165",
            "CVE-2026-65168",
        ],
        fixes: &[
            Fix { release: SlurmVersion::new(24, 11), patch: None, package: Some("24.11.5-4+deb13u1") },
            Fix::upstream(25, 5, 9),
            Fix::upstream(25, 11, 8),
            Fix::upstream(26, 5, 4),
        ],
    },
    Advisory {
        published: "13 October 2026",
        holes: &["slurmd accepts another user's launch credential", "heap overflow in step I/O"],
        fixes: &[Fix::upstream(26, 5, 5)],
    },
];

impl SlurmInstall {
    /// The advisories that affect this Slurm, with the fix for each; none if the patch number is unknown.
    pub fn advisories(&self) -> impl Iterator<Item = (Advisory, Fix)> {
        let installed = self.version.zip(self.patch);
        ADVISORIES.into_iter().filter_map(move |advisory| {
            let (release, patch) = installed?;
            let fix = advisory.fixes.iter().find(|fix| fix.release == release)?;
            (!fix.is_in(patch, self.package.as_deref())).then_some((advisory, *fix))
        })
    }

    /// A warning about the known holes of this Slurm; `None` if no hole is known, or if the patch number is unknown.
    pub fn security_finding(&self) -> Option<Finding> {
        let advisories: Vec<_> = self.advisories().collect();
        let (latest, fix) = advisories.last()?;
        let (version, patch) = self.version.zip(self.patch)?;
        let installed = self.package.clone().unwrap_or_else(|| format!("{version}.{patch}"));
        let holes: Vec<&str> = advisories.iter().flat_map(|(advisory, _)| advisory.holes).copied().collect();
        let what = format!("Slurm {installed} has known security holes: {}", holes.join(", "));
        let cause = format!("the latest was published on {}; all are fixed in {}", latest.published, fix.version());
        let rebuild = "build the image again, with --pull --no-cache (docs/security.md)";
        let fix = match (self.package.is_some(), RELEASES.iter().rev().find(|release| release.version == version)) {
            (true, _) => rebuild.to_owned(),
            (false, Some(release)) if release.source.is_some() => format!("{rebuild} and {}", release.argument()),
            (false, _) => format!("{rebuild} and {}", RELEASES[RELEASES.len() - 1].argument()),
        };
        Some(Finding::warning(Kind::SlurmSecurity, what, cause, fix))
    }
}

/// Compares versions of Debian's packages (deb-version(7)). Epochs are not supported, because Slurm's packages have none.
fn compare_packages(left: &str, right: &str) -> Ordering {
    let parts = |version: &'_ str| -> (String, String) {
        let (upstream, revision) = version.rsplit_once('-').unwrap_or((version, "0"));
        (upstream.to_owned(), revision.to_owned())
    };
    let ((left, left_revision), (right, right_revision)) = (parts(left), parts(right));
    compare_parts(&left, &right).then_with(|| compare_parts(&left_revision, &right_revision))
}

/// Compares text and numbers alternately. `~` sorts before the end of the text, the end before letters, and letters
/// before all other characters.
fn compare_parts(left: &str, right: &str) -> Ordering {
    let rank = |c: Option<char>| match c {
        Some('~') => -1,
        None | Some('0'..='9') => 0,
        Some(c) if c.is_ascii_alphabetic() => i64::from(u32::from(c)),
        Some(c) => i64::from(u32::from(c)) + 256,
    };
    let (mut left, mut right) = (left, right);
    while !left.is_empty() || !right.is_empty() {
        let ((left_text, left_number, left_rest), (right_text, right_number, right_rest)) = (split(left), split(right));
        let length = left_text.chars().count().max(right_text.chars().count());
        for at in 0..length {
            let order = rank(left_text.chars().nth(at)).cmp(&rank(right_text.chars().nth(at)));
            if order.is_ne() {
                return order;
            }
        }
        let order = left_number.cmp(&right_number);
        if order.is_ne() {
            return order;
        }
        (left, right) = (left_rest, right_rest);
    }
    Ordering::Equal
}

/// Splits off the text at the beginning and the number after it.
fn split(version: &str) -> (&str, u64, &str) {
    let (text, rest) = version.split_at(version.find(|c: char| c.is_ascii_digit()).unwrap_or(version.len()));
    let (number, rest) = rest.split_at(rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len()));
    (text, number.parse().unwrap_or_default(), rest)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn slurm(year: u16, month: u16, patch: u16, package: Option<&str>) -> SlurmInstall {
        let version = Some(SlurmVersion::new(year, month));
        SlurmInstall { version, patch: Some(patch), package: package.map(str::to_owned), ..SlurmInstall::default() }
    }

    #[test]
    fn names_each_slurm_with_known_holes() {
        for (slurm, fixed) in [
            (slurm(24, 11, 5, Some("24.11.5-4")), "24.11.5-4+deb13u1"),
            (slurm(24, 11, 7, None), "24.11.5-4+deb13u1"),
            (slurm(25, 5, 8, None), "25.05.9"),
            (slurm(25, 11, 7, None), "25.11.8"),
            (slurm(25, 11, 2, Some("25.11.2-1ubuntu2")), "25.11.8"),
            (slurm(26, 5, 3, None), "26.05.5"),
            (slurm(26, 5, 4, Some("26.05.4-1")), "26.05.5"),
        ] {
            let finding = slurm.security_finding().unwrap();
            assert_eq!(finding.kind, Kind::SlurmSecurity);
            assert!(finding.cause.contains(fixed), "{finding:?}");
            assert!(finding.fix.contains("--pull --no-cache"), "{finding:?}");
            let builds = finding.fix.contains("SLURM_VERSION");
            assert_eq!(builds, slurm.package.is_none(), "{finding:?}");
        }
        assert_eq!(slurm(26, 5, 3, None).advisories().count(), 2);
        assert_eq!(slurm(26, 5, 4, None).advisories().count(), 1);
    }

    #[test]
    fn names_no_fixed_or_unknown_slurm() {
        for slurm in [
            slurm(24, 11, 5, Some("24.11.5-4+deb13u1")),
            slurm(24, 11, 5, Some("24.11.5-4+deb13u2")),
            slurm(25, 5, 9, None),
            slurm(25, 11, 8, None),
            slurm(25, 11, 10, None),
            slurm(26, 5, 5, Some("26.05.5-1")),
            slurm(26, 11, 0, None),
            SlurmInstall::default(),
        ] {
            assert_eq!(slurm.security_finding(), None, "{slurm:?}");
        }
    }

    #[test]
    fn pinned_releases_have_no_known_holes() {
        for source in RELEASES.iter().filter_map(|release| release.source) {
            let numbers: Vec<u16> = source.split('.').map(|number| number.parse().unwrap()).collect();
            let pinned = slurm(numbers[0], numbers[1], numbers[2], None);
            assert_eq!(pinned.security_finding(), None, "{source}");
        }
    }

    /// Compares versions like `dpkg --compare-versions`.
    #[test]
    fn packages_compare_like_dpkg() {
        for pair in [
            "24.11.5-4~bpo12+1 24.11.5-4",
            "24.11.5-4 24.11.5-4+deb13u1",
            "24.11.5-4+deb13u1 24.11.5-4+deb13u2",
            "24.11.5-4+deb13u9 24.11.5-4+deb13u10",
            "24.11.5-4+deb13u1 24.11.5-5",
            "24.11.5-9 24.11.10-1",
            "24.11 24.11.5-1",
            "1.0a 1.0+",
        ] {
            let (older, newer) = pair.split_once(' ').unwrap();
            assert_eq!(compare_packages(older, newer), Ordering::Less, "{pair}");
            assert_eq!(compare_packages(newer, older), Ordering::Greater, "{pair}");
            assert_eq!(compare_packages(older, older), Ordering::Equal, "{pair}");
        }
    }
}
