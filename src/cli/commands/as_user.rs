//! `slurminit as-user`: executes a command as another user, with that user's groups. Sets the user's login variables that are not set yet.
//!
//! PID 1 runs it for a user that it cannot look up without NSS: NSS may wait for a directory service, and PID 1 must not block. The liveness
//! check and the agent run it, too.

use std::ffi::{CString, OsString};
use std::os::unix::ffi::OsStrExt as _;

use crate::output::error_line;
use anyhow::Context as _;
use nix::errno::Errno;
use nix::unistd::{Uid, User, execvpe, getgrouplist, setgid, setgroups, setuid};

use model::{exit_code, printable};
use sys::inherited::Inherited;

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The name of the user
    user: String,
    /// The program and its arguments
    #[arg(last = true, required = true)]
    command: Vec<OsString>,
}

pub(crate) fn run(args: Args) -> anyhow::Result<u8> {
    let inherited = Inherited::capture();
    let name = &args.user;
    let user = User::from_name(name).with_context(|| format!("cannot look up user `{name}`"))?;
    let user = user.with_context(|| {
        format!(
            "no such user: `{name}`; create this user, or change `user` in slurminit.toml or SlurmUser in slurm.conf"
        )
    })?;
    if user.uid != Uid::effective() {
        become_user(&user).with_context(|| {
            format!("cannot become user `{name}`; run slurminit as root, with the capabilities SETUID and SETGID")
        })?;
    }
    let words: Vec<CString> =
        args.command.iter().map(|word| CString::new(word.as_bytes())).collect::<Result<_, _>>()?;
    let environment = environment(&user)?;
    inherited.restore();
    let Err(errno) = execvpe(&words[0], &words, &environment);
    let program = args.command[0].to_string_lossy();
    error_line(format_args!("slurminit: cannot execute `{}` as {name}: {}", printable::line(&program), errno.desc()));
    Ok(if errno == Errno::ENOENT { exit_code::CMD_NOT_FOUND } else { exit_code::CMD_NOT_EXECUTABLE })
}

fn become_user(user: &User) -> anyhow::Result<()> {
    let groups = getgrouplist(&CString::new(user.name.as_bytes())?, user.gid)?;
    setgroups(&groups)?;
    setgid(user.gid)?;
    Ok(setuid(user.uid)?)
}

/// This process's environment, plus the missing login variables.
fn environment(user: &User) -> anyhow::Result<Vec<CString>> {
    let login = [
        ("HOME", user.dir.as_os_str()),
        ("LOGNAME", user.name.as_ref()),
        ("SHELL", user.shell.as_os_str()),
        ("USER", user.name.as_ref()),
    ];
    let missing = login.into_iter().filter(|(name, _)| std::env::var_os(name).is_none());
    let missing = missing.map(|(name, value)| (OsString::from(name), value.to_owned()));
    let pairs = std::env::vars_os().chain(missing);
    let pairs = pairs.map(|(name, value)| CString::new([name.as_bytes(), b"=", value.as_bytes()].concat()));
    Ok(pairs.collect::<Result<_, _>>()?)
}
