//! Makes Slurm check new files before they are installed: `slurmd -G` parses slurm.conf, gres.conf and cgroup.conf as
//! the daemons do, prints the GRES and exits. It does not load every plugin that slurm.conf names.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::budget::Budget;
use super::explain::refusal;
use config::{Config, DaemonName};
use install::planned::Planned;
use model::exit_code;
use model::message;
use plan::Refusal;
use plan::render;
use plan::{Customized, FileName, Text, line_of_key};
use sys::report;
use sys::tool;

/// Directory of the files to check, in the run directory.
const DIRECTORY: &str = "check";

/// slurmd's node name in a cluster of several containers, whose slurm.conf names no nodes. No node of a cluster has this name, and it is
/// never sent to the controller.
const NODE: &str = "slurminit-check";

/// Checks the planned files with `slurmd -G`. Fails with Slurm's own message, and with the file and line if the message refers to them.
pub(super) fn ask_slurm(
    config: &Config,
    config_file: Option<&Path>,
    root: &Path,
    planned: &Planned,
    budget: &Budget,
) -> Result<(), Refusal> {
    let (files, customized) = (planned.files.as_slice(), &planned.customized);
    let dynamic_node = config.shares_a_cluster().then(|| render::dynamic_node(&planned.plan));
    let directory = sys::under(root, &config.paths.run).join(DIRECTORY);
    let outcome = lay_out(&directory, &sys::under(root, &config.paths.slurm), files)
        .map_err(|error| cannot_check(&directory, &error))
        .and_then(|()| parse(config, &directory, dynamic_node.as_deref(), budget));
    // If files remain, the next check replaces them.
    let _ = fs::remove_dir_all(&directory);
    match outcome? {
        None => Ok(()),
        Some(stderr) => {
            let output: Vec<&str> = error_messages(&stderr).collect();
            let refusal = refusal(config, config_file, files, customized, &output, "reported by `slurmd -G`");
            Err(refusal.unwrap_or_else(|| general_refusal(&stderr, &directory, files, customized)))
        }
    }
}

fn cannot_check(directory: &Path, error: &io::Error) -> Refusal {
    let what = format!("the new files cannot be checked in {}: {error}", directory.display());
    Refusal::new(
        exit_code::PREPARE,
        what,
        "Slurm has to check new files before they are installed",
        "make sure that `slurmd -G` can run and that the run directory is writable",
    )
}

/// Writes the files, and links all other files of Slurm's directory, because the new files may include them.
fn lay_out(directory: &Path, slurm: &Path, files: &[Text]) -> io::Result<()> {
    match fs::remove_dir_all(directory) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => fs::create_dir_all(directory)?,
    }
    for Text { name, text } in files {
        fs::write(directory.join(name.as_str()), text)?;
    }
    for entry in fs::read_dir(slurm).into_iter().flatten() {
        let entry = entry?;
        let link = directory.join(entry.file_name());
        if !link.exists() {
            std::os::unix::fs::symlink(entry.path(), link)?;
        }
    }
    Ok(())
}

/// Runs the check. Returns slurmd's standard error if the check fails; `None` if it succeeds or slurmd is not installed.
fn parse(
    config: &Config,
    directory: &Path,
    dynamic_node: Option<&str>,
    budget: &Budget,
) -> Result<Option<String>, Refusal> {
    let slurmd_command = config.daemons.get(&DaemonName::Slurmd).and_then(|daemon| daemon.command.as_ref()?.first());
    let is_slurmd = |program: &&String| Path::new(program).file_name().is_some_and(|name| name == "slurmd");
    let program = slurmd_command.filter(is_slurmd).map_or("slurmd", String::as_str);
    let conf = directory.join(FileName::SlurmConf.as_str());
    let mut command = Command::new(program);
    command.args(["-G", "-f"]).arg(&conf).env("SLURM_CONF", &conf);
    if let Some(node) = dynamic_node {
        command.args(["-Z", "-N", NODE, "--conf", node]);
    }
    match tool::output(&mut command, budget.check_timeout()) {
        Ok(output) if output.status.success() => Ok(None),
        Ok(output) => Ok(Some(String::from_utf8_lossy(&output.stderr).into_owned())),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            report::warn(message!(
                "files-not-checked",
                "`{program}` not found, so Slurm cannot check the new files",
                program
            ));
            Ok(None)
        }
        Err(error) => Err(cannot_check(directory, &error)),
    }
}

