//! A node record in the format of `scontrol --oneliner show node` and of `slurmd --conf`.

use std::collections::BTreeSet;

use model::inventory::gres;

/// The value of a key in a line, from the first word that begins with the key and `=`. Words of free text (OS, Comment, Reason) can look
/// like keys, too; Comment and Reason follow the keys that slurminit reads.
pub fn value<'a>(line: &'a str, key: &str) -> Option<&'a str> {
    line.split_ascii_whitespace().find_map(|word| word.strip_prefix(key)?.strip_prefix('='))
}

/// The value of a key in a line, as a number.
pub fn number<N: std::str::FromStr>(line: &str, key: &str) -> Option<N> {
    value(line, key)?.parse().ok()
}

/// The keys of the hardware in a record, each with its name in the argument of `slurmd --conf`.
const HARDWARE: [(&str, &str); 6] = [
    ("CPUTot", "CPUs"),
    ("Sockets", "Sockets"),
    ("CoresPerSocket", "CoresPerSocket"),
    ("ThreadsPerCore", "ThreadsPerCore"),
    ("RealMemory", "RealMemory"),
    ("Gres", "Gres"),
];

/// The controller's record of a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeRecord(String);

impl NodeRecord {
    /// Parses a line of `scontrol --oneliner show node`.
    pub fn parse(line: &str) -> Option<Self> {
        value(line, "NodeName").map(|_| Self(line.trim().to_owned()))
    }

    /// The value of a key.
    pub fn get(&self, key: &str) -> Option<&str> {
        value(&self.0, key)
    }

    /// The value of a key, as a number.
    pub fn number<N: std::str::FromStr>(&self, key: &str) -> Option<N> {
        number(&self.0, key)
    }

    /// Whether the node's state or a state flag is one of these.
    pub fn has_state(&self, flags: &[&str]) -> bool {
        let state = self.get("State").unwrap_or_default();
        state.split('+').any(|word| flags.contains(&word.trim_end_matches(|c: char| !c.is_ascii_alphabetic())))
    }

    /// Whether slurmctld powers the node up and down. Such a node is in slurm.conf, and its record is fixed.
    pub fn is_cloud(&self) -> bool {
        self.has_state(&["CLOUD"])
    }

    /// Whether slurmctld rejected the node's registration: it then shows the rejected hardware, but schedules with the earlier record.
    pub fn is_invalid(&self) -> bool {
        self.has_state(&["INVALID_REG"])
    }

    /// Whether slurmctld gets no response from the node, or has marked it DOWN.
    pub fn is_unresponsive(&self) -> bool {
        let state = self.get("State").unwrap_or_default();
        state.contains("NOT_RESPONDING") || state.contains('*') || state.starts_with("DOWN")
    }

    /// The rest of the line after `Reason=`: the reason, and the user and time that scontrol appends; empty if the node has no reason.
    fn reason(&self) -> &str {
        self.0.split_once(" Reason=").map_or("", |(_, reason)| reason)
    }

    /// Whether the reason contains this text.
    pub fn reason_contains(&self, text: &str) -> bool {
        self.reason().contains(text)
    }

    /// Whether this text is the whole reason.
    pub fn has_reason(&self, reason: &str) -> bool {
        self.reason().starts_with(&format!("{reason} ["))
    }

    /// Whether a job or a reservation is on the node. An unknown number of allocated CPUs counts as a job.
    pub fn is_in_use(&self) -> bool {
        self.get("CPUAlloc") != Some("0") || self.has_state(&["COMPLETING", "RESERVED"])
    }

    /// The hardware: `CPUTot=2 RealMemory=8000`.
    pub fn hardware(&self) -> String {
        let pairs = HARDWARE.iter().filter_map(|(key, _)| Some(format!("{key}={}", self.get(key)?)));
        pairs.collect::<Vec<_>>().join(" ")
    }

