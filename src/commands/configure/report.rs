//! What `configure` says. Names from hardware and words of programs are hostile: they reach the terminal escaped.

use std::fmt::Write as _;

use similar::TextDiff;

use crate::configure::assess::{Assessment, Check};
use crate::configure::choice::GpuType;
use crate::configure::compose_override::{MARK, NAME, Wanted};
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

/// A file that is there, is not ours, and stays.
pub(super) fn foreign(name: &str, wanted: &str) -> String {
    let cause = match name {
        NAME => format!("its first line is not `{MARK}`"),
        _ => format!("compose reads only one override file, and would leave out either it or {NAME}"),
    };
    let trouble = Check::Trouble(Finding {
        severity: Severity::Error,
        what: format!("{name} is yours, and stays as it is"),
        cause,
        repair: "put the lines below into it, or move it away and run this again".to_owned(),
    });
    let mut text = line(&trouble);
    for wanted in wanted.lines().filter(|line| !line.starts_with('#')) {
        let _ = writeln!(text, "        {wanted}");
    }
    text
}

/// The same, where nothing has to be done about it.
pub(super) fn foreign_and_well(name: &str, wanted: &Wanted) -> String {
    let why = if wanted.is_plain() { "nothing has to be in it" } else { "it has all that the GPUs need" };
    format!("  - {name} is yours, and stays as it is: {why}\n")
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

pub(super) fn env(gpu_type: GpuType, is_changed: bool, is_dry_run: bool) -> String {
    let line = format!("GPU_TYPE={}", gpu_type.as_str());
    match (is_changed, is_dry_run) {
        (true, true) => format!("  - .env would get the line {line}\n"),
        (true, false) => format!("  ✓ .env: {line} written\n"),
        (false, _) => format!("  ✓ .env: {line} unchanged\n"),
    }
}

/// Compose was told to read other files.
pub(super) fn compose_file(files: &str) -> String {
    line(&Check::Trouble(Finding {
        severity: Severity::Error,
        what: format!("compose does not read {NAME}"),
        cause: format!("the line COMPOSE_FILE={files} in .env names the files that it reads"),
        repair: format!("remove that line from .env, or add :{NAME} to it"),
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
