//! The reasons, for `slurminit render --explain`.

use std::fmt::Write as _;

use crate::Decision;
use model::inventory::Finding;
use model::printable::line;

/// Every decision with its reason, then the findings.
pub fn explain(decisions: &[Decision], findings: &[Finding]) -> String {
    let mut text = String::new();
    for Decision { what, why } in decisions {
        let _ = writeln!(text, "{}\n    {}", line(what), line(why));
    }
    for Finding { severity, what, cause, fix, .. } in findings {
        let severity = format!("{severity:?}").to_lowercase();
        let [what, cause, fix] = [what, cause, fix].map(|words| line(words));
        let _ = writeln!(text, "{severity}: {what}\n    cause: {cause}\n    fix: {fix}");
    }
    text
}
