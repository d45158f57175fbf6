//! The part of the configuration that takes effect only when the container starts.

use std::fmt;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::str::FromStr;

use super::{Config, Notify};

/// Tables and keys that take effect only when the container starts, each with a checksum of its values. PID 1 passes the
/// checksums to the preparation of a reload, which reports what has changed since the start.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StartOnlyTables(Vec<(String, u64)>);

/// Entries whose change prevents a reload, because the rendered files would not match the running daemons.
const RELOAD_BLOCKERS: [&str; 5] = ["role", "[paths]", "[accounting]", "[rest]", SIMULATED];

/// The number and names of the simulated nodes, each of which is a unit. A reload may change their resources.
const SIMULATED: &str = "the nodes of [simulate]";

impl StartOnlyTables {
    /// The checksums of `config`.
    pub fn of(config: &Config) -> Self {
        let entry = |name: &str, value: &dyn fmt::Debug| (name.to_owned(), checksum(value));
        let mut tables = vec![
            entry("role", &config.role),
            entry("[log]", &config.log),
            entry("[paths]", &config.paths),
            entry("[[hooks.pre_start]]", &config.hooks.pre_start),
            entry("[jobs]", &config.jobs),
            entry("[accounting]", &config.accounting),
            entry("[rest]", &config.rest),
            entry("[metrics]", &config.metrics),
            entry("`port` in [login]", &config.login.port),
            entry("[agent]", &config.agent),
            entry("[gpu.idle]", &config.gpu.idle),
            entry("[report]", &config.report),
            entry("[faults]", &config.faults),
            entry("[memory]", &config.memory),
            entry("`directory_limits` in [node]", &config.node.directory_limits),
            // `Debug` shows only the host of a webhook's URL, so the full URLs are added.
            entry("[[notify]]", &(&config.notifies, config.notifies.iter().flat_map(Notify::urls).collect::<Vec<_>>())),
            entry("[supervise]", &config.supervise),
            entry(
                SIMULATED,
                &(config.simulate.nodes, config.simulate.node.iter().map(|other| &other.name).collect::<Vec<_>>()),
            ),
        ];
        tables.extend(config.daemons.iter().map(|(name, daemon)| entry(&format!("[daemon.{name}]"), daemon)));
        tables.extend(config.services.iter().map(|service| entry(&format!("[[service]] {}", service.name), service)));
        Self(tables)
    }

    /// The names of entries that differ or are missing on one side.
    pub fn changed(&self, new: &Self) -> Vec<String> {
        let differs = |(name, sum): &&(String, u64), other: &Self| !other.0.contains(&(name.clone(), *sum));
        let removed = self.0.iter().filter(|entry| differs(entry, new)).map(|(name, _)| name);
        let added = new.0.iter().filter(|entry| differs(entry, self)).map(|(name, _)| name);
        let mut names: Vec<String> = Vec::new();
        for name in removed.chain(added) {
            if !names.contains(name) {
                names.push(name.clone());
            }
        }
        names
    }

    /// Whether a change of this entry prevents a reload.
    pub fn prevents_reload(name: &str) -> bool {
        RELOAD_BLOCKERS.contains(&name)
    }
}

fn checksum(value: &dyn fmt::Debug) -> u64 {
    let mut hasher = DefaultHasher::new();
    format!("{value:?}").hash(&mut hasher);
    hasher.finish()
}

impl fmt::Display for StartOnlyTables {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|(name, sum)| write!(f, "{name}={sum:x};"))
    }
}

impl FromStr for StartOnlyTables {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let entry = |entry: &str| {
            let (name, sum) = entry.split_once('=')?;
            Some((name.to_owned(), u64::from_str_radix(sum, 16).ok()?))
        };
        let entries = text.split_terminator(';').map(entry).collect::<Option<Vec<_>>>();
        entries.map(Self).ok_or_else(|| "expected `NAME=CHECKSUM;` for each table".to_owned())
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    fn tables(text: &str) -> StartOnlyTables {
        StartOnlyTables::of(&Config::parse(text, Path::new("x")).unwrap())
    }

    #[test]
    fn round_trips_through_command_line() {
        let before = tables("[[service]]\nname = 'api'\ncommand = ['a=b;c']\n[daemon.slurmd]\nuser = 'x'\n");
        assert_eq!(before.to_string().parse(), Ok(before));
        assert!("[log]".parse::<StartOnlyTables>().is_err());
    }

    #[test]
    fn changed_webhook_path_is_detected_but_not_shown() {
        let webhook = |path: &str| tables(&format!("[[notify]]\nurl = 'https://hooks.example.org/{path}'\n"));
        assert_eq!(webhook("old").changed(&webhook("new")), ["[[notify]]"]);
        assert_eq!(webhook("old").changed(&webhook("old")), [] as [&str; 0]);
        assert!(!webhook("s3cret").to_string().contains("s3cret"));
    }

    #[test]
    fn number_of_simulated_nodes_needs_a_restart() {
        let nodes = |count: u32| tables(&format!("[simulate]\nnodes = {count}\n"));
        let changed = nodes(2).changed(&nodes(4));
        assert_eq!(changed, [SIMULATED]);
        assert!(StartOnlyTables::prevents_reload(&changed[0]));
        assert_eq!(nodes(2).changed(&tables("[simulate]\nnodes = 2\ncpus = 3\n")), [] as [&str; 0]);
    }

    #[test]
    fn lists_only_changed_tables() {
        let before = tables("[[service]]\nname = 'api'\ncommand = ['a']\n[supervise]\nstop_timeout = 8\n");
        let after = tables(
            "[[service]]\nname = 'web'\ncommand = ['a']\n[daemon.slurmd]\nstop_timeout = 4\n[supervise]\nstop_timeout = 9\n\
             [gpu]\ntype_name = 'model'\n",
        );
        let changed = before.changed(&after);
        assert_eq!(changed, ["[supervise]", "[[service]] api", "[daemon.slurmd]", "[[service]] web"]);
        assert_eq!(before.changed(&before), [] as [&str; 0]);
        assert!(!StartOnlyTables::prevents_reload("[supervise]") && StartOnlyTables::prevents_reload("[paths]"));
    }
}
