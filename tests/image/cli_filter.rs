//! Actions of srun and sbatch before they submit: steps that start with PMIx, and warnings.

use crate::docker::{Image, PLAIN, directory, docker};

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

/// A mail relay that accepts one message and writes the dialogue to a file.
const RELAY: &str = r#"$s = IO::Socket::INET->new(LocalAddr => "127.0.0.1:2525", Listen => 1); $c = $s->accept; open F, ">", "/tmp/mail"; F->autoflush;
    $c->print("220 x\r\n"); while (<$c>) { print F $_; if (/^DATA/) { $d = 1; $c->print("354 x\r\n") }
    elsif (!$d || /^\.\r/) { $d = 0; $c->print("250 x\r\n") } }"#;

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

/// Ray finds the address file of an ended job in /tmp.
#[test]
#[ignore = "needs Docker and the images: run docker/test"]
fn sbatch_warns_of_ray_in_shared_tmp() {
    let container = Image::new(PLAIN).serve();
    for (script, is_warned) in [
        ("ray start --head", true),
        ("python -c \"import ray\"", true),
        ("python -c \"ray.init()\"", true),
        ("export RAY_TMPDIR=/tmp/x; ray start --head", false),
        ("xray start; gray.initial; import rayon; hostname", false),
    ] {
        let line =
            format!("cd /tmp && printf '#!/bin/sh\\n{script}\\n' >job && sbatch -o /dev/null job 2>&1 >/dev/null");
        let said = container.sh(&line);
        assert_eq!(said.starts_with("sbatch: warning: jobs share /tmp"), is_warned, "{script}: {said}");
        assert_eq!(said.lines().count(), usize::from(is_warned), "{script}: {said}");
    }
    let wrapped = container.exec(&["sbatch", "-o", "/dev/null", "--wrap", "ray start --head"]);
    assert!(wrapped.code == 0 && wrapped.stderr.contains("RAY_TMPDIR"), "{wrapped:?}");
}

/// Slurm accepts these options without a message; the job fails without output, and no mail is sent.
#[test]
#[ignore = "needs Docker and the images: run docker/test"]
fn sbatch_warns_of_output_without_permission_and_of_mail() {
    let container = Image::new(PLAIN).serve();
    container.sh("useradd --uid 1500 --create-home bob; mkdir -p /tmp/d/here /srv/shut; chmod 777 /tmp/d/here");
    let sbatch = |options: &str| {
        let line = format!("cd /tmp/d/here && sbatch {options} --wrap true");
        container.exec(&["setpriv", "--reuid=1500", "--regid=1500", "--clear-groups", "sh", "-c", &line])
    };
    for (options, warning) in [
        ("-o /srv/shut/out", "--output=/srv/shut/out cannot be written: no permission in /srv/shut;"),
        ("-o /srv/shut/%x/out -e err", "in /srv/shut;"),
        ("-o out -e ../new/%j", "--error=../new/%j cannot be written: no permission in /tmp/d/here/..;"),
        ("-o \"/srv/it's/out\"", "in /srv;"),
        ("-D /tmp/d", "--output=slurm-%j.out cannot be written: no permission in /tmp/d;"),
        ("-o /etc/passwd", "in /etc/passwd;"),
        ("--mail-type=END,FAIL --mail-user=x@example.org", "--mail-type"),
    ] {
        let outcome = sbatch(options);
        let warnings: Vec<&str> = outcome.stderr.lines().filter(|line| line.starts_with("sbatch: warning: ")).collect();
        assert!(matches!(warnings[..], [line] if line.contains(warning)), "{options}: {outcome:?}");
        assert!(outcome.stdout.starts_with("Submitted batch job"), "{options}: {outcome:?}");
    }
    // slurmstepd creates missing directories. A FIFO is not opened.
    container.sh("mkfifo -m 666 /tmp/d/here/fifo");
    for options in
        ["", "-o new/%j/out", "-o out -e ./err", "-o %A_%a -a 0", "-o /dev/null", "-D /tmp -o d/here/out", "-o fifo"]
    {
        let outcome = sbatch(options);
        assert!(outcome.code == 0 && outcome.stderr.is_empty(), "{options}: {outcome:?}");
    }
    container.until("test -n \"$(find /tmp/d/here/new -name out)\"");
    assert_eq!(container.exec(&["sh", "-c", "cd / && sbatch --wrap true"]).stderr, "", "root may write everywhere");
    let step = container.exec(&["srun", "--mail-type=END", "true"]);
    assert!(step.code == 0 && step.stderr.contains("srun: warning: --mail-type"), "{step:?}");
    // A directive in the script is recognized, and with a relay the mail is sent.
    let config =
        directory(&[("slurminit.toml", "[slurm]\nmail_relay = '127.0.0.1:2525'\nmail_from = 'slurm@lab.example'\n")]);
    let container = Image::new(PLAIN).mount(config.path(), "/config").serve();
    docker(["exec", "--detach", &container.name, "perl", "-MIO::Socket::INET", "-e", RELAY]).ok();
    container.until("grep -q :09DD /proc/net/tcp");
    let script = "printf '#!/bin/sh\\n#SBATCH --mail-type=END --mail-user=x@lab.example --output=/srv/x\\n' >/tmp/job; cd /tmp; setpriv --reuid=1 --clear-groups sbatch job 2>&1";
    let output = container.sh(script);
    assert!(output.contains("in /srv;") && !output.contains("--mail-type"), "{output}");
    container.until("grep -q ^QUIT /tmp/mail");
    let mail = container.sh("cat /tmp/mail");
    for line in
        ["MAIL FROM:<slurm@lab.example>", "RCPT TO:<x@lab.example>", "Subject: Slurm Job_id=", "SLURM_JOB_STATE=FAILED"]
    {
        assert!(mail.contains(line), "{mail}");
    }
}
