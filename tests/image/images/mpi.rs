//! MPI programs in container images. They share memory with Slurm's PMIx server.

use std::process::Command;

use crate::docker::{docker, unique};
use crate::images::{alice, serve};

const SUM: &str = "import numpy; from mpi4py import MPI; all = MPI.COMM_WORLD; \
    print(all.rank, all.size, all.allreduce(numpy.full(100000, all.rank + 1.0)).sum())";

#[test]
#[ignore = "needs Docker and the images: run docker/test"]
fn mpi_ranks_in_images_form_one_job() {
    let name = unique("mpi");
    let own = "slurminit-base:trixie";
    let base = if docker(["image", "inspect", own]).code == 0 { own } else { "debian:trixie-slim" };
    let files = harness::root().join("tests/image/images/mpi").display().to_string();
    docker(["build", "--tag", &name, "--build-arg", &format!("BASE_IMAGE={base}"), &files]).ok();
    let profile = format!("seccomp={}", harness::root().join("docker/seccomp-userns.json").display());
    for options in [&[][..], &["--security-opt", &profile]] {
        let (_config, container) = serve(options);
        let import =
            format!("docker save {name} | docker exec --interactive {} slurminit image import mpi", container.name);
        let imported =
            Command::new("bash").args(["-o", "pipefail", "-c", &import]).output().expect("bash is installed");
        assert!(imported.status.success(), "{imported:?}");
        for options in ["", "--mpi=pmix"] {
            let line = format!("srun --ntasks=2 --overcommit {options} --container=mpi python3 -c '{SUM}' | sort");
            let printed = alice(&container, &line);
            assert_eq!(printed.stdout, "0 2 300000.0\n1 2 300000.0\n", "{options}: {}", printed.stderr);
        }
    }
    docker(["image", "rm", "--force", &name]).ok();
}
