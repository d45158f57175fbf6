//! Harmless daemon messages: errors without consequences, and progress at a start or stop. They are logged at `debug`.
//!
//! Each message is listed with the circumstances in which it is irrelevant to an operator. In all other circumstances it keeps
//! the level that its daemon gave it.

/// The circumstances of the process that logs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Circumstances {
    /// This is the first slurmctld on an empty state directory, so nothing can be lost.
    pub new_state: bool,
    /// Slurm is configured without cgroups, because the container may not create any.
    pub without_cgroups: bool,
    /// The user IDs that the daemons run as.
    pub daemon_uids: Vec<u32>,
}

/// The harmless messages. The first lines of the file describe its format.
const HARMLESS_TXT: &str = include_str!("harmless.txt");

/// Daemon, circumstances and pattern of each message.
fn harmless_messages() -> impl Iterator<Item = (&'static str, &'static str, &'static str)> {
    HARMLESS_TXT.lines().filter(|line| !line.starts_with('#')).filter_map(|line| {
        let (daemon, rest) = line.split_once(' ')?;
        let (when, pattern) = rest.split_once(": ")?;
        Some((daemon, when, pattern))
    })
}

/// Whether this line of this daemon is harmless in these circumstances.
pub(super) fn is_harmless(daemon: &str, line: &[u8], circumstances: &Circumstances) -> bool {
    let Ok(line) = std::str::from_utf8(line) else { return false };
    harmless_messages().filter(|(name, ..)| *name == daemon).any(|(_, when, pattern)| {
        matches(pattern, line)
            && match when {
                "always" => true,
                "new-state" => circumstances.new_state,
                "without-cgroups" => circumstances.without_cgroups,
                _ => is_daemon_uid(pattern, line, circumstances),
            }
    })
}

/// Whether the text at the first `*` of the pattern is the UID of a user that a daemon runs as.
fn is_daemon_uid(pattern: &str, line: &str, circumstances: &Circumstances) -> bool {
    let begin = pattern.split('*').next().unwrap_or_default();
    let uid = line.strip_prefix(begin).and_then(|rest| rest.split(' ').next());
    uid.and_then(|uid| uid.parse().ok()).is_some_and(|uid| circumstances.daemon_uids.contains(&uid))
}

/// Whether `text` matches `pattern`, in which `*` matches any text.
fn matches(pattern: &str, text: &str) -> bool {
    let mut parts = pattern.split('*');
    let Some(mut rest) = parts.next().and_then(|begin| text.strip_prefix(begin)) else { return false };
    let Some(end) = parts.next_back() else { return rest.is_empty() };
    for part in parts {
        match rest.split_once(part) {
            Some((_, after)) => rest = after,
            None => return false,
        }
    }
    rest.ends_with(end)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MISSING: &str = "Could not open job state file /var/lib/slurm/slurmctld/job_state: No such file or directory";

    fn first_start() -> Circumstances {
        Circumstances { new_state: true, without_cgroups: true, daemon_uids: vec![0, 64030] }
    }

    fn is_harmless(daemon: &str, line: &str, circumstances: &Circumstances) -> bool {
        super::is_harmless(daemon, line.as_bytes(), circumstances)
    }

    #[test]
    fn every_table_line_names_daemon_and_circumstances() {
        let lines = HARMLESS_TXT.lines().filter(|line| !line.is_empty() && !line.starts_with('#'));
        assert_eq!(harmless_messages().count(), lines.count());
        for (daemon, when, pattern) in harmless_messages() {
            assert!(["munged", "slurmctld", "slurmd", "slurmdbd"].contains(&daemon), "{daemon}");
            assert!(["always", "new-state", "without-cgroups", "of-daemon"].contains(&when), "{when}: {pattern}");
        }
    }

    #[test]
    fn missing_files_are_harmless_only_at_first_start() {
        let later = Circumstances { new_state: false, ..first_start() };
        for line in [
            MISSING,
            "NOTE: Trying backup state save file. Jobs may be lost!",
            "NOTE: Trying backup partition state save file. Information may be lost!",
            "NOTE: Trying backup state save file. Reservations may be lost",
            "No node state file (/var/lib/slurm/slurmctld/node_state.old) to recover",
            "No job state file (/var/lib/slurm/slurmctld/job_state.old) found",
        ] {
            assert!(is_harmless("slurmctld", line, &first_start()), "{line}");
            assert!(!is_harmless("slurmctld", line, &later), "{line}");
            assert!(!is_harmless("slurmd", line, &first_start()), "{line}");
        }
    }

    #[test]
    fn unreadable_state_and_lost_replies_are_never_harmless() {
        for line in [
            "Could not open job state file /var/lib/slurm/slurmctld/job_state: Permission denied",
            "Can not recover job state, incompatible version",
            "Incomplete job state save file",
            "slurm_send_node_msg: [socket:[1]] slurm_bufs_sendto(msg_type=RESPONSE_JOB_INFO) failed: Connection reset by peer",
            "slurm_msg_sendto: address:port=127.0.0.1:1 msg_type=2003: Connection reset by peer",
        ] {
            assert!(!is_harmless("slurmctld", line, &first_start()), "{line}");
        }
        assert!(!super::is_harmless("slurmctld", b"Could not open \xff", &first_start()));
    }

    #[test]
    fn connection_reset_by_ended_srun_is_harmless() {
        let line = "slurm_send_node_msg: [socket:[61600]] slurm_bufs_sendto(msg_type=SRUN_JOB_COMPLETE) failed: Connection reset by peer";
        assert!(is_harmless("slurmctld", line, &Circumstances::default()));
    }

    #[test]
    fn reports_rejected_credential_of_a_user() {
        let line = |uid: &str| format!("Unauthorized credential for client UID={uid} GID=100");
        for (uid, harmless) in
            [("0", true), ("64030", true), ("1000", false), ("6403", false), ("", false), ("0x", false)]
        {
            assert_eq!(is_harmless("munged", &line(uid), &first_start()), harmless, "{uid}");
        }
    }

    #[test]
    fn star_matches_any_text_and_rest_is_literal() {
        for (pattern, text, expected) in [
            ("a", "a", true),
            ("a", "ab", false),
            ("a*", "a", true),
            ("a*b", "ab", true),
            ("a*b", "a", false),
            ("a*b*c", "a-b-c", true),
            ("a*b*c", "a-c-b", false),
            ("ab*b", "ab", false),
        ] {
            assert_eq!(matches(pattern, text), expected, "{pattern} {text}");
        }
    }
}
