//! One attack: a container, the script that a user runs in it, and the observed effects.

use std::fmt::Write as _;
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::time::{Duration, Instant};

use crate::docker::{Container, Image, PLAIN, directory};
use crate::long::faults::case::{LIBRARY, PARTITION};
use crate::long::faults::sign::{self, Sign};

/// Time after the attack within which `srun` must work again.
const MAX_RECOVERY: Duration = Duration::from_secs(10);
/// Timeout of a shell line in seconds.
const SHELL_TIMEOUT: u64 = 60;

const NOBODY: u32 = 65534;

/// Maximum size in bytes of the log record of a daemon's message, including the JSON.
const MAX_RECORD: usize = 1300;

/// Submits a job that counts without starting processes, because otherwise it would fail when no process can be created.
const SUBMIT: &str = r#"count='exec perl -e "open F, q(>>/tmp/count); select F; \$| = 1; while (1) { print ++\$i, qq(\n); select undef, undef, undef, 0.2 }"'; submit"#;

/// One row of the table.
#[derive(Clone, Debug)]
pub(super) struct Attack {
    /// Name of the row.
    pub(super) name: &'static str,
    /// The image with options of `docker run`.
    pub(super) image: Image,
    pub(super) toml: String,
    /// A shell line that root runs before the attack. It must succeed.
    pub(super) prepare: String,
    /// The user ID of the attacker.
    pub(super) attacker: u32,
    /// A shell script that the attacker runs until it and all its children are killed. It can use `/config/library`. Its environment has
    /// only PATH and HOME, and therefore no secret of the container.
    pub(super) script: String,
    /// A shell script that root runs during the attack: actions of other users, and effects that need root or make the attack worse.
    /// May be empty.
    pub(super) root_script: String,
    /// A shell line that root runs after the attacker's processes were killed. It fails if the attack succeeded, or was not tried.
    pub(super) check: String,
    /// Required log entry.
    pub(super) sign: Sign,
    /// Whether the attack may end jobs of other users (see docs/security.md).
    pub(super) may_end_other_jobs: bool,
}

/// Observed effects of an attack.
#[derive(Clone, Debug)]
pub(super) struct Effects {
    /// Restarted daemons with their restart counts.
    restarts: String,
    /// Time from the end of the attack until `srun` works.
    recovery: Duration,
    /// The log line that reports the attack.
    log_line: String,
}

impl Attack {
    pub(super) fn new(name: &'static str, script: &str, sign: Sign) -> Self {
        let image = Image::new(PLAIN).with(["--hostname", "node1"]);
        Self {
            name,
            image,
            toml: String::new(),
            prepare: "true".to_owned(),
            attacker: NOBODY,
            script: script.to_owned(),
            root_script: String::new(),
            check: "true".to_owned(),
            sign,
            may_end_other_jobs: false,
        }
    }

    /// Runs the attack for this many seconds. An error contains the end of the log.
    pub(super) fn run(&self, seconds: u64) -> Result<Effects, String> {
        let toml = format!("{}\n{PARTITION}", self.toml);
        let files = directory(&[("slurminit.toml", &toml), ("library", LIBRARY), ("attack", &self.script)]);
        fs::set_permissions(files.path(), fs::Permissions::from_mode(0o755)).expect("an own directory");
        let container = self.image.clone().json_log().mount(files.path(), "/config").serve();
        self.observe(&container, seconds).map_err(|why| format!("{why}\n{}", tail(&container.log())))
    }

