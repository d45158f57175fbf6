//! `slurminit token`: prints a JSON Web Token for Slurm's REST API.

use slurm::client::{Client, limit};

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The user that the token authenticates
    #[arg(value_name = "USER")]
    user: String,
    /// How long the token is valid
    #[arg(long, value_name = "SECONDS", default_value_t = 3600)]
    lifespan: u32,
}

pub(crate) fn run(args: Args) -> anyhow::Result<()> {
    if let Some(longest) = longest_lifetime().filter(|longest| args.lifespan > *longest) {
        anyhow::bail!(
            "--lifespan {} exceeds {longest} s, the longest lifetime of a token: raise `max_token_lifetime` in [rest]",
            args.lifespan
        );
    }
    let (user, lifespan) = (format!("username={}", args.user), format!("lifespan={}", args.lifespan));
    let output = Client::with_timeout(limit::COMMAND).output("scontrol", &["token", &user, &lifespan]);
    let hint = "only root can create tokens for other users, and [rest] must set `listen`; see docs/accounting.md";
    let output = output.map_err(|why| anyhow::anyhow!("{why}; {hint}"))?;
    let token = output.trim().strip_prefix("SLURM_JWT=").filter(|token| !token.is_empty());
    super::print(&format!("{}\n", token.ok_or_else(|| anyhow::anyhow!("scontrol printed no token; {hint}"))?))
}

/// The maximum token lifetime in slurm.conf, in seconds. It is checked here, because slurmctld does not apply it to
/// root.
fn longest_lifetime() -> Option<u32> {
    parse_limit(&Client::with_timeout(limit::COMMAND).config().ok()?.get("AuthAltParameters")?)
}

fn parse_limit(parameters: &str) -> Option<u32> {
    let value = |parameter: &str| parameter.strip_prefix(plan::MAX_TOKEN_LIFETIME)?.strip_prefix('=')?.parse().ok();
    parameters.split(',').find_map(value)
}

#[cfg(test)]
mod tests {
    #[test]
    fn parses_max_token_lifespan() {
        assert_eq!(super::parse_limit("jwt_key=/a/b,max_token_lifespan=600"), Some(600));
        assert_eq!(super::parse_limit("jwt_key=/a/b"), None);
    }
}
