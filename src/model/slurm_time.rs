//! Slurm's formats for run times, time limits and dates.

use std::fmt;

/// 10 years. Longer limits are typing errors, and Slurm counts minutes with 32 bits.
const MAX_LIMIT: u64 = 10 * 366 * 86_400;

/// A time limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TimeLimit {
    /// No limit.
    Unlimited,
    /// The limit in seconds, which is never 0.
    Seconds(u64),
}

impl TimeLimit {
    /// Parses the formats of sbatch(1), --time: those of [`seconds`], `UNLIMITED` and `INFINITE`. `None` for another format, for 0, or if the limit
    /// is too long.
    pub fn parse(text: &str) -> Option<Self> {
        if ["UNLIMITED", "INFINITE"].iter().any(|word| text.eq_ignore_ascii_case(word)) {
            return Some(Self::Unlimited);
        }
        Self::of_seconds(seconds(text)?)
    }

    /// A limit of this many minutes; `None` for 0, or if it is too long.
    pub fn of_minutes(minutes: u64) -> Option<Self> {
        Self::of_seconds(minutes.checked_mul(60)?)
    }

    /// Rejects a limit above [`MAX_LIMIT`], and 0: to Slurm it means no limit, to most readers the opposite.
    fn of_seconds(seconds: u64) -> Option<Self> {
        (1..=MAX_LIMIT).contains(&seconds).then_some(Self::Seconds(seconds))
    }

    /// The limit in minutes, Slurm's unit, rounded up; `u64::MAX` if unlimited.
    pub fn minutes(self) -> u64 {
        match self {
            Self::Unlimited => u64::MAX,
            Self::Seconds(seconds) => seconds.div_ceil(60),
        }
    }
}

/// Converts a time to seconds. Its format is `minutes`, `minutes:seconds`, `hours:minutes:seconds`, `days-hours`, `days-hours:minutes` or
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

/// The seconds since 1970 of a date such as `2026-11-28T18:30:00`, as if it were in UTC.
pub fn date_seconds(text: &str) -> Option<u64> {
    let (date, time) = text.split_once('T')?;
    let fields = |text: &str, separator| text.split(separator).map(number).collect::<Option<Vec<u64>>>();
    let (date, time) = (fields(date, '-')?, fields(time, ':')?);
    let ([year, month @ 1..=12, day @ 1..=31], [hours, minutes, seconds]) = (date.as_slice(), time.as_slice()) else {
        return None;
    };
    // Years begin in March, so that a leap day is the last of its year.
    let year = if *month <= 2 { year.checked_sub(1)? } else { *year };
    let days = year * 365 + year / 4 - year / 100 + year / 400 + (153 * ((month + 9) % 12) + 2) / 5 + day - 1;
    // 1970-01-01 is day 719,468.
    Some(days.checked_sub(719_468)? * 86_400 + hours * 3600 + minutes * 60 + seconds)
}

/// Parses at most nine digits, so that the sums above cannot overflow. Rejects a sign, which `str::parse` accepts.
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
    fn parses_dates() {
        let dates = ["1970-01-01T00:00:01", "2000-02-29T00:00:00", "2026-11-28T18:30:00", "N/A", "2026-13-01T00:00:00"];
        let expected = [Some(1), Some(951_782_400), Some(1_795_890_600), None, None];
        assert_eq!(dates.map(date_seconds), expected);
    }

    #[test]
    fn each_day_follows_the_one_before() {
        let mut expected = 0;
        for year in 1970..=2100 {
            let is_leap_year = year % 4 == 0 && (year % 100 != 0 || year % 400 == 0);
            for month in 1..=12 {
                let days = match month {
                    2 if is_leap_year => 29,
                    2 => 28,
                    4 | 6 | 9 | 11 => 30,
                    _ => 31,
                };
                for day in 1..=days {
                    let date = format!("{year}-{month:02}-{day:02}T00:00:00");
                    assert_eq!(date_seconds(&date), Some(expected), "{date}");
                    expected += 86_400;
                }
            }
        }
        assert_eq!(date_seconds("1969-12-31T00:00:00"), None);
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
            ("3660-0", "3660-00:00:00"),
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
