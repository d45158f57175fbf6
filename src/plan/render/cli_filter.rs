//! Renders cli_filter.lua.

use crate::{CliFilter, HEADER};

const SCRIPT: &str = include_str!("cli_filter.lua");

/// The text of the script. Lua skips the first line, because it begins with #.
pub(super) fn text(filter: CliFilter) -> String {
    let CliFilter { chooses_mpi, without_mail, shares_tmp } = filter;
    format!(
        "{HEADER}\nlocal chooses_mpi, without_mail, shares_tmp = {chooses_mpi}, {without_mail}, {shares_tmp}\n\n{SCRIPT}"
    )
}
