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
/// The pause between two attempts. Waiting in the kernel (F_SETLKW) has no timeout.
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
    use std::io::{BufRead as _, BufReader};
    use std::process::{Command, Stdio};

    use nix::mount::MsFlags;

    use super::*;
    use crate::private_mount;

    /// A process does not conflict with its own lock, so another process (perl) takes it, prints a line and waits for the end of its input.
    /// It exits with 1 if it cannot take the lock.
    fn other_process(root: &Path) -> Command {
        let script = "use Fcntl qw(:DEFAULT :flock SEEK_SET); open(my $f, '+<', $ARGV[0]) or exit 3; \
                      my $l = pack('s s x4 l! l! i x4', F_WRLCK, SEEK_SET, 0, 0, 0); \
                      fcntl($f, F_SETLK, $l) or exit 1; syswrite(STDOUT, \"locked\\n\"); <STDIN>";
        let mut command = Command::new("perl");
        command.args(["-e", script]).arg(root.join("etc").join(NAME)).stdin(Stdio::null()).stdout(Stdio::piped());
        command
    }

    #[test]
    #[expect(clippy::disallowed_methods, reason = "this test is not PID 1")]
    fn lock_excludes_other_processes_until_dropped() {
        let root = tempfile::tempdir().unwrap();
        std::fs::create_dir(root.path().join("etc")).unwrap();
        let lock = take_within(root.path(), Duration::ZERO).unwrap().unwrap();
        let try_lock = || other_process(root.path()).status().unwrap().code();
        assert_eq!(try_lock(), Some(1));
        drop(lock);
        assert_eq!(try_lock(), Some(0));
    }

    #[test]
    #[expect(clippy::disallowed_methods, reason = "this test is not PID 1")]
    fn timeout_names_process_that_holds_lock() {
        let root = tempfile::tempdir().unwrap();
        std::fs::create_dir(root.path().join("etc")).unwrap();
        drop(take_within(root.path(), Duration::ZERO).unwrap());
        let mut holder = other_process(root.path()).stdin(Stdio::piped()).spawn().unwrap();
        BufReader::new(holder.stdout.take().unwrap()).read_line(&mut String::new()).unwrap();
        let (start, timeout) = (Instant::now(), PAUSE * 5);
        let error = take_within(root.path(), timeout).unwrap_err();
        assert!(start.elapsed() >= timeout);
        assert_eq!(error.kind(), ErrorKind::TimedOut);
        assert_eq!(error.to_string(), format!("locked by process {}", holder.id()));
        drop(holder.stdin.take());
        holder.wait().unwrap();
    }

    #[test]
    fn read_only_directory_needs_no_lock() {
        let root = tempfile::tempdir().unwrap();
        let etc = root.path().join("etc");
        std::fs::create_dir(&etc).unwrap();
        private_mount::tmpfs(&etc, MsFlags::MS_RDONLY, "");
        assert!(take_within(root.path(), Duration::ZERO).unwrap().is_none());
        // A directory in the place of the file is another error.
        let other = tempfile::tempdir().unwrap();
        std::fs::create_dir_all(other.path().join("etc").join(NAME)).unwrap();
        assert!(take_within(other.path(), Duration::ZERO).is_err());
    }
}
