//! `slurminit holders`: lists this user's processes that have a socket open.

use std::io::Write as _;

use model::exit_code;
use startup::socket_owners;
use startup::socket_owners::Which;

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The inodes of the sockets
    #[arg(long)]
    inode: Vec<u32>,
    /// A TCP socket missing from the kernel's tables: bound, but neither listening nor connected
    #[arg(long)]
    unlisted: bool,
    /// Kill all processes of this user instead
    #[arg(long)]
    end_all: bool,
}

pub(crate) fn run(args: Args) -> anyhow::Result<u8> {
    if args.end_all {
        return socket_owners::end_own().map(|()| exit_code::SUCCESS);
    }
    let which = if args.unlisted { Which::Unlisted } else { Which::Inodes(args.inode) };
    let lines: String = socket_owners::own(&which).iter().map(|pid| format!("{pid}\n")).collect();
    std::io::stdout().lock().write_all(lines.as_bytes())?;
    Ok(exit_code::SUCCESS)
}
