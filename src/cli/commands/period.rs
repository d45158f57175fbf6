//! Parses periods of time in command lines.

use std::time::Duration;

/// The longest period: a year, in seconds.
const MAX_SECONDS: u64 = 366 * 86_400;

/// Parses `90s`, `30m`, `12h`, `7d` or `2w`; at most a year.
pub(super) fn parse_period(text: &str) -> Result<Duration, String> {
    let units = [("s", 1), ("m", 60), ("h", 3600), ("d", 86_400), ("w", 604_800)].into_iter();
    let mut seconds =
        units.filter_map(|(unit, seconds)| text.strip_suffix(unit)?.parse::<u64>().ok()?.checked_mul(seconds));
    let seconds = seconds.next().filter(|seconds| (1..=MAX_SECONDS).contains(seconds));
    let invalid = || "not a time; use a number and s, m, h, d or w, at most a year: 30m, 12h, 7d".to_owned();
    seconds.map(Duration::from_secs).ok_or_else(invalid)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parses_times_with_unit() {
        let seconds = |text| parse_period(text).map(|time| time.as_secs());
        assert_eq!(
            [seconds("90s"), seconds("30m"), seconds("12h"), seconds("7d"), seconds("2w")].map(Result::unwrap),
            [90, 1800, 43200, 604_800, 1_209_600]
        );
        assert_eq!((seconds("366d"), parse_period("367d").is_err()), (Ok(366 * 24 * 3600), true));
        for bad in ["", "h", "0h", "1", "-1h", "1.5h", "400d", "99999999999999999999d", "1ä"] {
            assert!(parse_period(bad).is_err(), "{bad}");
        }
    }
}