    fn observe(&self, container: &Container, seconds: u64) -> Result<Effects, String> {
        let Self { attacker, .. } = self;
        shell(container, &self.prepare)?;
        shell(container, SUBMIT)?;
        // slurmctld loses jobs of the last five seconds when it crashes (docs/operations.md).
        container.until_saved();
        let seconds = seconds.to_string();
        let attack = format!(
            ". /config/library; cd /tmp; home=$(getent passwd {attacker} | cut -d : -f 6); \
             exec setpriv --reuid={attacker} --regid={attacker} --clear-groups env -i PATH=\"$PATH\" HOME=\"$home\" \
             timeout --kill-after=1 {seconds} sh /config/attack"
        );
        let root_script = format!(". /config/library; {}", self.root_script);
        std::thread::scope(|scope| {
            scope.spawn(|| container.exec(&["timeout", "--kill-after=1", &seconds, "sh", "-c", &root_script]));
            container.exec(&["sh", "-c", &attack]);
        });
        // Kill the attacker's remaining processes.
        shell(container, &format!("pkill -KILL -U {attacker}; true"))
            .map_err(|why| format!("THE CONTAINER IS DOWN: {why}"))?;
        shell(container, &self.check).map_err(|why| format!("the attack succeeded, or did not take place: {why}"))?;
        let begin = Instant::now();
        shell(container, "until works; do sleep 0.05; done")?;
        let recovery = begin.elapsed();
        if recovery > MAX_RECOVERY {
            return Err(format!("srun works only {:.1} s after the attack", recovery.as_secs_f64()));
        }
        let counted = "[ \"$(squeue --noheader --name=counting --format=%T)\" = RUNNING ] && \
                       scontrol --oneliner show job | grep JobName=counting | grep -q Restarts=0 && \
                       awk '$1 != NR { exit 1 }' /tmp/count && n=$(wc -l </tmp/count) && \
                       until [ \"$(wc -l </tmp/count)\" -gt \"$n\" ]; do sleep 0.1; done && squeue --noheader --name=held | grep -q held";
        if !self.may_end_other_jobs {
            shell(container, counted).map_err(|why| format!("A JOB OF ANOTHER USER WAS AFFECTED: {why}"))?;
        }
        let restarts = shell(
            container,
            "slurminit status --json | tr -d ' \\n' | grep -o '\"name\":\"[a-z]*\"[^{}]*\"starts\":[0-9]*' | \
             sed 's/\"name\":\"\\([a-z]*\\)\".*:\\([0-9]*\\)$/\\1 \\2/' | awk '$2 > 1 { printf \"%s%s %d\", sep, $1, $2 - 1; sep = \", \" }'",
        )?;
        let log_line = self.log_line(container)?;
        let is_of_daemon = |line: &&str| {
            ["slurmctld", "slurmd", "munged", "sshd"].iter().any(|name| line.contains(&format!(r#""source":"{name}""#)))
        };
        let log = container.log();
        if let Some(record) = log.lines().filter(is_of_daemon).find(|record| record.len() > MAX_RECORD) {
            return Err(format!("A RECORD OF {} BYTES: {record}", record.len()));
        }
        let code = container.stop();
        if code != 0 {
            return Err(format!("the container's exit code after the attack is {code}"));
        }
        Ok(Effects { restarts, recovery, log_line })
    }

    /// The log line that reports the attack.
    fn log_line(&self, container: &Container) -> Result<String, String> {
        let signs = std::slice::from_ref(&self.sign);
        sign::first(&container.log(), signs).ok_or_else(|| format!("SILENT: no {:?} in the log", self.sign))
    }
}

pub(super) fn table(rows: &[(&Attack, &Effects)]) -> String {
    let mut table = String::from(
        "| what a user does for 90 s | restarted meanwhile | srun works again after | reported |\n|---|---|---|---|\n",
    );
    for (attack, effects) in rows {
        let restarts = if effects.restarts.is_empty() { "nothing" } else { &effects.restarts };
        let (recovery, log_line) = (effects.recovery.as_secs_f64(), effects.log_line.replace('|', "\\|"));
        // Writing to a String cannot fail.
        let _ = writeln!(table, "| {} | {restarts} | {recovery:.1} s | {log_line} |", attack.name);
    }
    table
}

/// Runs a shell line with the library and returns its output. It must succeed within the timeout.
fn shell(container: &Container, line: &str) -> Result<String, String> {
    let line = format!(". /config/library; {line}");
    let outcome = container.exec(&["timeout", &SHELL_TIMEOUT.to_string(), "sh", "-c", &line]);
    match outcome.code {
        0 => Ok(outcome.stdout.trim().to_owned()),
        code => Err(format!("{code} from: {line}\n{}{}", outcome.stdout, outcome.stderr)),
    }
}

fn tail(log: &str) -> String {
    let lines: Vec<&str> = log.lines().collect();
    lines[lines.len().saturating_sub(60)..].join("\n")
}
