//! The output of `configure`. Hardware names and program output are untrusted and are escaped.

use std::fmt::Write as _;

use similar::TextDiff;

use super::assess::Assessment;
use super::choice::GpuType;
use super::gpu_file::{ContainerGpus, MARK, NAME, VARIABLE};
use model::inventory::{Finding, Observation, Observations, Vendor};
use model::printable;

/// The report of all sections.
pub fn render(assessment: &Assessment) -> String {
    let mut text = String::new();
    for (index, section) in assessment.sections.iter().enumerate() {
        let blank = if index == 0 { "" } else { "\n" };
        let _ = writeln!(text, "{blank}{}", section.topic.title());
        for observations in &section.lines {
            text += &line(observations);
        }
    }
    text
}

fn line(observations: &Observations) -> String {
    let mut text = String::new();
    for Observation { verdict, seen, cause, fix, .. } in observations.observations() {
        let _ = writeln!(text, "  {} {}", verdict.mark(), printable::line(seen));
        for (label, detail) in [("cause:", cause), ("fix:  ", fix)] {
            if let Some(detail) = detail {
                let _ = writeln!(text, "      {label} {}", printable::line(detail));
            }
        }
    }
    text
}

/// Reports a request that this host cannot meet.
pub fn unmet_request(finding: &Finding) -> String {
    format!("\nRequested\n{}", line(&Observations::from(finding.clone())))
}

/// Reports that the user's own file does not contain all GPU settings.
pub fn incomplete_user_file(name: &str, generated: &str) -> String {
    let mut text = line(&Observations::fail(
        format!("{name} is your own file and does not contain all GPU settings"),
        format!("slurminit does not change a file whose first line does not begin with `{MARK}`"),
        "add the lines below to the file, or move it away and run this again",
    ));
    for line in generated.lines().filter(|line| !line.starts_with('#')) {
        let _ = writeln!(text, "        {line}");
    }
    text
}

/// Reports that a file not written by slurminit is complete.
pub fn complete_user_file(name: &str) -> String {
    format!("  - {name} is your own file and contains all GPU settings: not changed\n")
}

/// Reports a file that was written, or was up to date.
pub fn written(name: &str, is_changed: bool) -> String {
    let what = if is_changed { "written" } else { "unchanged" };
    format!("  ✓ {name}: {what}\n")
}

/// Reports what a run without --dry-run would write, as a difference from the old file.
pub fn would_write(name: &str, old: Option<&str>, text: &str) -> String {
    let old = old.unwrap_or_default();
    if old == text {
        return format!("  - {name}: no change\n");
    }
    let diff = TextDiff::from_lines(old, text).unified_diff().header(name, name).to_string();
    let mut report = format!("  - {name} would be written:\n");
    for line in diff.lines() {
        let _ = writeln!(report, "      {line}");
    }
    report
}

/// Reports slurminit's lines in .env.
pub fn env_lines(gpu_type: GpuType, reads_gpu_file: bool, is_changed: bool, is_dry_run: bool) -> String {
    let file = if reads_gpu_file { format!(" and {VARIABLE}={NAME}") } else { String::new() };
    let lines = format!("GPU_TYPE={}{file}", gpu_type.as_str());
    match (is_changed, is_dry_run) {
        (true, true) => format!("  - .env: {lines} would be written\n"),
        (true, false) => format!("  ✓ .env: {lines} written\n"),
        (false, _) => format!("  ✓ .env: {lines} unchanged\n"),
    }
}

/// Reports that compose does not read the GPU file.
pub fn gpu_file_not_read(cause: &str) -> String {
    let fix = format!(
        "add this line to the service in compose.yaml: extends: {{file: \"${{{VARIABLE}}}\", service: slurm}}; \
         if COMPOSE_FILE is set, it must list compose.yaml"
    );
    line(&Observations::fail(format!("compose does not read {NAME}"), cause, fix))
}

/// The result: the GPUs that are passed to the container.
pub fn result(container_gpus: &ContainerGpus) -> String {
    let vendors: Vec<Vendor> = container_gpus.pass_methods.iter().map(|(vendor, _)| *vendor).collect();
    let outcome = match vendors.as_slice() {
        [] => "no GPU for the container".to_owned(),
        [vendor] => format!("{} GPUs for the container", vendor.traits().maker),
        [first, ..] => {
            let names: Vec<&str> = vendors.iter().map(|vendor| vendor.as_str()).collect();
            let (names, maker) = (names.join(" or "), first.traits().maker);
            format!(
                "GPUs of several vendors for the container; the image is for {maker} (to select one vendor, use --gpu-type {names})"
            )
        }
    };
    format!("\nResult: {outcome}.\n")
}

/// The last line of the report: the next step of the user.
pub fn next_step(is_done: bool, is_dry_run: bool, compose: &str) -> String {
    match (is_done, is_dry_run) {
        (false, _) => "Next: fix the problems above, then run this again.\n".to_owned(),
        (true, true) => "Next: run this again without --dry-run.\n".to_owned(),
        (true, false) => format!("Next: {compose} build && {compose} up -d\n"),
    }
}
