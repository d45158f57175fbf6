//! Finds messages and comments in Rust source code, test code excluded.

use std::path::Path;

/// A text in a source file and the line where it begins, counted from 1.
#[derive(Clone, Debug)]
pub(crate) struct Text {
    pub(crate) line: usize,
    pub(crate) text: String,
    /// For a comment, the line of code that follows.
    pub(crate) next: String,
}

/// The messages and comments of a file.
#[derive(Debug, Default)]
pub(crate) struct Texts {
    pub(crate) messages: Vec<Text>,
    pub(crate) comments: Vec<Text>,
}

/// Whether the file contains only tests.
pub(crate) fn is_test(path: &Path) -> bool {
    path.iter().any(|part| part == "tests" || part == "tests.rs" || part == "snapshots")
}

/// The part of a file before its test module.
fn without_tests(source: &str) -> &str {
    let tests = source.find("#[cfg(test)]\nmod tests {");
    &source[..tests.unwrap_or(source.len())]
}

/// Scans a file. A message is a string of at least three words that is neither a lint reason nor an `expect` message.
pub(crate) fn texts(source: &str) -> Texts {
    let source = without_tests(source);
    let mut texts = Texts::default();
    let (mut at, mut last_comment) = (0, None);
    while at < source.len() {
        let rest = &source[at..];
        let before = &source[..at];
        let line = before.matches('\n').count() + 1;
        let is_word = before.ends_with(|c: char| c.is_alphanumeric() || c == '_');
        if rest.starts_with("//") {
            let whole = rest.lines().next().unwrap_or_default();
            let marker = ["///", "//!", "//"].into_iter().find(|marker| whole.starts_with(marker)).unwrap_or_default();
            let text = whole[marker.len()..].trim().to_owned();
            let is_alone = before.rsplit('\n').next().unwrap_or_default().trim().is_empty();
            match texts.comments.last_mut() {
                Some(last) if is_alone && last_comment == Some((line - 1, marker)) => last.text += &format!(" {text}"),
                _ => texts.comments.push(Text { line, text, next: String::new() }),
            }
            last_comment = is_alone.then_some((line, marker));
            at += whole.len();
            let code = source[at..].lines().map(str::trim).find(|line| !line.is_empty() && !line.starts_with("//"));
            texts
                .comments
                .iter_mut()
                .last()
                .into_iter()
                .for_each(|last| last.next = code.unwrap_or_default().to_owned());
        } else if let Some(end) = raw_string(rest).filter(|_| !is_word) {
            at += end;
        } else if rest.starts_with('"') {
            let (text, length) = string(rest);
            if is_message(&text) && !is_reason(before) {
                texts.messages.push(Text { line, text, next: String::new() });
            }
            at += length;
        } else if let Some(length) = character(rest) {
            at += length;
        } else {
            at += rest.chars().next().map_or(1, char::len_utf8);
        }
    }
    texts
}

/// The length of a raw string at the beginning of the text.
fn raw_string(rest: &str) -> Option<usize> {
    let hashes = rest.strip_prefix('r')?;
    let count = hashes.len() - hashes.trim_start_matches('#').len();
    let body = hashes[count..].strip_prefix('"')?;
    let end = format!("\"{}", "#".repeat(count));
    Some(1 + count + 1 + body.find(&end)? + end.len())
}

/// The value of the string at the beginning of the text, and its length in the source.
fn string(rest: &str) -> (String, usize) {
    let (mut text, mut characters) = (String::new(), rest.char_indices().skip(1).peekable());
    while let Some((at, character)) = characters.next() {
        match character {
            '"' => return (text, at + 1),
            '\\' => match characters.next() {
                Some((_, 'n')) => text.push('\n'),
                Some((_, '\n')) => while characters.next_if(|(_, next)| next.is_whitespace()).is_some() {},
                Some((_, 'x')) => {
                    characters.nth(1);
                    text.push(' ');
                }
                Some((_, other)) => text.push(other),
                None => {}
            },
            other => text.push(other),
        }
    }
    (text, rest.len())
}

/// The length of a character literal at the beginning of the text; `None` for a lifetime.
fn character(rest: &str) -> Option<usize> {
    let body = rest.strip_prefix('\'')?;
    let first = body.chars().next()?;
    if first == '\\' {
        return Some(body[2..].find('\'')? + 4);
    }
    body[first.len_utf8()..].starts_with('\'').then_some(first.len_utf8() + 2)
}

/// Whether the text has at least three words outside placeholders.
fn is_message(text: &str) -> bool {
    let mut depth = 0;
    let prose: String = text
        .chars()
        .map(|character| {
            depth += i32::from(character == '{') - i32::from(character == '}');
            if depth == 0 && character != '}' { character } else { ' ' }
        })
        .collect();
    let is_word = |word: &&str| word.chars().filter(|character| character.is_alphabetic()).count() > 1;
    prose.split_whitespace().filter(is_word).count() >= 3
}

fn is_reason(before: &str) -> bool {
    let before = before.trim_end().trim_end_matches('b');
    before.ends_with("reason =") || before.ends_with(".expect(")
}
