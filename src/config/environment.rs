//! Applies environment variables on top of the file.

use std::net::SocketAddr;
use std::num::NonZeroU16;
use std::path::Path;
use std::time::Duration;

use serde::Deserialize;
use serde::de::IntoDeserializer;
use serde::de::value::{Error as ValueError, F64Deserializer};

use super::{Config, ConfigError};
use model::text_type::word;
use model::value;

/// Applies the environment to `config`.
pub(super) fn apply(mut config: Config, variable: &impl Fn(&str) -> Option<String>) -> Result<Config, ConfigError> {
    let environment = Environment { variable };

    environment.word("SLURMINIT_ROLE", &mut config.role)?;
    environment.word("SLURMINIT_ON_MISMATCH", &mut config.on_mismatch)?;
    environment.word("SLURMINIT_LOG_FORMAT", &mut config.log.format)?;
    environment.word("SLURMINIT_GRES", &mut config.gpu.gres)?;
    environment.word("SLURMINIT_GPU_TYPE_NAME", &mut config.gpu.type_name)?;
    environment.word("SLURMINIT_ON_GIVE_UP", &mut config.supervise.on_give_up)?;
    environment.name("SLURMINIT_NODE_NAME", &mut config.node.name)?;
    if let Some(level) = environment.optional_word("SLURMINIT_LOG_LEVEL")? {
        config.log.level = Some(level);
    }
    if let Some(limit) = environment.seconds("SLURMINIT_STOP_TIMEOUT")? {
        config.supervise.stop_timeout = Some(limit);
        // The variable overrides the file; the grace period must fit into it.
        config.jobs.grace = config.jobs.grace.min(config.supervise.stop_budget().max_grace());
    }
    if let Some(nodes) = environment.number("SLURMINIT_NODES")? {
        config = super::simulate::set_nodes(
            config,
            u32::try_from(nodes).unwrap_or(u32::MAX),
            "the environment variable SLURMINIT_NODES",
        )?;
    }
    if let Some(reserve) = environment.number("SLURMINIT_RESERVE_MIB")? {
        config.node.reserve_mib = Some(reserve);
    }

    // The variables of the image have a lower priority than the operator's file, which has a lower one than the
    // operator's variables.
    config.gpu_type = match environment.optional_word("SLURMINIT_GPU_TYPE")?.or(config.gpu_type) {
        Some(gpu_type) => Some(gpu_type),
        None => match environment.optional_word("GPU_TYPE")? {
            Some(gpu_type) => Some(gpu_type),
            None => environment.optional_word("DSHPC_GPU_TYPE")?,
        },
    };
    config.cluster_name = match environment.optional_name("SLURMINIT_CLUSTER_NAME")?.or(config.cluster_name) {
        Some(name) => Some(name),
        None => environment.optional_name("CLUSTER_NAME")?,
    };
    if let Some(controller) = environment.optional_name("SLURMINIT_CONTROLLER")? {
        config.slurm.controller = Some(controller);
    }
    config.accounting.mode = match environment.optional_word("SLURMINIT_ACCOUNTING")?.or(config.accounting.mode) {
        Some(mode) => Some(mode),
        None => environment.optional_word("ACCOUNTING")?,
    };
    if let Some(port) = environment.port("LOGIN_PORT")? {
        config.login.port.get_or_insert(port);
    }
    if let Some(address) = environment.address("SLURMINIT_METRICS")? {
        config.metrics.listen = Some(address);
    }
    if let Some(wait) = environment.yes_or_no("SLURMINIT_WAIT_JOBS")? {
        config.jobs.wait = wait;
    }
    if let Some(customized) = environment.yes_or_no("USER_CUSTOMIZED")? {
        config.user_customized = customized;
    }
    super::accounting::check(&config)
        .map_err(|fault| fault.at("", Path::new("the environment variable SLURMINIT_ACCOUNTING")))?;
    Ok(config)
}

struct Environment<'a, F> {
    variable: &'a F,
}

impl<F: Fn(&str) -> Option<String>> Environment<'_, F> {
    fn text(&self, name: &str) -> Option<String> {
        (self.variable)(name).map(|text| text.trim().to_owned()).filter(|text| !text.is_empty())
    }

    /// Parses a value of an enum, in upper or lower case.
    fn optional_word<T: for<'de> Deserialize<'de>>(&self, name: &'static str) -> Result<Option<T>, ConfigError> {
        let Some(text) = self.text(name) else { return Ok(None) };
        let lower = text.to_lowercase();
        word(&lower).map(Some).map_err(|error| ConfigError::variable(name, &text, error))
    }

    fn word<T: for<'de> Deserialize<'de>>(&self, name: &'static str, target: &mut T) -> Result<(), ConfigError> {
        if let Some(word) = self.optional_word(name)? {
            *target = word;
        }
        Ok(())
    }

    fn optional_name<T: TryFrom<String, Error = String>>(&self, name: &'static str) -> Result<Option<T>, ConfigError> {
        let Some(text) = self.text(name) else { return Ok(None) };
        T::try_from(text.clone()).map(Some).map_err(|error| ConfigError::variable(name, &text, error))
    }

    fn name<T: TryFrom<String, Error = String>>(&self, name: &'static str, target: &mut T) -> Result<(), ConfigError> {
        if let Some(value) = self.optional_name(name)? {
            *target = value;
        }
        Ok(())
    }

    fn address(&self, name: &'static str) -> Result<Option<SocketAddr>, ConfigError> {
        let Some(text) = self.text(name) else { return Ok(None) };
        text.parse().map(Some).map_err(|_| ConfigError::variable(name, &text, "expected an IP address and a port"))
    }

    fn number(&self, name: &'static str) -> Result<Option<u64>, ConfigError> {
        let Some(text) = self.text(name) else { return Ok(None) };
        text.parse().map(Some).map_err(|_| ConfigError::variable(name, &text, "expected a whole number"))
    }

    fn port(&self, name: &'static str) -> Result<Option<NonZeroU16>, ConfigError> {
        let Some(text) = self.text(name) else { return Ok(None) };
        text.parse().map(Some).map_err(|_| ConfigError::variable(name, &text, "expected a port"))
    }

    fn seconds(&self, name: &'static str) -> Result<Option<Duration>, ConfigError> {
        let Some(text) = self.text(name) else { return Ok(None) };
        let number: f64 = text.parse().map_err(|_| ConfigError::variable(name, &text, "expected seconds"))?;
        let deserializer: F64Deserializer<ValueError> = number.into_deserializer();
        value::seconds(deserializer).map(Some).map_err(|error| ConfigError::variable(name, &text, error))
    }

    fn yes_or_no(&self, name: &'static str) -> Result<Option<bool>, ConfigError> {
        let Some(text) = self.text(name) else { return Ok(None) };
        match text.to_lowercase().as_str() {
            "true" | "yes" | "1" => Ok(Some(true)),
            "false" | "no" | "0" => Ok(Some(false)),
            _ => Err(ConfigError::variable(name, &text, "expected true or false")),
        }
    }
}
