//! Renders cgroup.conf.

use std::fmt::Write as _;

use crate::{FileName, Plan};

use super::header;

pub(super) fn text(plan: &Plan) -> String {
    let mut text = header(FileName::CgroupConf);
    let _ = writeln!(text, "# {}", plan.cgroup.why);
    for (key, value) in &plan.cgroup.lines {
        let _ = writeln!(text, "{key}={value}");
    }
    text
}
