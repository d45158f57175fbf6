//! Paths that the tests share: the repository, the programs, the fake NVML library.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::LazyLock;

/// Root of the repository.
pub fn root() -> &'static Path {
    static ROOT: LazyLock<PathBuf> =
        LazyLock::new(|| Path::new(env!("CARGO_MANIFEST_DIR")).parent().map(Path::to_owned).unwrap_or_default());
    &ROOT
}

/// Path of `slurminit`; `slurminit-init` is beside it. Cargo builds programs only for tests of their own package, so
/// this function runs `cargo build`. Without cargo (tests that were built elsewhere) it uses the existing programs.
///
/// # Panics
/// If the build fails.
#[expect(clippy::panic, reason = "a test fails by panicking")]
#[expect(clippy::disallowed_methods, reason = "a test is not PID 1, so it may wait for the commands it runs")]
pub fn slurminit() -> &'static Path {
    static PROGRAM: LazyLock<PathBuf> = LazyLock::new(|| {
        let directory = directory();
        // Under cargo-nextest, a setup script has already built the programs (.config/nextest.toml).
        let is_built = std::env::var_os("NEXTEST").is_some();
        if let Some(cargo) = std::env::var_os("CARGO").filter(|_| !is_built) {
            let mut build = Command::new(cargo);
            // The whole workspace: otherwise dependencies would get other features and be recompiled.
            build.args(["build", "--quiet", "--locked", "--workspace", "--bins"]);
            if directory.ends_with("release") {
                build.arg("--release");
            }
            match build.current_dir(root()).status() {
                Ok(status) if status.success() => {}
                failed => panic!("cannot build slurminit: {failed:?}"),
            }
        }
        directory.join("slurminit")
    });
    &PROGRAM
}

/// Path of the fake NVML library.
pub fn fake_nvml() -> PathBuf {
    directory().join("deps/libfake_nvml.so")
}

/// Writes a table to `target/evidence`, in a file named after the running test. `docker/test --all` keeps these files.
///
/// # Panics
/// If the file cannot be written.
#[expect(clippy::expect_used, reason = "a test fails by panicking")]
pub fn write_evidence(table: &str) {
    let folder = root().join("target/evidence");
    std::fs::create_dir_all(&folder).expect("a directory below target");
    let name = std::thread::current().name().unwrap_or("table").replace("::", "-");
    std::fs::write(folder.join(format!("{name}.md")), table).expect("a file below target");
}

/// Cargo's directory for programs: the parent of the directory with the test binary.
fn directory() -> PathBuf {
    let test = std::env::current_exe().unwrap_or_default();
    test.ancestors().nth(2).map(Path::to_owned).unwrap_or_default()
}
