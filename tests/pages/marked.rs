//! Text of Markdown in a manual page.

use clap_mangen::roff::{Inline, bold, roman};

/// What stands between backquotes is bold.
pub(crate) fn marked(text: &str) -> Vec<Inline> {
    let part = |(at, part): (usize, &str)| if at % 2 == 1 { bold(part) } else { roman(part) };
    text.split('`').enumerate().filter(|(_, part)| !part.is_empty()).map(part).collect()
}
