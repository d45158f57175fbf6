//! A join token: all that a second machine needs to become part of a cluster, as one word.
//!
//! `sj1-` and base64url of: CRC-32 of what follows, its length, the length of the munge key, the key, and JSON. The length and the
//! checksum tell a token that was cut off from one that was mistyped. They keep nobody from making a token of their own: who believes a
//! token believes whoever gave it.

use core::net::Ipv4Addr;

use base64::Engine as _;
use base64::alphabet::URL_SAFE;
use base64::engine::general_purpose::{GeneralPurpose, NO_PAD};
use serde::{Deserialize, Serialize};

/// The format that this release makes and reads.
const FORMAT: &str = "1";
/// In front of the format.
const NAME: &str = "sj";
/// CRC-32, length of the rest, length of the key.
const HEAD: usize = 4 + 4 + 2;
/// munged's limits on a key (munge 0.5.13 and later).
const KEY: std::ops::RangeInclusive<usize> = 32..=1024;

/// Bits of a group that was cut off are dropped, so that the length can tell.
const BASE64: GeneralPurpose = GeneralPurpose::new(&URL_SAFE, NO_PAD.with_decode_allow_trailing_bits(true));

/// Where a container keeps what it took from its token: [`SETTINGS`] for every verb, [`KEPT`] for the preparation.
pub const DIRECTORY: &str = "/run/slurminit.join";
/// The settings of the cluster, readable for all.
pub const SETTINGS: &str = "cluster.toml";
/// The token itself, root's alone; gone once its key is munged's.
pub const KEPT: &str = "token";

/// What a token says. Without `Debug` of the key: nothing prints it by mistake.
#[derive(Clone, PartialEq, Eq)]
pub struct Token {
    /// What is not secret.
    pub says: Says,
    /// munge's.
    pub key: Vec<u8>,
}

impl std::fmt::Debug for Token {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Token").field("says", &self.says).finish_non_exhaustive()
    }
}

/// The part that is not secret.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Says {
    /// The controller's host name, as slurm.conf has it.
    pub controller: String,
    /// Its address.
    pub address: Ipv4Addr,
    /// Whether the name means this address, whatever a name server says. Otherwise only where nothing knows the name.
    pub pinned: bool,
    /// Its Slurm: `24.11`.
    pub slurm: String,
    /// Seconds since 1970, by its clock.
    pub issued: u64,
    /// The same.
    pub expires: u64,
    /// The part of slurminit.toml that must be the same in all containers, as TOML.
    pub settings: String,
}

/// Why a text is no token.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[expect(missing_docs, reason = "each message says what the variant is")]
pub enum TokenError {
    #[error("this is no token: one begins with {NAME}{FORMAT}-")]
    NoToken,
    #[error(
        "the token is of format {0}, and this slurminit reads format {FORMAT}: use one image, of one release, on all machines"
    )]
    OtherFormat(String),
    #[error("the token is cut off: {have} of its {want} bytes are here; copy all of it")]
    CutOff { have: usize, want: usize },
    #[error("the token was changed on its way (its checksum is wrong): copy it again, all of it")]
    Altered,
    #[error("the token is well-formed and says nonsense ({0}): make a new one with slurminit join-command")]
    Nonsense(String),
}

impl Token {
    /// The one word.
    pub fn encode(&self) -> String {
        let json = serde_json::to_vec(&self.says).unwrap_or_default();
        let key_length = u16::try_from(self.key.len()).unwrap_or(u16::MAX);
        let rest = [key_length.to_be_bytes().as_slice(), &self.key, &json].concat();
        let length = u32::try_from(rest.len()).unwrap_or(u32::MAX);
        let counted = [length.to_be_bytes().as_slice(), &rest].concat();
        let bytes = [crc32(&counted).to_be_bytes().as_slice(), &counted].concat();
        format!("{NAME}{FORMAT}-{}", BASE64.encode(&bytes))
    }

    /// Reads one. White space anywhere, as a terminal or a file brings in, does not matter.
    ///
    /// # Errors
    /// It is no token, or not a whole one.
    pub fn decode(text: &str) -> Result<Self, TokenError> {
        let text: String = text.split_whitespace().collect();
        let (format, body) =
            text.strip_prefix(NAME).and_then(|rest| rest.split_once('-')).ok_or(TokenError::NoToken)?;
        if format.is_empty() || format.len() > 3 || !format.bytes().all(|byte| byte.is_ascii_digit()) {
            return Err(TokenError::NoToken);
        }
        if format != FORMAT {
            return Err(TokenError::OtherFormat(format.to_owned()));
        }
        // A single character of a group says nothing, and base64 has no such length: it is what a cut left.
        let is_ragged = body.len() % 4 == 1;
        let groups = body.get(..body.len() - usize::from(is_ragged)).ok_or(TokenError::Altered)?;
        let bytes = BASE64.decode(groups).map_err(|_| TokenError::Altered)?;
        let cut_off = |want| TokenError::CutOff { have: bytes.len(), want };
        let (Some(crc), Some(length)) = (number(&bytes, 0), number(&bytes, 4)) else { return Err(cut_off(HEAD)) };
        let want = usize::try_from(length).unwrap_or(usize::MAX).saturating_add(8);
        if bytes.len() < want {
            return Err(cut_off(want));
        }
        if is_ragged || bytes.len() > want || crc32(&bytes[4..]) != crc {
            return Err(TokenError::Altered);
        }
        Self::read(&bytes[8..])
    }

