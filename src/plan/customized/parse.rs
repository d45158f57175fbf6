//! Parses Slurm's files as leniently as Slurm does: keys in any case, quotes, comments, continued lines.

use std::path::{Path, PathBuf};

use model::hostlist;
use model::inventory::gres::counted;

/// StateSaveLocation of a slurm.conf that does not set it (slurm.conf(5)).
pub const DEFAULT_STATE_DIRECTORY: &str = "/var/spool";

/// One line of a Slurm file: its keys and values in order. Lines with the same keys and values are equal, even if their numbers differ.
#[derive(Clone, Debug, Default)]
pub(crate) struct Line {
    pairs: Vec<(String, String)>,
    number: usize,
}

impl Eq for Line {}

impl PartialEq for Line {
    fn eq(&self, other: &Self) -> bool {
        self.pairs == other.pairs
    }
}

impl Line {
    /// The line number in the file, counted from 1. A continued line has the number of its first line.
    pub(super) fn number_in_file(&self) -> usize {
        self.number
    }

    /// The line, completed with the pairs of `defaults` whose keys are missing.
    pub(super) fn with_defaults(&self, defaults: &Self) -> Self {
        let missing = defaults.pairs.iter().filter(|(key, _)| self.get(key).is_none());
        Self { pairs: self.pairs.iter().chain(missing).cloned().collect(), number: self.number }
    }

    /// The value of `key`. Upper and lower case of the key are not distinguished.
    pub(crate) fn get(&self, key: &str) -> Option<&str> {
        self.pairs.iter().find(|(own, _)| own.eq_ignore_ascii_case(key)).map(|(_, value)| value.as_str())
    }

    /// The keys and values, in order.
    pub(crate) fn pairs(&self) -> &[(String, String)] {
        &self.pairs
    }

    /// The value of `key` as a number. A memory size, which may end in M or G, is returned in MiB.
    pub(super) fn number(&self, key: &str) -> Option<u64> {
        let text = self.get(key)?;
        let (digits, factor) = match text.to_ascii_uppercase().strip_suffix('G') {
            Some(digits) => (digits.to_owned(), 1024),
            None => (text.trim_end_matches(['M', 'm']).to_owned(), 1),
        };
        digits.parse::<u64>().ok()?.checked_mul(factor)
    }
}

/// The lines that set at least one key.
pub(crate) fn lines(text: &str) -> Vec<Line> {
    let mut found = Vec::new();
    let (mut joined, mut first) = (String::new(), 1);
    for (index, text) in text.lines().enumerate() {
        if joined.is_empty() {
            first = index + 1;
        }
        if let Some(continued) = text.strip_suffix('\\') {
            joined.push_str(continued);
            continue;
        }
        joined.push_str(text);
        found.extend(line(&joined, first));
        joined.clear();
    }
    found.extend(line(&joined, first));
    found
}

fn line(text: &str, number: usize) -> Option<Line> {
    let text = text.split('#').next().unwrap_or_default();
    let mut pairs = Vec::new();
    let mut rest = text.trim();
    while let Some((key, after)) = rest.split_once('=') {
        let key = key.split_whitespace().last().unwrap_or_default().trim_end_matches('+');
        let after = after.trim_start();
        let (value, remainder) = match after.strip_prefix('"') {
            Some(quoted) => quoted.split_once('"').unwrap_or((quoted, "")),
            None => after.split_once(char::is_whitespace).unwrap_or((after, "")),
        };
        pairs.push((key.to_owned(), value.to_owned()));
        rest = remainder.trim_start();
    }
    (!pairs.is_empty()).then_some(Line { pairs, number })
}

/// The last non-empty value of a key in a slurm.conf or in `scontrol show config`.
pub fn last_value(text: &str, key: &str) -> Option<String> {
    let lines = lines(text);
    lines.iter().rev().filter_map(|line| line.get(key)).find(|value| !value.is_empty()).map(str::to_owned)
}

