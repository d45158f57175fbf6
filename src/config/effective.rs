//! The effective value of each key, and its origin.

use toml::{Table, Value};

use super::example::{Entry, Example};
use super::joined::{get, leaves, set};
use super::secret;
use super::{Config, EXAMPLE, TokenSettings};

/// A key with its effective value.
#[derive(Clone, Debug, PartialEq)]
pub struct Setting {
    /// The key's path with its table: `gpu.gres`, `user[0].uid`.
    pub key: String,
    /// `None`: not set; the effective value depends on the machine.
    pub value: Option<Value>,
    /// The origin of the value.
    pub origin: Origin,
}

/// The origin of a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    /// The program.
    Default,
    /// The operator's file.
    File,
    /// The token of the cluster that the container joined.
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

/// The settings of the file `text`, the token and the environment, which result in `config`: first the keys of
/// config/slurminit.toml in its order, then those of repeated tables and of tables that take any key.
pub fn settings(
    text: &str,
    token: Option<&TokenSettings>,
    variable: &impl Fn(&str) -> Option<String>,
    config: &Config,
) -> Vec<Setting> {
    let file: Table = text.parse().unwrap_or_default();
    let mut origins: Vec<(String, Origin)> =
        leaves(&file).into_iter().map(|path| (path.join("."), Origin::File)).collect();
    let mut effective = file;
    let mut set_value = |effective: &mut Table, key: &str, value: Value, origin: Origin| {
        let path: Vec<&str> = key.split('.').collect();
        origins.retain(|(other, _)| other != key);
        origins.push((key.to_owned(), origin));
        set(effective, &path, value);
    };
    for (key, value) in token.into_iter().flat_map(|token| token.settings(&effective)).collect::<Vec<_>>() {
        set_value(&mut effective, &key, value, Origin::Token);
    }
    for Variable { name, key, kind, is_image_default } in VARIABLES {
        let text = variable(name).map(|text| text.trim().to_owned()).filter(|text| !text.is_empty());
        let is_unset = get(&effective, &key.split('.').collect::<Vec<_>>()).is_none();
        if let Some(value) = text.filter(|_| !is_image_default || is_unset).and_then(|text| kind.value(&text)) {
            set_value(&mut effective, key, value, Origin::Variable(name));
        }
    }
    let origin = |key: &str| origins.iter().find(|(other, _)| other == key).map(|(_, origin)| *origin);

    let mut settings = Vec::new();
    for (key, default) in single_keys() {
        let path: Vec<&str> = key.split('.').collect();
        let value = get(&effective, &path).cloned();
        let origin = value.as_ref().and_then(|_| origin(&key)).unwrap_or(Origin::Default);
        settings.push(Setting { key, value: value.or(default), origin });
    }
    adapt_grace(&mut settings, config);
    for path in leaves(&effective) {
        let key = path.join(".");
        if settings.iter().any(|setting| setting.key == key) {
            continue;
        }
        let path: Vec<&str> = path.iter().map(String::as_str).collect();
        if let Some(value) = get(&effective, &path) {
            flatten(&key, value, origin(&key).unwrap_or(Origin::File), &mut settings);
        }
    }
    settings
}

/// Adjusts `jobs.grace`, which a shorter stop timeout limits.
fn adapt_grace(settings: &mut [Setting], config: &Config) {
    let stop = settings.iter().find(|setting| setting.key == "supervise.stop_timeout").map(|setting| setting.origin);
    let grace = Value::Float(config.jobs.grace.as_secs_f64());
    for setting in settings.iter_mut().filter(|setting| setting.key == "jobs.grace") {
        let is_same = setting.value.as_ref().and_then(number) == number(&grace);
        if !is_same {
            setting.value = Some(grace.clone());
            setting.origin = stop.unwrap_or(Origin::Default);
        }
    }
}

#[expect(clippy::cast_precision_loss, reason = "seconds")]
fn number(value: &Value) -> Option<f64> {
    value.as_float().or_else(|| value.as_integer().map(|number| number as f64))
}

/// Adds each item of a list of tables as a separate setting.
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

/// The keys that every configuration has, with their defaults; without tables that are repeated or take any key.
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

/// A variable that sets a key.
struct Variable {
    name: &'static str,
    key: &'static str,
    kind: Kind,
    /// Whether the variable describes the image, and therefore sets only keys that the file does not set.
    is_image_default: bool,
}

enum Kind {
    /// A word, in upper or lower case.
    Word,
    Name,
    Number,
    Seconds,
    YesOrNo,
}

impl Kind {
    fn value(&self, text: &str) -> Option<Value> {
        match self {
            Self::Word => Some(text.to_lowercase().into()),
            Self::Name => Some(text.into()),
            Self::Number => text.parse().ok().map(Value::Integer),
            Self::Seconds => text.parse().ok().map(Value::Float),
            Self::YesOrNo => Some(["true", "yes", "1"].contains(&text.to_lowercase().as_str()).into()),
        }
    }
}

const fn of_operator(name: &'static str, key: &'static str, kind: Kind) -> Variable {
    Variable { name, key, kind, is_image_default: false }
}

const fn of_image(name: &'static str, key: &'static str, kind: Kind) -> Variable {
    Variable { name, key, kind, is_image_default: true }
}

