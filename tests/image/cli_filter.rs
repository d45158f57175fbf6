//! What srun and sbatch do before they submit: steps that start with PMIx, and warnings.

use crate::docker::{Image, PLAIN, directory};

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

/// Slurm accepts these options without a message; the job fails without output, and no mail is sent.
#[test]
#[ignore = "needs Docker and the images: run docker/test"]
fn sbatch_warns_of_missing_output_directory_and_of_mail() {
    let container = Image::new(PLAIN).serve();
    container.sh("mkdir -p /tmp/d/here");
    for (options, warning) in [
        ("-o missing/out", "/tmp/d/missing/ of --output"),
        ("-o /missing/%x/out -e here/err", "/missing/ of --output"),
        ("-o out -e missing/%j", "/tmp/d/missing/ of --error"),
        ("-o here/%j/out", "here/%j of --output"),
        ("-D /tmp -o here/out", "/tmp/here/ of --output"),
        ("--mail-type=END,FAIL --mail-user=x@example.org", "--mail-type"),
    ] {
        let outcome = container.exec(&["sh", "-c", &format!("cd /tmp/d && sbatch {options} --wrap true")]);
        let warnings: Vec<&str> = outcome.stderr.lines().filter(|line| line.starts_with("sbatch: warning: ")).collect();
        assert!(matches!(warnings[..], [line] if line.contains(warning)), "{options}: {outcome:?}");
        assert!(outcome.stdout.starts_with("Submitted batch job"), "{options}: {outcome:?}");
    }
    for options in
        ["", "-o here/%j", "-o out -e ./err", "-o /tmp/d/here/%A_%a -a 0", "-o here/%a.%N", "-D /tmp -o d/here/out"]
    {
        let outcome = container.exec(&["sh", "-c", &format!("cd /tmp/d && sbatch {options} --wrap true")]);
        assert_eq!(outcome.stderr, "", "{options}");
    }
    let step = container.exec(&["srun", "--mail-type=END", "true"]);
    assert!(step.code == 0 && step.stderr.contains("srun: warning: --mail-type"), "{step:?}");
    // A directive in the script counts, and a MailProg of the operator's sends mail.
    let config = directory(&[("slurminit.toml", "[slurm.conf]\nMailProg = '/usr/local/bin/mail'\n")]);
    let container = Image::new(PLAIN).mount(config.path(), "/config").serve();
    let script =
        "printf '#!/bin/sh\\n#SBATCH --mail-type=END --output=missing/x\\n' >/tmp/job; cd /tmp; sbatch job 2>&1";
    let output = container.sh(script);
    assert!(output.contains("/tmp/missing/") && !output.contains("--mail-type"), "{output}");
}
