//! A node record in the format of `scontrol --oneliner show node` and of `slurmd --conf`.

use std::collections::BTreeSet;

use model::inventory::gres;

/// The value of a key. Free text (OS, Comment, Reason) comes after all keys that are read here, except a node's memory and
/// partitions, which come after its OS.
pub fn value<'a>(line: &'a str, key: &str) -> Option<&'a str> {
    line.split_ascii_whitespace().find_map(|word| word.strip_prefix(key)?.strip_prefix('='))
}

/// A number.
pub fn number<N: std::str::FromStr>(line: &str, key: &str) -> Option<N> {
    value(line, key)?.parse().ok()
}

/// The keys of the hardware, and those of `slurmd --conf`.
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
    /// Parses a line.
    pub fn parse(line: &str) -> Option<Self> {
        value(line, "NodeName").map(|_| Self(line.trim().to_owned()))
    }

    /// The value of a key.
    pub fn get(&self, key: &str) -> Option<&str> {
        value(&self.0, key)
    }

    /// A number.
    pub fn number<N: std::str::FromStr>(&self, key: &str) -> Option<N> {
        number(&self.0, key)
    }

    /// Whether its state or a state flag is one of these.
    pub fn is(&self, flags: &[&str]) -> bool {
        let state = self.get("State").unwrap_or_default();
        state.split('+').any(|word| flags.contains(&word.trim_end_matches(|c: char| !c.is_ascii_alphabetic())))
    }

    /// Whether slurmctld powers the node up and down: then it is in slurm.conf, and its record is fixed.
    pub fn is_cloud(&self) -> bool {
        self.is(&["CLOUD"])
    }

    /// Whether slurmctld rejected the node's registration: it then shows the rejected hardware, but schedules with the earlier record.
    pub fn is_invalid(&self) -> bool {
        self.is(&["INVALID_REG"])
    }

    /// Whether slurmctld gets no response from the node.
    pub fn is_silent(&self) -> bool {
        let state = self.get("State").unwrap_or_default();
        state.contains("NOT_RESPONDING") || state.contains('*') || state.starts_with("DOWN")
    }

    /// The reason, with the time and user that slurmctld adds to it; the last key that is read here.
    fn reason(&self) -> &str {
        self.0.split_once(" Reason=").map_or("", |(_, reason)| reason)
    }

    /// Whether the reason contains this text.
    pub fn reason_contains(&self, words: &str) -> bool {
        self.reason().contains(words)
    }

    /// Whether this text is the whole reason.
    pub fn has_reason(&self, reason: &str) -> bool {
        self.reason().starts_with(&format!("{reason} ["))
    }

    /// Whether a job or a reservation is on the node.
    pub fn is_in_use(&self) -> bool {
        self.get("CPUAlloc") != Some("0") || self.is(&["COMPLETING", "RESERVED"])
    }

    /// The hardware: `CPUTot=2 RealMemory=8000`.
    pub fn hardware(&self) -> String {
        let pairs = HARDWARE.iter().filter_map(|(key, _)| Some(format!("{key}={}", self.get(key)?)));
        pairs.collect::<Vec<_>>().join(" ")
    }

    /// Whether the record equals what slurmd is about to register. slurmctld fills in the keys that slurmd omits.
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

    /// The first promised resource that `conf` does not provide, if any.
    pub fn shortfall(&self, conf: &str) -> Option<String> {
        let fewer = |key: &str, conf_key: &str| {
            let (promised, has) = (self.number::<u64>(key)?, number::<u64>(conf, conf_key)?);
            (has < promised).then(|| format!("{conf_key}={has} of {promised}"))
        };
        let gpus = || {
            let promised = self.get("Gres").filter(|gres| *gres != "(null)").map(gres::without_sockets)?;
            let (kind, count) = promised.rsplit_once(':')?;
            let own = value(conf, "Gres").unwrap_or_default();
            let has = own.split(',').find_map(|gres| gres.strip_prefix(kind)?.strip_prefix(':')?.parse::<u64>().ok());
            let has = has.unwrap_or_default();
            (has < count.parse().ok()?).then(|| format!("{kind}:{has} of {count}"))
        };
        fewer("CPUTot", "CPUs").or_else(|| fewer("RealMemory", "RealMemory")).or_else(gpus)
    }

    /// The address and port that slurmctld connects to; `port` if the record has none.
    pub fn place(&self, port: u16) -> (&str, u16) {
        (self.get("NodeAddr").unwrap_or("an unknown address"), self.number("Port").unwrap_or(port))
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
        assert_eq!(node.place(6818), ("172.18.0.3", 7000));
        assert_eq!(record("NodeAddr=172.18.0.3").place(6818), ("172.18.0.3", 6818));
        let is_silent = |state: &str| record(&format!("State={state}")).is_silent();
        assert!(node.is_silent() && is_silent("DOWN+DYNAMIC_NORM") && is_silent("IDLE*"));
        assert!(!is_silent("IDLE+DYNAMIC_NORM") && !is_silent("MIXED+DRAIN"));
    }
}