/// The variables that [`super::environment`] applies, in its order of priority.
const VARIABLES: [Variable; 23] = [
    of_operator("SLURMINIT_ROLE", "role", Kind::Word),
    of_operator("SLURMINIT_ON_MISMATCH", "on_mismatch", Kind::Word),
    of_operator("SLURMINIT_LOG_FORMAT", "log.format", Kind::Word),
    of_operator("SLURMINIT_LOG_LEVEL", "log.level", Kind::Word),
    of_operator("SLURMINIT_GRES", "gpu.gres", Kind::Word),
    of_operator("SLURMINIT_GPU_TYPE_NAME", "gpu.type_name", Kind::Word),
    of_operator("SLURMINIT_ON_GIVE_UP", "supervise.on_give_up", Kind::Word),
    of_operator("SLURMINIT_NODE_NAME", "node.name", Kind::Name),
    of_operator("SLURMINIT_STOP_TIMEOUT", "supervise.stop_timeout", Kind::Seconds),
    of_operator("SLURMINIT_NODES", "simulate.nodes", Kind::Number),
    of_operator("SLURMINIT_RESERVE_MIB", "node.reserve_mib", Kind::Number),
    of_operator("SLURMINIT_GPU_TYPE", "gpu_type", Kind::Word),
    of_image("GPU_TYPE", "gpu_type", Kind::Word),
    of_image("DSHPC_GPU_TYPE", "gpu_type", Kind::Word),
    of_operator("SLURMINIT_CLUSTER_NAME", "cluster_name", Kind::Name),
    of_image("CLUSTER_NAME", "cluster_name", Kind::Name),
    of_operator("SLURMINIT_CONTROLLER", "slurm.controller", Kind::Name),
    of_operator("SLURMINIT_ACCOUNTING", "accounting.mode", Kind::Word),
    of_image("ACCOUNTING", "accounting.mode", Kind::Word),
    of_image("LOGIN_PORT", "login.port", Kind::Number),
    of_operator("SLURMINIT_METRICS", "metrics.listen", Kind::Name),
    of_operator("SLURMINIT_WAIT_JOBS", "jobs.wait", Kind::YesOrNo),
    of_operator("USER_CUSTOMIZED", "user_customized", Kind::YesOrNo),
];

#[cfg(test)]
mod tests {
    use std::cell::RefCell;
    use std::collections::BTreeSet;
    use std::path::Path;

    use super::*;

    fn configured(text: &str, variables: &[(&str, &str)]) -> (Config, Vec<Setting>) {
        let find = |name: &str| variables.iter().find(|(key, _)| *key == name).map(|(_, value)| (*value).to_owned());
        let config = Config::parse(text, Path::new("t")).unwrap().apply_environment(&find).unwrap();
        let settings = settings(text, None, &find, &config);
        (config, settings)
    }

    /// Formats settings as a file, without unset keys and list elements.
    fn file(settings: &[Setting]) -> String {
        let single = |setting: &&Setting| setting.value.is_some() && !setting.key.contains('[');
        settings.iter().filter(single).map(|setting| format!("{setting}\n")).collect()
    }

    #[test]
    fn every_variable_sets_displayed_key() {
        let queried = RefCell::new(BTreeSet::new());
        let record = |name: &str| {
            queried.borrow_mut().insert(name.to_owned());
            None
        };
        Config::default().apply_environment(&record).unwrap();
        let known: BTreeSet<String> = VARIABLES.iter().map(|variable| variable.name.to_owned()).collect();
        assert_eq!(queried.into_inner(), known);
        for (name, value) in [
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
            ("SLURMINIT_GPU_TYPE", "amd"),
            ("GPU_TYPE", "intel"),
            ("DSHPC_GPU_TYPE", "nvidia"),
            ("SLURMINIT_CLUSTER_NAME", "Lab"),
            ("CLUSTER_NAME", "lab"),
            ("SLURMINIT_CONTROLLER", "head"),
            ("SLURMINIT_ACCOUNTING", "embedded"),
            ("ACCOUNTING", "embedded"),
            ("LOGIN_PORT", "2222"),
            ("SLURMINIT_METRICS", "0.0.0.0:9835"),
            ("SLURMINIT_WAIT_JOBS", "YES"),
            ("USER_CUSTOMIZED", "1"),
        ] {
            let (config, settings) = configured("", &[(name, value)]);
            assert_ne!(config, Config::default(), "{name}");
            assert!(settings.iter().any(|setting| setting.origin == Origin::Variable(static_name(name))), "{name}");
            assert_eq!(Config::parse(&file(&settings), Path::new("shown")), Ok(config), "{name}");
        }
    }

    fn static_name(name: &str) -> &'static str {
        VARIABLES.iter().find(|variable| variable.name == name).unwrap().name
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
        let config = token.apply(Config::default(), "", Path::new("t")).unwrap();
        let settings = settings("", Some(&token), &|_| None, &config);
        let from_token: Vec<&str> = settings
            .iter()
            .filter(|setting| setting.origin == Origin::Token)
            .map(|setting| setting.key.as_str())
            .collect();
        assert_eq!(from_token, ["role", "cluster_name", "slurm.controller"]);
        assert_eq!(Config::parse(&file(&settings), Path::new("shown")), Ok(config));
    }

    #[test]
    fn shows_all_default_settings() {
        let (config, settings) = configured("", &[]);
        assert!(settings.iter().all(|setting| setting.origin == Origin::Default));
        assert!(settings.len() > 80, "{}", settings.len());
        assert_eq!(Config::parse(&file(&settings), Path::new("shown")), Ok(config));
    }
}
