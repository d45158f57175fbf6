//! What Slurm's and munge's own commands report.

use super::{Ask, output};
use crate::facts::{Credential, Looked, NodeFacts, RunningJob, SlurmFacts, WaitingJob};
use machine::node_report::{NodeReport, SINFO_FORMAT};
use sys::tool::answer::{Answer, first_line};

/// Queries the controller.
pub fn slurm(ask: Ask<'_>, node: &str) -> SlurmFacts {
    let controller = output(ask, "scontrol", &["ping"]).map(|text| text.contains("is UP"));
    // If the controller does not answer, every other command would block until its own deadline.
    if let Ok(false) | Err(_) = controller {
        let nothing = SlurmFacts::unasked("the controller does not answer");
        return SlurmFacts { controller: controller.or(Ok(false)), ..nothing };
    }
    let format = format!("--format=%G|{SINFO_FORMAT}");
    let answer = output(ask, "sinfo", &["--noheader", "--nodes", node, &format]);
    let running = ["--noheader", "--states=RUNNING", "--format=%A|%b|%M"];
    let pending = ["--noheader", "--states=PENDING", "--format=%A|%r|%u|%U"];
    SlurmFacts {
        controller,
        node: answer.and_then(|text| parse_node(node, &text)),
        gpu_jobs: output(ask, "squeue", &running).map(|text| text.lines().filter_map(running_job).collect()),
        waiting_jobs: output(ask, "squeue", &pending).map(|text| text.lines().filter_map(waiting_job).collect()),
    }
}

fn parse_node(name: &str, text: &str) -> Looked<NodeFacts> {
    let line = text.lines().next().unwrap_or_default();
    let parsed = line.split_once('|').and_then(|(gres, rest)| Some((gres, NodeReport::parse(rest)?)));
    let (gres, report) = parsed.ok_or_else(|| format!("the controller knows no node {name}"))?;
    let gres = if gres == "(null)" { String::new() } else { gres.to_owned() };
    Ok(NodeFacts { name: name.to_owned(), report, gres })
}

fn running_job(line: &str) -> Option<RunningJob> {
    let mut fields = line.trim().split('|');
    let (id, gres, time) = (fields.next()?, fields.next()?, fields.next()?);
    // A part of a GPU counts like a whole one.
    let has_gpu = ["gpu", "shard", "mps"].iter().any(|name| gres.contains(name));
    has_gpu.then(|| RunningJob { id: id.to_owned(), gres: gres.to_owned(), seconds: seconds(time) })
}

fn waiting_job(line: &str) -> Option<WaitingJob> {
    let mut fields = line.trim().split('|');
    let (id, reason) = (fields.next()?, fields.next()?);
    // squeue prints the number of a user whose name slurmctld does not find.
    let uid_without_account = fields.next().filter(|user| fields.next() == Some(user)).map(str::to_owned);
    Some(WaitingJob { id: id.to_owned(), reason: reason.to_owned(), uid_without_account })
}

/// Converts `1-02:03:04`, `02:03:04` or `3:04` to seconds; 0 for anything else.
pub fn seconds(time: &str) -> u64 {
    let (days, rest) = time.split_once('-').unwrap_or(("0", time));
    let of_rest = rest.split(':').try_fold(0, |sum: u64, part| Some(sum * 60 + part.parse::<u64>().ok()?));
    days.parse::<u64>().ok().zip(of_rest).map_or(0, |(days, rest)| days * 86_400 + rest)
}

/// Lets munged encode and decode a credential.
pub fn own_credential(ask: Ask<'_>) -> Looked<Credential> {
    parse_credential(&output_even_if_refused(ask, "munge --no-input | unmunge"))
}

/// Lets munged decode a credential from another machine, stored in `file`.
pub fn credential(ask: Ask<'_>, file: &std::path::Path) -> Looked<Credential> {
    let file =
        file.to_str().filter(|name| !name.contains('\'')).ok_or("its file's name cannot be handed to unmunge")?;
    parse_credential(&output_even_if_refused(ask, &format!("unmunge --input='{file}'")))
}

/// unmunge explains a failure, and prints what it could decode.
fn output_even_if_refused(ask: Ask<'_>, line: &str) -> String {
    let line = format!("({line}) 2>&1; true");
    output(ask, "sh", &["-c", &line]).unwrap_or_else(|why| why)
}

fn parse_credential(text: &str) -> Looked<Credential> {
    let value = |key: &str| text.lines().find_map(|line| line.strip_prefix(key)).map(str::trim);
    // `2026-11-21 16:24:58 +0000 (1795278298)`
    let time = |key: &str| value(key)?.rsplit_once('(')?.1.trim_end_matches(')').parse().ok();
    // `Success (0)`
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
pub fn address(ask: Ask<'_>, host: &str) -> Looked<bool> {
    match ask("getent", &["hosts", host]) {
        // getent prints nothing if there is no address.
        Answer::Ended { succeeded: false, stdout, stderr } if stdout.is_empty() && stderr.is_empty() => Ok(false),
        answer => answer.output_of("getent").map(|_| true),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_jobs_time_is_read() {
        for (text, want) in [("0:02", 2), ("1:02:03", 3723), ("2-00:00:01", 172_801), ("INVALID", 0)] {
            assert_eq!(seconds(text), want, "{text}");
        }
        assert_eq!(running_job("7|gres/gpu:nvidia:1|1:00").map(|job| job.seconds), Some(60));
        assert!(running_job("7|gres/shard:2|1:00").is_some() && running_job("7|gres:mps:50|1:00").is_some());
        assert_eq!(running_job("7|N/A|1:00"), None);
    }

    #[test]
    fn a_credential_is_read_also_where_it_is_refused() {
        let text = "STATUS:          Expired credential (15)\nENCODE_TIME:     2026-11-21 16:24:58 +0000 (1795278298)\n\
                    DECODE_TIME:     2026-11-21 16:25:08 +0000 (1795278308)\nTTL:             1\n";
        let read = parse_credential(text).unwrap();
        assert_eq!(
            (read.status.as_str(), read.encoded, read.decoded),
            ("Expired credential", Some(1_795_278_298), Some(1_795_278_308))
        );
        assert_eq!(parse_credential("unmunge: Error: Invalid credential\n").unwrap().status, "Invalid credential");
        assert_eq!(
            parse_credential("munge: Error: Failed to access socket\n").unwrap_err(),
            "munge: Error: Failed to access socket"
        );
    }
}
