//! The lock of /etc/passwd, /etc/group and /etc/shadow that useradd(8) and passwd(1) take as well, as in lckpwdf(3).

use std::fs::File;
use std::io::{self, ErrorKind};
use std::path::Path;
use std::time::{Duration, Instant};

use nix::fcntl::{FcntlArg, fcntl};
use nix::libc;

use super::InstallError;
use sys::trusted_path;

const DIRECTORY: &str = "/etc";
const NAME: &str = ".pwd.lock";
/// The timeout of lckpwdf(3), which applies here, too.
const TIMEOUT: Duration = Duration::from_secs(15);
/// The pause between two attempts. A wait in the kernel would have no limit.
const PAUSE: Duration = Duration::from_millis(10);

/// Takes the lock, which lasts as long as the file is open. `None` if /etc is read-only: then no program can change the files.
pub(super) fn take(root: &Path) -> Result<Option<File>, InstallError> {
    take_within(root, TIMEOUT).map_err(|error| InstallError::write(&Path::new(DIRECTORY).join(NAME), error))
}

#[expect(clippy::disallowed_methods, reason = "this is a child of PID 1, and this lock has no event with a deadline")]
fn take_within(root: &Path, timeout: Duration) -> io::Result<Option<File>> {
    let file = match trusted_path::open(root, Path::new(DIRECTORY))?.open_or_create(NAME, 0o600) {
        Err(error) if error.kind() == ErrorKind::ReadOnlyFilesystem => return Ok(None),
        file => file?,
    };
    let mut lock = libc::flock {
        l_type: libc::F_WRLCK as libc::c_short,
        l_whence: libc::SEEK_SET as libc::c_short,
        l_start: 0,
        l_len: 0,
        l_pid: 0,
    };
    let start = Instant::now();
    loop {
        match fcntl(&file, FcntlArg::F_SETLK(&lock)) {
            Ok(_) => return Ok(Some(file)),
            Err(nix::Error::EACCES | nix::Error::EAGAIN) if start.elapsed() < timeout => std::thread::sleep(PAUSE),
            Err(nix::Error::EACCES | nix::Error::EAGAIN) => {
                let _ = fcntl(&file, FcntlArg::F_GETLK(&mut lock));
                return Err(io::Error::new(ErrorKind::TimedOut, format!("locked by process {}", lock.l_pid)));
            }
            Err(error) => return Err(error.into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[expect(clippy::disallowed_methods, reason = "this test is not PID 1")]
    fn lock_excludes_other_processes_until_dropped() {
        let root = tempfile::tempdir().unwrap();
        std::fs::create_dir(root.path().join("etc")).unwrap();
        let lock = take_within(root.path(), Duration::ZERO).unwrap().unwrap();
        // A process does not conflict with its own lock, so another process (perl) tries to take it.
        let script = "use Fcntl qw(:DEFAULT :flock SEEK_SET); open(my $f, '+<', $ARGV[0]) or exit 3; \
                   my $l = pack('s s x4 l! l! i x4', F_WRLCK, SEEK_SET, 0, 0, 0); exit(fcntl($f, F_SETLK, $l) ? 0 : 1)";
        let try_lock = || {
            let path = root.path().join("etc").join(NAME);
            std::process::Command::new("perl").args(["-e", script]).arg(path).status().unwrap().code()
        };
        assert_eq!(try_lock(), Some(1));
        drop(lock);
        assert_eq!(try_lock(), Some(0));
    }
}
