//! The user's own Slurm files: which existing files are the user's, and foreseeable problems with them.

mod check;
mod fatal;
mod hosts;
mod include;
pub(super) mod own_node;
pub(super) mod parse;
mod programs;

use std::path::{Path, PathBuf};

use config::Config;
pub use model::file_name::FileName;
use model::inventory::{Finding, Inventory, Kind};

pub use fatal::Fatal;
pub use hosts::RemoteHost;
pub use own_node::{Names, OwnNode};
pub use parse::{DEFAULT_STATE_DIRECTORY, gpu_files, last_value, state_directory};

pub(super) use include::included;
use include::{Expanded, Inlined, MissingInclude, Read};

use super::{Culprit, Decision, Plan};

/// The directory in which a file was found.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Origin {
    /// The operator's directory.
    Config,
    /// Slurm's directory.
    Slurm,
    /// Slurm's directory, into which slurminit copied the file from the operator's directory. The file is the
    /// user's only while the original exists.
    Copy,
}

/// A Slurm file that existed before this start or reload generated files.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UserFile {
    /// The file name.
    pub name: FileName,
    /// The directory in which the file was found.
    pub origin: Origin,
    /// The path of the file.
    pub path: PathBuf,
    /// The content, with the text of included files that Slurm would not find.
    pub text: String,
    /// The content that Slurm reads, with all included files.
    read: Expanded,
    /// The source of each line of `text`, if files were included.
    written: Expanded,
    /// The missing file of an `Include` line.
    missing: Option<MissingInclude>,
}

/// The byte order mark. Slurm reads it as part of the first line.
const BYTE_ORDER_MARK: char = '\u{feff}';

impl UserFile {
    /// A file with this content. `include` reads the files named in its `Include` lines.
    pub fn new(name: FileName, origin: Origin, path: PathBuf, text: &str, include: Read<'_>) -> Self {
        let plain = text.strip_prefix(BYTE_ORDER_MARK).unwrap_or(text);
        let expanded = |inlined| Expanded::new(&path, plain, inlined, include);
        let (written, read) = (expanded(Inlined::Relative), expanded(Inlined::All));
        let missing = read.as_ref().err().cloned();
        let unexpanded = || Expanded { text: plain.to_owned(), ..Expanded::default() };
        let (written, read) = (written.unwrap_or_else(|_| unexpanded()), read.unwrap_or_else(|_| unexpanded()));
        // Slurm itself finds the files that a file in Slurm's directory includes. Such a file is never modified.
        let (text, written) = match origin {
            Origin::Config => (written.text.clone(), written),
            Origin::Slurm | Origin::Copy => (text.to_owned(), Expanded::default()),
        };
        Self { name, origin, path, text, read, written, missing }
    }

    /// The source file and line of line `line` of `text`. Lines are counted from 1.
    pub fn place(&self, line: usize) -> (PathBuf, usize) {
        self.written.place(line).cloned().unwrap_or_else(|| (self.path.clone(), line))
    }

    /// The source file and line of line `line` of the text that Slurm reads. Lines are counted from 1.
    fn place_read(&self, line: usize) -> (PathBuf, usize) {
        self.read.place(line).cloned().unwrap_or_else(|| (self.path.clone(), line))
    }

    /// The lines that Slurm reads.
    fn lines(&self) -> Vec<parse::Line> {
        parse::lines(&self.read.text)
    }

    /// Whether the file contains the line `# USER_CUSTOMIZED=true`.
    fn is_marked(&self) -> bool {
        self.read.text.lines().any(|line| {
            let Some(comment) = line.trim().strip_prefix('#') else { return false };
            let words: String = comment.trim_start_matches('#').split_whitespace().collect();
            words.eq_ignore_ascii_case("USER_CUSTOMIZED=true")
        })
    }

    fn is_generated(&self) -> bool {
        self.text.starts_with(super::HEADER)
    }

    /// Whether the file is the user's: the file is marked, or USER_CUSTOMIZED is set and slurminit did not generate the file.
    fn is_users(&self, config: &Config) -> bool {
        self.is_marked() || (config.user_customized && !self.is_generated())
    }
}

/// What exists at a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FileState {
    /// Nothing.
    Missing,
    /// A file, directory or device that is not a program.
    Present,
    /// An executable file, or a pattern (glob(7)) that matches a file.
    Program,
}

