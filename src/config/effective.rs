//! The effective value of each key, and its origin.

use toml::{Table, Value};

use super::EXAMPLE;
use super::example::{Entry, Example};
use super::layers::{Layers, get, leaves};
use super::secret;

/// A key with its effective value.
#[derive(Clone, Debug, PartialEq)]
pub struct Setting {
    /// The key's path with its table: `gpu.gres`, `user[0].uid`.
    pub key: String,
    /// `None`: not set, and without a fixed default.
    pub value: Option<Value>,
    /// The origin of the value.
    pub origin: Origin,
}

/// The origin of a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    /// The program's default.
    Default,
    /// Set in the operator's file, or in the text of `SLURMINIT_TOML`.
    File,
    /// Set in the token of the cluster that the container joined.
    Token,
    /// Set by this environment variable.
    Variable(&'static str),
}

impl Setting {
    /// Hides a secret value.
    #[must_use]
    pub fn without_secrets(mut self) -> Self {
        if secret::is_secret(&self.key) {
            self.value = Some("(hidden)".into());
        }
        self
    }
}

impl std::fmt::Display for Setting {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let setting = match &self.value {
            Some(value) => format!("{} = {}", self.key, super::joined::inline(value)),
            None => format!("{} is not set", self.key),
        };
        write!(f, "{setting:<47} # {}", self.origin)
    }
}

impl std::fmt::Display for Origin {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Default => f.write_str("default"),
            Self::File => f.write_str("file"),
            Self::Token => f.write_str("token"),
            Self::Variable(name) => write!(f, "variable {name}"),
        }
    }
}

impl Layers {
    /// The settings: first the keys of config/reference.toml in its order, then those of repeated tables and of tables that accept
    /// arbitrary keys.
    pub fn settings(&self) -> Vec<Setting> {
        let origin = |key: &str| self.origins.get(key).copied().unwrap_or(Origin::Default);
        let mut settings = Vec::new();
        for (key, default) in single_keys() {
            let value = get(&self.table, &key.split('.').collect::<Vec<_>>()).cloned();
            settings.push(Setting { origin: origin(&key), value: value.or(default), key });
        }
        for path in leaves(&self.table) {
            let key = path.join(".");
            let is_listed = settings.iter().any(|setting| setting.key == key);
            if let Some(value) = get(&self.table, &path).filter(|_| !is_listed) {
                flatten(&key, value, origin(&key), &mut settings);
            }
        }
        settings
    }
}

/// Adds each value in a table or in a list of tables as a separate setting.
fn flatten(key: &str, value: &Value, origin: Origin, settings: &mut Vec<Setting>) {
    match value {
        Value::Array(items) if items.iter().any(Value::is_table) => {
            for (index, item) in items.iter().enumerate() {
                flatten(&format!("{key}[{index}]"), item, origin, settings);
            }
        }
        Value::Table(table) => {
            table.iter().for_each(|(name, value)| flatten(&format!("{key}.{name}"), value, origin, settings));
        }
        value => settings.push(Setting { key: key.to_owned(), value: Some(value.clone()), origin }),
    }
}

