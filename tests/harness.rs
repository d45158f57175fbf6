//! Paths that the tests of the programs share: the repository, the programs, the fake NVML library.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::LazyLock;

/// The repository's root.
pub fn root() -> &'static Path {
    static ROOT: LazyLock<PathBuf> =
        LazyLock::new(|| Path::new(env!("CARGO_MANIFEST_DIR")).parent().map(Path::to_owned).unwrap_or_default());
    &ROOT
}

/// The program `slurminit`, with `slurminit-init` beside it. Cargo builds programs only for tests of their own package, so this
/// function runs `cargo build`. Without cargo (tests that were built elsewhere) it uses the existing programs.
///
/// # Panics
/// They cannot be built.
#[expect(clippy::panic, reason = "a test fails by panicking")]
#[expect(clippy::disallowed_methods, reason = "a test is no PID 1: it may wait for the commands that it runs")]
pub fn slurminit() -> &'static Path {
    static PROGRAM: LazyLock<PathBuf> = LazyLock::new(|| {
        let directory = directory();
        if let Some(cargo) = std::env::var_os("CARGO") {
            let mut build = Command::new(cargo);
            // Of the whole workspace: with other packages the dependencies would have other features, and be compiled again.
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

/// The library that stands in for NVIDIA's.
pub fn fake_nvml() -> PathBuf {
    directory().join("deps/libfake_nvml.so")
}

/// Writes a table to `target/evidence`, in a file named after the running test. `docker/test --all` leaves these files as its result.
///
/// # Panics
/// The file cannot be written.
#[expect(clippy::expect_used, reason = "a test fails by panicking")]
pub fn write_evidence(table: &str) {
    let folder = root().join("target/evidence");
    std::fs::create_dir_all(&folder).expect("a directory below target");
    let name = std::thread::current().name().unwrap_or("table").replace("::", "-");
    std::fs::write(folder.join(format!("{name}.md")), table).expect("a file below target");
}

/// Where cargo puts programs: the parent of the directory of the tests' own.
fn directory() -> PathBuf {
    let own = std::env::current_exe().unwrap_or_default();
    own.ancestors().nth(2).map(Path::to_owned).unwrap_or_default()
}
