//! Generates the two tables of docs/reference/versions.md from src/model/inventory/slurm.rs.

use std::fmt::Write as _;

use model::inventory::Behavior;
use model::inventory::slurm::RELEASES;

pub(crate) const BEGIN: &str =
    "<!-- Made of src/model/inventory/slurm.rs by: UPDATE=1 cargo test --test host pages -->\n";

pub(crate) fn tables() -> String {
    let mut text = "\n| Slurm | from | `docker build` |\n|---|---|---|\n".to_owned();
    for release in RELEASES {
        let (from, argument) = match release.source {
            None => ("Debian 13", "the default".to_owned()),
            Some(_) => ("source", format!("`{}`", release.argument())),
        };
        _ = writeln!(text, "| {} | {from} | {argument} |", release.version);
    }
    text += "\n| since | what Slurm does | what slurminit does |\n|---|---|---|\n";
    for behavior in Behavior::ALL {
        let row = behavior.row();
        _ = writeln!(text, "| {} | {} | {} |", row.release, row.description, row.handling);
    }
    text + "\n"
}