/// The handling of the user's files.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Customized {
    /// The user's files, at most one of each name.
    pub files: Vec<UserFile>,
    /// The decision to use each of these files.
    pub decisions: Vec<Decision>,
    /// Foreseeable problems.
    pub findings: Vec<Finding>,
    /// A setting that certainly makes a daemon exit or block, or keeps jobs from running.
    pub fatal: Option<Fatal>,
    /// This node in the user's slurm.conf; `None` without that file, or if no line is for this node.
    pub own_node: Option<OwnNode>,
    /// The other hosts in the user's slurm.conf that slurmctld looks up, if it runs here.
    pub remote_hosts: Vec<RemoteHost>,
}

impl Customized {
    /// The user's file of that name.
    pub fn get(&self, name: FileName) -> Option<&UserFile> {
        self.files.iter().find(|file| file.name == name)
    }

    /// The last value of a key in the user's slurm.conf, with all included files.
    pub fn last_value(&self, key: &str) -> Option<String> {
        last_value(&self.get(FileName::SlurmConf)?.read.text, key)
    }

    /// The location where the operator set a slurm.conf key; `None` if the operator did not set it.
    pub fn culprit(&self, config: &Config, key: &str) -> Option<Culprit> {
        match self.get(FileName::SlurmConf) {
            Some(file) => {
                let lines = file.lines();
                let line = lines.iter().rev().find(|line| line.get(key).is_some())?;
                let (path, line) = file.place_read(line.number_in_file());
                Some(Culprit::File(path, line))
            }
            None => {
                let (key, _) = config.slurm.conf.iter().find(|(own, _)| own.is(key))?;
                Some(Culprit::Configuration(vec!["slurm".into(), "conf".into(), key.as_str().to_owned().into()]))
            }
        }
    }
}

/// Selects the user's files among the Slurm files that exist.
pub fn select_user_files(config: &Config, found: &[UserFile]) -> Customized {
    let mut chosen = Customized::default();
    // A slurm.conf depends on the lines of gres.conf, so marking it covers the files beside it too.
    let is_beside_marked = |file: &UserFile| {
        let is_marked_slurm_conf =
            |other: &UserFile| other.name == FileName::SlurmConf && other.origin == Origin::Config && other.is_marked();
        file.origin == Origin::Config && found.iter().any(is_marked_slurm_conf)
    };
    let is_users = |file: &UserFile| file.is_users(config) || is_beside_marked(file);
    for name in FileName::ALL {
        let at = |origin| found.iter().find(|file| file.name == name && file.origin == origin);
        let (in_config, in_slurm) = (at(Origin::Config), at(Origin::Slurm));
        if let Some(file) = in_config.filter(|file| !is_users(file)) {
            chosen.findings.push(ignored(file));
        }
        let users = in_config.into_iter().chain(in_slurm).find(|file| is_users(file));
        match users {
            Some(file) => {
                let what = format!("{name} is the user's own file: {}", file.path.display());
                let why = if file.is_marked() {
                    "the file has the line # USER_CUSTOMIZED=true"
                } else if is_beside_marked(file) {
                    "the slurm.conf in the same directory has the line # USER_CUSTOMIZED=true"
                } else {
                    "USER_CUSTOMIZED is set"
                };
                chosen.decisions.push(Decision::new(what, why));
                chosen.files.push(file.clone());
            }
            None => {
                chosen.findings.extend(in_slurm.filter(|file| !file.is_generated()).map(replaced));
                let copy = at(Origin::Copy).filter(|_| in_config.is_none());
                chosen.findings.extend(copy.map(|file| removed(config, file)));
            }
        }
    }
    chosen
}

fn ignored(file: &UserFile) -> Finding {
    let fix = match file.name {
        FileName::SlurmConf => {
            "add that line to use the file, or remove the file; keys of slurm.conf can also be set in [slurm.conf] of slurminit.toml"
        }
        _ => "add that line to use the file, or remove the file",
    };
    Finding::warning(
        Kind::OwnFiles,
        format!("{} is not used", file.path.display()),
        "the file has no line `# USER_CUSTOMIZED=true`",
        fix,
    )
}

fn replaced(file: &UserFile) -> Finding {
    Finding::info(
        Kind::OwnFiles,
        format!("{} is replaced by a generated file; backup: {}.previous", file.path.display(), file.name),
        "the file existed before, without the line `# USER_CUSTOMIZED=true`",
        "to keep your own file, restore the backup, add that line to it and restart",
    )
}

fn removed(config: &Config, file: &UserFile) -> Finding {
    let original = config.paths.config.join(file.name.as_str());
    Finding::info(
        Kind::OwnFiles,
        format!("{} was removed; {} is generated again", original.display(), file.path.display()),
        "the installed file was a copy of the removed file",
        format!("no action if intended; backup: {}.previous", file.name),
    )
}

