//! The installed Slurm: its version and its plugins.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use nix::sys::statvfs::{FsFlags, statvfs};

use super::regular;
use model::inventory::{SlurmInstall, SlurmVersion};
use sys::tool::Running;

/// The image stores the output of `slurmd -V` here. Reading a file is instant, while slurmd first loads a dozen
/// libraries.
const VERSION_FILE: &str = "usr/share/slurminit/slurm-version";

/// dpkg's list of the installed packages.
const PACKAGES_FILE: &str = "var/lib/dpkg/status";

/// The patches of docker/slurm-patches in a Slurm that was built from source, one per line.
const PATCHES_FILE: &str = "usr/share/slurminit/slurm-patches";
const LOGIN_PATCH: &str = "25.05-login-environment-without-namespaces.patch";

/// The kinds of plugins that lines of configuration files depend on.
const PLUGIN_PREFIXES: [&str; 14] = [
    "accounting_storage_mysql",
    "acct_gather_",
    "auth_",
    "cgroup_",
    "cli_filter_",
    "gpu_",
    "job_container_",
    "jobacct_gather_",
    "jobcomp_",
    "mpi_",
    "proctrack_",
    "select_",
    "switch_",
    "task_",
];

/// `mpi_pmix` loads this library when it starts (24.11, `mpi_pmix.c`). Without the library, every srun with this plugin would fail.
const PMIX_LIBRARY: &str = "libpmix.so.2";
/// `cli_filter_lua` loads one of these libraries, and [`LUA_PLUGIN`] (24.11, `cli_filter_lua.c`, `slurm_lua.c`). Without them, srun,
/// sbatch and salloc would fail.
const LUA_LIBRARIES: [&str; 4] = ["liblua5.1.so.0", "liblua5.2.so.0", "liblua5.3.so.0", "liblua5.4.so.0"];
const LUA_PLUGIN: &str = "serializer_json";
/// PMIx creates a directory for each step here. If it cannot, every srun fails.
const PMIX_DIRECTORY: &str = "tmp";

/// The maximum length of the output of `slurmd -V`, in bytes.
const MAX_OUTPUT_LENGTH: usize = 4096;

/// Detects the version, the installed package, the plugins and `LOGIN_PATCH`. If the image did not record the version, runs `slurmd -V` for at
/// most `deadline`, but only if `root` is `/`.
pub fn detect(root: &Path, deadline: Duration) -> SlurmInstall {
    let recorded = read_text(&root.join(VERSION_FILE)).filter(|text| parse_version(text).is_some());
    let printed = recorded.or_else(|| (root == Path::new("/")).then(|| query_version(deadline)).flatten());
    let printed = printed.unwrap_or_default();
    let (version, patch) = parse_version(&printed).unzip();
    let package = read_text(&root.join(PACKAGES_FILE)).and_then(|packages| package_version(&packages));
    // Debian adds fixes without a change of the patch number, so the number is useful only with the package's version.
    let patch = patch.flatten().filter(|_| package.is_some() || !printed.contains("slurm-wlm"));
    let patches = read_text(&root.join(PATCHES_FILE)).unwrap_or_default();
    let forks_for_login = patches.lines().any(|patch| patch == LOGIN_PATCH);
    SlurmInstall { version, patch, package, plugins: plugins(root), forks_for_login }
}

fn read_text(path: &Path) -> Option<String> {
    regular::text(path).ok()
}

/// Parses `slurm 24.11.5`, or `slurm-wlm 24.11.5` as in Debian. The patch number is `None` for a pre-release (`26.11.0-0rc1`).
fn parse_version(text: &str) -> Option<(SlurmVersion, Option<u16>)> {
    let words = text.split_whitespace();
    words.skip_while(|word| !word.starts_with("slurm")).skip(1).find_map(|word| {
        let mut numbers = word.split('.').map(|number| number.parse::<u16>().ok());
        let (year, month) = (numbers.next()??, numbers.next()??);
        let version = SlurmVersion { year, month };
        (year < 100 && (1..=12).contains(&month)).then(|| (version, numbers.next().flatten()))
    })
}

/// The version of the package `slurmd` in dpkg's list, which contains a paragraph for each package.
fn package_version(packages: &str) -> Option<String> {
    let slurmd = packages.split("\n\n").find(|paragraph| paragraph.trim_start().starts_with("Package: slurmd\n"))?;
    let field = |name| slurmd.lines().find_map(|line| line.strip_prefix(name));
    let is_installed = field("Status: ")?.ends_with(" installed");
    field("Version: ").filter(|_| is_installed).map(str::to_owned)
}

/// The output of `slurmd -V`.
fn query_version(deadline: Duration) -> Option<String> {
    let child = Running::start(Command::new("slurmd").arg("-V"), b"").ok()?;
    Some(String::from_utf8_lossy(&child.finish(deadline, MAX_OUTPUT_LENGTH).ok()?.stdout).into_owned())
}

/// The loadable plugins of the relevant kinds, sorted, without `.so`.
fn plugins(root: &Path) -> Vec<String> {
    let libraries = library_directories(root);
    let has_library = |name: &str| libraries.iter().any(|directory| directory.join(name).exists());
    let has_pmix = has_library(PMIX_LIBRARY) && is_writable(&root.join(PMIX_DIRECTORY));
    let files = plugin_directories(root).into_iter().flat_map(|directory| names_in(&directory));
    let all: Vec<String> = files.filter_map(|file| file.strip_suffix(".so").map(str::to_owned)).collect();
    let has_lua = LUA_LIBRARIES.into_iter().any(has_library) && all.iter().any(|name| name == LUA_PLUGIN);
    let mut plugins: Vec<String> = all
        .into_iter()
        .filter(|name| PLUGIN_PREFIXES.iter().any(|kind| name.starts_with(kind)))
        .filter(|name| has_pmix || !name.starts_with("mpi_pmix"))
        .filter(|name| has_lua || name != "cli_filter_lua")
        .collect();
    plugins.sort();
    plugins.dedup();
    plugins
}