    /// Whether the record equals the hardware that slurmd is about to register. slurmctld fills in the keys that slurmd omits,
    /// except Gres.
    pub fn has_hardware(&self, conf: &str) -> bool {
        HARDWARE.iter().all(|(key, conf_key)| match (self.get(key), value(conf, conf_key)) {
            (known, None) if *conf_key == "Gres" => known.is_none_or(|known| known == "(null)"),
            (_, None) => true,
            (known, Some(new)) => known.is_some_and(|known| gres::without_sockets(known) == gres::without_sockets(new)),
        })
    }

    /// Whether the features are those of `conf`, in any order.
    pub fn has_features(&self, conf: &str) -> bool {
        features(self.get("AvailableFeatures")) == features(value(conf, "Feature"))
    }

    /// The first of CPUs, memory and each GRES of which `conf` has less than the record, such as `CPUs=1 of 2`; `None` if there is none.
    pub fn shortfall(&self, conf: &str) -> Option<String> {
        let shortage = |key: &str, conf_key: &str| {
            let (promised, provided) = (self.number::<u64>(key)?, number::<u64>(conf, conf_key)?);
            (provided < promised).then(|| format!("{conf_key}={provided} of {promised}"))
        };
        let missing = |promised: &str| {
            let (kind, count) = promised.rsplit_once(':')?;
            let count_of = |gres: &str| gres.strip_prefix(kind)?.strip_prefix(':')?.parse::<u64>().ok();
            let provided = value(conf, "Gres").unwrap_or_default().split(',').find_map(count_of).unwrap_or_default();
            (provided < count.parse().ok()?).then(|| format!("{kind}:{provided} of {count}"))
        };
        let gpus = || {
            let promised = self.get("Gres").filter(|gres| *gres != "(null)").map(gres::without_sockets)?;
            promised.split(',').find_map(missing)
        };
        shortage("CPUTot", "CPUs").or_else(|| shortage("RealMemory", "RealMemory")).or_else(gpus)
    }

    /// The address and port that slurmctld connects to. If the record has no address, a placeholder text; if it has no port, `port`.
    pub fn address(&self, port: u16) -> (&str, u16) {
        (self.get("NodeAddr").unwrap_or("the node's address in Slurm"), self.number("Port").unwrap_or(port))
    }
}

