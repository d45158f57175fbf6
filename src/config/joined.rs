//! The shared part of the configuration of a cluster: its export by the controller and its import by other containers.
//!
//! A token carries it as TOML. A token can set only the keys in [`SHARED`].

use std::path::Path;

use toml::{Table, Value};

use super::{Accounting, Config, ConfigError, DaemonName, DaemonSettings, Fault, Role, Step};

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
    &["rest", "listen"],
    &["daemon", "slurmctld", "user"],
];

/// The shared part of the operator's file `text`, for a cluster whose controller has this host name. It includes the
/// settings that `config` has from the environment.
///
/// # Errors
/// The text is not TOML.
pub fn shared_settings(text: &str, config: &Config, controller: &str) -> Result<String, String> {
    let file: Table = text.parse().map_err(|error: toml::de::Error| error.message().to_owned())?;
    let mut shared = Table::new();
    for path in SHARED {
        if let Some(value) = get(&file, path) {
            set(&mut shared, path, value.clone());
        }
    }
    if let Some(name) = &config.cluster_name {
        set(&mut shared, &["cluster_name"], Value::String(name.to_string()));
    }
    if let Some(mode) = config.accounting.mode {
        set(&mut shared, &["accounting", "mode"], Value::String(mode.to_string()));
    }
    set(&mut shared, &["slurm", "controller"], Value::String(controller.to_owned()));
    Ok(shared.iter().map(|(key, value)| format!("{} = {}\n", word(key), inline(value))).collect())
}

/// A value on one line. The writer of the crate `toml` needs a newer C library than Debian 12's (fmod).
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

/// Escapes a string as JSON does, and also DEL.
fn quoted(text: &str) -> String {
    serde_json::Value::from(text).to_string().replace('\x7f', "\\u007f")
}

/// The settings that a container got from its token.
#[derive(Clone, Debug, PartialEq)]
pub struct TokenSettings {
    table: Table,
    config: Config,
}

impl TokenSettings {
    /// Reads the settings of a token.
    ///
    /// # Errors
    /// The settings contain a key that is not shared, or are invalid.
    pub fn parse(settings: &str) -> Result<Self, ConfigError> {
        let origin = Path::new("the token");
        let config = Config::parse(settings, origin)?;
        let refused = |what| ConfigError { place: origin.display().to_string(), what };
        let table: Table = settings.parse().map_err(|_| refused("the settings are not TOML".to_owned()))?;
        if let Some(path) = leaves(&table).into_iter().find(|path| !is_shared(path)) {
            return Err(refused(format!("a token cannot set `{}`", path.join("."))));
        }
        if config.slurm.controller.is_none() {
            return Err(refused("no controller in the token".to_owned()));
        }
        Ok(Self { table, config })
    }

    /// The keys that the token adds to `file`, with their values; [`Self::apply`] applies them.
    pub(super) fn settings(&self, file: &Table) -> Vec<(String, Value)> {
        let role = (!file.contains_key("role")).then(|| ("role".to_owned(), Value::from("compute")));
        let value = |path: Vec<String>| {
            let keys: Vec<&str> = path.iter().map(String::as_str).collect();
            (get(file, &keys).is_none()).then(|| Some((path.join("."), get(&self.table, &keys)?.clone())))?
        };
        role.into_iter().chain(leaves(&self.table).into_iter().filter_map(value)).collect()
    }