/// Debian's multiarch directories, and those of a Slurm built from source or installed from an RPM.
fn plugin_directories(root: &Path) -> Vec<PathBuf> {
    let bases = library_directories(root).into_iter();
    bases.flat_map(|base| ["slurm-wlm", "slurm"].map(|name| base.join(name))).collect()
}

/// Whether the directory exists and is not on a read-only mount.
fn is_writable(directory: &Path) -> bool {
    statvfs(directory).is_ok_and(|mount| !mount.flags().contains(FsFlags::ST_RDONLY))
}

fn library_directories(root: &Path) -> Vec<PathBuf> {
    let usr_lib = root.join("usr/lib");
    let multiarch = names_in(&usr_lib).map(|name| usr_lib.join(name)).collect::<Vec<_>>();
    let others = ["usr/lib", "usr/lib64", "usr/local/lib", "usr/local/lib64"].map(|path| root.join(path));
    multiarch.into_iter().chain(others).collect()
}

fn names_in(directory: &Path) -> impl Iterator<Item = String> + use<> {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().into_string().ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    const TIMEOUT: Duration = Duration::from_secs(60);

    #[test]
    fn parses_debian_and_upstream_versions() {
        let version = |year, month, patch| Some((SlurmVersion { year, month }, patch));
        assert_eq!(parse_version("slurm 25.11.8\n"), version(25, 11, Some(8)));
        assert_eq!(parse_version("slurm-wlm 24.11.5\n"), version(24, 11, Some(5)));
        assert_eq!(parse_version("slurm 25.05.0-0rc1\n"), version(25, 5, None));
        for bad in ["", "slurm", "24.11.5", "slurm x.y", "slurm 2411", "slurm 24.13.1", "munge-0.5.16 (2024-03-15)"] {
            assert_eq!(parse_version(bad), None, "{bad}");
        }
    }

    #[test]
    fn finds_version_of_installed_package() {
        let of = |status: &str| {
            format!(
                "Package: slurmctld\nStatus: install ok installed\nVersion: 1\n\nPackage: slurmd\nStatus: {status}\n\
                 Depends: a\nVersion: 24.11.5-4+deb13u1\nDescription: daemon\n Version: 2\n\nPackage: z\n"
            )
        };
        assert_eq!(package_version(&of("install ok installed")).as_deref(), Some("24.11.5-4+deb13u1"));
        assert_eq!(package_version(&of("deinstall ok config-files")), None);
        assert_eq!(package_version("Package: slurmctld\n"), None);
    }

    #[test]
    fn finds_version_note_and_loadable_plugins() {
        let root = tempfile::tempdir().unwrap();
        for path in [
            "usr/lib/x86_64-linux-gnu/slurm-wlm/gpu_nvml.so",
            "usr/lib/x86_64-linux-gnu/slurm-wlm/cgroup_v2.so",
            "usr/lib/x86_64-linux-gnu/slurm-wlm/mpi_pmix.so",
            "usr/lib/x86_64-linux-gnu/slurm-wlm/cli_filter_lua.so",
            "usr/lib/x86_64-linux-gnu/slurm-wlm/serializer_json.so",
            "usr/lib/x86_64-linux-gnu/slurm-wlm/gpu_nvml.a",
            "usr/lib64/slurm/task_cgroup.so",
        ] {
            fs::create_dir_all(root.path().join(path).parent().unwrap()).unwrap();
            fs::write(root.path().join(path), "").unwrap();
        }
        fs::create_dir_all(root.path().join("usr/share/slurminit")).unwrap();
        fs::write(root.path().join(VERSION_FILE), "slurm 24.11.5\n").unwrap();
        let found = detect(root.path(), TIMEOUT);
        assert_eq!(found.version, Some(SlurmVersion { year: 24, month: 11 }));
        assert_eq!(
            found.plugins,
            ["cgroup_v2", "gpu_nvml", "task_cgroup"],
            "the libraries of mpi_pmix and cli_filter_lua are missing"
        );
        fs::write(root.path().join("usr/lib/x86_64-linux-gnu/libpmix.so.2"), "").unwrap();
        assert!(!detect(root.path(), TIMEOUT).has_plugin("mpi_pmix"), "mpi_pmix requires /tmp");
        fs::create_dir(root.path().join("tmp")).unwrap();
        assert!(detect(root.path(), TIMEOUT).has_plugin("mpi_pmix"));
        assert!(!detect(root.path(), TIMEOUT).has_plugin("cli_filter_lua"));
        fs::write(root.path().join("usr/lib/x86_64-linux-gnu/liblua5.1.so.0"), "").unwrap();
        assert!(detect(root.path(), TIMEOUT).has_plugin("cli_filter_lua"));
    }

    proptest::proptest! {
        #[test]
        fn arbitrary_version_does_not_panic(text in "(?s).{0,40}", number in "[0-9.]{0,12}") {
            parse_version(&text);
            parse_version(&format!("slurm {number}"));
        }
    }
}