/// slurmctld's state directory according to a slurm.conf: Slurm's default if the file does not set the directory, and `generated` if the
/// text is empty.
pub fn state_directory(slurm_conf: &str, generated: &Path) -> PathBuf {
    let unset = || if slurm_conf.is_empty() { generated } else { Path::new(DEFAULT_STATE_DIRECTORY) };
    last_value(slurm_conf, "StateSaveLocation").map_or_else(|| unset().to_owned(), PathBuf::from)
}

/// A line of gres.conf with `Name=gpu`.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct GpuLine {
    kind: Option<String>,
    /// The device files; empty if the line names none, as with AutoDetect.
    pub(super) files: Vec<String>,
    /// The number of GPUs.
    count: usize,
}

/// The parsed lines of a gres.conf about GPUs.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct GresLines {
    /// The last value of AutoDetect.
    pub(super) auto_detect: Option<String>,
    /// The GPU lines.
    pub(super) gpus: Vec<GpuLine>,
    /// The shared GRES, `shard` or `mps`, each with its total count.
    pub(super) shared: Vec<(&'static str, u64)>,
    /// The lines that set cores: the number of the line, and the list of cores.
    pub(super) cores: Vec<(usize, String)>,
}

impl GresLines {
    /// The number of GPUs in the lines.
    pub(super) fn count(&self) -> usize {
        self.gpus.iter().map(|line| line.count).sum()
    }

    /// The Gres value of a node line that matches these lines.
    pub(super) fn node_gres(&self) -> String {
        let counts = counted(self.gpus.iter().map(|line| (line.kind.as_deref(), line.count)));
        let spell = |(name, count): &(Option<&str>, usize)| match name {
            Some(name) => format!("gpu:{name}:{count}"),
            None => format!("gpu:{count}"),
        };
        let shared = self.shared.iter().map(|(name, count)| format!("{name}:{count}"));
        counts.iter().map(spell).chain(shared).collect::<Vec<_>>().join(",")
    }
}

/// The GRES with which jobs share GPUs.
const SHARED: [&str; 2] = ["shard", "mps"];

/// Parses the lines of a gres.conf that apply to the node: those without NodeName, and those whose NodeName `is_own` accepts.
pub(super) fn gres_lines(text: &str, is_own: &dyn Fn(&str) -> bool) -> GresLines {
    let mut found = GresLines::default();
    for line in lines(text).iter().filter(|line| line.get("NodeName").is_none_or(is_own)) {
        if let Some(mode) = line.get("AutoDetect") {
            found.auto_detect = Some(mode.to_owned());
        }
        found.cores.extend(line.get("Cores").or_else(|| line.get("CPUs")).map(|list| (line.number, list.to_owned())));
        let name = line.get("Name").unwrap_or_default().to_ascii_lowercase();
        if let Some(name) = SHARED.into_iter().find(|shared| *shared == name) {
            let count = line.number("Count").unwrap_or_default();
            match found.shared.iter_mut().find(|(known, _)| *known == name) {
                Some((_, sum)) => *sum = sum.saturating_add(count),
                None => found.shared.push((name, count)),
            }
        }
        if name != "gpu" {
            continue;
        }
        let files = match (line.get("File"), line.get("MultipleFiles")) {
            (Some(files), _) => hostlist::expand(files),
            // One device. The MIG instances of a GPU can share all files but the last.
            (None, Some(files)) => vec![files.rsplit(',').next().unwrap_or_default().to_owned()],
            (None, None) => Vec::new(),
        };
        // Slurm's default without files is 1 (gres.conf(5)). The bound keeps sums from overflowing.
        let count = line.number("Count").map_or(1, |count| u16::try_from(count).unwrap_or(u16::MAX));
        let count = if files.is_empty() { count.into() } else { files.len() };
        found.gpus.push(GpuLine { kind: line.get("Type").map(str::to_owned), files, count });
    }
    found
}

