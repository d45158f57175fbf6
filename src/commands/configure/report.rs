//! What `configure` says. Names from hardware and words of programs are hostile: they reach the terminal escaped.

use std::fmt::Write as _;

use similar::TextDiff;

use crate::configure::assess::{Assessment, Check};
use crate::configure::choice::GpuType;
use crate::configure::gpu_file::{FORMER_NAME, MARK, NAME, VARIABLE, Wanted};
use crate::inventory::{Finding, Severity};
use crate::printable;

/// What was found.
pub(super) fn render(assessment: &Assessment) -> String {
    let mut text = String::new();
    for (index, section) in assessment.sections.iter().enumerate() {
        let blank = if index == 0 { "" } else { "\n" };
        let _ = writeln!(text, "{blank}{}", section.topic.title());
        for check in &section.checks {
            text += &line(check);
        }
    }
    text
}

fn line(check: &Check) -> String {
    match check {
        Check::Good(what) => format!("  ✓ {}\n", printable::line(what)),
        Check::Note(what) => format!("  - {}\n", printable::line(what)),
        Check::Trouble(Finding { severity, what, cause, repair }) => {
            let mark = if *severity == Severity::Error { '✗' } else { '!' };
            let [what, cause, repair] = [what, cause, repair].map(|text| printable::line(text));
            format!("  {mark} {what}\n      cause:  {cause}\n      repair: {repair}\n")
        }
    }
}

/// What was asked for and is not there.
pub(super) fn unmet(finding: &Finding) -> String {
    format!("\nAsked for\n{}", line(&Check::Trouble(finding.clone())))
}

/// A file that is there, is not ours, and stays.
pub(super) fn foreign(name: &str, wanted: &str) -> String {
    let trouble = Check::Trouble(Finding {
        severity: Severity::Error,
        what: format!("{name} is yours, and stays as it is"),
        cause: format!("its first line is not `{MARK}`"),
        repair: "put the lines below into it, or move it away and run this again".to_owned(),
    });
    let mut text = line(&trouble);
    for wanted in wanted.lines().filter(|line| !line.starts_with('#')) {
        let _ = writeln!(text, "        {wanted}");
    }
    text
}

/// The same, where nothing has to be done about it.
pub(super) fn foreign_and_well(name: &str) -> String {
    format!("  - {name} is yours, and stays as it is: it has all that the GPUs need\n")
}

/// What an older version wrote is out of the way.
pub(super) fn moved(is_dry_run: bool) -> String {
    let is = if is_dry_run { "would be" } else { "is" };
    format!(
        "  - {FORMER_NAME} {is} {FORMER_NAME}.previous now: an older version wrote it. The GPUs are in {NAME}; \
         {FORMER_NAME} is for lines of your own\n"
    )
}

pub(super) fn written(name: &str, is_changed: bool) -> String {
    let what = if is_changed { "written" } else { "unchanged" };
    format!("  ✓ {name}: {what}\n")
}

pub(super) fn would_write(name: &str, old: Option<&str>, text: &str) -> String {
    let old = old.unwrap_or_default();
    if old == text {
        return format!("  - {name}: nothing to change\n");
    }
    let diff = TextDiff::from_lines(old, text).unified_diff().header(name, name).to_string();
    let mut shown = format!("  - {name} would be written:\n");
    for line in diff.lines() {
        let _ = writeln!(shown, "      {line}");
    }
    shown
}

pub(super) fn env(gpu_type: GpuType, reads_gpu_file: bool, is_changed: bool, is_dry_run: bool) -> String {
    let file = if reads_gpu_file { format!(" and {VARIABLE}={NAME}") } else { String::new() };
    let lines = format!("GPU_TYPE={}{file}", gpu_type.as_str());
    match (is_changed, is_dry_run) {
        (true, true) => format!("  - .env would get {lines}\n"),
        (true, false) => format!("  ✓ .env: {lines} written\n"),
        (false, _) => format!("  ✓ .env: {lines} unchanged\n"),
    }
}

/// Compose reads other files.
pub(super) fn unread(cause: &str) -> String {
    line(&Check::Trouble(Finding {
        severity: Severity::Error,
        what: format!("compose does not read {NAME}"),
        cause: cause.to_owned(),
        repair: format!(
            "have compose.yaml among the files of COMPOSE_FILE, and under its service: \
             extends: {{file: \"${{{VARIABLE}}}\", service: slurm}}"
        ),
    }))
}

/// What the container is given.
pub(super) fn result(wanted: &Wanted) -> String {
    let given = match (&wanted.nvidia, &wanted.amd) {
        (Some(_), Some(_)) => {
            "the container gets the GPUs of both makers, and an image for NVIDIA \
             (--gpu-type nvidia or amd leaves the other's out)"
        }
        (Some(_), None) => "the container gets NVIDIA GPUs",
        (None, Some(_)) => "the container gets AMD GPUs",
        (None, None) => "the container gets no GPU",
    };
    format!("\nResult: {given}.\n")
}

/// What to do now.
pub(super) fn next(is_done: bool, is_dry_run: bool, compose: &str) -> String {
    match (is_done, is_dry_run) {
        (false, _) => "Next: the repairs above, then run this again.\n".to_owned(),
        (true, true) => "Next: the same without --dry-run.\n".to_owned(),
        (true, false) => format!("Next: {compose} build && {compose} up -d\n"),
    }
}
