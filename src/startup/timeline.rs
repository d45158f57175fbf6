//! How long each part of the start took, drawn as text.

use std::fmt::Write as _;

use machine::{Part, Snapshot, Span};

/// The width of the longest bar, in characters.
const WIDTH: usize = 60;

/// Draws the start of this cluster.
pub fn draw(version: &str, snapshot: &Snapshot) -> String {
    bars_below(&title(version, snapshot), &bars(&snapshot.timeline))
}

fn title(version: &str, snapshot: &Snapshot) -> String {
    let usable = snapshot.timeline.iter().find(|span| span.part == Part::Node).and_then(|span| span.until_us);
    let end = match usable {
        Some(us) => format!("the node could be used after {:.0} ms", ms(us)),
        None => format!("not yet ready: {}", snapshot.why),
    };
    format!("slurminit {version}: {end}")
}

/// In order of their beginning, except that the parts of the preparation follow it.
fn bars(spans: &[Span]) -> Vec<Bar> {
    let (details, mut bars): (Vec<_>, Vec<_>) = spans.iter().map(Bar::of).partition(|bar| bar.kind == Kind::Detail);
    let after = spans.iter().position(|span| span.part == Part::Prepare).map_or(bars.len(), |index| index + 1);
    bars.splice(after..after, details);
    bars
}

/// A bar, with times in milliseconds.
#[derive(Debug)]
struct Bar {
    label: String,
    kind: Kind,
    from: f64,
    /// `None` if it is not done.
    until: Option<f64>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Phase,
    /// A part of the bar above it.
    Detail,
    Moment,
}

impl Bar {
    fn of(span: &Span) -> Self {
        let (label, kind) = match &span.part {
            Part::Hook(number) => (format!("hook {number}"), Kind::Phase),
            Part::Prepare => ("preparation".to_owned(), Kind::Phase),
            Part::Key => ("  munge key".to_owned(), Kind::Detail),
            Part::Detection => ("  detection".to_owned(), Kind::Detail),
            Part::Files => ("  files".to_owned(), Kind::Detail),
            Part::Unit(name) => (name.clone(), Kind::Phase),
            Part::Jobs => ("former jobs".to_owned(), Kind::Phase),
            Part::Node => ("node".to_owned(), Kind::Phase),
            Part::Command => ("command".to_owned(), Kind::Moment),
        };
        Self { label, kind, from: ms(span.from_us), until: span.until_us.map(ms) }
    }

    fn took(&self) -> Option<f64> {
        self.until.map(|until| until - self.from).filter(|_| self.kind != Kind::Moment)
    }
}

/// The last known moment. (`f64::max` would make every slurminit process load libm.)
fn end(bars: &[Bar]) -> f64 {
    let ends = bars.iter().map(|bar| bar.until.unwrap_or(bar.from));
    ends.fold(0.0, |last, next| if next > last { next } else { last })
}

#[expect(clippy::cast_precision_loss, reason = "microseconds of a start are exact in f64 for 285 years")]
fn ms(us: u64) -> f64 {
    us as f64 / 1000.0
}

fn bars_below(title: &str, bars: &[Bar]) -> String {
    let label_width = bars.iter().map(|bar| bar.label.chars().count()).max().unwrap_or(0).max(12);
    let end = end(bars);
    let mut text = String::new();
    // Writing to a String cannot fail.
    let _ = writeln!(text, "{title}\n");
    let half = WIDTH / 2;
    let _ = writeln!(text, "{:<label_width$} {:>9} {:>9}  {:<half$}{end:>half$.0} ms", "", "FROM", "MS", "0");
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
        Kind::Phase => ("=", last - first),
    };
    " ".repeat(first) + &mark.repeat(count)
}

#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, clippy::cast_precision_loss, reason = "0 to WIDTH")]
fn cell(at: f64, end: f64) -> usize {
    if end > 0.0 { (at / end * WIDTH as f64 + 0.5) as usize } else { 0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A typical start in the image, with a service that does not get ready.
    fn start() -> Vec<Bar> {
        let span = |part, from_us, until_us| Span { part, from_us, until_us };
        let unit = |name: &str| Part::Unit(name.to_owned());
        bars(&[
            span(Part::Hook(1), 40, Some(2_100)),
            span(Part::Prepare, 2_100, Some(11_300)),
            span(Part::Key, 2_100, Some(6_000)),
            span(Part::Detection, 6_000, Some(8_200)),
            span(unit("munged"), 6_000, Some(19_400)),
            span(Part::Files, 8_200, Some(11_300)),
            span(unit("slurmctld"), 19_400, Some(40_000)),
            span(unit("slurmd"), 40_000, Some(65_200)),
            span(unit("a<b"), 40_000, None),
            span(Part::Node, 65_200, Some(88_800)),
            span(Part::Command, 88_800, Some(88_800)),
        ])
    }

    #[test]
    fn bars_lie_where_their_time_is() {
        insta::assert_snapshot!(bars_below("slurminit 0.1.0: a start", &start()));
    }

    #[test]
    fn a_start_that_has_not_begun_is_an_empty_picture() {
        assert_eq!(bars_below("nothing", &[]).lines().count(), 3);
        let now = Bar { label: "hook 1".to_owned(), kind: Kind::Phase, from: 0.0, until: None };
        assert!(bars_below("nothing", &[now]).contains('?'));
    }
}
