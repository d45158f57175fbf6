//! Queries slurmctld and munged through the commands of Slurm and munge.

use std::collections::BTreeSet;
use std::path::Path;

use super::{Ask, output};
use crate::facts::{Controller, Credential, MAX_EXPLAINED, NO_SLURMD, NodeFacts, Observed, SlurmFacts};
use machine::node_report::OUR_REASON;
use model::hostlist;
use model::jobs::SLURMSTEPD_DIED;
use model::printable;
use model::queued_job::{PENDING, QueuedJob};
use slurm::client::{Client, Jobs};
use slurm::error::QueryError;
use slurm::why::Snapshot;
use sys::tool::answer::{Answer, first_line};
use sys::trusted_path;

/// Queries the controller. `node`: the container's node; `None` without slurmd. slurmctld logs an error for a node that does not exist.
pub fn slurm(ask: Ask<'_>, node: Option<&str>) -> SlurmFacts {
    let client = Client::with_runner(ask);
    // If the controller does not respond, every other command would block until its own deadline.
    if client.ping().is_err() {
        let (controller, why) = match client.rejection() {
            Some(_) => (Controller::Rejects, "authentication between this container and the controller fails"),
            None => (Controller::Silent, "the controller does not respond"),
        };
        return SlurmFacts { controller: Ok(controller), ..SlurmFacts::not_queried(why) };
    }
    let jobs = |state: &str, node| {
        let query = Jobs { states: &[state], node, ..Jobs::default() };
        client.jobs(&query).map_err(String::from)
    };
    let own = node.map_or_else(|| Err(NO_SLURMD.to_owned()), |node| self::node(&client, node));
    // squeue rejects a node that slurmctld does not list.
    let listed = node.filter(|_| own.is_ok());
    // A job with a share of a GPU counts as a job with a GPU.
    let has_gpu = |job: &QueuedJob| ["gpu", "shard", "mps"].iter().any(|name| job.gres.contains(name));
    SlurmFacts {
        controller: Ok(Controller::Responds),
        node: own,
        gpu_jobs: jobs("RUNNING", listed).map(|jobs| jobs.into_iter().filter(has_gpu).collect()),
        waiting_jobs: waiting_jobs(&client, jobs(PENDING, None)),
        lost_jobs: lost_jobs(&client).map_err(String::from),
    }
}

/// The pending jobs. The first [`MAX_EXPLAINED`] have the reason why they wait.
fn waiting_jobs(client: &Client, jobs: Observed<Vec<QueuedJob>>) -> Observed<Vec<QueuedJob>> {
    let mut jobs = jobs?;
    if jobs.is_empty() {
        return Ok(jobs);
    }
    let snapshot = Snapshot::query(client, None);
    for job in jobs.iter_mut().take(MAX_EXPLAINED) {
        let explained = snapshot.as_ref().ok().map(Snapshot::situation);
        let explained =
            explained.and_then(|situation| Some(situation.explain(situation.job(&job.number.to_string())?)));
        job.waits_for = explained.unwrap_or_else(|| job.plain_reason());
    }
    Ok(jobs)
}

/// The jobs with slurminit's note that their slurmstepd died. slurmctld removes the record of a job MinJobAge seconds after its end.
fn lost_jobs(client: &Client<'_>) -> Result<Vec<(String, String)>, QueryError> {
    let note = format!("{OUR_REASON}{SLURMSTEPD_DIED}");
    let rows = client.job_columns(
        &Jobs { states: &["all"], ..Jobs::default() },
        &[("JobArrayID", 32), ("State", 16), ("admin_comment", 128)],
    )?;
    let lost = rows.into_iter().filter(|[.., comment]| *comment == note);
    Ok(lost.map(|[job, state, _]| (job, state)).collect())
}

fn node(client: &Client, name: &str) -> Observed<NodeFacts> {
    let (gres, report) =
        client.node_with_gres(name)?.ok_or_else(|| format!("the controller has no record of node {name}"))?;
    Ok(NodeFacts { name: name.to_owned(), report, gres, refused_line: None })
}