fn features(list: Option<&str>) -> BTreeSet<&str> {
    list.unwrap_or_default().split(',').filter(|feature| !["", "(null)"].contains(feature)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const REGISTERED: &str = "NodeName=c1 Arch=x86_64 CoresPerSocket=1 CPUAlloc=0 CPUEfctv=2 CPUTot=2 CPULoad=0.1 \
        AvailableFeatures=nvidia,h200 ActiveFeatures=nvidia,h200 Gres=gpu:nvidia:2(S:0) NodeAddr=172.18.0.3 RealMemory=8000 Sockets=2 \
        ThreadsPerCore=1 State=IDLE+DYNAMIC_NORM";

    fn record(line: &str) -> NodeRecord {
        NodeRecord::parse(&format!("NodeName=c1 {line}")).unwrap()
    }

    #[test]
    fn recognizes_unchanged_node() {
        let is_unchanged = |node: &str, conf: &str| record(node).has_hardware(conf) && record(node).has_features(conf);
        assert!(is_unchanged(REGISTERED, "CPUs=2 RealMemory=8000 Gres=gpu:nvidia:2 Feature=h200,nvidia"));
        for other in [
            "CPUs=2 RealMemory=8000 Gres=gpu:nvidia:1 Feature=h200,nvidia",
            "CPUs=4 RealMemory=8000 Gres=gpu:nvidia:2 Feature=h200,nvidia",
            "CPUs=2 RealMemory=9000 Gres=gpu:nvidia:2 Feature=h200,nvidia",
            "CPUs=2 RealMemory=8000 Gres=gpu:nvidia:2 Feature=h200",
            "CPUs=2 RealMemory=8000 Feature=h200,nvidia",
        ] {
            assert!(!is_unchanged(REGISTERED, other), "{other}");
        }
        let without_gpus = REGISTERED.replace("gpu:nvidia:2(S:0)", "(null)");
        assert!(is_unchanged(&without_gpus, "CPUs=2 RealMemory=8000 Feature=h200,nvidia"));
    }

    #[test]
    fn parses_address_and_responsiveness() {
        let node = record("NodeAddr=172.18.0.3 NodeHostName=c1 Port=7000 State=IDLE+DYNAMIC_NORM+NOT_RESPONDING");
        assert_eq!(node.address(6818), ("172.18.0.3", 7000));
        assert_eq!(record("NodeAddr=172.18.0.3").address(6818), ("172.18.0.3", 6818));
        let is_unresponsive = |state: &str| record(&format!("State={state}")).is_unresponsive();
        assert!(node.is_unresponsive() && is_unresponsive("DOWN+DYNAMIC_NORM") && is_unresponsive("IDLE*"));
        assert!(!is_unresponsive("IDLE+DYNAMIC_NORM") && !is_unresponsive("MIXED+DRAIN"));
    }

    #[test]
    fn recognizes_state_flags_with_sinfo_marks() {
        let node = |state: &str| record(&format!("CPUAlloc=0 State={state}"));
        assert!(node("IDLE+CLOUD+POWERED_DOWN").is_cloud() && node("IDLE+CLOUD*").is_cloud());
        assert!(!node("IDLE+DYNAMIC_NORM").is_cloud() && !node("CLOUDY").is_cloud());
        assert!(node("DOWN+INVALID_REG").is_invalid() && !node("DOWN").is_invalid());
        assert!(node("IDLE+RESERVED").is_in_use() && node("IDLE+COMPLETING").is_in_use());
        assert!(!node("IDLE").is_in_use() && record("CPUAlloc=2 State=MIXED").is_in_use());
        assert!(record("State=IDLE").is_in_use(), "an unknown allocation may be one");
    }

    #[test]
    fn reason_is_compared_without_time_and_user() {
        let node = record("State=IDLE+DRAIN Reason=fan broken [root@2026-11-28T09:13:07]");
        assert!(node.has_reason("fan broken") && !node.has_reason("fan") && !node.has_reason("broken"));
        assert!(node.reason_contains("broken") && !node.reason_contains("State"));
        assert!(!record("State=IDLE").reason_contains("IDLE"));
    }

    #[test]
    fn shortfall_names_first_resource_below_promise() {
        let node = record(REGISTERED);
        let shortfall = |conf: &str| node.shortfall(conf);
        assert_eq!(shortfall("CPUs=2 RealMemory=8000 Gres=gpu:nvidia:2,shard:4"), None);
        assert_eq!(shortfall("CPUs=4 RealMemory=9000 Gres=gpu:nvidia:3"), None);
        assert_eq!(shortfall("CPUs=1 RealMemory=7999").as_deref(), Some("CPUs=1 of 2"));
        assert_eq!(shortfall("CPUs=2 RealMemory=7999").as_deref(), Some("RealMemory=7999 of 8000"));
        assert_eq!(shortfall("CPUs=2 RealMemory=8000 Gres=gpu:nvidia:1").as_deref(), Some("gpu:nvidia:1 of 2"));
        assert_eq!(shortfall("CPUs=2 RealMemory=8000 Gres=gpu:amd:2").as_deref(), Some("gpu:nvidia:0 of 2"));
        let without_gpus = record(&REGISTERED.replace("gpu:nvidia:2(S:0)", "(null)"));
        assert_eq!(without_gpus.shortfall("CPUs=2 RealMemory=8000"), None);
        let several = record(&REGISTERED.replace("gpu:nvidia:2(S:0)", "gpu:a:2(S:0),gpu:b:1,shard:8"));
        let shortfall = |gres: &str| several.shortfall(&format!("CPUs=2 RealMemory=8000 Gres={gres}"));
        assert_eq!(shortfall("gpu:b:1,gpu:a:2,shard:8"), None);
        assert_eq!(shortfall("gpu:a:2,shard:8").as_deref(), Some("gpu:b:0 of 1"));
        assert_eq!(record("CPUTot=2 RealMemory=8000 Sockets=1").hardware(), "CPUTot=2 Sockets=1 RealMemory=8000");
    }
}
