//! Installs the munge key, which another container of the cluster may have to create first.

use std::path::Path;
use std::time::{Duration, Instant};

use super::budget::Budget;
use config::Config;
use install::{InstallError, MungeKey};
use model::message;
use sys::report;

/// How long to wait for the key of a cluster whose controller is in another container.
pub(super) const TIMEOUT: Duration = Duration::from_secs(15);

/// Installs the key. The controller's container, which starts at the same time, may not have created it yet.
#[expect(clippy::disallowed_methods, reason = "this is a child of PID 1; there is no event for a new file in a volume")]
pub(super) fn install(config: &Config, root: &Path, budget: &Budget) -> Result<MungeKey, InstallError> {
    let (begin, timeout) = (Instant::now(), budget.timeout(TIMEOUT));
    let mut is_reported = false;
    loop {
        match install::install_munge_key(config, root) {
            Err(InstallError::NoKey { .. }) if begin.elapsed() < timeout => {
                if !is_reported && begin.elapsed() >= Duration::from_secs(1) {
                    is_reported = true;
                    report::warn(message!(
                        "waiting-for-key",
                        "waiting for the controller's container to create {file}",
                        file = config.paths.munge_key.display()
                    ));
                }
                std::thread::sleep(Duration::from_millis(50));
            }
            outcome => return outcome,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_for_key_of_another_container_until_timeout() {
        let root = tempfile::tempdir().unwrap();
        let toml = "role = 'compute'\n[daemon.munged]\nuser = 'nobody'\n";
        let config = Config::parse(toml, Path::new("slurminit.toml")).unwrap();
        let (begin, total) = (Instant::now(), Duration::from_millis(200));
        let error = install(&config, root.path(), &Budget::begin(total)).unwrap_err();
        assert!(matches!(error, InstallError::NoKey { .. }), "{error}");
        assert!(begin.elapsed() >= total * 9 / 10);
    }
}
