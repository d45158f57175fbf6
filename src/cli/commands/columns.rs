//! Tables and paragraphs for a terminal.

use model::printable;

/// The width of a terminal, in characters, to which paragraphs and tables with a [`Column::rest`] are fitted.
pub(super) const WIDTH: usize = 80;

/// A column of a table.
pub(super) struct Column {
    header: &'static str,
    is_right_aligned: bool,
    min_width: usize,
    max_width: usize,
}

impl Column {
    /// A column that takes at most the width that the other columns leave. A table has at most one such column.
    pub(super) const fn rest(header: &'static str) -> Self {
        Self::left(header, 0, 0)
    }

    pub(super) const fn left(header: &'static str, min_width: usize, max_width: usize) -> Self {
        Self { header, is_right_aligned: false, min_width, max_width }
    }

    /// A right-aligned column of a fixed width, for numbers.
    pub(super) const fn right(header: &'static str, width: usize) -> Self {
        Self { header, is_right_aligned: true, min_width: width, max_width: width }
    }
}

/// Formats a table: the headers, and one line for each row.
pub(super) fn format_table<const N: usize>(columns: &[Column; N], rows: &[[String; N]]) -> String {
    let longest = |index: usize| rows.iter().map(|row| row[index].chars().count()).max().unwrap_or(0);
    let mut widths: [usize; N] =
        std::array::from_fn(|index| longest(index).clamp(columns[index].min_width, columns[index].max_width));
    if let Some(rest) = columns.iter().position(|column| column.max_width == 0) {
        let left = WIDTH.saturating_sub(widths.iter().sum::<usize>() + N - 1);
        widths[rest] = longest(rest).max(columns[rest].header.len()).min(left);
    }
    let line = |cells: [&str; N]| {
        let cells = cells.into_iter().zip(widths).zip(columns).map(|((cell, width), column)| {
            let cell = clip(&printable::line(cell), width);
            if column.is_right_aligned { format!("{cell:>width$}") } else { format!("{cell:<width$}") }
        });
        cells.collect::<Vec<_>>().join(" ").trim_end().to_owned() + "\n"
    };
    let header = columns.each_ref().map(|column| column.header);
    std::iter::once(header).chain(rows.iter().map(|row| row.each_ref().map(String::as_str))).map(line).collect()
}

/// Shortens a cell that is too long to its last characters, which distinguish device files and models better than the first.
fn clip(cell: &str, width: usize) -> String {
    let length = cell.chars().count();
    if length <= width {
        cell.to_owned()
    } else {
        cell.chars().skip(length + 1 - width).fold("…".to_owned(), |text, c| text + &c.to_string())
    }
}

/// The name of a device file without its directory: `/dev/nvidia0` becomes `nvidia0`.
pub(super) fn device(file: &str) -> String {
    file.rsplit('/').next().unwrap_or(file).to_owned()
}

/// Wraps text between words, and escapes it, because it may contain text that a user wrote.
pub(super) fn wrap(text: &str, indent: &str) -> String {
    let mut lines = vec![String::new()];
    for word in printable::line(text).split(' ') {
        let line = lines.last().map_or(0, |line| line.chars().count());
        if line > indent.len() && line + 1 + word.chars().count() > WIDTH {
            lines.push(format!("{indent}{word}"));
        } else if let Some(last) = lines.last_mut() {
            *last += if last.is_empty() { "" } else { " " };
            *last += word;
        }
    }
    lines.join("\n") + "\n"
}

/// Placeholder for unknown values.
pub(super) fn dash() -> String {
    "-".to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rows(cells: &[[&str; 2]]) -> Vec<[String; 2]> {
        cells.iter().map(|row| row.map(str::to_owned)).collect()
    }

    #[test]
    fn columns_have_width_of_longest_cell_within_limits() {
        let columns = [Column::left("NAME", 3, 5), Column::right("N", 4)];
        let table = format_table(&columns, &rows(&[["ab", "7"], ["abcde", "12345"], ["abcdef", "1"]]));
        assert_eq!(table, "NAME     N\nab       7\nabcde …345\n…cdef    1\n");
        let narrow = format_table(&[Column::left("X", 3, 5), Column::right("N", 1)], &rows(&[["a", "7"]]));
        assert_eq!(narrow, "X   N\na   7\n");
    }

    #[test]
    fn last_column_takes_rest_of_terminal() {
        let columns = [Column::left("A", 9, 9), Column::rest("REASON")];
        let table = format_table(&columns, &rows(&[["a", &"x".repeat(99)], ["b", "y"]]));
        let widths: Vec<usize> = table.lines().map(|line| line.chars().count()).collect();
        assert_eq!(widths, [10 + "REASON".len(), WIDTH, 11]);
    }

    #[test]
    fn wraps_between_words_at_width_of_terminal() {
        let word = "x".repeat(WIDTH / 2);
        let [fits, longer] = [WIDTH - WIDTH / 2 - 1, WIDTH - WIDTH / 2].map(|length| "y".repeat(length));
        assert_eq!(wrap(&format!("{word} {fits} z"), "  "), format!("{word} {fits}\n  z\n"));
        assert_eq!(wrap(&format!("{word} {longer}"), "  "), format!("{word}\n  {longer}\n"));
        let long = "w".repeat(WIDTH + 1);
        assert_eq!(wrap(&format!("{long} {long}"), "  "), format!("{long}\n  {long}\n"));
        assert_eq!(wrap("a\x1b b", "  "), "a\\x1b b\n");
    }

    #[test]
    fn device_is_name_without_directory() {
        assert_eq!((device("/dev/nvidia0").as_str(), device("nvidia0").as_str()), ("nvidia0", "nvidia0"));
    }
}
