//! Finds the configuration line that a Slurm error message refers to.
//!
//! Slurm reports a key, a value or a line of the rendered files. The operator
//! wrote other files: slurminit.toml, or their own Slurm files.

use std::path::PathBuf;

use config::{Config, Step};
use model::hostlist;

use super::customized::parse;
use super::{Customized, FileName, Text, UserFile};

/// A setting that Slurm rejects, and its location in the operator's files.
#[derive(Debug, PartialEq, Eq)]
pub struct Blame {
    /// The location of the setting.
    pub culprit: Culprit,
    /// Slurm's messages about the setting.
    pub message: String,
}

/// The location of a setting that Slurm rejects.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Culprit {
    /// A value of slurminit.toml, as a path of keys and indices.
    Configuration(Vec<Step>),
    /// A line of the operator's own Slurm file, or of plugstack.conf; counted from 1.
    File(PathBuf, usize),
}

/// Parts of Slurm's messages about a value that it rejects (24.11 to 25.11: `parse_config.c`, `read_config.c`,
/// `plugin.c`, `plugrack.c` and the plugins). Messages about failed connections or full disks contain none of them.
const COMPLAINTS: [&str; 20] = [
    "unrecognized key",
    "parse error",
    "not a valid",
    "invalid",
    "bad ",
    "find the specified plugin",
    "can't find plugin",
    "cannot find",
    "not recognized",
    "not supported",
    "unknown",
    "compatible",
    "require",
    "cannot stat",
    "unable to stat",
    "can't stat",
    "duplicate",
    "has been removed",
    "some records",
    "attempting to create",
];

/// The maximum number of Slurm's log lines to show.
const MAX_LINES: usize = 3;

/// A setting or line of the operator that is part of one of Slurm's files.
struct Candidate {
    culprit: Culprit,
    file: FileName,
    /// The name of the `[[partition]]` that contains the candidate, if any.
    partition: Option<String>,
    line: Option<usize>,
    key: String,
    value: String,
}

/// Finds the culprit; `None` if no message concerns a setting of the operator. `files` are the files that Slurm read, `own` the operator's own
/// files among them, and `messages` Slurm's log lines without prefix.
pub fn blame(config: &Config, files: &[Text], own: &Customized, messages: &[&str]) -> Option<Blame> {
    let required = messages.iter().find_map(|line| required_plugin(plain(line)));
    if required.is_some() {
        return required;
    }
    let is_complaint = |line: &&&str| {
        let line = line.to_lowercase();
        COMPLAINTS.iter().any(|complaint| line.contains(complaint))
    };
    let complaints: Vec<&str> = messages.iter().filter(is_complaint).map(|line| plain(line)).collect();
    let candidates: Vec<Candidate> = from_configuration(config, own).chain(from_files(files, own)).collect();
    let mut best: Option<(u8, &Candidate)> = None;
    for line in &complaints {
        let place = place(line, files);
        for candidate in &candidates {
            let score = candidate.score(line, place.as_ref());
            if score > best.as_ref().map_or(0, |(score, _)| *score) {
                best = Some((score, candidate));
            }
        }
    }
    let (_, culprit) = best?;
    let mut shown: Vec<&str> = Vec::new();
    for line in complaints {
        let concerns = culprit.score(line, place(line, files).as_ref()) > 0;
        if concerns && !shown.contains(&line) && shown.len() < MAX_LINES {
            shown.push(line);
        }
    }
    Some(Blame { culprit: culprit.culprit.clone(), message: shown.join("; ") })
}

/// Parses the message about a plugin that plugstack.conf requires:
/// `spank: /etc/slurm/plugstack.conf:1: Failed to load plugin x.so. Aborting.`
fn required_plugin(line: &str) -> Option<Blame> {
    let (place, _) = line.strip_prefix("spank: ")?.split_once(": Failed to load plugin ")?;
    let (path, number) = place.rsplit_once(':')?;
    let culprit = Culprit::File(path.into(), number.parse().ok()?);
    Some(Blame { culprit, message: line.to_owned() })
}

/// Removes surrounding spaces, and the function name that Slurm puts in front of some messages.
fn plain(line: &str) -> &str {
    line.trim().trim_start_matches("_parse_next_key: ")
}

