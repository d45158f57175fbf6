//! The shared part of the configuration of a cluster: its export by the controller and its import by other containers.
//!
//! A token contains this part as TOML. A token can set only the keys in [`SHARED`].

use std::path::Path;

use toml::{Table, Value};

use super::layers::{Layers, get, leaves, set};
use super::{Config, ConfigError, Fault, Role, Step};

/// The keys that must be the same in all containers. A path includes everything below it.
const SHARED: [&[&str]; 18] = [
    &["cluster_name"],
    &["slurm"],
    &["partition"],
    &["account"],
    &["accounting", "mode"],
    &["accounting", "port"],
    &["autoscale", "nodes"],
    &["autoscale", "idle"],
    &["autoscale", "resume_timeout"],
    &["autoscale", "suspend_timeout"],
    &["paths", "slurm"],
    &["paths", "state"],
    &["paths", "run"],
    &["paths", "munge_socket"],
    &["gpu", "shards"],
    &["gpu", "mps"],
    &["rest"],
    &["daemon", "slurmctld", "user"],
];

impl Layers {
    /// The shared part as TOML, for a cluster whose controller has this host name.
    pub fn shared_settings(&self, controller: &str) -> String {
        let mut shared = Table::new();
        set(&mut shared, &["cluster_name"], self.config.cluster_name().into());
        for path in SHARED {
            if let Some(value) = get(&self.table, path) {
                set(&mut shared, path, value.clone());
            }
        }
        set(&mut shared, &["slurm", "controller"], controller.into());
        shared.iter().map(|(key, value)| format!("{} = {}\n", word(key), inline(value))).collect()
    }
}

/// Formats a value on one line. The crate `toml` is not used for that: its writer needs a newer C library than Debian
/// 12's (fmod).
pub(super) fn inline(value: &Value) -> String {
    let list = |all: Vec<String>| all.join(", ");
    match value {
        Value::String(text) => quoted(text),
        Value::Integer(number) => number.to_string(),
        Value::Float(number) => format!("{number:?}").to_lowercase(),
        Value::Boolean(is) => is.to_string(),
        Value::Datetime(time) => time.to_string(),
        Value::Array(values) => format!("[{}]", list(values.iter().map(inline).collect())),
        Value::Table(table) => {
            let pair = |(key, value): (&String, &Value)| format!("{} = {}", word(key), inline(value));
            format!("{{ {} }}", list(table.iter().map(pair).collect()))
        }
    }
}

fn word(key: &str) -> String {
    let is_bare = !key.is_empty() && key.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"_-".contains(&byte));
    if is_bare { key.to_owned() } else { quoted(key) }
}

/// Escapes a string as in JSON, and also escapes DEL.
fn quoted(text: &str) -> String {
    serde_json::Value::from(text).to_string().replace('\x7f', "\\u007f")
}

/// The settings from the token with which a container joined its cluster.
#[derive(Clone, Debug, PartialEq)]
pub struct TokenSettings(Table);

impl TokenSettings {
    /// Reads the settings of a token.
    ///
    /// # Errors
    /// The settings contain a key that is not shared, name no controller, or are invalid.
    pub fn parse(settings: &str) -> Result<Self, ConfigError> {
        let origin = Path::new("the token");
        let config = Config::parse(settings, origin)?;
        let refused = |what| ConfigError { place: origin.display().to_string(), what };
        let table: Table = settings.parse().map_err(|_| refused("the settings are not TOML".to_owned()))?;
        if let Some(path) = leaves(&table).into_iter().find(|path| !is_shared(path)) {
            return Err(refused(format!("a token cannot set `{}`", path.join("."))));
        }
        if config.slurm.controller.is_none() {
            return Err(refused(
                "the token names no controller; print a new token with `slurminit join-command`".to_owned(),
            ));
        }
        Ok(Self(table))
    }

    /// The token's values, and the role `compute`. They apply only to keys that the operator's file does not set.
    pub(super) fn values(&self) -> impl Iterator<Item = (Vec<&str>, Value)> {
        let shared =
            leaves(&self.0).into_iter().filter_map(|path| get(&self.0, &path).cloned().map(|value| (path, value)));
        std::iter::once((vec!["role"], "compute".into())).chain(shared)
    }

    /// Whether this key is shared and does not have this value in the token.
    pub(super) fn differs(&self, path: &[&str], value: &Value) -> bool {
        is_shared(path) && get(&self.0, path) != Some(value)
    }

    /// Rejects a file that sets a shared key, unless the token sets it to the same value.
    pub(super) fn check_file(&self, file: &Table) -> Result<(), Fault> {
        let differs = |path: &Vec<&str>| get(file, path).is_some_and(|value| self.differs(path, value));
        let Some(path) = leaves(file).into_iter().find(differs) else { return Ok(()) };
        let what = format!(
            "`{}` differs from the token, and must be the same in all containers of the cluster; remove it here",
            path.join(".")
        );
        Err(Fault::new(path.into_iter().map(|key| Step::from(key.to_owned())).collect(), what))
    }
}

