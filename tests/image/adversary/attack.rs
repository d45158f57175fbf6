//! One attack: a container, what `nobody` does in it, and what is seen.

use std::fmt::Write as _;
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::time::{Duration, Instant};

use crate::docker::{Container, Image, PLAIN, directory};
use crate::long::faults::case::{LIBRARY, PARTITION};
use crate::long::faults::sign::{self, Sign};

/// How long an attack goes on, in seconds: as the table says when it is made, and else long enough for five starts of a daemon and
/// two rounds of liveness.
fn seconds() -> u64 {
    if std::env::var_os("SLURMINIT_ATTACKS_TABLE").is_some() { 90 } else { 30 }
}

/// How soon after it `srun` must work again.
const BAR: Duration = Duration::from_secs(10);
/// Longer than this is a hang, in seconds.
const PATIENCE: u64 = 60;

/// It starts no process: while none is to be had, a job that wants one fails by itself.
const SUBMIT: &str = r#"count='exec perl -e "open F, q(>>/tmp/count); select F; \$| = 1; while (1) { print ++\$i, qq(\n); select undef, undef, undef, 0.2 }"'; submit"#;

/// One row of the table.
#[derive(Clone, Debug)]
pub(super) struct Attack {
    /// What is done.
    pub(super) what: &'static str,
    /// The image, options of `docker run`, and slurminit.toml.
    pub(super) image: Image,
    pub(super) toml: String,
    /// A shell script that `nobody` runs, until it is killed with all that it has started. `/config/library` is there for it.
    pub(super) script: String,
    /// A shell script that root runs meanwhile: what nobody can bring about, and what makes the attack worse. Empty is none.
    pub(super) beside: String,
    /// What the log must have.
    pub(super) sign: Sign,
    /// Whether it can cost somebody else's job (docs/security.md says so).
    pub(super) may_cost_a_job: bool,
}

/// What was seen.
#[derive(Clone, Debug)]
pub(super) struct Seen {
    /// Which daemons were started again in that time, and how often.
    restarts: String,
    /// From the end of the attack to the first job.
    took: Duration,
    said: String,
}

impl Attack {
    pub(super) fn new(what: &'static str, script: &str, sign: Sign) -> Self {
        let image = Image::new(PLAIN).with(["--hostname", "node1"]);
        Self {
            what,
            image,
            toml: String::new(),
            script: script.to_owned(),
            beside: String::new(),
            sign,
            may_cost_a_job: false,
        }
    }

    /// Does it. The error is the whole story.
    pub(super) fn run(&self) -> Result<Seen, String> {
        let toml = format!("{}\n{PARTITION}", self.toml);
        let files = directory(&[("slurminit.toml", &toml), ("library", LIBRARY), ("attack", &self.script)]);
        fs::set_permissions(files.path(), fs::Permissions::from_mode(0o755)).expect("a directory of our own");
        let container = self.image.clone().json_log().mount(files.path(), "/config").serve();
        self.watch(&container).map_err(|why| format!("{why}\n{}", tail(&container.log())))
    }

    fn watch(&self, container: &Container) -> Result<Seen, String> {
        shell(container, SUBMIT)?;
        // A job of the last five seconds is lost with slurmctld (docs/operations.md).
        container.until_saved();
        let seconds = seconds().to_string();
        let line = format!(". /config/library; cd /tmp; timeout --kill-after=1 {seconds} sh /config/attack");
        let beside = format!(". /config/library; {}", self.beside);
        std::thread::scope(|scope| {
            scope.spawn(|| container.exec(&["timeout", "--kill-after=1", &seconds, "sh", "-c", &beside]));
            container.exec(&["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", "sh", "-c", &line]);
        });
        // What the attacker has left behind ends with the attack.
        shell(container, "pkill -KILL -u nobody; true").map_err(|why| format!("THE CONTAINER IS DOWN: {why}"))?;
        let begin = Instant::now();
        shell(container, "until works; do sleep 0.05; done")?;
        let took = begin.elapsed();
        if took > BAR {
            return Err(format!("srun works only {:.1} s after the attack", took.as_secs_f64()));
        }
        let counted = "[ \"$(squeue --noheader --name=counting --format=%T)\" = RUNNING ] && \
                       scontrol --oneliner show job | grep JobName=counting | grep -q Restarts=0 && \
                       awk '$1 != NR { exit 1 }' /tmp/count && n=$(wc -l </tmp/count) && \
                       until [ \"$(wc -l </tmp/count)\" -gt \"$n\" ]; do sleep 0.1; done && squeue --noheader --name=held | grep -q held";
        if !self.may_cost_a_job {
            shell(container, counted).map_err(|why| format!("A JOB OF SOMEBODY ELSE'S WAS HIT: {why}"))?;
        }
        let restarts = shell(
            container,
            "slurminit status --json | tr -d ' \\n' | grep -o '\"name\":\"[a-z]*\"[^{}]*\"starts\":[0-9]*' | \
             sed 's/\"name\":\"\\([a-z]*\\)\".*:\\([0-9]*\\)$/\\1 \\2/' | awk '$2 > 1 { printf \"%s%s %d\", sep, $1, $2 - 1; sep = \", \" }'",
        )?;
        let said = self.said(container)?;
        let code = container.stop();
        if code != 0 {
            return Err(format!("the stop after it gave {code}"));
        }
        Ok(Seen { restarts, took, said })
    }

    /// The line of the log that tells of it.
    fn said(&self, container: &Container) -> Result<String, String> {
        let signs = std::slice::from_ref(&self.sign);
        sign::first(&container.log(), signs).ok_or_else(|| format!("SILENT: no {:?} in the log", self.sign))
    }
}

pub(super) fn table(rows: &[(&Attack, &Seen)]) -> String {
    let mut table = String::from(
        "| what nobody does for 90 s | restarted meanwhile | srun works again after | what was said |\n|---|---|---|---|\n",
    );
    for (attack, seen) in rows {
        let restarts = if seen.restarts.is_empty() { "nothing" } else { &seen.restarts };
        let (took, said) = (seen.took.as_secs_f64(), seen.said.replace('|', "\\|"));
        // Writing to a String cannot fail.
        let _ = writeln!(table, "| {} | {restarts} | {took:.1} s | {said} |", attack.what);
    }
    table
}

/// A shell line with the library, which must end well in time.
fn shell(container: &Container, line: &str) -> Result<String, String> {
    let line = format!(". /config/library; {line}");
    let outcome = container.exec(&["timeout", &PATIENCE.to_string(), "sh", "-c", &line]);
    match outcome.code {
        0 => Ok(outcome.stdout.trim().to_owned()),
        code => Err(format!("{code} from: {line}\n{}{}", outcome.stdout, outcome.stderr)),
    }
}

fn tail(log: &str) -> String {
    let lines: Vec<&str> = log.lines().collect();
    lines[lines.len().saturating_sub(60)..].join("\n")
}
