//! Slurm's REST API: its keys in the configuration files.

use config::Config;
use model::exit_code;
use model::inventory::Inventory;

use super::Refusal;

/// Slurm's plugin for JSON Web Tokens. If the configuration names it, all of Slurm's programs load it.
const PLUGIN: &str = "auth_jwt";

/// The option of AuthAltParameters for the maximum lifetime of a token, in seconds.
pub const MAX_TOKEN_LIFETIME: &str = "max_token_lifespan";

/// The token settings, which are the same in slurm.conf and slurmdbd.conf; `None` if the REST API is disabled.
pub fn authentication(config: &Config) -> Option<[(&'static str, String); 2]> {
    config.rest.listen?;
    let (key, longest) = (config.paths.jwt_key(), config.rest.max_token_lifetime);
    // slurmctld applies the limit to all users except root and SlurmUser.
    let parameters = format!("jwt_key={},{MAX_TOKEN_LIFETIME}={longest}", key.display());
    Some([("AuthAltTypes", "auth/jwt".to_owned()), ("AuthAltParameters", parameters)])
}

/// Checks that Slurm's plugin for tokens is installed, if the REST API is enabled.
///
/// # Errors
/// The plugin is not installed.
pub fn can_authenticate(config: &Config, inventory: &Inventory) -> Result<(), Refusal> {
    if config.rest.listen.is_none() || inventory.slurm.has_plugin(PLUGIN) {
        return Ok(());
    }
    Err(Refusal::new(
        exit_code::CONFIG,
        "[rest] requires tokens, which this image's Slurm does not support",
        format!("Slurm's plugin {PLUGIN} is not installed; all containers of the cluster require it"),
        "build the image with --target full, or remove `listen` from [rest]",
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_require_plugin() {
        let is_possible = |toml: &str, plugins: &[&str]| {
            let config = Config::parse(toml, std::path::Path::new("x")).unwrap();
            let mut inventory = Inventory::default();
            inventory.slurm.plugins = plugins.iter().map(ToString::to_string).collect();
            can_authenticate(&config, &inventory).is_ok()
        };
        let rest = "[rest]\nlisten = '127.0.0.1:6820'";
        assert!(is_possible("", &[]) && is_possible(rest, &[PLUGIN]) && !is_possible(rest, &["auth_munge"]));
    }
}
