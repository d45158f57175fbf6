//! The configuration's layers, merged as tables. From the lowest to the highest priority: the image's variables, the settings of
//! a token, the operator's file, the operator's variables.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::Path;

use toml::{Table, Value};

use super::effective::Origin;
use super::error::list_in_place_of_table;
use super::joined::{check_joined_role, is_shared};
use super::{Config, ConfigError, Fault, TokenSettings};

/// The merged configuration.
#[derive(Debug)]
pub struct Layers {
    /// The effective configuration.
    pub config: Config,
    /// The values that the layers set; keys that no layer sets are missing.
    pub(super) table: Table,
    /// The layer of each value, by its dotted key.
    pub(super) origins: BTreeMap<String, Origin>,
}

/// An environment variable that sets a key.
#[derive(Debug)]
pub struct Variable {
    /// The name of the variable.
    pub name: &'static str,
    /// The dotted key that the variable sets.
    key: &'static str,
    kind: ValueKind,
    /// Whether the variable describes the image, and therefore sets only keys that no other layer sets.
    is_of_image: bool,
}

#[derive(Clone, Copy, Debug)]
enum ValueKind {
    /// A word, in upper or lower case.
    Word,
    Name,
    Address,
    Number,
    Seconds,
    YesOrNo,
    /// Values separated by commas.
    List,
}

impl ValueKind {
    fn parse(self, text: &str) -> Result<Value, &'static str> {
        match self {
            Self::Word => Ok(text.to_lowercase().into()),
            Self::Name => Ok(text.into()),
            Self::Address => match text.parse::<SocketAddr>() {
                Ok(_) => Ok(text.into()),
                Err(_) => Err("expected an IP address and a port"),
            },
            Self::Number => text.parse().map(Value::Integer).map_err(|_| "expected a whole number"),
            Self::Seconds => text.parse().map(Value::Float).map_err(|_| "expected a number of seconds"),
            Self::YesOrNo => match text.to_lowercase().as_str() {
                "true" | "yes" | "1" => Ok(true.into()),
                "false" | "no" | "0" => Ok(false.into()),
                _ => Err("expected true or false"),
            },
            Self::List => Ok(text.split(',').map(|item| Value::from(item.trim())).collect::<Vec<_>>().into()),
        }
    }
}

const fn of_operator(name: &'static str, key: &'static str, kind: ValueKind) -> Variable {
    Variable { name, key, kind, is_of_image: false }
}

const fn of_image(name: &'static str, key: &'static str, kind: ValueKind) -> Variable {
    Variable { name, key, kind, is_of_image: true }
}

/// All variables. If several variables of the image set the same key, the first in this list has priority.
pub const VARIABLES: [Variable; 26] = [
    of_operator("SLURMINIT_ROLE", "role", ValueKind::Word),
    of_operator("SLURMINIT_ON_MISMATCH", "on_mismatch", ValueKind::Word),
    of_operator("SLURMINIT_LOG_FORMAT", "log.format", ValueKind::Word),
    of_operator("SLURMINIT_LOG_LEVEL", "log.level", ValueKind::Word),
    of_operator("SLURMINIT_GRES", "gpu.gres", ValueKind::Word),
    of_operator("SLURMINIT_GPU_TYPE_NAME", "gpu.type_name", ValueKind::Word),
    of_operator("SLURMINIT_ON_GIVE_UP", "supervise.on_give_up", ValueKind::Word),
    of_operator("SLURMINIT_NODE_NAME", "node.name", ValueKind::Name),
    of_operator("SLURMINIT_STOP_TIMEOUT", "supervise.stop_timeout", ValueKind::Seconds),
    of_operator("SLURMINIT_NODES", "simulate.nodes", ValueKind::Number),
    of_operator("SLURMINIT_RESERVE_MIB", "node.reserve_mib", ValueKind::Number),
    of_operator("SLURMINIT_TMP_DISK_MIB", "node.tmp_disk_mib", ValueKind::Number),
    of_operator("SLURMINIT_DIRECTORY_LIMITS", "node.directory_limits", ValueKind::List),
    of_operator("SLURMINIT_GPU_TYPE", "gpu_type", ValueKind::Word),
    of_image("GPU_TYPE", "gpu_type", ValueKind::Word),
    of_image("DSHPC_GPU_TYPE", "gpu_type", ValueKind::Word),
    of_operator("SLURMINIT_CLUSTER_NAME", "cluster_name", ValueKind::Name),
    of_image("CLUSTER_NAME", "cluster_name", ValueKind::Name),
    of_operator("SLURMINIT_CONTROLLER", "slurm.controller", ValueKind::Name),
    of_operator("SLURMINIT_ACCOUNTING", "accounting.mode", ValueKind::Word),
    of_image("ACCOUNTING", "accounting.mode", ValueKind::Word),
    of_operator("SLURMINIT_LOGIN_PORT", "login.port", ValueKind::Number),
    of_image("LOGIN_PORT", "login.port", ValueKind::Number),
    of_operator("SLURMINIT_METRICS", "metrics.listen", ValueKind::Address),
    of_operator("SLURMINIT_WAIT_JOBS", "jobs.wait", ValueKind::YesOrNo),
    of_operator("USER_CUSTOMIZED", "user_customized", ValueKind::YesOrNo),
];

/// A variable with its text and value.
struct GivenVariable {
    variable: &'static Variable,
    text: String,
    value: Value,
}