    /// Merges the settings into the container's configuration with the file `text`. Identical values are allowed.
    ///
    /// # Errors
    /// The file contradicts the token.
    pub fn apply(&self, local: Config, text: &str, origin: &Path) -> Result<Config, ConfigError> {
        let file: Table = text.parse().unwrap_or_default();
        let differs = |path: &[String]| {
            let keys: Vec<&str> = path.iter().map(String::as_str).collect();
            is_shared(path) && get(&file, &keys) != get(&self.table, &keys)
        };
        if let Some(path) = leaves(&file).into_iter().find(|path| differs(path)) {
            let what = format!(
                "`{}` differs from the token, and must be the same in all containers of the cluster; remove it here",
                path.join(".")
            );
            return Err(Fault::new(path.into_iter().map(Step::from).collect(), what).at(text, origin));
        }
        if file.contains_key("role") && !can_join(local.role) {
            let what = format!("{}; remove it here", role_error(local.role));
            return Err(Fault::new(vec!["role".into()], what).at(text, origin));
        }
        let shared = &self.config;
        let role = if file.contains_key("role") { local.role } else { Role::Compute };
        let (mut paths, mut gpu, mut daemons) = (local.paths.clone(), local.gpu.clone(), local.daemons.clone());
        paths.slurm.clone_from(&shared.paths.slurm);
        paths.state.clone_from(&shared.paths.state);
        paths.run.clone_from(&shared.paths.run);
        paths.munge_socket.clone_from(&shared.paths.munge_socket);
        gpu.shards.clone_from(&shared.gpu.shards);
        gpu.mps = shared.gpu.mps;
        if let Some(user) = shared.daemons.get(&DaemonName::Slurmctld).and_then(|daemon| daemon.user.clone()) {
            let slurmctld: &mut DaemonSettings = daemons.entry(DaemonName::Slurmctld).or_default();
            slurmctld.user = Some(user);
        }
        Ok(Config {
            role,
            cluster_name: shared.cluster_name.clone(),
            slurm: shared.slurm.clone(),
            partitions: shared.partitions.clone(),
            paths,
            gpu,
            daemons,
            accounts: shared.accounts.clone(),
            rest: shared.rest.clone(),
            accounting: Accounting { mode: shared.accounting.mode, port: shared.accounting.port, ..local.accounting },
            ..local
        })
    }

    /// Rejects variables and options that contradict the token.
    ///
    /// # Errors
    /// The variable that contradicts the token.
    pub fn check(&self, config: &Config) -> Result<(), ConfigError> {
        let refused =
            |variable: &str, what| Err(ConfigError { place: format!("the environment variable {variable}"), what });
        let difference =
            |name: &str| format!("the token has another {name}; remove the variable, or use that cluster's token");
        let (name, token_name) = (effective_cluster_name(config), effective_cluster_name(&self.config));
        if config.cluster_name != self.config.cluster_name && name != token_name {
            return refused("SLURMINIT_CLUSTER_NAME", difference("cluster name"));
        }
        if config.slurm.controller != self.config.slurm.controller {
            return refused("SLURMINIT_CONTROLLER", difference("controller"));
        }
        if !can_join(config.role) {
            return refused("SLURMINIT_ROLE", format!("{}; remove it", role_error(config.role)));
        }
        Ok(())
    }
}

/// The cluster's name; `slurminit` unless configured.
fn effective_cluster_name(config: &Config) -> &str {
    config.cluster_name.as_ref().map_or("slurminit", super::NodeName::as_str)
}

fn can_join(role: Role) -> bool {
    matches!(role, Role::Compute | Role::Login)
}

fn role_error(role: Role) -> String {
    format!("a token requires the role compute or login, not `{role}`")
}

fn is_shared(path: &[String]) -> bool {
    SHARED.iter().any(|shared| path.len() >= shared.len() && shared.iter().zip(path).all(|(a, b)| a == b))
}

/// The paths of all values; a list is one value.
pub(super) fn leaves(table: &Table) -> Vec<Vec<String>> {
    let below = |(key, value): (&String, &Value)| match value {
        Value::Table(table) => {
            leaves(table).into_iter().map(|rest| [vec![key.clone()], rest].concat()).collect::<Vec<_>>()
        }
        _ => vec![vec![key.clone()]],
    };
    table.iter().flat_map(below).collect()
}

pub(super) fn get<'a>(table: &'a Table, path: &[&str]) -> Option<&'a Value> {
    let (first, rest) = path.split_first()?;
    let value = table.get(*first)?;
    if rest.is_empty() { Some(value) } else { get(value.as_table()?, rest) }
}

