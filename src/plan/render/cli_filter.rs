//! cli_filter.lua.

use crate::{CliFilter, HEADER};

const SCRIPT: &str = include_str!("cli_filter.lua");

/// Lua skips a first line that begins with #.
pub(super) fn text(filter: CliFilter) -> String {
    let CliFilter { chooses_mpi, without_mail } = filter;
    format!("{HEADER}\nlocal chooses_mpi, without_mail = {chooses_mpi}, {without_mail}\n\n{SCRIPT}")
}
