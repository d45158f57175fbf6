//! Draws the bars as a picture, for a browser or a report.

use std::fmt::Write as _;

use super::{Bar, Kind, end};

/// Pixels.
const ROW: f64 = 22.0;
const LEFT: f64 = 170.0;
const WIDTH: f64 = 640.0;
const RIGHT: f64 = 90.0;
const TOP: f64 = 64.0;
/// The maximum number of vertical lines.
const LINES: f64 = 10.0;

pub(super) fn draw(title: &str, bars: &[Bar]) -> String {
    let end = end(bars).max(1.0);
    let x = |ms: f64| LEFT + ms / end * WIDTH;
    let mut rows = String::new();
    let mut y = TOP;
    for bar in bars {
        row(&mut rows, bar, y, x);
        y += ROW;
    }
    let step = step(end);
    let mut lines = String::new();
    let mut at = 0.0;
    while at <= end {
        let x = x(at);
        // Writing to a String cannot fail.
        let _ = writeln!(lines, r##"<path d="M{x:.1} {:.0}V{y:.0}" stroke="#ddd"/>"##, TOP - 6.0);
        let _ =
            writeln!(lines, r##"<text x="{x:.1}" y="{:.0}" text-anchor="middle" fill="#666">{at}</text>"##, TOP - 12.0);
        at += step;
    }
    let (width, height) = (LEFT + WIDTH + RIGHT, y + 12.0);
    format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width:.0}\" height=\"{height:.0}\" \
         viewBox=\"0 0 {width:.0} {height:.0}\" font-family=\"monospace\" font-size=\"12\">\n\
         <rect width=\"100%\" height=\"100%\" fill=\"#fff\"/>\n\
         <text x=\"12\" y=\"24\" font-size=\"14\">{} (ms)</text>\n{lines}{rows}</svg>\n",
        escape(title)
    )
}

fn row(out: &mut String, bar: &Bar, y: f64, x: impl Fn(f64) -> f64) {
    let text_y = y + 15.0;
    let from = x(bar.from);
    let until = bar.until.map_or(LEFT + WIDTH, x);
    let (color, height) = match bar.kind {
        Kind::Phase => ("#4c78a8", 16.0),
        Kind::Detail => ("#9ecae9", 10.0),
        Kind::Daemon => ("#54a24b", 16.0),
        Kind::Moment => ("#e45756", 16.0),
    };
    let opacity = if bar.until.is_some() { 1.0 } else { 0.3 };
    let width = (until - from).max(2.0);
    let label = match bar.took() {
        Some(took) => format!("{took:.1}"),
        None if bar.kind == Kind::Moment => format!("at {:.1}", bar.from),
        None => "not ready".to_owned(),
    };
    let _ = writeln!(out, r#"<text x="12" y="{text_y:.0}" xml:space="preserve">{}</text>"#, escape(&bar.label));
    let _ = writeln!(
        out,
        r#"<rect x="{from:.1}" y="{:.0}" width="{width:.1}" height="{height:.0}" fill="{color}" opacity="{opacity}"/>"#,
        y + (ROW - height) / 2.0
    );
    let _ = writeln!(out, r##"<text x="{:.1}" y="{text_y:.0}" fill="#333">{label}</text>"##, from + width + 4.0);
}

/// 1, 2 or 5 times a power of ten, such that there are at most [`LINES`] steps.
fn step(end: f64) -> f64 {
    let mut power = 1.0;
    loop {
        let found = [1.0, 2.0, 5.0].into_iter().map(|factor| factor * power).find(|step| end / step <= LINES);
        match found {
            Some(step) => return step,
            None => power *= 10.0,
        }
    }
}

/// A service's name is the operator's, but a reason may contain anyone's text.
fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

#[cfg(test)]
mod tests {
    use super::super::tests::start;
    use super::*;

    #[test]
    fn the_picture_has_a_bar_for_each_part_and_no_markup_of_strangers() {
        let picture = draw("a <start>", &start());
        insta::assert_snapshot!(picture);
        assert!(!picture.contains("a<b") && !picture.contains("<start>"));
    }

    #[test]
    fn the_lines_across_are_few_and_round() {
        for (end, expected) in [(1.0, 1.0), (89.0, 10.0), (130.0, 20.0), (480.0, 50.0), (61_000.0, 10_000.0)] {
            assert!((step(end) - expected).abs() < 1e-9, "{end}: {}", step(end));
        }
    }
}