impl Layers {
    /// Merges the operator's file `text`, the settings of a token, and the environment. An empty variable counts as unset,
    /// because compose turns unset variables into empty ones. `origin` is the file name for messages.
    ///
    /// # Errors
    /// The first error: in the file with its line, column and key, in a variable, or in the configuration with the token.
    pub fn merge(
        text: &str,
        origin: &Path,
        token: Option<&TokenSettings>,
        variable: &impl Fn(&str) -> Option<String>,
    ) -> Result<Self, ConfigError> {
        let in_file = |fault: Fault| fault.at(text, origin);
        list_in_place_of_table(text).map_or(Ok(()), |fault| Err(in_file(fault)))?;
        let table: Table = text.parse().map_err(|error| ConfigError::from_toml(&error, text, origin))?;
        let origins = leaves(&table).into_iter().map(|path| (path.join("."), Origin::File)).collect();
        let mut layers = Self { config: Config::default(), table, origins };
        if let Some(token) = token {
            token.check_file(&layers.table).map_err(in_file)?;
            for (path, value) in token.values() {
                if get(&layers.table, &path).is_none() {
                    layers.set(&path, value, Origin::Token);
                }
            }
        }
        let without_variables = layers.table.clone();
        let given = layers.add_variables(token, variable)?;
        match read(&layers.table) {
            Ok(config) => layers.config = config,
            Err(what) => {
                // If the file itself is invalid, this error contains the line.
                Config::parse(text, origin)?;
                return Err(invalid_variable(without_variables, given, what));
            }
        }
        layers.limit_grace(text).map_err(in_file)?;
        match (token, check_joined_role(layers.config.role), layers.origins.get("role")) {
            (Some(_), Err(what), Some(Origin::Variable(name))) => {
                Err(refused_variable(name, format!("{what}; remove the variable")))
            }
            (Some(_), Err(what), _) => {
                Err(in_file(Fault::new(vec!["role".into()], format!("{what}; remove the key here"))))
            }
            (..) => Ok(layers),
        }
    }

    fn add_variables(
        &mut self,
        token: Option<&TokenSettings>,
        variable: &impl Fn(&str) -> Option<String>,
    ) -> Result<Vec<GivenVariable>, ConfigError> {
        let mut given = Vec::new();
        for known in &VARIABLES {
            let Variable { name, key, kind, is_of_image } = *known;
            let text = variable(name).map(|text| text.trim().to_owned());
            let Some(text) = text.filter(|text| !text.is_empty() && !is_service_address(text)) else { continue };
            let path: Vec<&str> = key.split('.').collect();
            let token = token.filter(|_| is_shared(&path));
            if is_of_image && (token.is_some() || get(&self.table, &path).is_some()) {
                continue;
            }
            let value = kind.parse(&text).map_err(|expected| ConfigError::variable(name, &text, expected))?;
            if token.is_some_and(|token| token.differs(&path, &value)) {
                let what = format!(
                    "the token does not set `{key}` to this value; remove the variable, or use a token with this value"
                );
                return Err(refused_variable(name, what));
            }
            self.set(&path, value.clone(), Origin::Variable(name));
            given.push(GivenVariable { variable: known, text, value });
        }
        Ok(given)
    }

    /// Checks that the grace period fits into the stop timeout. If a variable has set the stop timeout, or `text` does not set the grace period,
    /// shortens the grace period instead.
    fn limit_grace(&mut self, text: &str) -> Result<(), Fault> {
        let configured = self.config.jobs.grace;
        let origin = self.origins.get("supervise.stop_timeout").copied().unwrap_or(Origin::Default);
        match origin {
            Origin::Variable(_) => {
                self.config.jobs.grace = configured.min(self.config.supervise.stop_budget().max_grace())
            }
            _ => self.config.check_grace(text)?,
        }
        let grace = self.config.jobs.grace;
        if grace != configured {
            self.set(&["jobs", "grace"], Value::Float(grace.as_secs_f64()), origin);
        }
        Ok(())
    }

    fn set(&mut self, path: &[&str], value: Value, origin: Origin) {
        self.origins.insert(path.join("."), origin);
        set(&mut self.table, path, value);
    }
}

/// Whether the value is from Kubernetes, which derives variables such as `LOGIN_PORT` from the name of a Service.
pub(super) fn is_service_address(text: &str) -> bool {
    text.split_once("://").is_some_and(|(protocol, _)| ["tcp", "udp", "sctp"].contains(&protocol))
}

/// Reads the configuration from the merged tables.
fn read(table: &Table) -> Result<Config, String> {
    let mut config: Config = table.clone().try_into().map_err(|error| error.message().replace('\n', "; "))?;
    config.supervise.allow_for_detection(config.gpu.detect_timeout);
    config.check().map(|()| config).map_err(|fault| fault.what().to_owned())
}

/// The error of the first variable that makes the configuration invalid. If no variable does, the error is in the file combined with the token.
fn invalid_variable(mut table: Table, given: Vec<GivenVariable>, what: String) -> ConfigError {
    for GivenVariable { variable, text, value } in given {
        set(&mut table, &variable.key.split('.').collect::<Vec<_>>(), value);
        if let Err(what) = read(&table) {
            return ConfigError::variable(variable.name, &text, what);
        }
    }
    ConfigError { place: "the configuration with the token".to_owned(), what }
}

fn refused_variable(name: &str, what: String) -> ConfigError {
    ConfigError { place: format!("the environment variable {name}"), what }
}

/// The paths of all values; a list is one value.
pub(super) fn leaves<'a>(table: &'a Table) -> Vec<Vec<&'a str>> {
    let below = |(key, value): (&'a String, &'a Value)| match value {
        Value::Table(table) => leaves(table).into_iter().map(|rest| [vec![key.as_str()], rest].concat()).collect(),
        _ => vec![vec![key.as_str()]],
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
