//! Which steps srun starts with PMIx.

use crate::docker::{Image, PLAIN};

/// srun options and whether the tasks get a PMIx rank.
const STEPS: [(&str, bool); 11] = [
    ("", false),
    ("-n1", false),
    ("-N1 -w node1", false),
    ("-n2 --overcommit", true),
    ("-N2", true),
    ("-w node1,node2", true),
    ("-w 'node[1-2]'", true),
    ("--ntasks-per-node=2 --overcommit", true),
    ("--mpi=pmix", true),
    ("--mpi=pmi2", false),
    ("-n1 printenv PMIX_RANK : -n1", true),
];

#[test]
#[ignore = "needs Docker and the images: run docker/test"]
fn one_task_step_starts_without_pmix() {
    let container = Image::new(PLAIN).with(["--hostname", "node"]).command(["--nodes", "2"]).serve();
    let has_rank = |line: &str| container.exec(&["sh", "-c", line]).stdout.lines().any(|rank| rank == "0");
    for (options, expected) in STEPS {
        assert_eq!(has_rank(&format!("srun --mem=16 {options} printenv PMIX_RANK")), expected, "srun {options}");
    }
    // A one-task step must not pass its MPI type on to nested steps.
    let nested = "srun --mem=64 sh -c 'srun --overlap --mem=16 --overcommit -n2 printenv PMIX_RANK'";
    assert!(has_rank(nested), "{nested}");
    for (allocation, step, expected) in [
        ("-N2", "", true),
        ("-N2", "-N1 -n1", false),
        ("-n2 --overcommit", "", true),
        ("-n2 --overcommit", "-n1", false),
        ("-n1 : -n1", "--het-group=0,1", true),
    ] {
        let line = format!("salloc --mem=16 {allocation} srun {step} printenv PMIX_RANK");
        assert_eq!(has_rank(&line), expected, "{line}");
    }
    let hosts = "printf 'node1\\nnode2\\n' >/tmp/hosts; SLURM_HOSTFILE=/tmp/hosts srun -m arbitrary printenv PMIX_RANK";
    assert!(has_rank(hosts), "{hosts}");
}
