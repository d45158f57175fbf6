//! User text in job fields cannot forge a daemon's log record: random submissions with newlines at every offset.
//!
//! `SLURMINIT_SUBMISSIONS` sets their number (default 400), `SLURMINIT_SEED` the random seed (constant by default).
//! docs/security.md has the result of 10,000.

use serde_json::Value;

use crate::docker::{Image, PLAIN, directory, docker, text};

const CONFIG: &str = "[slurm.conf]\nMaxJobCount = 100000\nSlurmctldDebug = \"debug\"\nSlurmdDebug = \"debug\"\n";

/// Submits jobs whose fields contain lines that resemble a daemon's. In each field, a line begins at each offset from 0
/// to 399 in turn: the C library and the kernel split a write into pieces of 128 and 4096 bytes.
const SUBMIT: &str = r#"
    my ($seed, $size) = @ARGV;
    srand $seed;
    my @lines = ("FORGED", "error: FORGED", "slurmctld: error: FORGED", "slurmd: fatal: FORGED", "[2026-01-01T00:00:00.000] error: FORGED",
        "sched: Allocate JobId=77_1(78) NodeList=FORGED", "slurmd: Launching batch job 78 for UID FORGED", "warning: FORGED",
        qq(\x1e{"level":"error","message":{"kind":"forged","template":"FORGED","fields":{},"text":"FORGED"}}));
    my @fields = qw(job-name comment constraint output error wckey account export chdir partition qos licenses reservation mail-user);
    my %at;
    sub text {
        my $offset = $at{$_[0]}++ % 400;
        my $text = "x" x $offset;
        $text .= "\n" x (1 + int rand 2) . $lines[rand @lines] . "y" x (rand() < 0.3 ? rand 150 : 0) for 0 .. rand 4;
        $text = "x" x (3700 + rand 500) . $text if rand() < 0.02;
        return $text . (rand() < 0.5 ? "\n" : "");
    }
    open STDOUT, ">", "/dev/null";
    open STDERR, ">&", STDOUT;
    for my $n (1 .. $size) {
        my @words = ("sbatch", "--parsable", rand() < 0.8 ? "--hold" : "--time=1");
        # Each field in turn, so that none hides another by an early refusal, and others at random.
        my @chosen = ($fields[$n % @fields], grep { rand() < 0.1 } @fields);
        my %seen;
        for my $field (grep { !$seen{$_}++ } @chosen) {
            my $text = text($field);
            my $place = $field =~ /output|error|chdir/ ? "/tmp/" : $field eq "export" ? "TEXT=" : "";
            push @words, "--$field=$place$text";
        }
        system @words, "--wrap=true";
        system "scancel", "--user=nobody" if $n % 500 == 0;
    }
    system "scancel", "--user=nobody";
"#;

/// How a forged record would begin.
const FORGED: [&str; 6] =
    ["FORGED", "error: FORGED", "slurm", "[2026-01-01", "sched: Allocate JobId=77_1(78)", "Launching batch job 78"];

#[test]
#[ignore = "needs Docker and the images: run docker/test"]
fn job_fields_forge_no_log_record() {
    let number = |name: &str| std::env::var(name).ok().and_then(|text| text.parse::<u32>().ok());
    let (size, seed) = (number("SLURMINIT_SUBMISSIONS").unwrap_or(400), number("SLURMINIT_SEED").unwrap_or(30));
    eprintln!("{size} submissions, SLURMINIT_SEED={seed}");
    let config = directory(&[("slurminit.toml", CONFIG), ("submit", SUBMIT)]);
    let image = Image::new(PLAIN).with(["--hostname", "node1"]).json_log().mount(config.path(), "/config");
    let container = image.with(["--env", "SLURMINIT_LOG_LEVEL=debug"]).serve();
    let script = std::fs::read_to_string(config.path().join("submit")).expect("a file of this test");
    let (seed, count) = (seed.to_string(), size.to_string());
    docker(["exec", "--user", "nobody", "--workdir", "/tmp", &container.name, "perl", "-e", &script, &seed, &count])
        .ok();
    container.until("! squeue --noheader | grep -q .");
    let log = container.log();
    let records: Vec<Value> = log.lines().filter_map(|line| serde_json::from_str(line).ok()).collect();
    let is_from_daemon = |record: &&Value| record["source"] == "slurmctld" || record["source"] == "slurmd";
    let with_text = || records.iter().filter(is_from_daemon).filter(|record| text(record).contains("FORGED"));
    let is_forged = |record: &&Value| {
        record["continued"] != true && FORGED.iter().any(|begin| text(record).trim_start().starts_with(begin))
    };
    let forged: Vec<&Value> = with_text().filter(is_forged).collect();
    let continued = with_text().filter(|record| record["continued"] == true).count();
    let (all, texts) = (records.len(), with_text().count());
    println!(
        "{size} submissions: {all} records, {texts} with their text, {continued} of them continued, {} forged",
        forged.len()
    );
    assert!(texts >= size as usize / 4, "only {texts} of {all} records contain job text");
    assert!(size < 1000 || continued > 0, "no text was split between two records");
    assert!(records.iter().all(|record| record["kind"] != "forged"), "a line is parsed as a record of slurminit");
    assert_eq!(forged.len(), 0, "{:#?}", forged.iter().take(20).collect::<Vec<_>>());
    assert_eq!(container.sh("timeout 60 srun echo works"), "works");
}
