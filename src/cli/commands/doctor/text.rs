//! The texts of `doctor`. Hardware names and output of programs are untrusted and are escaped for the terminal.

use std::fmt::Write as _;

use serde_json::json;

use doctor::{ExaminedEntry, Observation, Verdict, worst_verdict};
use model::printable;

/// The report as text; `is_brief` leaves out passed checks and notes.
pub(super) fn text(place: &str, examined: &[ExaminedEntry], is_brief: bool) -> String {
    let mut text = format!("slurminit doctor, {place}\n");
    let mut part = "";
    for it in examined.iter().filter(|it| !is_brief || it.observations.verdict() > Verdict::Note) {
        if it.part != part {
            part = it.part;
            // Writing to a String cannot fail.
            let _ = writeln!(text, "\n{part}");
        }
        let mark = it.observations.verdict().mark();
        let _ = writeln!(text, "  {mark} {}: {}", it.entry.id, it.entry.symptoms.join("; "));
        let _ = writeln!(text, "      checked: {}", it.entry.examines);
        for observation in it.observations.observations() {
            text += &format_observation(observation);
        }
    }
    text + "\n" + &summary(examined)
}

fn format_observation(observation: &Observation) -> String {
    let Observation { verdict, seen, cause, fix, .. } = observation;
    let label = if *verdict == Verdict::CouldNotLook { "unknown:" } else { "seen:" };
    let mut text = format!("      {label:<10} {}\n", printable::line(seen));
    let details = [("cause:", cause), ("fix:", fix)];
    for (label, detail) in details.into_iter().filter_map(|(label, detail)| Some((label, detail.as_ref()?))) {
        let _ = writeln!(text, "      {label:<10} {}", printable::line(detail));
    }
    text
}

fn summary(examined: &[ExaminedEntry]) -> String {
    let count = |verdict| examined.iter().filter(|it| it.observations.verdict() == verdict).count();
    format!(
        "{}, {}, {} not checked, {}, {} ok.\n",
        printable::count(count(Verdict::Fail), "fault"),
        printable::count(count(Verdict::Warn), "warning"),
        count(Verdict::CouldNotLook),
        printable::count(count(Verdict::Note), "note"),
        count(Verdict::Ok),
    )
}

/// The report as JSON.
pub(super) fn json(place: &str, examined: &[ExaminedEntry]) -> serde_json::Result<String> {
    let entry = |ExaminedEntry { part, entry, observations }: &ExaminedEntry| {
        json!({
            "id": entry.id,
            "part": part,
            "symptoms": entry.symptoms,
            "looked_at": entry.examines,
            "verdict": observations.verdict(),
            "observations": observations.observations(),
        })
    };
    let entries: Vec<_> = examined.iter().map(entry).collect();
    crate::commands::json(&json!({ "place": place, "verdict": worst_verdict(examined), "entries": entries }))
}

#[cfg(test)]
mod tests {
    #[test]
    fn json_has_place_and_verdict_of_all_entries() {
        let json: serde_json::Value = serde_json::from_str(&super::json("on the host", &[]).unwrap()).unwrap();
        let expected =
            serde_json::json!({ "shape": json["shape"], "place": "on the host", "verdict": "ok", "entries": [] });
        assert_eq!(json, expected);
    }
}
