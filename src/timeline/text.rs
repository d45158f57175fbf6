//! Draws the bars as text.

use std::fmt::Write as _;

use super::{Bar, Kind, end};

/// The width of the longest bar, in characters.
const WIDTH: usize = 60;

pub(super) fn draw(title: &str, bars: &[Bar]) -> String {
    let label_width = bars.iter().map(|bar| bar.label.chars().count()).max().unwrap_or(0).max(12);
    let end = end(bars);
    let mut text = String::new();
    // Writing to a String cannot fail.
    let _ = writeln!(text, "{title}\n");
    let _ = writeln!(
        text,
        "{:<label_width$} {:>9} {:>9}  {:<half$}{end:>half$.0} ms",
        "",
        "FROM",
        "MS",
        "0",
        half = WIDTH / 2
    );
    for bar in bars {
        let took = bar.took().map_or_else(|| "-".to_owned(), |took| format!("{took:.1}"));
        let _ = writeln!(text, "{:<label_width$} {:>9.1} {took:>9}  {}", bar.label, bar.from, cells(bar, end));
    }
    text
}

fn cells(bar: &Bar, end: f64) -> String {
    let first = cell(bar.from, end).min(WIDTH - 1);
    let last = cell(bar.until.unwrap_or(end), end).clamp(first + 1, WIDTH.max(first + 1));
    let (mark, count) = match bar.kind {
        Kind::Moment => ("|", 1),
        _ if bar.until.is_none() => ("?", last - first),
        Kind::Detail => ("-", last - first),
        Kind::Phase | Kind::Daemon => ("=", last - first),
    };
    " ".repeat(first) + &mark.repeat(count)
}

#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, clippy::cast_precision_loss, reason = "0 to WIDTH")]
fn cell(at: f64, end: f64) -> usize {
    if end > 0.0 { (at / end * WIDTH as f64 + 0.5) as usize } else { 0 }
}

#[cfg(test)]
mod tests {
    use super::super::tests::start;
    use super::*;

    #[test]
    fn bars_lie_where_their_time_is() {
        insta::assert_snapshot!(draw("slurminit 0.1.0: a start", &start()));
    }

    #[test]
    fn a_start_that_has_not_begun_is_an_empty_picture() {
        assert_eq!(draw("nothing", &[]).lines().count(), 3);
        let now = Bar { label: "hook 1".to_owned(), kind: Kind::Phase, from: 0.0, until: None };
        assert!(draw("nothing", &[now]).contains('?'));
    }
}
