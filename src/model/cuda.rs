//! CUDA releases, the driver that each of them needs, and the driver that an image requires.

use std::cmp::Ordering;
use std::fmt;

/// The major releases, and the oldest driver for each (NVIDIA's "CUDA Toolkit Release Notes"): for CUDA 11 that of 11.4 Update 1, for the others that
/// of minor version compatibility.
const OLDEST_DRIVERS: [(u32, &str); 3] = [(11, "470.57.02"), (12, "525.60.13"), (13, "580")];

/// The oldest driver for a major release. For an unknown release, this is the driver for the nearest known one.
pub fn oldest_driver(major: u32) -> &'static str {
    let [(oldest, _), .., (newest, _)] = OLDEST_DRIVERS;
    let known = major.clamp(oldest, newest);
    OLDEST_DRIVERS.iter().find(|(release, _)| *release == known).map_or("", |(_, driver)| driver)
}

/// The newest major release that a driver of this version supports; 0 if the driver is too old for all known releases; `None` if the text is not a
/// version.
pub fn newest_major(driver: &str) -> Option<u32> {
    let driver = numbers(driver)?;
    let supports = |(_, oldest): &&(u32, &str)| numbers(oldest).is_some_and(|oldest| driver >= oldest);
    Some(OLDEST_DRIVERS.iter().rev().find(supports).map_or(0, |(major, _)| *major))
}

/// The numbers of a version such as `550.54.15`; `None` if a part of it is not a number.
pub fn numbers(version: &str) -> Option<Vec<u32>> {
    version.split('.').map(|number| number.trim().parse().ok()).collect()
}

/// A condition of `NVIDIA_REQUIRE_CUDA` that a driver does not meet: `cuda>=12.8`. It contains no other part of the variable's text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnmetCondition {
    subject: &'static str,
    operator: &'static str,
    version: Vec<u32>,
}

impl fmt::Display for UnmetCondition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let version: Vec<String> = self.version.iter().map(u32::to_string).collect();
        write!(f, "{}{}{}", self.subject, self.operator, version.join("."))
    }
}

/// The first condition of `NVIDIA_REQUIRE_CUDA` that a driver with these versions does not meet; `None` if the driver meets all conditions
/// of at least one alternative. Blanks separate the alternatives, and commas the conditions of each. Unknown conditions and versions count as met.
pub fn unmet_condition(requirement: &str, cuda: Option<&str>, driver: Option<&str>) -> Option<UnmetCondition> {
    let mut first = None;
    for alternative in requirement.split_whitespace() {
        let unmet = alternative.split(',').find_map(|condition| unmet(condition, cuda, driver))?;
        first.get_or_insert(unmet);
    }
    first
}

fn unmet(condition: &str, cuda: Option<&str>, driver: Option<&str>) -> Option<UnmetCondition> {
    type Test = fn(Ordering) -> bool;
    const OPERATORS: [(&str, Test); 7] = [
        (">=", Ordering::is_ge),
        ("<=", Ordering::is_le),
        ("!=", Ordering::is_ne),
        ("==", Ordering::is_eq),
        (">", Ordering::is_gt),
        ("<", Ordering::is_lt),
        ("=", Ordering::is_eq),
    ];
    let (subject, rest, actual) = [("cuda", cuda), ("driver", driver)]
        .into_iter()
        .find_map(|(subject, actual)| Some((subject, condition.strip_prefix(subject)?, actual)))?;
    let (operator, is_met, version) = OPERATORS
        .into_iter()
        .find_map(|(operator, is_met)| Some((operator, is_met, numbers(rest.strip_prefix(operator)?)?)))?;
    // `driver=535` matches every version 535.x.
    let order = numbers(actual?)?.iter().take(version.len()).cmp(&version);
    (!is_met(order)).then_some(UnmetCondition { subject, operator, version })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// From NVIDIA's image of CUDA 12.4.
    const CUDA_12_4: &str = "cuda>=12.4 brand=tesla,driver>=470,driver<471 brand=unknown,driver>=535,driver<536";

    fn unmet(requirement: &str, cuda: &str, driver: &str) -> Option<String> {
        unmet_condition(requirement, Some(cuda), Some(driver)).map(|condition| condition.to_string())
    }

    #[test]
    fn one_alternative_must_be_met_with_all_its_conditions() {
        for (requirement, cuda, driver, expected) in [
            (CUDA_12_4, "12.4", "550.54.15", None),
            (CUDA_12_4, "12.2", "535.104.05", None),
            (CUDA_12_4, "11.4", "470.57.02", None),
            (CUDA_12_4, "12.0", "525.60.13", Some("cuda>=12.4")),
            ("cuda>=12.9", "12.9", "575.51", None),
            ("cuda>=12.8", "12.4", "550.54", Some("cuda>=12.8")),
            ("cuda>=12.2,driver>=535", "12.8", "525.60.13", Some("driver>=535")),
            ("driver=535", "12.2", "535.104", None),
            ("driver!=535", "12.2", "535.104", Some("driver!=535")),
            ("cuda<13", "13.0", "580", Some("cuda<13")),
            ("cuda>12.4", "12.4", "550.54", Some("cuda>12.4")),
            ("brand=tesla", "12.4", "550.54", None),
            ("cuda>=x,driver", "12.4", "550.54", None),
            ("", "12.4", "550.54", None),
            ("cuda>=12.8", "unknown", "550.54", None),
        ] {
            assert_eq!(unmet(requirement, cuda, driver).as_deref(), expected, "{requirement} {cuda} {driver}");
        }
        assert_eq!(unmet_condition("cuda>=99", None, Some("550")), None);
    }

    #[test]
    fn newest_major_release_follows_driver() {
        for (driver, major) in
            [("590.48.01", Some(13)), ("579.9", Some(12)), ("525.60.11", Some(11)), ("460.1", Some(0)), ("x", None)]
        {
            assert_eq!(newest_major(driver), major, "{driver}");
        }
        assert_eq!([10, 11, 12, 14].map(oldest_driver), ["470.57.02", "470.57.02", "525.60.13", "580"]);
    }

    proptest::proptest! {
        #[test]
        fn no_requirement_panics(text in "[a-z0-9<>=!., ]{0,40}", driver in "[0-9.]{0,12}") {
            let _ = unmet(&text, &driver, &driver);
        }
    }
}