/// The device files of the GPUs of the node, or of all simulated nodes, in the order of the lines of gres.conf; only the last file of a MIG
/// instance. Empty if Slurm detects devices itself.
pub fn gpu_files(gres_conf: &str, node: &str) -> Vec<String> {
    let own = hostlist::expand(node);
    let found = gres_lines(gres_conf, &|names| own.iter().any(|name| hostlist::contains(names, name)));
    if found.auto_detect.is_some_and(|mode| !mode.eq_ignore_ascii_case("off")) {
        return Vec::new();
    }
    found.gpus.into_iter().flat_map(|line| line.files).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn last_value_wins() {
        let conf = "StateSaveLocation=/a\n#StateSaveLocation=/b\nstatesavelocation = /c # here\n";
        assert_eq!(last_value(conf, "StateSaveLocation").as_deref(), Some("/c"));
        assert_eq!(last_value("NEXT_JOB_ID             = 5\n", "NEXT_JOB_ID").as_deref(), Some("5"));
        assert_eq!(last_value("", "MaxJobId"), None);
    }

    #[test]
    fn state_directory_is_slurms_default_if_a_file_does_not_set_it() {
        let directory = |conf: &str| state_directory(conf, Path::new("/generated"));
        assert_eq!(directory("StateSaveLocation=/a\n"), Path::new("/a"));
        assert_eq!(directory("ClusterName=lab\n"), Path::new("/var/spool"));
        assert_eq!(directory(""), Path::new("/generated"));
    }

    #[test]
    fn parses_continuations_quotes_and_comments() {
        let text = "\nNodeName=a  CPUs=8 \\\r\n RealMemory = 16G gres=\"gpu:x:1\" # Gres=gpu:9\n\n#NodeName=b\nPort=1";
        let lines = lines(text);
        assert_eq!(lines.iter().map(Line::number_in_file).collect::<Vec<_>>(), [2, 6]);
        assert_eq!(lines[0].get("cpus"), Some("8"));
        assert_eq!(lines[0].number("realmemory"), Some(16384));
        assert_eq!(lines[0].get("Gres"), Some("gpu:x:1"));
    }

    #[test]
    fn mig_instances_are_separate_devices() {
        let own = gres_lines(
            "Name=gpu Type=a MultipleFiles=/dev/nvidia0,/dev/nvidia-caps/nvidia-cap1,/dev/nvidia-caps/nvidia-cap2\n\
             Name=gpu Type=a MultipleFiles=/dev/nvidia0,/dev/nvidia-caps/nvidia-cap1,/dev/nvidia-caps/nvidia-cap3\n",
            &|_| true,
        );
        assert_eq!((own.count(), own.node_gres().as_str()), (2, "gpu:a:2"));
        assert_ne!(own.gpus[0].files, own.gpus[1].files);
    }

    #[test]
    fn count_is_that_of_the_files_or_else_of_the_line() {
        let own = gres_lines(
            "AutoDetect=nvml\nName=gpu Type=a Count=4\nName=gpu\nName=gpu Type=b File=/dev/nvidia[0-1] Count=9\n",
            &|_| true,
        );
        assert_eq!((own.count(), own.node_gres().as_str()), (7, "gpu:a:4,gpu:1,gpu:b:2"));
    }

    #[test]
    fn gpu_files_are_those_of_the_node() {
        let conf = "NodeName=c[1-2] Name=gpu File=/dev/nvidia[0-1]\nNodeName=c3 Name=gpu File=/dev/nvidia7\nName=shard Count=4\n";
        assert_eq!(gpu_files(conf, "c1"), ["/dev/nvidia0", "/dev/nvidia1"]);
        assert_eq!(gpu_files(conf, "c[2-3]"), ["/dev/nvidia0", "/dev/nvidia1", "/dev/nvidia7"]);
        assert_eq!(gpu_files(conf, "c4"), [""; 0]);
        assert_eq!(gpu_files(&format!("AutoDetect=off\n{conf}"), "c3"), ["/dev/nvidia7"]);
        assert_eq!(gpu_files(&format!("AutoDetect=nvml\n{conf}"), "c3"), [""; 0]);
    }
}