/// Checks that a container with this role can join a cluster.
///
/// # Errors
/// The role is neither compute nor login.
pub fn check_joined_role(role: Role) -> Result<(), String> {
    match role {
        Role::Compute | Role::Login => Ok(()),
        Role::All | Role::Controller | Role::None => {
            Err(format!("a token requires the role compute or login, not `{role}`"))
        }
    }
}

/// Whether a key must be the same in all containers of a cluster.
pub fn is_shared(path: &[&str]) -> bool {
    SHARED.iter().any(|shared| path.starts_with(shared))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::DaemonName;

    const FILE: &str = "cluster_name = 'lab'\nrole = 'controller'\n[slurm]\nmax_nodes = 4\n[slurm.conf]\nMaxJobCount = 7\n\
        [[partition]]\nname = 'big'\nfeature = 'h200'\n[paths]\nstate = '/state'\nmunge_secret = '/elsewhere'\n[gpu]\nshards = 4\nonly = [0]\n\
        [node]\nname = 'x'\n[daemon.slurmctld]\nuser = 'boss'\nenv = { SECRET = 'x' }\n\
        [[service]]\nname = 's'\ncommand = ['s']\nenv = { PASSWORD = 'x' }\n[[user]]\nname = 'eve'\nuid = 1001\n";

    fn config(text: &str) -> Config {
        Config::parse(text, Path::new("own.toml")).unwrap()
    }

    fn shared_settings(file: &str, variables: &[(&str, &str)]) -> String {
        let variable =
            |name: &str| variables.iter().find(|(key, _)| *key == name).map(|(_, value)| (*value).to_owned());
        Layers::merge(file, Path::new("t"), None, &variable).unwrap().shared_settings("head")
    }

    fn join(token: &str, file: &str, variables: &[(&str, &str)]) -> Result<Layers, ConfigError> {
        let variable =
            |name: &str| variables.iter().find(|(key, _)| *key == name).map(|(_, value)| (*value).to_owned());
        Layers::merge(file, Path::new("own.toml"), Some(&TokenSettings::parse(token).unwrap()), &variable)
    }

    fn joined(file: &str, variables: &[(&str, &str)]) -> Result<Layers, ConfigError> {
        join(&shared_settings(FILE, &[]), file, variables)
    }

    #[test]
    fn inline_toml_round_trips() {
        let text = "a = \"x\\n\\u007f\\\"\\\\é\"\nb = -3\nc = 1.0\nd = 1e300\ne = true\nf = [1, \"y\"]\ninf = -inf\n\"odd key\" = 1979-05-27\n\
                    [t]\nu = {}\n[[t.v]]\nw = 2\n[[t.v]]\nw = 2.5\n";
        let table: Table = text.parse().unwrap();
        let written: String = table.iter().map(|(key, value)| format!("{} = {}\n", word(key), inline(value))).collect();
        assert_eq!(written.parse::<Table>().unwrap(), table, "{written}");
    }

    #[test]
    fn only_shared_settings_leave_controller() {
        let settings = shared_settings(FILE, &[]);
        for kept in
            ["lab", "max_nodes = 4", "MaxJobCount", "h200", "/state", "shards = 4", "boss", "controller = \"head\""]
        {
            assert!(settings.contains(kept), "{kept}: {settings}");
        }
        for excluded in ["role", "SECRET", "PASSWORD", "service", "eve", "node]", "only", "elsewhere"] {
            assert!(!settings.contains(excluded), "{excluded}: {settings}");
        }
        let of_variables = shared_settings("", &[("CLUSTER_NAME", "env"), ("SLURMINIT_ACCOUNTING", "embedded")]);
        assert!(of_variables.contains("cluster_name = \"env\"") && of_variables.contains("embedded"), "{of_variables}");
    }

    #[test]
    fn joined_configuration_merges_shared_and_local_settings() {
        let own = "[node]\nfeatures = ['fast']\n[gpu]\nonly = [1]\n[paths]\nmunge_secret = '/own'\n";
        let own = joined(own, &[]).unwrap().config;
        let controller = config(FILE);
        assert_eq!((own.role, own.slurm.max_nodes), (Role::Compute, 4));
        assert_eq!((&own.partitions, &own.paths.state), (&controller.partitions, &controller.paths.state));
        assert_eq!((own.gpu.shards, own.gpu.only.len(), own.node.features.len()), (controller.gpu.shards, 1, 1));
        assert_eq!(own.paths.munge_secret, Path::new("/own"));
        assert_eq!(own.daemons[&DaemonName::Slurmctld].user.as_deref(), Some("boss"));
        assert!(own.services.is_empty() && own.users.is_empty());
    }

    /// Sets every shared key except `gpu.shards`, each to a value that is not its default.
    const ALL_SHARED: &str = "cluster_name = 'lab'\n[slurm]\nmax_nodes = 4\n[slurm.conf]\nMaxJobCount = 7\n[[partition]]\nname = 'big'\n\
        [[account]]\nname = 'physics'\n[accounting]\nmode = 'embedded'\nport = 7000\n\
        [autoscale]\nidle = 7\nresume_timeout = 8\nsuspend_timeout = 9\n\
        [[autoscale.nodes]]\nname = 'burst-[1-2]'\ncpus = 4\nmemory_mib = 1000\n\
        [paths]\nslurm = '/s'\nstate = '/state'\nrun = '/r'\nmunge_socket = '/m/socket'\n[gpu]\nmps = true\n\
        [rest]\nlisten = '0.0.0.0:6820'\nmax_token_lifetime = 600\n[daemon.slurmctld]\nuser = 'slurm'\n";

    #[test]
    fn every_shared_setting_of_token_is_applied() {
        // A node can have only one sharing method.
        let shards = ALL_SHARED.replace("mps = true", "shards = 3");
        for path in SHARED {
            assert!([ALL_SHARED, &shards].iter().any(|file| get(&file.parse().unwrap(), path).is_some()), "{path:?}");
        }
        for file in [ALL_SHARED, &shards] {
            let joined = join(&shared_settings(file, &[]), "", &[]).unwrap();
            let with_controller = file.replace("[slurm]\n", "[slurm]\ncontroller = 'head'\n");
            let expected = config(&format!("role = 'compute'\n{with_controller}"));
            assert_eq!(joined.config, expected);
            let shown: Vec<String> = joined.settings().iter().map(ToString::to_string).collect();
            assert!(
                shown
                    .iter()
                    .any(|line| line.starts_with("rest.max_token_lifetime = 600 ") && line.ends_with("# token"))
            );
        }
    }

    #[test]
    fn rejects_settings_contradicting_token_with_position() {
        let refused = |text: &str| joined(text, &[]).unwrap_err().to_string();
        for (text, key) in [
            ("cluster_name = 'other'", "cluster_name"),
            ("[slurm]\nmax_nodes = 5", "slurm.max_nodes"),
            ("[slurm.conf]\nProlog = '/x'", "slurm.conf.Prolog"),
            ("[[partition]]\nname = 'small'", "partition"),
            ("[gpu]\nmps = true", "gpu.mps"),
            ("role = 'controller'", "role"),
            ("role = 'all'", "role"),
        ] {
            let error = refused(text);
            assert!(error.starts_with("own.toml:") && error.contains(key), "{error}");
        }
        // Joined nodes may use the controller's file, except for its role.
        let same = FILE.replace("role = 'controller'", "role = 'login'");
        assert_eq!(joined(&same, &[]).unwrap().config.role, Role::Login);
    }

    #[test]
    fn rejects_variables_contradicting_token() {
        let with = |name: &str, value: &str| joined("", &[(name, value)]);
        for (name, value) in [
            ("SLURMINIT_ROLE", "all"),
            ("SLURMINIT_ROLE", "controller"),
            ("SLURMINIT_CONTROLLER", "x"),
            ("SLURMINIT_CLUSTER_NAME", "x"),
            ("SLURMINIT_ACCOUNTING", "embedded"),
        ] {
            assert!(with(name, value).unwrap_err().to_string().contains(name), "{name}");
        }
        for (name, value) in [
            ("SLURMINIT_ROLE", "login"),
            ("SLURMINIT_CONTROLLER", "head"),
            ("SLURMINIT_CLUSTER_NAME", "lab"),
            ("CLUSTER_NAME", "image"),
            ("ACCOUNTING", "embedded"),
        ] {
            assert!(with(name, value).is_ok(), "{name}");
        }
    }

    #[test]
    fn rejects_token_with_unshared_settings() {
        for hostile in [
            "[[service]]\nname = 'x'\ncommand = ['sh']",
            "[[hooks.pre_start]]\ncommand = ['sh']",
            "[[user]]\nname = 'eve'\nuid = 1001",
            "[daemon.slurmd]\ncommand = ['sh']",
            "[daemon.slurmctld]\nenv = { LD_PRELOAD = '/x' }",
            "[paths]\nmunge_key = '/x'",
            "[node]\nname = 'x'",
            "[gpu]\nonly = [0]",
            "role = 'controller'",
        ] {
            let settings = format!("{}\n[slurm]\ncontroller = 'head'\n", hostile);
            let error = TokenSettings::parse(&settings).unwrap_err().to_string();
            assert!(error.contains("a token cannot set"), "{hostile}: {error}");
        }
        for bad in ["", "[slurm]\ncontroller = 'a b\\n'", "[slurm]\nno_such = 1", "["] {
            assert!(TokenSettings::parse(bad).is_err(), "{bad}");
        }
    }
}
