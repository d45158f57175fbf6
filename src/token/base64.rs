//! base64url without padding (RFC 4648, section 5).

const LETTERS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";

pub(super) fn encode(bytes: &[u8]) -> String {
    let group = |group: &[u8]| {
        let bits = (0..3).fold(0, |bits, at| bits << 8 | usize::from(group.get(at).copied().unwrap_or(0)));
        (0..=group.len()).map(move |at| char::from(LETTERS[bits >> (18 - 6 * at) & 63])).collect::<String>()
    };
    bytes.chunks(3).map(group).collect()
}

/// `None` where a character is none of the alphabet. Bits of a group that was cut off are dropped.
pub(super) fn decode(text: &str) -> Option<Vec<u8>> {
    let value = |letter: &u8| LETTERS.iter().position(|own| own == letter).and_then(|at| u32::try_from(at).ok());
    let mut bytes = Vec::with_capacity(text.len() / 4 * 3 + 2);
    for group in text.as_bytes().chunks(4) {
        let mut bits = 0;
        for letter in group {
            bits = bits << 6 | value(letter)?;
        }
        bits <<= 6 * (4 - group.len());
        bytes.extend(bits.to_be_bytes()[1..].iter().take(group.len() * 3 / 4));
    }
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_examples_of_the_standard() {
        for (bytes, text) in [
            ("", ""),
            ("f", "Zg"),
            ("fo", "Zm8"),
            ("foo", "Zm9v"),
            ("foob", "Zm9vYg"),
            ("fooba", "Zm9vYmE"),
            ("foobar", "Zm9vYmFy"),
        ] {
            assert_eq!(encode(bytes.as_bytes()), text);
            assert_eq!(decode(text).as_deref(), Some(bytes.as_bytes()));
        }
        assert_eq!(encode(&[0xff, 0xfe]), "__4");
        assert_eq!(decode("a+b/"), None);
    }
}
