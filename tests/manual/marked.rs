//! Markdown text in a manual page.

use clap_mangen::roff::{Inline, bold, roman};

/// Converts Markdown to roff. Text in backquotes becomes bold.
pub(crate) fn roff_inlines(text: &str) -> Vec<Inline> {
    let part = |(at, part): (usize, &str)| if at % 2 == 1 { bold(part) } else { roman(part) };
    text.split('`').enumerate().filter(|(_, part)| !part.is_empty()).map(part).collect()
}
