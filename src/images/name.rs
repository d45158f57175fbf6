//! The names of images.

use std::fmt;
use std::str::FromStr;

/// A validated name: it starts with a letter or digit, and contains only letters, digits, `.`, `_` and `-`. So a name is never a path, an option or a
/// hidden file.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ImageName(String);

/// The maximum length of a name, in bytes.
const LONGEST: usize = 64;

impl ImageName {
    /// The name as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Wraps a name that is valid by construction.
    pub(crate) fn valid(text: String) -> Self {
        Self(text)
    }
}

impl FromStr for ImageName {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let is_plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-');
        let starts_plain = text.starts_with(|c: char| c.is_ascii_alphanumeric());
        if starts_plain && text.len() <= LONGEST && text.chars().all(is_plain) {
            Ok(Self(text.to_owned()))
        } else {
            Err(format!(
                "expected at most {LONGEST} letters, digits, `.`, `_` and `-`, beginning with a letter or digit; for example pytorch-2.4"
            ))
        }
    }
}

impl fmt::Display for ImageName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rejects_names_that_could_be_paths() {
        for name in ["pytorch", "pytorch-2.4", "A_b.c", "0"] {
            assert_eq!(name.parse::<ImageName>().unwrap().as_str(), name);
        }
        for name in ["", ".", "..", ".hidden", "a/b", "/a", "-a", "a b", "a\n", "é", "a:b", &"a".repeat(65)] {
            assert!(name.parse::<ImageName>().is_err(), "{name:?}");
        }
    }
}