pub(super) fn set(table: &mut Table, path: &[&str], value: Value) {
    match path {
        [] => {}
        [last] => drop(table.insert((*last).to_owned(), value)),
        [first, rest @ ..] => {
            let inner = table.entry((*first).to_owned()).or_insert_with(|| Value::Table(Table::new()));
            if let Value::Table(inner) = inner {
                set(inner, rest, value);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILE: &str = "cluster_name = 'lab'\nrole = 'controller'\n[slurm]\nmax_nodes = 4\n[slurm.conf]\nMaxJobCount = 7\n\
        [[partition]]\nname = 'big'\nfeature = 'h200'\n[paths]\nstate = '/state'\nmunge_secret = '/elsewhere'\n[gpu]\nshards = 4\nonly = [0]\n\
        [node]\nname = 'x'\n[daemon.slurmctld]\nuser = 'boss'\nenv = { SECRET = 'x' }\n\
        [[service]]\nname = 's'\ncommand = ['s']\nenv = { PASSWORD = 'x' }\n[[user]]\nname = 'eve'\nuid = 1001\n";

    fn config(text: &str) -> Config {
        Config::parse(text, Path::new("own.toml")).unwrap()
    }

    fn joined() -> TokenSettings {
        TokenSettings::parse(&shared_settings(FILE, &config(FILE), "head").unwrap()).unwrap()
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
        let settings = shared_settings(FILE, &config(FILE), "head").unwrap();
        for kept in
            ["lab", "max_nodes = 4", "MaxJobCount", "h200", "/state", "shards = 4", "boss", "controller = \"head\""]
        {
            assert!(settings.contains(kept), "{kept}: {settings}");
        }
        for excluded in ["role", "SECRET", "PASSWORD", "service", "eve", "node]", "only", "elsewhere"] {
            assert!(!settings.contains(excluded), "{excluded}: {settings}");
        }
        let mut named = config("");
        named.cluster_name = Some("env".to_owned().try_into().unwrap());
        assert!(shared_settings("", &named, "head").unwrap().contains("cluster_name = \"env\""));
    }

    #[test]
    fn joined_configuration_merges_shared_and_local_settings() {
        let own = "[node]\nfeatures = ['fast']\n[gpu]\nonly = [1]\n[paths]\nmunge_secret = '/own'\n";
        let own = joined().apply(config(own), own, Path::new("own.toml")).unwrap();
        let controller = config(FILE);
        assert_eq!((own.role, own.slurm.max_nodes), (Role::Compute, 4));
        assert_eq!((&own.partitions, &own.paths.state), (&controller.partitions, &controller.paths.state));
        assert_eq!((own.gpu.shards, own.gpu.only.len(), own.node.features.len()), (controller.gpu.shards, 1, 1));
        assert_eq!(own.paths.munge_secret, Path::new("/own"));
        assert_eq!(own.daemons[&DaemonName::Slurmctld].user.as_deref(), Some("boss"));
        assert!(own.services.is_empty() && own.users.is_empty());
        assert!(joined().check(&own).is_ok());
    }

    #[test]
    fn rejects_settings_contradicting_token_with_position() {
        let refused = |text: &str| joined().apply(config(text), text, Path::new("own.toml")).unwrap_err().to_string();
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
        assert_eq!(joined().apply(config(&same), &same, Path::new("x")).unwrap().role, Role::Login);
    }

    #[test]
    fn rejects_variables_contradicting_token() {
        let with = |name: &str, value: &str| {
            let config = joined().apply(config(""), "", Path::new("x")).unwrap();
            let variable = |queried: &str| (queried == name).then(|| value.to_owned());
            joined().check(&config.apply_environment(&variable).unwrap())
        };
        for (name, value) in [
            ("SLURMINIT_ROLE", "all"),
            ("SLURMINIT_ROLE", "controller"),
            ("SLURMINIT_CONTROLLER", "x"),
            ("SLURMINIT_CLUSTER_NAME", "x"),
        ] {
            assert!(with(name, value).unwrap_err().to_string().contains(name), "{name}");
        }
        for (name, value) in [
            ("SLURMINIT_ROLE", "login"),
            ("SLURMINIT_CONTROLLER", "head"),
            ("SLURMINIT_CLUSTER_NAME", "lab"),
            ("CLUSTER_NAME", "image"),
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
