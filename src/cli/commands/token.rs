//! `slurminit token`: a JSON Web Token for Slurm's REST API.

use model::exit_code;
use slurm::client::{Client, limit};

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The user that the token authenticates
    #[arg(value_name = "USER")]
    user: String,
    /// Validity
    #[arg(long, value_name = "SECONDS", default_value_t = 3600)]
    lifespan: u32,
}

pub(crate) fn run(args: Args) -> anyhow::Result<u8> {
    let (user, lifespan) = (format!("username={}", args.user), format!("lifespan={}", args.lifespan));
    let said = Client::each(limit::COMMAND).output("scontrol", &["token", &user, &lifespan]);
    let hint = "only root can make tokens for other users, and [rest] needs `listen`; see docs/accounting.md";
    let said = said.map_err(|why| anyhow::anyhow!("{why}; {hint}"))?;
    let token = said.trim().strip_prefix("SLURM_JWT=").filter(|token| !token.is_empty());
    super::print(&format!("{}\n", token.ok_or_else(|| anyhow::anyhow!("scontrol printed no token; {hint}"))?))?;
    Ok(exit_code::SUCCESS)
}