/// slurmd's error messages, without their prefix.
fn error_messages(stderr: &str) -> impl Iterator<Item = &str> {
    let error_message = |line| ["error: ", "fatal: "].iter().find_map(|word| Some(str::split_once(line, *word)?.1));
    stderr.lines().filter_map(error_message)
}

/// The refusal if [`refusal`] finds no line that caused the error. It names the file, and the line, if Slurm's message contains a line
/// number or a key of these files.
fn general_refusal(stderr: &str, directory: &Path, files: &[Text], customized: &Customized) -> Refusal {
    let faults: Vec<String> =
        error_messages(stderr).map(|fault| fault.replace("_parse_next_key: ", "").trim().to_owned()).collect();
    let mut what = if faults.is_empty() { stderr.trim().replace('\n', "; ") } else { faults.join("; ") };
    if what.is_empty() {
        what = "no reason given; see the file set by SlurmdLogFile".to_owned();
    }
    let user_path =
        |name: FileName| customized.get(name).map_or_else(|| PathBuf::from(name.as_str()), |file| file.path.clone());
    let checked = |name: FileName| directory.join(name.as_str()).display().to_string();
    let named = files.iter().find(|file| what.contains(&format!("{} line ", checked(file.name))));
    let found = files.iter().find_map(|file| {
        let line = faults.iter().find_map(|fault| line_of_key(&file.text, key_in(fault)?))?;
        Some((file, line))
    });
    let file_at_fault = named.or(found.map(|(file, _)| file));
    if let (None, Some((file, line))) = (named, found) {
        what = format!("{}:{line}: {what}", user_path(file.name).display());
    }
    for file in files {
        what = what.replace(&checked(file.name), &user_path(file.name).display().to_string());
    }
    let fix = match file_at_fault.and_then(|file| customized.get(file.name)) {
        Some(file) => format!("correct {}", file.path.display()),
        None => "correct the setting in slurminit.toml ([slurm.conf], [[partition]]) or in your own file".to_owned(),
    };
    Refusal::new(exit_code::CONFIG, format!("Slurm rejects the new files: {what}"), "reported by `slurmd -G`", &fix)
}

/// The key that a message of Slurm names: one that is not recognized, or one whose value is invalid.
fn key_in(fault: &str) -> Option<&str> {
    let named = fault.split_once("unrecognized key: ").map(|(_, key)| key);
    let key = named.or_else(|| Some(fault.split_once(" value (")?.0))?;
    key.split_whitespace().next()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(slurm: &str, files: &[(FileName, &str)]) -> String {
        let files: Vec<_> = files.iter().map(|(name, text)| Text { name: *name, text: (*text).to_owned() }).collect();
        let finding = general_refusal(slurm, Path::new("/run/check"), &files, &Customized::default()).finding;
        format!("{}; {}", finding.what, finding.fix)
    }

    #[test]
    fn finds_line_of_unknown_key() {
        let output = "slurmd: error: _parse_next_key: Parsing error at unrecognized key: Foo\n\
                    slurmd: fatal: Unable to process configuration file\n";
        let conf = "ClusterName=c\n# Foo\nFoo=bar\n";
        let text = message(output, &[(FileName::SlurmConf, conf)]);
        let start = "Slurm rejects the new files: slurm.conf:3: Parsing error at unrecognized key: Foo; Unable to";
        assert!(text.starts_with(start), "{text}");
        let output = "slurmd: error: MaxJobCount value (abc) is not a valid number\n";
        let text = message(output, &[(FileName::SlurmConf, "MaxJobCount=abc")]);
        assert!(text.contains("slurm.conf:1: MaxJobCount value"), "{text}");
    }

    #[test]
    fn replaces_check_path_by_file_name() {
        let output = "slurmd-n: error: Parsing error at unrecognized key: Foo\n\
                    slurmd-n: error: Parse error in file /run/check/gres.conf line 2: \" Foo=1\"\n";
        let files = [(FileName::SlurmConf, "A=1\n"), (FileName::GresConf, "Name=gpu\nName=gpu Foo=1\n")];
        let text = message(output, &files);
        assert!(text.contains("in file gres.conf line 2: \" Foo=1\"") && !text.contains("/run/check"), "{text}");
    }

    #[test]
    fn shows_output_without_level_unchanged() {
        assert!(message("Illegal instruction\n", &[]).contains("the new files: Illegal instruction;"));
    }
}
