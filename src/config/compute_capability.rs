//! CUDA's compute capability.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// CUDA's compute capability, such as `8.0`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct ComputeCapability {
    major: u32,
    minor: u32,
}

impl fmt::Display for ComputeCapability {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.major, self.minor)
    }
}

impl FromStr for ComputeCapability {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let number = |text: &str| {
            (text.len() <= 2 && text.bytes().all(|byte| byte.is_ascii_digit())).then(|| text.parse().ok())?
        };
        let parse = || {
            let (major, minor) = text.split_once('.')?;
            Some(Self { major: number(major)?, minor: number(minor)? })
        };
        parse().ok_or_else(|| {
            format!("`{}` is not a compute capability: expected a value such as \"8.0\"", text.escape_default())
        })
    }
}

model::serde_by_text!(ComputeCapability);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn compute_capabilities_compare_numerically() {
        let parse = |text: &str| text.parse::<ComputeCapability>();
        assert!(parse("8.9").unwrap() < parse("9.0").unwrap());
        assert!(parse("9.0").unwrap() < parse("10.0").unwrap());
        assert!(parse("12.1").unwrap() > parse("12.0").unwrap());
        for bad in ["", "8", "8.", ".0", "8.0.1", "-8.0", "8.x", "gfx90a", "100.0", " 8.0"] {
            assert!(parse(bad).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn text_is_that_of_cuda() {
        assert_eq!("12.0".parse::<ComputeCapability>().unwrap().to_string(), "12.0");
    }
}
