//! Compares Slurm's behavior with src/model/inventory/slurm.rs: for Debian 13's release, and with
//! `docker/test --only versions` for later ones.

use model::inventory::slurm::Behavior;
use model::inventory::{SlurmInstall, SlurmVersion};

use crate::docker::{Container, DEMO, Image, docker};

/// The installed release, parsed from output like `slurm 25.11.8` or `slurm-wlm 24.11.5`.
fn slurm(container: &Container) -> SlurmInstall {
    let output = container.sh("slurmd -V");
    let mut numbers = output.split([' ', '.']).filter_map(|word| word.parse::<u16>().ok());
    let version = numbers.next().zip(numbers.next()).map(|(year, month)| SlurmVersion { year, month });
    assert!(version.is_some(), "{output}");
    // The release requested from a build from source.
    if let Ok(requested) = std::env::var("SLURMINIT_TEST_SLURM") {
        assert_eq!(output, format!("slurm {requested}"));
    }
    SlurmInstall { version, ..SlurmInstall::default() }
}

/// The status line of the response to a GET request on a local port.
fn http(container: &Container, port: u16, path: &str) -> String {
    container.sh(&format!(
        "timeout 10 bash -c 'exec 3<>/dev/tcp/127.0.0.1/{port}; printf \"GET {path} HTTP/1.1\\r\\nHost: localhost\\r\\nConnection: close\\r\\n\\r\\n\" >&3; \
         head -n 1 <&3' 2>&1 | tr -d '\\r\\0' || true"
    ))
}

#[test]
#[ignore = "needs Docker and the images: run docker/test"]
fn release_behaves_as_in_table() {
    let container = Image::new(DEMO).serve();
    let slurm = slurm(&container);
    for (port, path) in [(6817, "/livez"), (6817, "/readyz"), (6817, "/metrics/jobs"), (6818, "/livez")] {
        let output = http(&container, port, path);
        assert_eq!(output.starts_with("HTTP/1."), slurm.does(Behavior::HttpEndpoints), "{port}{path}: {output}");
        assert!(
            !output.starts_with("HTTP/") || output.contains(" 200 ") || output.contains(" 204 "),
            "{path}: {output}"
        );
    }
    // The requests above must not cause a restart.
    assert_eq!(container.sh("slurminit status --json | grep -c '\"restarts\": 0'"), "4", "{}", container.log());
    let with_systemd =
        container.sh("cat /proc/[0-9]*/cmdline | tr '\\0' ' ' | grep -c 'slurmctl[d] --systemd' || true");
    assert_eq!(with_systemd, "1");
}

/// An image built before September 2026, with its layers of Slurm from a cache.
#[test]
#[ignore = "needs Docker and the images: run docker/test"]
fn names_slurm_with_known_security_holes() {
    let container = Image::new(DEMO).json_log().serve();
    let is_named = |line: &str| container.sh(line).contains("slurm-security");
    assert!(!is_named("slurminit detect --json") && !is_named("slurminit status --json"), "{}", container.log());
    container.sh("sed -i 's/^Version: 24.11.5-4+deb13u.*/Version: 24.11.5-4/' /var/lib/dpkg/status");
    assert!(is_named("slurminit detect --json"));
    docker(["restart", &container.name]).ok();
    container.wait_until_healthy();
    assert!(is_named("slurminit status --json"));
    let doctor = container.exec(&["slurminit", "doctor"]).stdout;
    for expected in ["24.11.5-4 has known security holes", "CVE-2026-65107", "24.11.5-4+deb13u1", "--pull --no-cache"] {
        assert!(doctor.contains(expected), "{expected}: {doctor}");
    }
    let warnings = container.warnings();
    let named = warnings.iter().filter(|record| record.to_string().contains("known security holes"));
    assert_eq!(named.count(), 1, "{warnings:#?}");
}

/// Without a reader, Slurm 25.11 and newer wait for half of MessageTimeout and log it.
#[test]
#[ignore = "needs Docker and the images: run docker/test"]
fn handover_does_not_wait_for_pid_reader() {
    let container = Image::new(DEMO).json_log().serve();
    container.sh("for i in 1 2 3 4 5; do scontrol reconfigure; done");
    container.until("srun --gres=gpu:1 true");
    container.until_logged("unit-handed-over", Some("slurmctld"));
    let log = container.log();
    assert!(!log.contains("PID on systemd might not be updated"), "{log}");
}

/// Plugins that a configuration can use and that a build without their library omits.
#[test]
#[ignore = "needs Docker and the images: run docker/test"]
fn optional_plugins_load() {
    let container = Image::new(DEMO).serve();
    let mpi_types = container.sh("srun --mpi=list 2>&1");
    assert!(mpi_types.contains("pmix") && mpi_types.contains("pmi2"), "{mpi_types}");
    assert_eq!(container.sh("srun --mpi=pmix printenv PMIX_RANK"), "0");
    container.sh("scontrol show config | grep -q 'AuthType .*auth/munge'");
    let found = container.sh(
        "find /usr/lib -path '*slurm*' -name 'cgroup_v2.so' -o -path '*slurm*' -name 'gpu_nvml.so' -o -path '*slurm*' -name 'job_submit_lua.so' | wc -l",
    );
    assert_eq!(found, "3");
}

/// The image must not contain the build tools of Slurm.
#[test]
#[ignore = "needs Docker and the images: run docker/test"]
fn image_contains_no_compiler() {
    let container = Image::new(DEMO).serve();
    let found = container.sh("for tool in gcc cc make ld curl dpkg-shlibdeps build-slurm; do command -v $tool || true; done; ls -d /usr/src/slurm* /slurm 2>/dev/null || true");
    assert_eq!(found, "");
    let missing = container.sh("ldd /usr/sbin/slurm* /usr/bin/s[a-z]* $(find /usr/lib -path '*slurm*' -name '*.so') 2>/dev/null | grep 'not found' || true");
    assert_eq!(missing, "");
}