/// The keys that every configuration has, with their defaults; leaves out tables that are repeated or that accept arbitrary keys.
fn single_keys() -> Vec<(String, Option<Value>)> {
    let example = Example::parse(EXAMPLE);
    let defaults: Table = example.defaults.parse().unwrap_or_default();
    let mut is_single = true;
    let mut keys = Vec::new();
    for entry in example.entries {
        match entry {
            Entry::Table { heading, is_default, .. } => {
                is_single = is_default && !["[slurm.conf]", "[faults.xid]"].contains(&heading.as_str());
            }
            Entry::Keys { keys: of_table, .. } => {
                for key in of_table.into_iter().filter(|_| is_single) {
                    let default = get(&defaults, &key.path.split('.').collect::<Vec<_>>()).cloned();
                    keys.push((key.path, default));
                }
            }
        }
    }
    keys
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::super::{Config, TokenSettings, VARIABLES};
    use super::*;

    fn configured(text: &str, variables: &[(&str, &str)]) -> (Config, Vec<Setting>) {
        let find = |name: &str| variables.iter().find(|(key, _)| *key == name).map(|(_, value)| (*value).to_owned());
        let layers = Layers::merge(text, Path::new("t"), None, &find).unwrap();
        let settings = layers.settings();
        (layers.config, settings)
    }

    /// Formats settings as a file, without unset keys and list elements.
    fn file(settings: &[Setting]) -> String {
        let single = |setting: &&Setting| setting.value.is_some() && !setting.key.contains('[');
        settings.iter().filter(single).map(|setting| format!("{setting}\n")).collect()
    }

    #[test]
    fn every_variable_sets_displayed_key() {
        let values = [
            ("SLURMINIT_ROLE", "NONE"),
            ("SLURMINIT_ON_MISMATCH", "fail"),
            ("SLURMINIT_LOG_FORMAT", "Json"),
            ("SLURMINIT_LOG_LEVEL", "debug"),
            ("SLURMINIT_GRES", "autodetect"),
            ("SLURMINIT_GPU_TYPE_NAME", "index"),
            ("SLURMINIT_ON_GIVE_UP", "hold"),
            ("SLURMINIT_NODE_NAME", "Big"),
            ("SLURMINIT_STOP_TIMEOUT", "2.5"),
            ("SLURMINIT_NODES", "3"),
            ("SLURMINIT_RESERVE_MIB", "100"),
            ("SLURMINIT_TMP_DISK_MIB", "100"),
            ("SLURMINIT_DIRECTORY_LIMITS", "/tmp=100, /data=200"),
            ("SLURMINIT_GPU_TYPE", "amd"),
            ("GPU_TYPE", "intel"),
            ("DSHPC_GPU_TYPE", "nvidia"),
            ("SLURMINIT_CLUSTER_NAME", "Lab"),
            ("CLUSTER_NAME", "lab"),
            ("SLURMINIT_CONTROLLER", "head"),
            ("SLURMINIT_ACCOUNTING", "embedded"),
            ("ACCOUNTING", "embedded"),
            ("SLURMINIT_LOGIN_PORT", "2222"),
            ("LOGIN_PORT", "2222"),
            ("SLURMINIT_METRICS", "0.0.0.0:9835"),
            ("SLURMINIT_WAIT_JOBS", "YES"),
            ("USER_CUSTOMIZED", "1"),
        ];
        assert_eq!(values.map(|(name, _)| name), VARIABLES.map(|variable| variable.name));
        for (name, value) in values {
            let (config, settings) = configured("", &[(name, value)]);
            assert_ne!(config, Config::default(), "{name}");
            assert!(settings.iter().any(|setting| setting.origin == Origin::Variable(name)), "{name}");
            assert_eq!(Config::parse(&file(&settings), Path::new("shown")), Ok(config), "{name}");
        }
    }

    #[test]
    fn shows_values_and_origins_without_secrets() {
        let text = "role = \"all\"\n[gpu]\nonly = [1]\n[slurm.conf]\nMaxJobCount = 5\nJobCompPass = \"hunter2\"\n[supervise]\nstop_timeout = 2\n\
                    [daemon.slurmd]\nenv = { KEY = \"hunter2\" }\n[[user]]\nname = \"alice\"\nuid = 1000\n[[notify]]\nurl = \"https://chat.example.org/hunter2\"\n";
        let (config, settings) =
            configured(text, &[("SLURMINIT_ROLE", "none"), ("GPU_TYPE", "none"), ("SLURMINIT_GRES", "")]);
        let shown = |key: &str| {
            let setting = settings.iter().find(|setting| setting.key == key).unwrap().clone().without_secrets();
            setting.to_string().split_whitespace().collect::<Vec<_>>().join(" ")
        };
        for (key, line) in [
            ("role", "role = \"none\" # variable SLURMINIT_ROLE"),
            ("gpu_type", "gpu_type = \"none\" # variable GPU_TYPE"),
            ("gpu.gres", "gpu.gres = \"explicit\" # default"),
            ("gpu.only", "gpu.only = [1] # file"),
            ("gpu.isolate", "gpu.isolate is not set # default"),
            ("slurm.conf.MaxJobCount", "slurm.conf.MaxJobCount = 5 # file"),
            ("slurm.conf.JobCompPass", "slurm.conf.JobCompPass = \"(hidden)\" # file"),
            ("jobs.grace", "jobs.grace = 1.0 # file"),
            ("daemon.slurmd.env.KEY", "daemon.slurmd.env.KEY = \"(hidden)\" # file"),
            ("user[0].uid", "user[0].uid = 1000 # file"),
            ("notify[0].url", "notify[0].url = \"(hidden)\" # file"),
        ] {
            assert_eq!(shown(key), line);
        }
        let mut reparsed = Config::parse(&file(&settings), Path::new("shown")).unwrap();
        (reparsed.users, reparsed.notifies) = (config.users.clone(), config.notifies.clone());
        assert_eq!(reparsed, config);
        assert!(settings.into_iter().all(|setting| !setting.without_secrets().to_string().contains("hunter2")));
    }

    #[test]
    fn shows_settings_from_token() {
        let token = TokenSettings::parse("cluster_name = \"lab\"\nslurm = { controller = \"head\" }\n").unwrap();
        let layers = Layers::merge("", Path::new("t"), Some(&token), &|_| None).unwrap();
        let settings = layers.settings();
        let from_token: Vec<&str> = settings
            .iter()
            .filter(|setting| setting.origin == Origin::Token)
            .map(|setting| setting.key.as_str())
            .collect();
        assert_eq!(from_token, ["role", "cluster_name", "slurm.controller"]);
        assert_eq!(Config::parse(&file(&settings), Path::new("shown")), Ok(layers.config));
    }

    #[test]
    fn shows_all_default_settings() {
        let (config, settings) = configured("", &[]);
        assert!(settings.iter().all(|setting| setting.origin == Origin::Default));
        assert!(settings.len() > 80, "{}", settings.len());
        assert_eq!(Config::parse(&file(&settings), Path::new("shown")), Ok(config));
    }
}
