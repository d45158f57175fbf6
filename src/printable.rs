//! Text of others, made safe for one line of a terminal or a log.
//!
//! Names of jobs, comments, reasons and what daemons write may hold anything: escape sequences that a terminal obeys, line
//! ends that look like another line of the log, signs that turn the order of the letters round. They are shown as what they
//! are, `\x1b` or `\u{202e}`, and do nothing.
//!
//! PURE.

use std::borrow::Cow;
use std::fmt::Write as _;

/// Whether a terminal or an editor does something else than show it. A tabulator does no harm.
pub fn is_active(c: char) -> bool {
    c != '\t' && c.is_control()
        || matches!(c,
            // Bidirectional controls, and joiners that cannot be seen.
            '\u{ad}' | '\u{61c}' | '\u{180e}' | '\u{200b}'..='\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2060}'..='\u{206f}'
            // The ends of a line and of a paragraph.
            | '\u{2028}' | '\u{2029}'
            // Marks of byte order and of annotations, and tags.
            | '\u{feff}' | '\u{fff9}'..='\u{fffb}' | '\u{e0000}'..='\u{e007f}')
}

/// The text as one line that does nothing.
pub fn line(text: &str) -> Cow<'_, str> {
    escape(text, is_active)
}

/// The same for a text of our own that has several lines, with text of others in it.
pub fn lines(text: &str) -> Cow<'_, str> {
    escape(text, |c| c != '\n' && is_active(c))
}

/// The same, and no longer than `longest` characters.
pub fn short(text: &str, longest: usize) -> String {
    match text.char_indices().nth(longest) {
        Some((end, _)) => line(text.get(..end).unwrap_or_default()).into_owned() + "...",
        None => line(text).into_owned(),
    }
}

/// Puts a line of any bytes behind `out`. Those that are not UTF-8 are shown by their number: some terminals take them for
/// controls.
pub fn push(out: &mut Vec<u8>, bytes: &[u8]) {
    for chunk in bytes.utf8_chunks() {
        out.extend_from_slice(line(chunk.valid()).as_bytes());
        for byte in chunk.invalid() {
            out.extend_from_slice(format!("\\x{byte:02x}").as_bytes());
        }
    }
}

/// JSON that means the same and does nothing to a terminal: such characters are in its strings only, which have escapes
/// of their own.
pub fn json(text: &str) -> Cow<'_, str> {
    let acts = |c: char| c != '\n' && is_active(c);
    if !text.contains(acts) {
        return Cow::Borrowed(text);
    }
    let mut safe = String::with_capacity(text.len() + 16);
    for c in text.chars() {
        match acts(c) {
            true => c.encode_utf16(&mut [0; 2]).iter().for_each(|unit| {
                // Writing to a String cannot fail.
                let _ = write!(safe, "\\u{unit:04x}");
            }),
            false => safe.push(c),
        }
    }
    Cow::Owned(safe)
}

fn escape(text: &str, acts: impl Fn(char) -> bool) -> Cow<'_, str> {
    if !text.contains(&acts) {
        return Cow::Borrowed(text);
    }
    let mut safe = String::with_capacity(text.len() + 16);
    for c in text.chars() {
        // Writing to a String cannot fail.
        let _ = match c {
            c if !acts(c) => safe.write_char(c),
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
    fn what_acts_is_shown_and_the_rest_stays() {
        assert_eq!(
            line("\x1b]0;pwn\x07 \u{9b}2J \u{202e}a\nb\x7f"),
            "\\x1b]0;pwn\\x07 \\u{9b}2J \\u{202e}a\\x0ab\\x7f"
        );
        assert_eq!(line("Grüße\t日本 🦀"), "Grüße\t日本 🦀");
        assert_eq!(lines("a\n\u{2028}\r"), "a\n\\u{2028}\\x0d");
        assert_eq!(short("äöü\n", 3), "äöü...");
    }

    #[test]
    fn bytes_that_are_no_text_are_shown_by_their_number() {
        let mut out = Vec::new();
        push(&mut out, b"a\x9b2J\xff\xc3\xa4\xc2\x9b");
        assert_eq!(String::from_utf8(out).unwrap(), "a\\x9b2J\\xff\u{e4}\\u{9b}");
    }

    proptest::proptest! {
        #[test]
        fn nothing_that_acts_is_left(text in proptest::collection::vec(proptest::char::any(), 0..40)) {
            let text: String = text.into_iter().collect();
            proptest::prop_assert!(!line(&text).contains(is_active));
            let mut out = Vec::new();
            push(&mut out, text.as_bytes());
            let said = line(&text).into_owned();
            proptest::prop_assert_eq!(said.as_bytes(), out.as_slice());
            let plain = serde_json::to_string(&text).unwrap();
            let safe = json(&plain);
            proptest::prop_assert!(!safe.contains(is_active));
            proptest::prop_assert_eq!(serde_json::from_str::<String>(&safe).unwrap(), text);
        }

        #[test]
        fn no_bytes_are_passed_on_as_they_are(bytes in proptest::collection::vec(0_u8.., 0..60)) {
            let mut out = Vec::new();
            push(&mut out, &bytes);
            proptest::prop_assert!(!String::from_utf8(out).unwrap().contains(is_active));
        }
    }
}
