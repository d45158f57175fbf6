//! Small validated types, and parsers for seconds, commands and paths.

use std::fmt;
use std::marker::PhantomData;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

/// A name, such as that of a node, cluster, partition or host: a letter or digit, then letters, digits, `-`, `_` and `.`; at most 63
/// characters in all. ALL and DEFAULT are not valid.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String")]
pub struct NodeName(String);

impl Default for NodeName {
    /// The default name of the node in a one-container cluster.
    fn default() -> Self {
        Self("localhost".to_owned())
    }
}

text_type!(
    NodeName,
    "`{}` is not a valid name: expected a letter or digit, then letters, digits, `-`, `_` and `.`, at most 63 characters, not ALL or DEFAULT",
    |text| {
        // ALL and DEFAULT have a special meaning in slurm.conf.
        let reserved = ["all", "default"].contains(&text.to_ascii_lowercase().as_str());
        is_name(text, 63) && !reserved
    }
);

/// A node feature: a letter or digit, then letters, digits, `-`, `_` and `.`; at most 64 characters in all. In a constraint, Slurm
/// reads `&|()[]*,` as operators.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String")]
pub struct FeatureName(String);

impl FeatureName {
    /// Derives a feature from a name that a driver reports: at most 64 characters in lower case, with `_` for runs of other characters; `None` if
    /// nothing is left.
    pub fn from_hardware(name: &str) -> Option<Self> {
        let mut text = String::new();
        for c in name.chars().flat_map(char::to_lowercase).take(64) {
            if is_name_character(c) {
                text.push(c);
            } else if !text.ends_with('_') {
                text.push('_');
            }
        }
        Self::try_from(text.trim_matches(['_', '-', '.']).to_owned()).ok()
    }
}

text_type!(
    FeatureName,
    "`{}` is not a valid feature: expected a letter or digit, then letters, digits, `-`, `_` and `.`, at most 64 characters",
    |text| { is_name(text, 64) }
);

fn is_name(text: &str, longest: usize) -> bool {
    let has_valid_start = text.starts_with(|c: char| c.is_ascii_alphanumeric());
    has_valid_start && text.len() <= longest && text.chars().all(is_name_character)
}

fn is_name_character(c: char) -> bool {
    c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.')
}

/// One year. Longer values are typing errors, and the limit keeps `Duration` arithmetic from overflowing.
const MAX_SECONDS: f64 = 366.0 * 86_400.0;

/// Reads a table, or `word`, for which the result is `None`. `forms` describes both forms in an error message.
pub fn word_or_table<'de, T: Deserialize<'de>, D: Deserializer<'de>>(
    deserializer: D,
    word: &'static str,
    forms: &'static str,
) -> Result<Option<T>, D::Error> {
    struct WordOrTable<T> {
        word: &'static str,
        forms: &'static str,
        table: PhantomData<T>,
    }

    impl<'de, T: Deserialize<'de>> de::Visitor<'de> for WordOrTable<T> {
        type Value = Option<T>;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str(self.forms)
        }

        fn visit_str<E: de::Error>(self, text: &str) -> Result<Option<T>, E> {
            if text == self.word { Ok(None) } else { Err(E::invalid_value(de::Unexpected::Str(text), &self)) }
        }

        fn visit_map<A: de::MapAccess<'de>>(self, map: A) -> Result<Option<T>, A::Error> {
            T::deserialize(de::value::MapAccessDeserializer::new(map)).map(Some)
        }
    }
    deserializer.deserialize_any(WordOrTable { word, forms, table: PhantomData })
}

/// Reads seconds, possibly fractional.
pub fn seconds<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Duration, D::Error> {
    let seconds = f64::deserialize(deserializer)?;
    if (0.0..=MAX_SECONDS).contains(&seconds) {
        Ok(Duration::from_secs_f64(seconds))
    } else {
        Err(de::Error::custom(format_args!("expected a number of seconds from 0 to {MAX_SECONDS}, got {seconds}")))
    }
}

