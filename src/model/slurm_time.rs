//! Slurm's time format, for run times and time limits.

use std::fmt;

/// 10 years. More is an error, and Slurm counts minutes with 32 bits.
const MAX_LIMIT: u64 = 10 * 366 * 86_400;

/// A time limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TimeLimit {
    /// Without limit.
    Unlimited,
    /// At most this long; more than 0.
    Seconds(u64),
}

impl TimeLimit {
    /// Parses the formats of sbatch(1), --time: those of [`seconds`], `UNLIMITED` and `INFINITE`.
    pub fn parse(text: &str) -> Option<Self> {
        if ["UNLIMITED", "INFINITE"].iter().any(|word| text.eq_ignore_ascii_case(word)) {
            return Some(Self::Unlimited);
        }
        Self::of_seconds(seconds(text)?)
    }

    /// A limit in minutes.
    pub fn of_minutes(minutes: u64) -> Option<Self> {
        Self::of_seconds(minutes.checked_mul(60)?)
    }

    /// Rejects 0: to Slurm it means no limit, to most readers the opposite.
    fn of_seconds(seconds: u64) -> Option<Self> {
        (1..=MAX_LIMIT).contains(&seconds).then_some(Self::Seconds(seconds))
    }

    /// In whole minutes, Slurm's unit.
    pub fn minutes(self) -> u64 {
        match self {
            Self::Unlimited => u64::MAX,
            Self::Seconds(seconds) => seconds.div_ceil(60),
        }
    }
}

/// The seconds of `minutes`, `minutes:seconds`, `hours:minutes:seconds`, `days-hours`, `days-hours:minutes` or
/// `days-hours:minutes:seconds`.
pub fn seconds(text: &str) -> Option<u64> {
    let (days, rest) = match text.split_once('-') {
        Some((days, rest)) => (Some(number(days)?), rest),
        None => (None, text),
    };
    let fields = rest.split(':').map(number).collect::<Option<Vec<u64>>>()?;
    let (hours, minutes, seconds) = match (days, fields.as_slice()) {
        (None, [minutes]) => (0, *minutes, 0),
        (None, [minutes, seconds]) => (0, *minutes, *seconds),
        (Some(_), [hours]) => (*hours, 0, 0),
        (Some(_), [hours, minutes]) => (*hours, *minutes, 0),
        (_, [hours, minutes, seconds]) => (*hours, *minutes, *seconds),
        _ => return None,
    };
    Some(days.unwrap_or(0) * 86_400 + hours * 3600 + minutes * 60 + seconds)
}

/// Digits only, because `parse` also accepts a sign. Nine digits cannot overflow above.
fn number(text: &str) -> Option<u64> {
    (text.len() <= 9 && text.bytes().all(|byte| byte.is_ascii_digit())).then(|| text.parse().ok())?
}

impl fmt::Display for TimeLimit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self::Seconds(seconds) = self else { return f.write_str("UNLIMITED") };
        let (days, rest) = (seconds / 86_400, seconds % 86_400);
        write!(f, "{days}-{:02}:{:02}:{:02}", rest / 3600, rest % 3600 / 60, rest % 60)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parses_run_times() {
        let times = ["0:02", "2:03", "1:02:03", "1-01:00:01", "2-00:00:01", "INVALID"];
        let expected = [Some(2), Some(123), Some(3723), Some(90_001), Some(172_801), None];
        assert_eq!(times.map(seconds), expected);
    }

    #[test]
    fn accepts_only_slurm_time_limit_formats() {
        for (text, expected) in [
            ("90", "0-01:30:00"),
            ("90:30", "0-01:30:30"),
            ("2:0:1", "0-02:00:01"),
            ("1-12", "1-12:00:00"),
            ("1-0:5", "1-00:05:00"),
            ("01-02:03:04", "1-02:03:04"),
            ("0-00:00:01", "0-00:00:01"),
            ("unlimited", "UNLIMITED"),
            ("INFINITE", "UNLIMITED"),
        ] {
            assert_eq!(TimeLimit::parse(text).unwrap().to_string(), expected, "{text}");
        }
        let bad = [
            "",
            "0",
            "0:0",
            "-1",
            "1-",
            "-",
            ":",
            "1:",
            "+5",
            " 5",
            "5 ",
            "1-2-3",
            "1:2:3:4",
            "1-1:2:3:4",
            "5m",
            "１",
            "1.5",
            "$(id)",
            "5;id",
            "5\n",
            "9999999999",
            "999999999-0",
            "3661-0",
        ];
        for text in bad {
            assert_eq!(TimeLimit::parse(text), None, "{text:?}");
        }
        assert_eq!(TimeLimit::of_minutes(u64::MAX), None);
    }

    #[test]
    fn round_trips_written_value() {
        for seconds in [1, 59, 60, 3599, 86_399, 86_400, 90_061, MAX_LIMIT] {
            let limit = TimeLimit::Seconds(seconds);
            assert_eq!(TimeLimit::parse(&limit.to_string()), Some(limit));
        }
    }
}