/// File, line number and text of the node's line in this slurm.conf.
pub(super) fn node_line(file: &Path, root: &Path, name: &str) -> Option<String> {
    let text = trusted_path::read(&sys::under(root, file)).ok()?;
    let text = String::from_utf8_lossy(&text).into_owned();
    let is_of_node = |line: &str| {
        let mut words = line.split_whitespace().filter_map(|word| word.split_once('='));
        words.any(|(key, names)| key.eq_ignore_ascii_case("NodeName") && hostlist::contains(names, name))
    };
    let (number, line) = text.lines().enumerate().find(|(_, line)| is_of_node(line))?;
    Some(format!("{}:{}: {}", file.display(), number + 1, printable::short(line.trim(), MAX_LINE)))
}

/// The maximum length of a quoted line of slurm.conf, in characters.
const MAX_LINE: usize = 200;

/// The hosts whose credentials slurmctld or slurmd of this container has rejected in the last 5 minutes.
pub(super) fn recently_rejected_peers(ask: Ask<'_>) -> Observed<BTreeSet<String>> {
    let since = output(ask, "date", &["--utc", "--date=5 minutes ago", "+%FT%T"])?;
    let logs = ["slurmctld", "slurmd"].map(|daemon| output(ask, "slurminit", &["logs", daemon, "--lines", "500"]));
    // A container may run only one of the two daemons.
    match logs {
        [Err(why), Err(_)] => Err(why),
        logs => Ok(logs.iter().flatten().flat_map(|lines| rejected_peers(lines, since.trim())).collect()),
    }
}

/// The hosts whose credentials slurmctld or slurmd rejects in these lines. Lines older than `since`, in the time format of the log, are ignored. A
/// matching line ends in `[[c1.lab]:53456] auth_g_verify: REQUEST_PING has authentication error: Invalid authentication credential`.
fn rejected_peers(lines: &str, since: &str) -> BTreeSet<String> {
    let host = |line: &str| {
        let time = line
            .split([' ', '"'])
            .find(|word| word.len() >= since.len() && word.starts_with(|c: char| c.is_ascii_digit()))?;
        let (peer, _) = line.split_once("] auth_g_verify: ").filter(|_| line.contains(" has authentication error"))?;
        let (host, port) = peer.rsplit_once("[[")?.1.rsplit_once("]:")?;
        (time >= since && port.bytes().all(|byte| byte.is_ascii_digit())).then(|| printable::short(host, MAX_HOST))
    };
    lines.lines().filter_map(host).collect()
}

/// The maximum length of a host's name, in characters.
const MAX_HOST: usize = 100;

/// Encodes and decodes a credential with munged.
pub fn local_credential(ask: Ask<'_>) -> Observed<Credential> {
    parse_credential(&output_despite_failure(ask, "munge --no-input | unmunge"))
}

/// Decodes a credential from another machine, stored in `file`.
pub fn decode_credential(ask: Ask<'_>, file: &std::path::Path) -> Observed<Credential> {
    let file = file
        .to_str()
        .filter(|name| !name.contains('\''))
        .ok_or("the path of the credential contains an apostrophe or is not UTF-8; pass the credential on standard input: --credential -")?;
    parse_credential(&output_despite_failure(ask, &format!("unmunge --input='{file}'")))
}

/// The standard output and standard error of a pipeline, even if it fails: unmunge prints the decoded part of a rejected credential, too.
fn output_despite_failure(ask: Ask<'_>, line: &str) -> String {
    let line = format!("({line}) 2>&1; true");
    output(ask, "sh", &["-c", &line]).unwrap_or_else(|why| why)
}