/// Writes what [`seconds`] reads.
pub fn as_seconds<S: Serializer>(time: &Duration, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_f64(time.as_secs_f64())
}

/// Writes what [`optional_seconds`] reads.
pub fn as_optional_seconds<S: Serializer>(time: &Option<Duration>, serializer: S) -> Result<S::Ok, S::Error> {
    time.map(|time| time.as_secs_f64()).serialize(serializer)
}

/// Like [`seconds`], for an optional key.
pub fn optional_seconds<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Duration>, D::Error> {
    seconds(deserializer).map(Some)
}

/// On a busy machine no daemon answers faster, so a shorter limit would fail every check.
const MIN_PROBE_TIMEOUT: Duration = Duration::from_millis(100);

/// Like [`seconds`], for the timeout of a liveness check: at least 0.1 s.
pub fn probe_seconds<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Duration, D::Error> {
    match seconds(deserializer)? {
        time if time < MIN_PROBE_TIMEOUT => Err(de::Error::custom("expected at least 0.1 seconds")),
        time => Ok(time),
    }
}

/// Like [`probe_seconds`], but zero means never.
pub fn probe_seconds_or_zero<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Duration, D::Error> {
    match seconds(deserializer)? {
        time if !time.is_zero() && time < MIN_PROBE_TIMEOUT => {
            Err(de::Error::custom("expected 0 (never) or at least 0.1 seconds"))
        }
        time => Ok(time),
    }
}

/// Like [`probe_seconds`], for an optional key.
pub fn optional_probe_seconds<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Duration>, D::Error> {
    probe_seconds(deserializer).map(Some)
}

/// Reads a program and its arguments.
pub fn command<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<String>, D::Error> {
    let command = Vec::<String>::deserialize(deserializer)?;
    if command.first().is_none_or(String::is_empty) {
        return Err(de::Error::custom("an empty command; expected [\"/path/to/program\", \"argument\"]"));
    }
    if command.iter().any(|argument| argument.contains('\0')) {
        return Err(de::Error::custom("NUL character in a command"));
    }
    Ok(command)
}

/// An absolute path without `..`, control characters or colons, which separate fields in Docker's options and in
/// /etc/passwd.
pub fn absolute_path(text: &str) -> Option<PathBuf> {
    let is_absolute = text.starts_with('/') && !text.split('/').any(|part| part == "..");
    (is_absolute && !text.chars().any(|c| c == ':' || c.is_control())).then(|| PathBuf::from(text))
}

/// Like [`path`], for an optional key.
pub fn optional_path<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<PathBuf>, D::Error> {
    path(deserializer).map(Some)
}

/// The path of a directory without characters that require quotes.
pub fn plain_directory<'de, D: Deserializer<'de>>(deserializer: D) -> Result<PathBuf, D::Error> {
    plain(path(deserializer)?)
}

/// The paths of directories without characters that require quotes.
pub fn plain_directories<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<PathBuf>, D::Error> {
    let texts = Vec::<String>::deserialize(deserializer)?;
    texts.iter().map(|text| plain(valid_path(text)?)).collect()
}

/// Whether a path needs no quotes, neither for Slurm nor for sh.
pub fn is_plain_path(path: &Path) -> bool {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '/' | '.' | '_' | '-' | '+');
    path.to_str().is_some_and(|text| text.chars().all(is_plain))
}

fn plain<E: de::Error>(path: PathBuf) -> Result<PathBuf, E> {
    match is_plain_path(&path) {
        true => Ok(path),
        false => Err(E::custom(format_args!(
            "{path:?} has unsupported characters: expected letters, digits, `/`, `.`, `_`, `-` and `+`"
        ))),
    }
}

/// The path of a file or directory.
pub fn path<'de, D: Deserializer<'de>>(deserializer: D) -> Result<PathBuf, D::Error> {
    valid_path(&String::deserialize(deserializer)?)
}

