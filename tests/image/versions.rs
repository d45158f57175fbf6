//! What a release of Slurm does, held against src/model/inventory/slurm.rs: on the releases of the distributions, and by
//! `docker/test --only versions` on those that are built from source.

use model::inventory::slurm::Behavior;
use model::inventory::{SlurmInstall, SlurmVersion};

use crate::docker::{Container, DEMO, Image, debians};

/// `slurm 25.11.7`, `slurm-wlm 24.11.5`.
fn slurm(container: &Container) -> SlurmInstall {
    let said = container.sh("slurmd -V");
    let mut numbers = said.split([' ', '.']).filter_map(|word| word.parse::<u16>().ok());
    let version = numbers.next().zip(numbers.next()).map(|(year, month)| SlurmVersion { year, month });
    assert!(version.is_some(), "{said}");
    // What the build was asked for, where it was.
    if let Ok(wanted) = std::env::var("SLURMINIT_TEST_SLURM") {
        assert_eq!(said, format!("slurm {wanted}"));
    }
    SlurmInstall { version, ..SlurmInstall::default() }
}

/// The first line of the answer on a port of this container.
fn http(container: &Container, port: u16, path: &str) -> String {
    container.sh(&format!(
        "timeout 10 bash -c 'exec 3<>/dev/tcp/127.0.0.1/{port}; printf \"GET {path} HTTP/1.1\\r\\nHost: localhost\\r\\nConnection: close\\r\\n\\r\\n\" >&3; \
         head -n 1 <&3' 2>&1 | tr -d '\\r\\0' || true"
    ))
}

#[test]
#[ignore = "needs Docker and the images: run docker/test"]
fn release_behaves_as_in_table_on_each_debian() {
    for image in debians(DEMO) {
        let container = Image::new(image).serve();
        let slurm = slurm(&container);
        for (port, path) in [(6817, "/livez"), (6817, "/readyz"), (6817, "/metrics/jobs"), (6818, "/livez")] {
            let said = http(&container, port, path);
            assert_eq!(said.starts_with("HTTP/1."), slurm.does(Behavior::AnswersHttp), "{image}: {port}{path}: {said}");
            assert!(
                !said.starts_with("HTTP/") || said.contains(" 200 ") || said.contains(" 204 "),
                "{image}: {path}: {said}"
            );
        }
        // slurminit holds what was asked of the daemons against nobody.
        assert_eq!(
            container.sh("slurminit status --json | grep -c '\"restarts\": 0'"),
            "4",
            "{image}: {}",
            container.log()
        );
        let with_systemd =
            container.sh("cat /proc/[0-9]*/cmdline | tr '\\0' ' ' | grep -c 'slurmctl[d] --systemd' || true");
        assert_eq!(with_systemd == "1", slurm.does(Behavior::HandsOver), "{image}");
    }
}

/// Slurm 25.11 and newer wait for that for half of MessageTimeout, and say so.
#[test]
#[ignore = "needs Docker and the images: run docker/test"]
fn nobody_waits_for_the_reader_of_a_handover() {
    let container = Image::new(DEMO).json_log().serve();
    container.sh("for i in 1 2 3 4 5; do scontrol reconfigure; done");
    container.until("srun --gres=gpu:1 true");
    container.until_logged("unit-handed-over", Some("slurmctld"));
    let log = container.log();
    assert!(!log.contains("PID on systemd might not be updated"), "{log}");
}

/// Those that an operator's configuration can name, and that a build without their library leaves out.
#[test]
#[ignore = "needs Docker and the images: run docker/test"]
fn plugins_that_matter_load() {
    let container = Image::new(DEMO).serve();
    let kinds = container.sh("srun --mpi=list 2>&1");
    assert!(kinds.contains("pmix") && kinds.contains("pmi2"), "{kinds}");
    assert_eq!(container.sh("srun --mpi=pmix printenv PMIX_RANK"), "0");
    container.sh("scontrol show config | grep -q 'AuthType .*auth/munge'");
    let found = container.sh(
        "find /usr/lib -path '*slurm*' -name 'cgroup_v2.so' -o -path '*slurm*' -name 'gpu_nvml.so' -o -path '*slurm*' -name 'job_submit_lua.so' | wc -l",
    );
    assert_eq!(found, "3");
}

/// What builds Slurm stays behind.
#[test]
#[ignore = "needs Docker and the images: run docker/test"]
fn image_contains_no_compiler() {
    let container = Image::new(DEMO).serve();
    let found = container.sh("for tool in gcc cc make ld curl dpkg-shlibdeps build-slurm; do command -v $tool || true; done; ls -d /usr/src/slurm* /slurm 2>/dev/null || true");
    assert_eq!(found, "");
    let lacking = container.sh("ldd /usr/sbin/slurm* /usr/bin/s[a-z]* $(find /usr/lib -path '*slurm*' -name '*.so') 2>/dev/null | grep 'not found' || true");
    assert_eq!(lacking, "");
}
