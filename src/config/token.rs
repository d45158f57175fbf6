//! A join token: one word with the key and the settings that another machine requires to join a cluster.
//!
//! A token consists of `sj1-` and the base64url encoding of: CRC-32 of the rest, length of the rest, length of the munge key, the key, and JSON. The
//! length and the checksum distinguish a truncated token from a mistyped one. They do not authenticate the token: anyone can make one, so use only
//! tokens from a trusted source.

use core::net::Ipv4Addr;

use base64::Engine as _;
use base64::alphabet::URL_SAFE;
use base64::engine::general_purpose::{GeneralPurpose, NO_PAD};
use serde::{Deserialize, Serialize};

/// The token format of this release.
const FORMAT: &str = "1";
/// The prefix before the format.
const PREFIX: &str = "sj";
/// The length of the header in bytes: CRC-32, length of the rest, length of the key.
const HEADER_LENGTH: usize = 4 + 4 + 2;
/// The lengths of a key that munged accepts, in bytes (munge 0.5.13 and later).
const KEY_LENGTHS: std::ops::RangeInclusive<usize> = 32..=1024;

/// Allows trailing bits, so that a truncated token is detected by its length.
const BASE64: GeneralPurpose = GeneralPurpose::new(&URL_SAFE, NO_PAD.with_decode_allow_trailing_bits(true));

/// The directory with the contents of a container's token: [`SETTINGS_FILE`] for every slurminit command, and [`TOKEN_FILE`] for the
/// preparation.
pub const DIRECTORY: &str = "/run/slurminit.join";
/// The file with the settings of the cluster, readable by all users.
pub const SETTINGS_FILE: &str = "cluster.toml";
/// The file with the token, readable only by root; removed once munged's key is installed.
pub const TOKEN_FILE: &str = "token";

/// The contents of a token. `Debug` omits the key.
#[derive(Clone, PartialEq, Eq)]
pub struct Token {
    /// The part of the token that is not secret.
    pub contents: TokenContents,
    /// The munge key.
    pub key: Vec<u8>,
}

impl std::fmt::Debug for Token {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Token").field("contents", &self.contents).finish_non_exhaustive()
    }
}

/// The part of a token that is not secret.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TokenContents {
    /// The controller's host name in slurm.conf.
    pub controller: String,
    /// The controller's address.
    pub address: Ipv4Addr,
    /// Whether the address overrides name servers; otherwise it is used only if the name does not resolve.
    pub pinned: bool,
    /// The controller's Slurm release: `24.11`.
    pub slurm: String,
    /// The time of issue, in seconds since 1970 by the controller's clock.
    pub issued: u64,
    /// The time of expiry, in seconds since 1970 by the controller's clock.
    pub expires: u64,
    /// The shared part of slurminit.toml, as TOML.
    pub settings: String,
}

/// The reason why a text is not a valid token.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[expect(missing_docs, reason = "the messages document the variants")]
pub enum TokenError {
    #[error("not a token: a token begins with {PREFIX}{FORMAT}-")]
    NotAToken,
    #[error("unsupported token format {0} (expected {FORMAT}): use the same image release on all machines")]
    UnsupportedFormat(String),
    #[error("truncated token ({length} of at least {expected} bytes, decoded): copy all of it")]
    Truncated { length: usize, expected: usize },
    #[error("corrupted token: copy all of it again")]
    Corrupted,
    #[error("invalid token ({0}): create a new one with slurminit join-command")]
    Malformed(String),
}

impl Token {
    /// Encodes the token as one word.
    pub fn encode(&self) -> String {
        let json = serde_json::to_vec(&self.contents).unwrap_or_default();
        let key_length = u16::try_from(self.key.len()).unwrap_or(u16::MAX);
        let rest = [key_length.to_be_bytes().as_slice(), &self.key, &json].concat();
        let length = u32::try_from(rest.len()).unwrap_or(u32::MAX);
        let sized = [length.to_be_bytes().as_slice(), &rest].concat();
        let bytes = [crc32(&sized).to_be_bytes().as_slice(), &sized].concat();
        format!("{PREFIX}{FORMAT}-{}", BASE64.encode(&bytes))
    }

    /// Decodes a token; ignores white space, which terminals and files insert.
    ///
    /// # Errors
    /// The text is not a complete and valid token.
    pub fn decode(text: &str) -> Result<Self, TokenError> {
        let text: String = text.split_whitespace().collect();
        let (format, body) =
            text.strip_prefix(PREFIX).and_then(|rest| rest.split_once('-')).ok_or(TokenError::NotAToken)?;
        if format.is_empty() || format.len() > 3 || !format.bytes().all(|byte| byte.is_ascii_digit()) {
            return Err(TokenError::NotAToken);
        }
        if format != FORMAT {
            return Err(TokenError::UnsupportedFormat(format.to_owned()));
        }
        // Base64 has no group of one character, so the text is truncated or has an additional character.
        let has_partial_group = body.len() % 4 == 1;
        let groups = body.get(..body.len() - usize::from(has_partial_group)).ok_or(TokenError::Corrupted)?;
        let bytes = BASE64.decode(groups).map_err(|_| TokenError::Corrupted)?;
        let truncated = |expected| TokenError::Truncated { length: bytes.len(), expected };
        let (Some(crc), Some(length)) = (number(&bytes, 0), number(&bytes, 4)) else {
            return Err(truncated(HEADER_LENGTH));
        };
        let expected = usize::try_from(length).unwrap_or(usize::MAX).saturating_add(8);
        if bytes.len() < expected {
            return Err(truncated(expected));
        }
        if has_partial_group || bytes.len() > expected || crc32(&bytes[4..]) != crc {
            return Err(TokenError::Corrupted);
        }
        Self::read(&bytes[8..])
    }

