//! Installed files on disk: atomic writes, owners and permissions.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};

use config::Config;
use install::{InstallError, KeySource};
use nix::unistd::geteuid;
use plan::{FileName, Text};
use tempfile::TempDir;

/// Only root can create files of another user.
const NEEDS_ROOT: &str = "this test needs root";

/// An empty root directory, and a configuration whose daemons run as a user that exists everywhere.
fn fixture() -> (TempDir, Config) {
    let toml = "[daemon.munged]\nuser = \"nobody\"\n[daemon.slurmctld]\nuser = \"nobody\"\n";
    (tempfile::tempdir().unwrap(), Config::parse(toml, Path::new("test.toml")).unwrap())
}

fn install(root: &Path, config: &Config, text: &str) -> Result<Vec<PathBuf>, InstallError> {
    let file = |name, text: &str| Text { name, text: text.to_owned() };
    let files = [file(FileName::SlurmConf, text), file(FileName::GresConf, "AutoDetect=off\n")];
    install::install_files(&config.paths, root, &files)
}

fn mode(path: &Path) -> u32 {
    fs::metadata(path).unwrap().permissions().mode() & 0o7777
}

fn names(directory: &Path) -> Vec<String> {
    let mut names: Vec<String> =
        fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

#[test]
fn writes_only_changes_and_keeps_one_generation() {
    let (root, config) = fixture();
    let slurm = root.path().join("etc/slurm");
    let both = [PathBuf::from("/etc/slurm/slurm.conf"), PathBuf::from("/etc/slurm/gres.conf")];
    assert_eq!(install(root.path(), &config, "one\n").unwrap(), both);
    assert_eq!(mode(&slurm.join("slurm.conf")), 0o644);
    assert_eq!(names(&slurm), ["gres.conf", "slurm.conf"]);

    let inode = || fs::metadata(slurm.join("slurm.conf")).unwrap().ino();
    let before = inode();
    assert_eq!(install(root.path(), &config, "one\n").unwrap(), [] as [PathBuf; 0]);
    assert_eq!(inode(), before, "an unchanged file was rewritten");

    assert_eq!(install(root.path(), &config, "two\n").unwrap(), both[..1]);
    install(root.path(), &config, "three\n").unwrap();
    assert_eq!(fs::read_to_string(slurm.join("slurm.conf")).unwrap(), "three\n");
    assert_eq!(fs::read_to_string(slurm.join("slurm.conf.previous")).unwrap(), "two\n");
    assert_eq!(names(&slurm), ["gres.conf", "slurm.conf", "slurm.conf.previous"]);
}

#[test]
fn does_not_write_through_symlink_left_by_killed_start() {
    let (root, config) = fixture();
    let slurm = root.path().join("etc/slurm");
    fs::create_dir_all(&slurm).unwrap();
    let victim = root.path().join("victim");
    fs::write(&victim, "safe").unwrap();
    symlink(&victim, slurm.join("slurm.conf.new")).unwrap();
    install(root.path(), &config, "one\n").unwrap();
    assert_eq!(fs::read_to_string(victim).unwrap(), "safe");
    assert_eq!(fs::read_to_string(slurm.join("slurm.conf")).unwrap(), "one\n");
}

#[test]
fn error_names_blocking_path_and_fix() {
    let (root, config) = fixture();
    fs::create_dir_all(root.path().join("etc")).unwrap();
    fs::write(root.path().join("etc/slurm"), "a file").unwrap();
    let error = install(root.path(), &config, "one\n").unwrap_err().to_string();
    assert!(error.contains("/etc/slurm") && error.contains("not a directory: move it away"), "{error}");

    fs::remove_file(root.path().join("etc/slurm")).unwrap();
    fs::create_dir_all(root.path().join("etc/slurm/slurm.conf")).unwrap();
    let error = install(root.path(), &config, "one\n").unwrap_err().to_string();
    assert!(error.contains("/etc/slurm/slurm.conf") && error.contains("directory of that name"), "{error}");
}

#[test]
fn error_names_user_file_that_is_not_utf8() {
    let (root, config) = fixture();
    fs::create_dir(root.path().join("config")).unwrap();
    fs::write(root.path().join("config/gres.conf"), [0xff, 0xfe]).unwrap();
    let error = install::find_user_files(&config.paths, root.path()).unwrap_err().to_string();
    assert!(error.contains("/config/gres.conf is not UTF-8"), "{error}");
}

#[test]
fn generates_random_key_readable_only_by_munge() {
    let (root, config) = fixture();
    let key = root.path().join("etc/munge/munge.key");
    assert_eq!(install::install_munge_key(&config, root.path()).unwrap().source, KeySource::Generated);
    let first = fs::read(&key).unwrap();
    assert_eq!(first.len(), 128);
    assert_eq!(mode(&key), 0o400);
    assert_eq!(mode(key.parent().unwrap()), 0o700);
    assert_eq!(names(key.parent().unwrap()), ["munge.key"]);
    if geteuid().is_root() {
        assert_ne!(fs::metadata(&key).unwrap().uid(), 0, "munged rejects a key owned by root");
        assert_ne!(fs::metadata(key.parent().unwrap()).unwrap().uid(), 0);
    }

    // A second start keeps the key; another container generates a different one.
    assert_eq!(install::install_munge_key(&config, root.path()).unwrap().source, KeySource::Existing);
    assert_eq!(fs::read(&key).unwrap(), first);
    let (other, config) = fixture();
    install::install_munge_key(&config, other.path()).unwrap();
    assert_ne!(fs::read(other.path().join("etc/munge/munge.key")).unwrap(), first);
}

#[test]
fn mounted_secret_replaces_existing_key() {
    let (root, config) = fixture();
    install::install_munge_key(&config, root.path()).unwrap();
    let secret = root.path().join("run/secrets/munge.key");
    fs::create_dir_all(secret.parent().unwrap()).unwrap();
    fs::write(&secret, [7; 64]).unwrap();
    let key = root.path().join("etc/munge/munge.key");
    for _ in 0..2 {
        assert_eq!(install::install_munge_key(&config, root.path()).unwrap().source, KeySource::Secret);
        assert_eq!(fs::read(&key).unwrap(), [7; 64]);
        assert_eq!(mode(&key), 0o400);
        assert_eq!(names(key.parent().unwrap()), ["munge.key"], "a copy of the key was kept");
    }
}

#[test]
fn rejects_two_different_keys_and_accepts_equal_ones() {
    let (root, config) = fixture();
    let write = |place: &str, key: &[u8]| {
        let file = root.path().join(place);
        fs::create_dir_all(file.parent().unwrap()).unwrap();
        fs::write(&file, key).unwrap();
        file
    };
    let given = write("run/slurminit.given/munge.key", &[7; 64]);
    let secret = write("run/secrets/munge.key", &[8; 64]);
    let error = install::install_munge_key(&config, root.path()).unwrap_err().to_string();
    assert!(error.contains("SLURMINIT_MUNGE_KEY and /run/secrets/munge.key hold two different keys"), "{error}");
    assert!(given.exists() && !root.path().join("etc/munge/munge.key").exists());
    fs::write(&secret, [7; 64]).unwrap();
    assert_eq!(install::install_munge_key(&config, root.path()).unwrap().source, KeySource::Variable);
    assert!(!given.exists(), "the key from the variable was not deleted");
    assert_eq!(fs::read(root.path().join("etc/munge/munge.key")).unwrap(), [7; 64]);
}

#[test]
fn restricts_readable_key_and_reports_it() {
    let (root, config) = fixture();
    let key = root.path().join("etc/munge/munge.key");
    fs::create_dir_all(key.parent().unwrap()).unwrap();
    fs::write(&key, [7; 64]).unwrap();
    fs::set_permissions(&key, fs::Permissions::from_mode(0o644)).unwrap();
    let findings = install::install_munge_key(&config, root.path()).unwrap().findings;
    assert!(findings[0].what.contains("0644"), "{findings:?}");
    assert_eq!(mode(&key), 0o400);
    // munged accepts this mode, so it is corrected without a finding.
    fs::set_permissions(&key, fs::Permissions::from_mode(0o600)).unwrap();
    assert_eq!(install::install_munge_key(&config, root.path()).unwrap().findings, []);
    assert_eq!(mode(&key), 0o400);
}

#[test]
fn rejects_invalid_munge_key_without_replacing_it() {
    let (root, config) = fixture();
    let key = root.path().join("etc/munge/munge.key");
    fs::create_dir_all(key.parent().unwrap()).unwrap();
    fs::write(&key, "short").unwrap();
    let error = install::install_munge_key(&config, root.path()).unwrap_err().to_string();
    assert!(error.contains("/etc/munge/munge.key has 5 bytes") && error.contains("remove it"), "{error}");
    assert_eq!(fs::read_to_string(&key).unwrap(), "short");

    // A crash can leave an empty key file. Its key was never used.
    fs::write(&key, "").unwrap();
    let made = install::install_munge_key(&config, root.path()).unwrap();
    assert_eq!(made.source, KeySource::Generated);
    made.sync().unwrap();

    fs::remove_file(&key).unwrap();
    fs::create_dir(&key).unwrap();
    let error = install::install_munge_key(&config, root.path()).unwrap_err().to_string();
    assert!(error.contains("not a regular file"), "{error}");
}

#[test]
fn daemon_users_own_directories_and_saved_state() {
    let (root, config) = fixture();
    let state = root.path().join("var/lib/slurm/slurmctld");
    fs::create_dir_all(&state).unwrap();
    fs::write(state.join("job_state"), "jobs").unwrap();
    install::make_directories(&config, root.path()).unwrap();
    install::make_directories(&config, root.path()).unwrap();
    assert_eq!(mode(&state), 0o700);
    assert_eq!(mode(&root.path().join("run/munge")), 0o755);
    assert!(root.path().join("var/lib/slurm/slurmd").is_dir());
    assert_eq!(fs::read_to_string(state.join("job_state")).unwrap(), "jobs");
    if geteuid().is_root() {
        for path in [state.join("job_state"), state, root.path().join("run/slurminit/slurm")] {
            assert_ne!(fs::metadata(&path).unwrap().uid(), 0, "{}", path.display());
        }
    }
}

#[test]
fn rotates_full_job_completion_log() {
    let (root, config) = fixture();
    let jobcomp = root.path().join("var/lib/slurm/jobcomp");
    let record = jobcomp.join("jobs");
    assert_eq!(config.paths.ended_jobs(), Path::new("/var/lib/slurm/jobcomp/jobs"));
    install::make_directories(&config, root.path()).unwrap();
    assert_eq!(names(&jobcomp), ["jobs"], "not created before root's `sacct -c` does");
    assert_eq!((mode(&jobcomp), mode(&record)), (0o750, 0o640));
    if geteuid().is_root() {
        assert_ne!(fs::metadata(&record).unwrap().uid(), 0, "slurmctld could not write to it");
    }

    for text in ["JobId=1 \n", "JobId=2 \n"] {
        fs::write(&record, text).unwrap();
        fs::OpenOptions::new().write(true).open(&record).unwrap().set_len(16 << 20).unwrap();
        install::make_directories(&config, root.path()).unwrap();
        assert_eq!(fs::read_to_string(&record).unwrap(), "");
        assert!(fs::read_to_string(jobcomp.join("jobs.previous")).unwrap().starts_with(text));
    }

    // The slurm user could create a link here; it must not be followed.
    let victim = root.path().join("victim");
    fs::File::create(&victim).unwrap().set_len(16 << 20).unwrap();
    fs::remove_file(&record).unwrap();
    symlink(&victim, &record).unwrap();
    install::make_directories(&config, root.path()).unwrap();
    assert_eq!(fs::read_link(&record).unwrap(), victim);
    assert_eq!(names(&jobcomp), ["jobs", "jobs.previous"]);
}

#[test]
fn error_names_missing_user() {
    let (root, _) = fixture();
    let config = Config::parse("[daemon.munged]\nuser = \"no-such-user\"\n", Path::new("test.toml")).unwrap();
    let outcome = install::install_munge_key(&config, root.path());
    match outcome {
        Err(error) => {
            let error = error.to_string();
            assert!(error.contains("user not found: `no-such-user`") && error.contains("[daemon.munged]"), "{error}");
        }
        // Without root, ownership cannot change, so no user is looked up.
        Ok(installed) => assert!(!geteuid().is_root() && installed.source == KeySource::Generated),
    }
}

#[test]
fn gives_foreign_slurm_directories_to_root() {
    assert!(geteuid().is_root(), "{NEEDS_ROOT}");
    let (root, config) = fixture();
    let (slurm, state) = (root.path().join("etc/slurm"), root.path().join("var/lib/slurm"));
    fs::create_dir_all(&slurm).unwrap();
    fs::create_dir_all(state.join("slurmd")).unwrap();
    fs::write(slurm.join("plugstack.conf"), "").unwrap();
    fs::write(slurm.join("slurm.conf"), "one\n").unwrap();
    fs::write(state.join("slurmd/cred_state"), "").unwrap();
    fs::write(state.join("output"), "").unwrap();
    for path in
        [slurm.clone(), slurm.join("plugstack.conf"), slurm.join("slurm.conf"), state.clone(), state.join("output")]
    {
        std::os::unix::fs::chown(path, Some(1234), Some(1234)).unwrap();
    }
    let findings = install::make_directories(&config, root.path()).unwrap();
    install(root.path(), &config, "one\n").unwrap();
    let uid = |path: &Path| fs::metadata(path).unwrap().uid();
    for path in
        [slurm.clone(), slurm.join("plugstack.conf"), slurm.join("slurm.conf"), state.clone(), state.join("slurmd")]
    {
        assert_eq!(uid(&path), 0, "{}", path.display());
    }
    assert_eq!(uid(&state.join("output")), 1234, "a file that root does not use keeps its owner");
    assert!(!state.join("slurmd/cred_state").exists());
    let reported: Vec<&str> = findings.iter().map(|finding| finding.what.as_str()).collect();
    for text in
        ["/var/lib/slurm belonged to uid 1234", "/var/lib/slurm/slurmd was emptied", "/etc/slurm belonged to uid 1234"]
    {
        assert!(reported.iter().any(|what| what.contains(text)), "{text}: {reported:?}");
    }
    assert_eq!(install::make_directories(&config, root.path()).unwrap(), []);
}

/// An identical file of another user is replaced, because its owner could change it at any time.
#[test]
fn replaces_file_of_another_user() {
    assert!(geteuid().is_root(), "{NEEDS_ROOT}");
    let (root, config) = fixture();
    install(root.path(), &config, "one\n").unwrap();
    let conf = root.path().join("etc/slurm/slurm.conf");
    std::os::unix::fs::chown(&conf, Some(1234), None).unwrap();
    assert_eq!(install(root.path(), &config, "one\n").unwrap(), [PathBuf::from("/etc/slurm/slurm.conf")]);
    assert_eq!(fs::metadata(&conf).unwrap().uid(), 0);
    fs::remove_file(&conf).unwrap();
    nix::unistd::mkfifo(&conf, nix::sys::stat::Mode::S_IRWXU).unwrap();
    install(root.path(), &config, "one\n").unwrap();
    assert_eq!(fs::read_to_string(&conf).unwrap(), "one\n");
}
