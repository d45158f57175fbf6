//! The environment, laid over the file.

use serde::Deserialize;
use serde::de::IntoDeserializer;
use serde::de::value::{Error as ValueError, StrDeserializer};

use super::{Config, ConfigError};

/// Lays the environment over `config`.
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
    if let Some(reserve) = environment.number("SLURMINIT_RESERVE_MIB")? {
        config.node.reserve_mib = Some(reserve);
    }

    // The image's word about itself stands behind the operator's file; the operator's own variable before it.
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
    if let Some(customized) = environment.yes_or_no("USER_CUSTOMIZED")? {
        config.user_customized = customized;
    }
    Ok(config)
}

struct Environment<'a, F> {
    variable: &'a F,
}

impl<F: Fn(&str) -> Option<String>> Environment<'_, F> {
    fn text(&self, name: &str) -> Option<String> {
        (self.variable)(name).map(|text| text.trim().to_owned()).filter(|text| !text.is_empty())
    }

    /// One of an enum's words, in any case.
    fn optional_word<T: for<'de> Deserialize<'de>>(&self, name: &'static str) -> Result<Option<T>, ConfigError> {
        let Some(text) = self.text(name) else { return Ok(None) };
        let lower = text.to_lowercase();
        let deserializer: StrDeserializer<'_, ValueError> = lower.as_str().into_deserializer();
        T::deserialize(deserializer).map(Some).map_err(|error| ConfigError::variable(name, &text, error))
    }

    fn word<T: for<'de> Deserialize<'de>>(&self, name: &'static str, place: &mut T) -> Result<(), ConfigError> {
        if let Some(word) = self.optional_word(name)? {
            *place = word;
        }
        Ok(())
    }

    fn optional_name<T: TryFrom<String, Error = String>>(&self, name: &'static str) -> Result<Option<T>, ConfigError> {
        let Some(text) = self.text(name) else { return Ok(None) };
        T::try_from(text.clone()).map(Some).map_err(|error| ConfigError::variable(name, &text, error))
    }

    fn name<T: TryFrom<String, Error = String>>(&self, name: &'static str, place: &mut T) -> Result<(), ConfigError> {
        if let Some(value) = self.optional_name(name)? {
            *place = value;
        }
        Ok(())
    }

    fn number(&self, name: &'static str) -> Result<Option<u64>, ConfigError> {
        let Some(text) = self.text(name) else { return Ok(None) };
        text.parse().map(Some).map_err(|_| ConfigError::variable(name, &text, "want a whole number"))
    }

    fn yes_or_no(&self, name: &'static str) -> Result<Option<bool>, ConfigError> {
        let Some(text) = self.text(name) else { return Ok(None) };
        match text.to_lowercase().as_str() {
            "true" | "yes" | "1" => Ok(Some(true)),
            "false" | "no" | "0" => Ok(Some(false)),
            _ => Err(ConfigError::variable(name, &text, "want true or false")),
        }
    }
}