    /// What follows the length.
    fn read(rest: &[u8]) -> Result<Self, TokenError> {
        let nonsense = |what: &str| TokenError::Nonsense(what.to_owned());
        let (length, rest) = rest.split_at_checked(2).ok_or_else(|| nonsense("it has no key"))?;
        let length = length.iter().fold(0, |length, byte| length << 8 | usize::from(*byte));
        let (key, json) = rest.split_at_checked(length).ok_or_else(|| nonsense("its key is cut off"))?;
        if !KEY.contains(&key.len()) {
            return Err(nonsense("its key is none of munge's"));
        }
        let says = serde_json::from_slice(json).map_err(|error| nonsense(&error.to_string()))?;
        Ok(Self { says, key: key.to_owned() })
    }
}

/// The big-endian number at `at`.
fn number(bytes: &[u8], at: usize) -> Option<u32> {
    Some(bytes.get(at..at + 4)?.iter().fold(0, |number, byte| number << 8 | u32::from(*byte)))
}

/// The checksum of Ethernet and gzip.
fn crc32(bytes: &[u8]) -> u32 {
    !bytes.iter().fold(!0, |crc, byte| {
        (0..8).fold(crc ^ u32::from(*byte), |crc, _| if crc & 1 == 1 { crc >> 1 ^ 0xedb8_8320 } else { crc >> 1 })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn token() -> Token {
        let says = Says {
            controller: "head".to_owned(),
            address: Ipv4Addr::new(10, 0, 0, 1),
            pinned: true,
            slurm: "24.11".to_owned(),
            issued: 1_000,
            expires: 2_000,
            settings: "cluster_name = \"lab\"\n".to_owned(),
        };
        Token { says, key: (0..128).collect() }
    }

    #[test]
    fn a_token_comes_back_whole_and_is_one_word() {
        let text = token().encode();
        assert!(text.starts_with("sj1-") && text.bytes().all(|c| c.is_ascii_alphanumeric() || b"-_".contains(&c)));
        assert_eq!(Token::decode(&text), Ok(token()));
        let wrapped = text.as_bytes().chunks(76).map(|line| format!("{}\n ", String::from_utf8_lossy(line)));
        assert_eq!(Token::decode(&wrapped.collect::<String>()), Ok(token()));
    }

    #[test]
    fn one_that_is_cut_off_says_so_at_every_length() {
        let text = token().encode();
        for end in 5..text.len() {
            let error = Token::decode(&text[..end]).unwrap_err();
            assert!(matches!(error, TokenError::CutOff { .. }), "{end}: {error}");
        }
    }

    #[test]
    fn one_that_was_changed_says_so_wherever_it_was_changed() {
        let text = token().encode();
        for at in 4..text.len() {
            let mut other = text.clone().into_bytes();
            other[at] = if other[at] == b'A' { b'B' } else { b'A' };
            let other = String::from_utf8(other).unwrap();
            assert!(Token::decode(&other).is_err(), "{at}");
        }
        for added in ["A", "AA", "AAA", "AAAA", "\u{e4}"] {
            assert_eq!(Token::decode(&format!("{text}{added}")), Err(TokenError::Altered), "{added}");
        }
    }

    #[test]
    fn what_is_no_token_is_told_from_one_of_another_release() {
        for text in ["", "x", "--gpus", "sj-", "sj1", "sjx-AAAA", "SJ1-AAAA", "sj1234-AAAA"] {
            assert_eq!(Token::decode(text), Err(TokenError::NoToken), "{text}");
        }
        assert_eq!(Token::decode("sj2-AAAA"), Err(TokenError::OtherFormat("2".to_owned())));
    }

    #[test]
    fn a_key_that_is_none_and_json_that_says_more_are_nonsense() {
        let mut short = token();
        short.key.truncate(31);
        assert!(matches!(Token::decode(&short.encode()), Err(TokenError::Nonsense(_))));
        let json = br#"{"controller":"a","address":"1.2.3.4","pinned":true,"slurm":"1","issued":1,"expires":2,"settings":"","run":"x"}"#;
        let rest = [[0, 32].as_slice(), &[7; 32], json].concat();
        let counted = [u32::try_from(rest.len()).unwrap().to_be_bytes().as_slice(), &rest].concat();
        let bytes = [crc32(&counted).to_be_bytes().as_slice(), &counted].concat();
        let error = Token::decode(&format!("sj1-{}", BASE64.encode(&bytes))).unwrap_err();
        assert!(error.to_string().contains("unknown field `run`"), "{error}");
    }

    #[test]
    fn a_key_is_in_no_debug_output() {
        let shown = format!("{:?}", token());
        assert!(shown.contains("head") && !shown.contains("key") && !shown.contains("126"), "{shown}");
    }

    #[test]
    fn the_checksum_is_the_usual_one() {
        assert_eq!(crc32(b"123456789"), 0xcbf4_3926);
    }

    proptest::proptest! {
        #[test]
        fn no_text_panics(text in "(?s).{0,60}", body in "[A-Za-z0-9_-]{0,80}") {
            let _ = Token::decode(&text);
            let _ = Token::decode(&format!("sj1-{body}"));
        }
    }
}