impl Plan {
    /// The value of a port's key, which is always set.
    fn port(&self, key: &str) -> &str {
        self.settings.iter().find(|setting| setting.key == key).map_or("", |setting| setting.value.as_str())
    }

    /// Adapts the generated files to the user's, and reports problems with the user's files. `state` returns what exists at a path.
    pub fn apply_user_files(
        &mut self,
        config: &Config,
        mut customized: Customized,
        inventory: &Inventory,
        names: &Names,
        state: &dyn Fn(&Path) -> FileState,
    ) -> Customized {
        let slurm_conf = customized.get(FileName::SlurmConf);
        customized.own_node = slurm_conf.and_then(|file| own_node::find(&file.lines(), names));
        self.decisions.extend(customized.decisions.iter().cloned());
        if customized.get(FileName::GresConf).is_some() {
            self.drop_task_prolog();
        }
        if customized.get(FileName::SlurmConf).is_some() {
            let cause = "your own slurm.conf does not set TaskProlog to this script";
            let own = customized.last_value("TaskProlog");
            let unused = self.task_prolog.as_ref().filter(|prolog| own.as_deref() != prolog.path.to_str());
            self.findings.extend(unused.and_then(|prolog| prolog.not_used(cause)));
        } else {
            if let Some(gres) = customized.get(FileName::GresConf) {
                self.count_users_gres(gres, names);
            }
        }
        let written = self.scripts();
        let state = |path: &Path| if written.iter().any(|own| own == path) { FileState::Program } else { state(path) };
        let context = check::Context { config, inventory, names, state: &state };
        let slurm_conf = customized.get(FileName::SlurmConf).filter(|_| context.has_controller());
        customized.remote_hosts = slurm_conf.map(|file| hosts::find(file, names)).unwrap_or_default();
        customized.findings.extend(check::check(self, &customized, &context));
        customized.fatal = fatal::find(self, &customized, &context);
        self.findings.extend(customized.findings.iter().cloned());
        self.findings.sort_by_key(|finding| std::cmp::Reverse(finding.severity));
        customized
    }

    /// The paths of slurminit's Prolog, Epilog and TaskProlog. The user's slurm.conf may name them, but they are written after the check.
    fn scripts(&self) -> Vec<PathBuf> {
        let (prolog, task_prolog) = (self.prolog.as_ref(), self.task_prolog.as_ref());
        let paths = [Some(&self.epilog.path), prolog.map(|own| &own.path), task_prolog.map(|own| &own.path)];
        paths.into_iter().flatten().cloned().collect()
    }

    /// Removes the GPUs' names from the task prolog, or drops a prolog without another purpose. The names rely on the
    /// lines of the generated gres.conf.
    fn drop_task_prolog(&mut self) {
        if let Some(prolog) = self.task_prolog.as_mut().filter(|prolog| prolog.has_variables()) {
            prolog.names.clear();
        } else if let Some(prolog) = self.task_prolog.take() {
            let is_ours = |setting: &super::Setting| Some(setting.value.as_str()) == prolog.path.to_str();
            self.settings.retain(|setting| !is_ours(setting));
        }
    }

    /// Sets the node's Gres in a generated slurm.conf to the GPUs in the user's gres.conf, because slurmctld marks a
    /// node invalid if slurm.conf claims more GPUs than slurmd reports. If the user's lines use AutoDetect, the node keeps the detected GPUs.
    fn count_users_gres(&mut self, gres: &UserFile, names: &Names) {
        let node = self.node_names();
        let own = parse::gres_lines(&gres.read.text, &|hosts| own_node::is_for_node(hosts, Some(&node), names));
        if own.auto_detect.as_deref().is_some_and(|mode| !mode.eq_ignore_ascii_case("off")) {
            return;
        }
        for kind in std::iter::once(&mut self.nodes).chain(&mut self.other_nodes) {
            kind.node.gres = own.node_gres();
        }
        // slurmctld exits if Gres contains a name that is missing from GresTypes.
        if let Some(types) = self.settings.iter_mut().find(|setting| setting.key == "GresTypes") {
            for (name, _) in &own.shared {
                if !types.value.split(',').any(|known| known == *name) {
                    types.value = format!("{},{name}", types.value);
                }
            }
        }
        self.decisions.push(Decision::new(
            format!("Gres={}", self.nodes.node.gres),
            format!("the GPUs in {}", gres.path.display()),
        ));
    }
}

#[cfg(test)]
mod tests;
