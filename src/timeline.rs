//! How long each part of the start took. PURE.

mod svg;
mod text;

use crate::supervise::machine::{Part, Snapshot, Span};

/// Draws it as text, or as a picture for a browser.
pub(crate) fn draw(version: &str, snapshot: &Snapshot, as_svg: bool) -> String {
    let draw = if as_svg { svg::draw } else { text::draw };
    draw(&title(version, snapshot), &bars(&snapshot.timeline))
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

/// A bar of the picture, with times in milliseconds.
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
    Daemon,
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
            Part::Unit(name) => (name.clone(), Kind::Daemon),
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
    bars.iter()
        .flat_map(|bar| [Some(bar.from), bar.until])
        .flatten()
        .fold(0.0, |last, next| if next > last { next } else { last })
}

#[expect(clippy::cast_precision_loss, reason = "microseconds of a start are exact in f64 for 285 years")]
fn ms(us: u64) -> f64 {
    us as f64 / 1000.0
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A typical start in the image, with a service that does not get ready.
    pub(super) fn start() -> Vec<Bar> {
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
}