fn from_configuration<'a>(config: &'a Config, own: &Customized) -> impl Iterator<Item = Candidate> + 'a {
    let candidate = |path: Vec<Step>, partition: Option<&str>, key: &str, value: &str| Candidate {
        culprit: Culprit::Configuration(path),
        file: FileName::SlurmConf,
        partition: partition.map(str::to_owned),
        line: None,
        key: key.to_owned(),
        value: value.to_owned(),
    };
    let keys = config.slurm.conf.iter().map(move |(key, value)| {
        let path = vec!["slurm".into(), "conf".into(), key.as_str().to_owned().into()];
        candidate(path, None, key.as_str(), value.as_str())
    });
    let partitions = config.partitions.iter().enumerate().flat_map(move |(index, partition)| {
        let of_partition = move |key: &str, value: &str| {
            let path = vec!["partition".into(), index.into(), key.to_owned().into()];
            candidate(path, Some(partition.name.as_str()), key, value)
        };
        let keys = partition.settings.iter().map(move |(key, value)| of_partition(key.as_str(), value.as_str()));
        let path = vec!["partition".into(), index.into(), "name".to_owned().into()];
        // The phrase in Slurm's message: "Invalid node names in partition gpu". The name alone could be any word.
        keys.chain([candidate(path, None, "PartitionName", &format!("partition {}", partition.name))])
    });
    let is_generated = own.get(FileName::SlurmConf).is_none();
    keys.chain(partitions).filter(move |_| is_generated)
}

fn from_files<'a>(files: &'a [Text], own: &'a Customized) -> impl Iterator<Item = Candidate> + 'a {
    let of_file = |Text { name, text }: &'a Text| {
        let numbered =
            move |file: &'a UserFile| text.lines().enumerate().map(move |(index, text)| (file, index + 1, text));
        own.get(*name).into_iter().flat_map(numbered).flat_map(move |(file, line, text)| {
            // Also covers lines without a key, which Slurm reports by number.
            let pairs =
                parse::lines(text).into_iter().flat_map(|line| line.pairs().to_vec()).chain([Default::default()]);
            let (path, place) = file.place(line);
            pairs.map(move |(key, value)| Candidate {
                culprit: Culprit::File(path.clone(), place),
                file: *name,
                partition: None,
                line: Some(line),
                key,
                value,
            })
        })
    };
    files.iter().flat_map(of_file)
}

/// The line that a message names: `Parse error in file /etc/slurm/slurm.conf line 40: ...`.
struct NamedLine {
    file: FileName,
    line: usize,
    partition: Option<String>,
}

fn place(complaint: &str, files: &[Text]) -> Option<NamedLine> {
    let (before, after) = complaint.split_once(" line ")?;
    let file = files.iter().find(|file| before.ends_with(file.name.as_str()))?;
    let line: usize = after.split(|c: char| !c.is_ascii_digit()).next()?.parse().ok()?;
    let text = file.text.lines().nth(line.checked_sub(1)?)?;
    let partition = parse::lines(text).first().and_then(|line| line.get("PartitionName")).map(str::to_owned);
    Some(NamedLine { file: file.name, line, partition })
}

impl Candidate {
    /// How well this candidate matches; 0 means not at all.
    fn score(&self, complaint: &str, named: Option<&NamedLine>) -> u8 {
        let is_there = |named: &NamedLine| {
            let same_line = self.line == Some(named.line) && self.file == named.file;
            same_line || self.partition.is_some() && self.partition == named.partition
        };
        let (key, value) = (self.mentions_key(complaint), self.mentions_value(complaint));
        let here = named.is_some_and(is_there);
        // In the operator's own file any key matches, because the whole line is shown.
        let in_own_line = here && self.line.is_some();
        // A key such as Nodes may be an ordinary word of the message.
        let is_key = || self.is_unrecognized(complaint) || self.is_spelled_out(complaint);
        let is_named = value || key && (here || self.mentions_any_value(complaint) || is_key());
        if !is_named && !in_own_line {
            return 0;
        }
        let file = complaint.contains(self.file.as_str());
        u8::from(here) * 8 + u8::from(value) * 4 + u8::from(key) * 2 + u8::from(file)
    }

    /// Whether the message mentions the key. Slurm may report NodeName as NodeHostName, which defaults to NodeName.
    fn mentions_key(&self, complaint: &str) -> bool {
        let is_node = self.key.eq_ignore_ascii_case("NodeName");
        mentions(complaint, &self.key) || is_node && mentions(complaint, "NodeHostName")
    }

    /// Whether Slurm reports the key as unrecognized.
    fn is_unrecognized(&self, complaint: &str) -> bool {
        let key = complaint.split_once("unrecognized key: ").and_then(|(_, key)| key.split_whitespace().next());
        key.is_some_and(|key| key.eq_ignore_ascii_case(&self.key))
    }

