//! Makes untrusted text safe for a line on a terminal or in a log.
//!
//! Job names, comments, reasons and daemons' output can contain anything: terminal escape sequences, newlines that
//! imitate another log line, characters that reverse the text direction. Such characters are shown escaped, as `\x1b` or
//! `\u{202e}`.

use std::borrow::Cow;
use std::fmt::Write as _;

/// Whether a terminal or an editor interprets the character instead of showing it. Tabs are harmless.
pub fn is_active(c: char) -> bool {
    c != '\t' && c.is_control()
        || matches!(c,
            // Bidirectional controls, and invisible joiners.
            '\u{ad}' | '\u{61c}' | '\u{180e}' | '\u{200b}'..='\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2060}'..='\u{206f}'
            // Line and paragraph separators.
            | '\u{2028}' | '\u{2029}'
            // Byte order mark, annotation marks, and tags.
            | '\u{feff}' | '\u{fff9}'..='\u{fffb}' | '\u{e0000}'..='\u{e007f}')
}

/// The text as one harmless line.
pub fn line(text: &str) -> Cow<'_, str> {
    escape(text, is_active)
}

/// Like [`line()`], but keeps newlines, for our own multi-line text that contains untrusted text.
pub fn lines(text: &str) -> Cow<'_, str> {
    escape(text, |c| c != '\n' && is_active(c))
}

/// Like [`line()`], but a text of more than `longest` characters is first cut to that length, and `...` is appended.
pub fn short(text: &str, longest: usize) -> String {
    match text.char_indices().nth(longest) {
        Some((end, _)) => line(text.get(..end).unwrap_or_default()).into_owned() + "...",
        None => line(text).into_owned(),
    }
}

/// A number and its noun: `1 GPU`, `2 GPUs`.
pub fn count(number: impl ToString, noun: &str) -> String {
    let number = number.to_string();
    let plural = if number == "1" { "" } else { "s" };
    format!("{number} {noun}{plural}")
}

/// Appends a line, which may contain any bytes, to `out`, escaped as by [`line()`]. Bytes that are not UTF-8 are also escaped, because some
/// terminals interpret them as control characters.
pub fn push(out: &mut Vec<u8>, bytes: &[u8]) {
    for chunk in bytes.utf8_chunks() {
        out.extend_from_slice(line(chunk.valid()).as_bytes());
        for byte in chunk.invalid() {
            out.extend_from_slice(format!("\\x{byte:02x}").as_bytes());
        }
    }
}

/// Escapes active characters in JSON without changing its meaning: they occur only in strings, where JSON has its own escapes.
pub fn json(text: &str) -> Cow<'_, str> {
    let is_escaped = |c: char| c != '\n' && is_active(c);
    if !text.contains(is_escaped) {
        return Cow::Borrowed(text);
    }
    let mut safe = String::with_capacity(text.len() + 16);
    for c in text.chars() {
        match is_escaped(c) {
            true => c.encode_utf16(&mut [0; 2]).iter().for_each(|unit| {
                // Writing to a String cannot fail.
                let _ = write!(safe, "\\u{unit:04x}");
            }),
            false => safe.push(c),
        }
    }
    Cow::Owned(safe)
}

fn escape(text: &str, is_escaped: impl Fn(char) -> bool) -> Cow<'_, str> {
    if !text.contains(&is_escaped) {
        return Cow::Borrowed(text);
    }
    let mut safe = String::with_capacity(text.len() + 16);
    for c in text.chars() {
        // Writing to a String cannot fail.
        let _ = match c {
            c if !is_escaped(c) => safe.write_char(c),
            c if c.is_ascii() => write!(safe, "\\x{:02x}", u32::from(c)),
            c => write!(safe, "{}", c.escape_unicode()),
        };
    }
    Cow::Owned(safe)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn escapes_only_control_characters() {
        assert_eq!(
            line("\x1b]0;pwn\x07 \u{9b}2J \u{202e}a\nb\x7f"),
            "\\x1b]0;pwn\\x07 \\u{9b}2J \\u{202e}a\\x0ab\\x7f"
        );
        assert_eq!(line("Grüße\t日本 🦀"), "Grüße\t日本 🦀");
        assert_eq!(lines("a\n\u{2028}\r"), "a\n\\u{2028}\\x0d");
        assert_eq!(short("äöü\n", 3), "äöü...");
    }

    #[test]
    fn escapes_invalid_utf8_bytes() {
        let mut out = Vec::new();
        push(&mut out, b"a\x9b2J\xff\xc3\xa4\xc2\x9b");
        assert_eq!(String::from_utf8(out).unwrap(), "a\\x9b2J\\xff\u{e4}\\u{9b}");
    }

    proptest::proptest! {
        #[test]
        fn removes_all_control_characters(text in proptest::collection::vec(proptest::char::any(), 0..40)) {
            let text: String = text.into_iter().collect();
            proptest::prop_assert!(!line(&text).contains(is_active));
            let mut out = Vec::new();
            push(&mut out, text.as_bytes());
            let printed = line(&text).into_owned();
            proptest::prop_assert_eq!(printed.as_bytes(), out.as_slice());
            let plain = serde_json::to_string(&text).unwrap();
            let safe = json(&plain);
            proptest::prop_assert!(!safe.contains(is_active));
            proptest::prop_assert_eq!(serde_json::from_str::<String>(&safe).unwrap(), text);
        }

        #[test]
        fn escapes_all_bytes(bytes in proptest::collection::vec(0_u8.., 0..60)) {
            let mut out = Vec::new();
            push(&mut out, &bytes);
            proptest::prop_assert!(!String::from_utf8(out).unwrap().contains(is_active));
        }
    }
}
