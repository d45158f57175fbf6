//! `slurminit detect`.

/// Its command line.
#[derive(Debug, clap::Args)]
pub struct Args {}

/// Does it.
pub fn run(_args: Args) -> anyhow::Result<u8> {
    anyhow::bail!("not built yet")
}