    /// Whether the message contains the key, and the key has a capital letter inside, such as PreemptType, so that it cannot be an English word.
    fn is_spelled_out(&self, complaint: &str) -> bool {
        let is_compound = self.key.chars().skip(1).any(char::is_uppercase);
        is_compound && complaint.split(|c: char| !c.is_alphanumeric()).any(|word| word == self.key)
    }

    /// Whether the message mentions the value, even a common one.
    fn mentions_any_value(&self, complaint: &str) -> bool {
        mentions(complaint, &self.value)
    }

    /// Whether the message mentions the value or one of its list items, if it is distinctive. Words of one or two characters, numbers, YES, NO and
    /// ALL are not distinctive, because they appear in many lines.
    fn mentions_value(&self, complaint: &str) -> bool {
        let is_distinctive = |item: &&str| {
            item.len() > 2
                && item.chars().any(char::is_alphabetic)
                && !["yes", "no", "all"].contains(&&*item.to_lowercase())
        };
        let items = hostlist::expand(&self.value);
        let items = items.iter().map(|item| item.trim()).chain([self.value.as_str()]);
        items.filter(is_distinctive).any(|item| mentions(complaint, item))
    }
}

/// Whether the text contains the word, in any case, and not as part of a longer word.
fn mentions(text: &str, word: &str) -> bool {
    let (text, word) = (text.to_ascii_lowercase(), word.to_ascii_lowercase());
    let inside = |c: char| c.is_alphanumeric() || c == '_';
    let at = |(start, _)| {
        let before = text[..start].chars().next_back();
        let after = text[start + word.len()..].chars().next();
        !before.is_some_and(inside) && !after.is_some_and(inside)
    };
    !word.is_empty() && text.match_indices(word.as_str()).any(at)
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::super::{Origin, UserFile};
    use super::*;

    const TOML: &str = "[slurm.conf]\nMaxJobCuont = 5\nSchedulerType = 'sched/bakfill'\nSlurmctldDebug = 'debugg'\n\
                        ReturnToService = 'x'\nMaxJobCount = 100\n\
                        [[partition]]\nname = 'a'\nMaxTime = '1:00'\n[[partition]]\nname = 'b'\nMaxTime = 'abc'\nPriorityTier = 'x'\n";

    fn config() -> Config {
        Config::parse(TOML, Path::new("x")).unwrap()
    }

    fn line_of(messages: &[&str]) -> Option<String> {
        let conf =
            "ClusterName=c\nPartitionName=a Nodes=ALL MaxTime=1:00\nPartitionName=b MaxTime=abc PriorityTier=x\n";
        let files = [Text { name: FileName::SlurmConf, text: conf.to_owned() }];
        let Blame { culprit, .. } = blame(&config(), &files, &Customized::default(), messages)?;
        let Culprit::Configuration(path) = culprit else { return None };
        let error = config::Fault::new(path, String::new()).at(TOML, Path::new("x")).to_string();
        Some(error.split('`').nth(1).unwrap_or_default().to_owned())
    }

    /// The messages are those of Slurm 24.11, verbatim.
    #[test]
    fn traces_slurm_messages_to_configuration_lines() {
        for (messages, line) in [
            (&["_parse_next_key: Parsing error at unrecognized key: MaxJobCuont"][..], "MaxJobCuont = 5"),
            (
                &[
                    "Couldn't find the specified plugin name for sched/bakfill looking at all files",
                    "cannot find sched plugin for sched/bakfill",
                ],
                "SchedulerType = 'sched/bakfill'",
            ),
            (&["Invalid SlurmctldDebug debugg"], "SlurmctldDebug = 'debugg'"),
            (&["ReturnToService value \"x\" is not a valid number"], "ReturnToService = 'x'"),
            (&["Bad value \"abc\" for MaxTime"], "MaxTime = 'abc'"),
            (
                &[
                    "PriorityTier value \"x\" is not a valid number",
                    "Parse error in file /etc/slurm/slurm.conf line 3: \" PriorityTier=x\"",
                ],
                "PriorityTier = 'x'",
            ),
        ] {
            let messages = [&["Unable to process configuration file"], messages].concat();
            assert_eq!(line_of(&messages).as_deref(), Some(line), "{messages:?}");
        }
    }

    #[test]
    fn traces_unmet_requirements_to_their_key() {
        let toml = "[slurm.conf]\nJobContainerType = 'job_container/tmpfs'\nPreemptType = 'preempt/qos'\nAuthType = 'auth/slurm'\n\
                    TaskPlugin = 'task/cgroup'\nPreemptMode = 'SUSPEND'\n";
        let config = Config::parse(toml, Path::new("x")).unwrap();
        for (message, key) in [
            ("PrologFlags=Contain is required for use with job_container/tmpfs", "JobContainerType"),
            ("auth/slurm: cannot stat '/etc/slurm/slurm.key': No such file or directory", "AuthType"),
            ("init: CgroupPlugin=disabled in cgroup.conf is not compatible with task/cgroup.", "TaskPlugin"),
            ("PreemptMode=SUSPEND requires GANG too", "PreemptMode"),
            ("PreemptType and PreemptMode values incompatible", "PreemptMode"),
        ] {
            let found = blame(&config, &[], &Customized::default(), &[message]).map(|blame| blame.culprit);
            let path = vec!["slurm".into(), "conf".into(), key.to_owned().into()];
            assert_eq!(found, Some(Culprit::Configuration(path)), "{message}");
        }
    }

    #[test]
    fn traces_missing_spank_plugin_to_its_line() {
        let messages = [
            "spank: nosuch.so: Dlopen of plugin file failed",
            "spank: /etc/slurm/plugstack.conf:7: Failed to load plugin nosuch.so. Aborting.",
        ];
        let found = blame(&config(), &[], &Customized::default(), &messages).map(|blame| blame.culprit);
        assert_eq!(found, Some(Culprit::File("/etc/slurm/plugstack.conf".into(), 7)));
        assert_eq!(line_of(&messages[..1]), None);
    }

    /// The messages of slurmctld 24.11 about a partition whose nodes are gone.
    #[test]
    fn word_of_a_message_blames_no_line() {
        let toml = "[[partition]]\nname = 'node'\nNodes = 'ALL'\n\
                    [[partition]]\nname = 'gpu'\nNodes = 'ALL'\nState = 'UP'\n";
        let config = Config::parse(toml, Path::new("x")).unwrap();
        let culprit =
            |messages: &[&str]| blame(&config, &[], &Customized::default(), messages).map(|blame| blame.culprit);
        let missing = "build_part_bitmap: invalid node name burst-1 in partition";
        assert_eq!(culprit(&[missing, "Invalid node names in partition burst"]), None);
        assert_eq!(culprit(&["Couldn't find the specified plugin name for x looking at all files"]), None);
        assert_eq!(culprit(&["Invalid nodes, state unknown"]), None);
        let name = |index: usize| {
            Some(Culprit::Configuration(vec!["partition".into(), index.into(), "name".to_owned().into()]))
        };
        assert_eq!(culprit(&[missing, "Invalid node names in partition gpu"]), name(1));
        assert_eq!(culprit(&["Invalid node names in partition node"]), name(0));
    }

    #[test]
    fn ignores_messages_that_concern_no_value() {
        for words in [
            "CLUSTER NAME MISMATCH.",
            "Incomplete job state save file, start with '-i' to ignore this",
            "Unable to bind listen port (6817): Address already in use",
            "Unable to write MaxJobCount: No space left on device",
            "slurm_persist_conn_open: Connection to sched/bakfill refused",
            "",
        ] {
            assert_eq!(line_of(&[words]), None, "{words}");
        }
    }

    #[test]
    fn finds_line_of_own_file_by_number_or_key() {
        let text = "# USER_CUSTOMIZED=true\nClusterName=c\nFooBar=1\n";
        let path = PathBuf::from("/config/slurm.conf");
        let file = UserFile::new(FileName::SlurmConf, Origin::Config, path.clone(), text, &|_| Err(String::new()));
        let own = Customized { files: vec![file], ..Customized::default() };
        let files = [Text { name: FileName::SlurmConf, text: text.to_owned() }];
        for words in [
            "Parsing error at unrecognized key: FooBar",
            "Parse error in file /etc/slurm/slurm.conf line 3: \"FooBar=1\"",
        ] {
            let found = blame(&config(), &files, &own, &[words]).map(|blame| blame.culprit);
            assert_eq!(found, Some(Culprit::File(path.clone(), 3)), "{words}");
        }
        let found = blame(&config(), &files, &own, &["Invalid SlurmctldDebug debugg"]);
        assert_eq!(found, None, "the own file replaces the rendered one");
    }
}
