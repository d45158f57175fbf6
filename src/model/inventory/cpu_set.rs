//! A set of CPU or core numbers in the kernel's list format.

use std::collections::BTreeSet;
use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// A set of CPU (or core) numbers, written as the kernel and Slurm write it: `0-3,8`.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct CpuSet(BTreeSet<u32>);

/// The highest accepted number; the kernel's own limit is 8192 CPUs. A higher number is rejected, because expanding a range up to such a number
/// could exhaust memory.
const HIGHEST_CPU: u32 = 65_535;

impl CpuSet {
    /// The numbers in ascending order.
    pub fn iter(&self) -> impl Iterator<Item = u32> + '_ {
        self.0.iter().copied()
    }

    /// The number of CPUs in the set.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether the set is empty.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether the set contains `cpu`.
    pub fn contains(&self, cpu: u32) -> bool {
        self.0.contains(&cpu)
    }

    /// Whether the sets overlap.
    pub fn intersects(&self, other: &Self) -> bool {
        !self.0.is_disjoint(&other.0)
    }
}

impl FromIterator<u32> for CpuSet {
    fn from_iter<I: IntoIterator<Item = u32>>(cpus: I) -> Self {
        Self(cpus.into_iter().collect())
    }
}

impl fmt::Display for CpuSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut cpus = self.iter().peekable();
        let mut separator = "";
        while let Some(first) = cpus.next() {
            let mut last = first;
            while let Some(next) = cpus.next_if_eq(&last.saturating_add(1)) {
                last = next;
            }
            match last - first {
                0 => write!(f, "{separator}{first}")?,
                _ => write!(f, "{separator}{first}-{last}")?,
            }
            separator = ",";
        }
        Ok(())
    }
}

impl FromStr for CpuSet {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let number = |digits: &str| digits.trim().parse::<u32>().ok().filter(|cpu| *cpu <= HIGHEST_CPU);
        let range = |part: &str| match part.split_once('-') {
            Some((first, last)) => Some((number(first)?, number(last)?)),
            None => number(part).map(|cpu| (cpu, cpu)),
        };
        let mut cpus = BTreeSet::new();
        for part in text.trim().split(',').filter(|part| !part.is_empty()) {
            let (first, last) = range(part).filter(|(first, last)| first <= last).ok_or_else(|| {
                let shown: String = text.chars().take(80).collect();
                format!("`{shown}` is not a CPU list (expected numbers and ranges up to {HIGHEST_CPU}, as in 0-3,8)")
            })?;
            cpus.extend(first..=last);
        }
        Ok(Self(cpus))
    }
}

serde_by_text!(CpuSet);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sets_intersect_if_they_share_a_cpu() {
        let set = |cpus: &[u32]| cpus.iter().copied().collect::<CpuSet>();
        assert!(set(&[0, 1]).intersects(&set(&[1, 2])) && !set(&[0, 1]).intersects(&set(&[2])));
        assert!(!set(&[]).intersects(&set(&[])));
    }
    use proptest::prelude::*;

    #[test]
    fn rejects_invalid_cpu_lists() {
        for bad in ["a", "3-1", "1-", "-1", "0-4294967295", "70000", "1 2"] {
            assert!(bad.parse::<CpuSet>().is_err(), "{bad}");
        }
        assert!("\n".parse::<CpuSet>().unwrap().is_empty());
    }

    proptest! {
        #[test]
        fn round_trips_through_text(cpus in proptest::collection::btree_set(0..9000_u32, 0..64)) {
            let set = CpuSet::from_iter(cpus);
            prop_assert_eq!(set.to_string().parse::<CpuSet>().unwrap(), set);
        }
    }
}