fn parse_credential(text: &str) -> Observed<Credential> {
    let value = |key: &str| text.lines().find_map(|line| line.strip_prefix(key)).map(str::trim);
    // The format is `2026-11-21 16:24:58 +0000 (1795278298)`.
    let time = |key: &str| value(key)?.rsplit_once('(')?.1.trim_end_matches(')').parse().ok();
    // The format is `Success (0)`.
    match value("STATUS:") {
        Some(status) => Ok(Credential {
            status: status.split(" (").next().unwrap_or_default().to_owned(),
            encoded: time("ENCODE_TIME:"),
            decoded: time("DECODE_TIME:"),
        }),
        // A credential made with another key cannot be decoded at all.
        None => match text.trim().strip_prefix("unmunge: Error: ") {
            Some(status) if status.ends_with("credential") => {
                Ok(Credential { status: status.to_owned(), encoded: None, decoded: None })
            }
            _ => Err(first_line([text])),
        },
    }
}

/// Whether this host's name resolves to an address.
pub fn has_address(ask: Ask<'_>, host: &str) -> Observed<bool> {
    match ask("getent", &["hosts", host]) {
        // getent prints nothing if there is no address.
        Answer::Ended { succeeded: false, stdout, stderr } if stdout.is_empty() && stderr.is_empty() => Ok(false),
        answer => answer.output_of("getent").map(|_| true),
    }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use super::*;

    #[test]
    fn container_without_slurmd_queries_no_node() {
        for (node, is_queried) in [(None, false), (Some("c1"), true)] {
            let commands = RefCell::new(Vec::new());
            let ask = |program: &str, arguments: &[&str]| {
                commands.borrow_mut().push(format!("{program} {}", arguments.join(" ")));
                let stdout = if arguments == ["ping"] { "Slurmctld(primary) at head is UP\n" } else { "" };
                Answer::Ended { succeeded: true, stdout: stdout.to_owned(), stderr: String::new() }
            };
            let facts = slurm(&ask, node);
            assert_eq!((facts.controller, facts.node.is_err()), (Ok(Controller::Responds), true));
            let commands = commands.into_inner();
            assert_eq!(commands.iter().any(|command| command.contains("--nodes")), is_queried, "{commands:?}");
        }
    }

    #[test]
    fn finds_hosts_with_rejected_credentials() {
        let lines = "2026-11-28T04:37:19.235814Z error slurmctld: slurm_unpack_received_msg: [[gk-c1.lab]:41683] auth_g_verify: REQUEST_PING has authentication error: Unspecified error\n\
            2026-11-28T04:37:19.235900Z error slurmctld: slurm_unpack_received_msg: [[gk-c1.lab]:41683] Protocol authentication error\n\
            2026-11-28T04:31:00.000000Z error slurmctld: slurm_unpack_received_msg: [[old]:4] auth_g_verify: REQUEST_PING has authentication error: x\n\
            {\"time\":\"2026-11-28T04:37:16.009573Z\",\"message\":\"slurm_receive_msg_and_forward: [[10.0.0.7]:3236] auth_g_verify: REQUEST_PING has authentication error: Invalid authentication credential\"}\n\
            2026-11-28T04:37:16.1Z info slurmctld: job name [[eve]:x] auth_g_verify: has authentication error\n";
        let found = rejected_peers(lines, "2026-11-28T04:32:20");
        assert_eq!(found.into_iter().collect::<Vec<_>>(), ["10.0.0.7", "gk-c1.lab"]);
    }

    #[test]
    fn parses_credential_even_if_rejected() {
        let text = "STATUS:          Expired credential (15)\nENCODE_TIME:     2026-11-21 16:24:58 +0000 (1795278298)\n\
                    DECODE_TIME:     2026-11-21 16:25:08 +0000 (1795278308)\nTTL:             1\n";
        let credential = parse_credential(text).unwrap();
        assert_eq!(
            (credential.status.as_str(), credential.encoded, credential.decoded),
            ("Expired credential", Some(1_795_278_298), Some(1_795_278_308))
        );
        assert_eq!(parse_credential("unmunge: Error: Invalid credential\n").unwrap().status, "Invalid credential");
        assert_eq!(
            parse_credential("munge: Error: Failed to access socket\n").unwrap_err(),
            "munge: Error: Failed to access socket"
        );
    }
}