fn valid_path<E: de::Error>(text: &str) -> Result<PathBuf, E> {
    let expected = "expected an absolute path without `..`, `:` or control characters";
    absolute_path(text).ok_or_else(|| E::custom(format_args!("{text:?} is not valid: {expected}")))
}

/// Like [`command`], for an optional key.
pub fn optional_command<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Vec<String>>, D::Error> {
    command(deserializer).map(Some)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn seconds_are_at_most_a_year() {
        assert_eq!(seconds(json!(1.5)).unwrap(), Duration::from_millis(1500));
        assert_eq!(optional_seconds(json!(2)).unwrap(), Some(Duration::from_secs(2)));
        assert!(seconds(json!(0)).is_ok() && seconds(json!(MAX_SECONDS)).is_ok());
        assert!(seconds(json!(-0.1)).is_err() && seconds(json!(MAX_SECONDS + 1.0)).is_err());
    }

    #[test]
    fn shortest_check_takes_a_tenth_of_a_second() {
        let millis = [0.0, 0.05, 0.1, 3.0];
        assert_eq!(millis.map(|time| probe_seconds(json!(time)).is_ok()), [false, false, true, true]);
        assert_eq!(millis.map(|time| probe_seconds_or_zero(json!(time)).is_ok()), [true, false, true, true]);
        assert_eq!(optional_probe_seconds(json!(0.1)).unwrap(), Some(MIN_PROBE_TIMEOUT));
    }

    #[test]
    fn command_has_a_program_and_no_nul() {
        let own = ["x".to_owned(), String::new()];
        assert_eq!(command(json!(["x", ""])).unwrap(), own);
        assert_eq!(optional_command(json!(["x", ""])).unwrap().unwrap(), own);
        for bad in [json!([]), json!([""]), json!(["x", "a\0b"]), json!("x")] {
            assert!(command(bad.clone()).is_err(), "{bad}");
        }
    }

    #[test]
    fn path_is_absolute_and_directory_needs_no_quotes() {
        assert_eq!(path(json!("/a b/..c")).unwrap(), Path::new("/a b/..c"));
        assert_eq!(optional_path(json!("/a")).unwrap().as_deref(), Some(Path::new("/a")));
        for bad in ["", "a", "/a/../b", "/a:b", "/a\nb"] {
            assert!(path(json!(bad)).is_err(), "{bad:?}");
        }
        assert_eq!(plain_directory(json!("/a-b_c.d+1")).unwrap(), Path::new("/a-b_c.d+1"));
        assert!(plain_directory(json!("/a b")).is_err() && plain_directory(json!("a")).is_err());
        assert_eq!(plain_directories(json!(["/a", "/b"])).unwrap(), [Path::new("/a"), Path::new("/b")]);
        assert!(plain_directories(json!(["/a", "/b$"])).is_err());
    }

    #[test]
    fn node_name_is_valid_for_slurm_and_as_host_name() {
        let is_valid = |name: &str| NodeName::try_from(name.to_owned()).is_ok();
        for name in ["gpu7", "a-b_c.d", "7", &"x".repeat(63)] {
            assert!(is_valid(name), "{name}");
        }
        for name in ["", "-a", ".a", "a b", "ä", "ALL", "default", &"x".repeat(64)] {
            assert!(!is_valid(name), "{name}");
        }
    }

    #[test]
    fn feature_from_hardware_has_no_operator_of_a_constraint() {
        let feature = |name: &str| FeatureName::from_hardware(name).map(|feature| feature.to_string());
        assert_eq!(feature("NVIDIA H200 (MIG) & more").as_deref(), Some("nvidia_h200_mig_more"));
        assert_eq!(feature(" -cc9.0_").as_deref(), Some("cc9.0"));
        assert_eq!((feature(""), feature("&|*")), (None, None));
    }
}