    /// Decodes the part after the length.
    fn read(rest: &[u8]) -> Result<Self, TokenError> {
        let malformed = |what: &str| TokenError::Malformed(what.to_owned());
        let (length, rest) = rest.split_at_checked(2).ok_or_else(|| malformed("missing key"))?;
        let length = length.iter().fold(0, |length, byte| length << 8 | usize::from(*byte));
        let (key, json) = rest.split_at_checked(length).ok_or_else(|| malformed("truncated key"))?;
        if !KEY_LENGTHS.contains(&key.len()) {
            return Err(malformed("invalid length of the munge key"));
        }
        let contents = serde_json::from_slice(json).map_err(|error| malformed(&error.to_string()))?;
        Ok(Self { contents, key: key.to_owned() })
    }
}

/// The big-endian number at `at`.
fn number(bytes: &[u8], at: usize) -> Option<u32> {
    Some(bytes.get(at..at + 4)?.iter().fold(0, |number, byte| number << 8 | u32::from(*byte)))
}

/// The CRC-32 checksum (IEEE 802.3) of the bytes.
fn crc32(bytes: &[u8]) -> u32 {
    !bytes.iter().fold(!0, |crc, byte| {
        (0..8).fold(crc ^ u32::from(*byte), |crc, _| if crc & 1 == 1 { crc >> 1 ^ 0xedb8_8320 } else { crc >> 1 })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn token() -> Token {
        let contents = TokenContents {
            controller: "head".to_owned(),
            address: Ipv4Addr::new(10, 0, 0, 1),
            pinned: true,
            slurm: "24.11".to_owned(),
            issued: 1_000,
            expires: 2_000,
            settings: "cluster_name = \"lab\"\n".to_owned(),
        };
        Token { contents, key: (0..128).collect() }
    }

    #[test]
    fn token_round_trips_as_one_word() {
        let text = token().encode();
        assert!(text.starts_with("sj1-") && text.bytes().all(|c| c.is_ascii_alphanumeric() || b"-_".contains(&c)));
        assert_eq!(Token::decode(&text), Ok(token()));
        let wrapped = text.as_bytes().chunks(76).map(|line| format!("{}\n ", String::from_utf8_lossy(line)));
        assert_eq!(Token::decode(&wrapped.collect::<String>()), Ok(token()));
    }

    #[test]
    fn reports_truncation_at_every_length() {
        // Checksum, and the lengths of the rest and of the key.
        assert_eq!(Token::decode("sj1-AAAA"), Err(TokenError::Truncated { length: 3, expected: 10 }));
        let text = token().encode();
        for end in 5..text.len() {
            let error = Token::decode(&text[..end]).unwrap_err();
            assert!(matches!(error, TokenError::Truncated { .. }), "{end}: {error}");
        }
    }

    #[test]
    fn detects_change_at_every_position() {
        let text = token().encode();
        for at in 4..text.len() {
            let mut other = text.clone().into_bytes();
            other[at] = if other[at] == b'A' { b'B' } else { b'A' };
            let other = String::from_utf8(other).unwrap();
            assert!(Token::decode(&other).is_err(), "{at}");
        }
        for added in ["A", "AA", "AAA", "AAAA", "\u{e4}"] {
            assert_eq!(Token::decode(&format!("{text}{added}")), Err(TokenError::Corrupted), "{added}");
        }
    }

    #[test]
    fn distinguishes_invalid_token_from_unsupported_format() {
        for text in ["", "x", "--gpus", "sj-", "sj1", "sjx-AAAA", "SJ1-AAAA", "sj1234-AAAA"] {
            assert_eq!(Token::decode(text), Err(TokenError::NotAToken), "{text}");
        }
        assert_eq!(Token::decode("sj2-AAAA"), Err(TokenError::UnsupportedFormat("2".to_owned())));
    }

    #[test]
    fn rejects_invalid_key_and_json_with_unknown_fields() {
        let mut short = token();
        short.key.truncate(31);
        assert!(matches!(Token::decode(&short.encode()), Err(TokenError::Malformed(_))));
        let json = br#"{"controller":"a","address":"1.2.3.4","pinned":true,"slurm":"1","issued":1,"expires":2,"settings":"","run":"x"}"#;
        let rest = [[0, 32].as_slice(), &[7; 32], json].concat();
        let sized = [u32::try_from(rest.len()).unwrap().to_be_bytes().as_slice(), &rest].concat();
        let bytes = [crc32(&sized).to_be_bytes().as_slice(), &sized].concat();
        let error = Token::decode(&format!("sj1-{}", BASE64.encode(&bytes))).unwrap_err();
        assert!(error.to_string().contains("unknown field `run`"), "{error}");
    }

    #[test]
    fn debug_output_omits_key() {
        let shown = format!("{:?}", token());
        assert!(shown.contains("head") && !shown.contains("key") && !shown.contains("126"), "{shown}");
    }

    #[test]
    fn checksum_matches_crc32_reference() {
        assert_eq!(crc32(b"123456789"), 0xcbf4_3926);
    }

    proptest::proptest! {
        #[test]
        fn decode_never_panics(text in "(?s).{0,60}", body in "[A-Za-z0-9_-]{0,80}") {
            let _ = Token::decode(&text);
            let _ = Token::decode(&format!("sj1-{body}"));
        }
    }
}
