//! The reasons, for `slurminit render --explain`.

use std::fmt::Write as _;

use crate::inventory::Finding;
use crate::plan::Decision;

/// Every decision with its reason, then what the operator should know.
pub fn explain(decisions: &[Decision], findings: &[Finding]) -> String {
    let mut text = String::new();
    for Decision { what, why } in decisions {
        let _ = writeln!(text, "{what}\n    {why}");
    }
    for Finding { severity, what, cause, repair } in findings {
        let severity = format!("{severity:?}").to_lowercase();
        let _ = writeln!(text, "{severity}: {what}\n    cause: {cause}\n    repair: {repair}");
    }
    text
}
