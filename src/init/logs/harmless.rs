//! Daemon messages that sound worse than they are. They are logged at `debug`.
//!
//! Each message is listed with the circumstances in which it is irrelevant to an operator. In all others it keeps
//! the level that its daemon gave it.

/// The circumstances of the process that logs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Circumstances {
    /// This is the first slurmctld on an empty state directory, so nothing can be lost.
    pub new_state: bool,
    /// Slurm is configured without cgroups, because the container may not create any.
    pub without_cgroups: bool,
    /// The users that Slurm's daemons run as.
    pub daemon_uids: Vec<u32>,
}

/// When a message is harmless.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum When {
    /// Always.
    Always,
    /// At the first start, with an empty state directory.
    NewState,
    /// Without cgroups.
    WithoutCgroups,
    /// When the text matched by the first `*`, up to a blank, is the UID of a user that Slurm's daemons run as.
    OfDaemon,
}

/// A harmless message.
#[derive(Clone, Copy, Debug)]
pub struct Known {
    /// The daemon that logs it.
    pub daemon: &'static str,
    /// The line without name and level; `*` matches anything.
    pub line: &'static str,
    /// When it is harmless.
    pub when: When,
    /// Its source, and why it is harmless then.
    pub source: &'static str,
}

const fn known(daemon: &'static str, line: &'static str, when: When, source: &'static str) -> Known {
    Known { daemon, line, when, source }
}

/// The reason for messages that munged logs at each start and end.
const START: &str = "munged.c, random.c, gids.c, job.c, of 0.5.15 and 0.5.16: a step of its own at each start or end";

/// All known messages of Slurm 22.05 to 24.11 and munge 0.5.15 and 0.5.16.
pub const KNOWN: [Known; 35] = [
    known(
        "slurmd",
        "xcpuinfo_hwloc_topo_load: failed (load will be required after read failures).",
        When::Always,
        "xcpuinfo.c: the cached topology of a former slurmd is not there yet, and is made",
    ),
    known(
        "slurmd",
        "slurm_receive_msg_and_forward: * failed: Zero Bytes were transmitted or received",
        When::Always,
        "slurm_protocol_api.c: whoever connected ended before it had asked anything, as slurmctld does when it stops",
    ),
    known(
        "slurmd",
        "service_connection: slurm_receive_msg: Zero Bytes were transmitted or received",
        When::Always,
        "slurmd.c: the line after it",
    ),
    known(
        "slurmdbd",
        "Database settings not recommended values: innodb_buffer_pool_size",
        When::Always,
        "accounting_storage_mysql.c: the recommendation is for a machine of its own; some million jobs need less",
    ),
    known(
        "slurmdbd",
        "We can't find assoc * on cluster *",
        When::Always,
        "as_mysql_assoc.c: the root of a new cluster's tree, which it makes in the same request",
    ),
    known(
        "slurmctld",
        "Could not open * state file *: No such file or directory",
        When::NewState,
        "job_mgr.c, node_mgr.c, partition_mgr.c, reservation.c, trigger_mgr.c: an error, also where there was nothing to save yet",
    ),
    known(
        "slurmd",
        "Node configuration differs from hardware: *",
        When::Always,
        "slurmd.c: slurm.conf may say less than there is; where it says more, doctor and the node's reason tell",
    ),
    known("slurmctld", "NOTE: Trying backup * may be lost*", When::NewState, "the line after it, in the same files"),
    known("slurmctld", "No * state file (*) to recover", When::NewState, "the line after that, for the backup"),
    known(
        "slurmctld",
        "No job state file (*) found",
        When::NewState,
        "job_mgr.c, each time it looks before the first save",
    ),
    known("slurmctld", "No last decay (*) to recover", When::NewState, "priority_multifactor.c, before the first save"),
    known(
        "slurmctld",
        "Reinitializing job accounting state",
        When::NewState,
        "read_config.c: there are no jobs to account for",
    ),
    known("slurmctld", "creating clustername file: *", When::NewState, "read_config.c, once for each state directory"),
    known(
        "slurmctld",
        "slurm_send_node_msg: *slurm_bufs_sendto(msg_type=SRUN_JOB_COMPLETE) failed: *",
        When::Always,
        "agent.c, _send_msg_maybe (23.11 and newer): told to an srun that has mostly ended by itself by then; the comment there says \
         that errors do not matter",
    ),
    known(
        "slurmctld",
        "slurm_msg_sendto: *msg_type=7004: *",
        When::Always,
        "the same in 22.05, slurm_protocol_api.c; 7004 is SRUN_JOB_COMPLETE",
    ),
    known(
        "slurmctld",
        "slurm_send_node_msg: *slurm_bufs_sendto(msg_type=RESPONSE_*) failed: Unexpected missing socket error",
        When::Always,
        "conmgr/con.c (24.11): the connection was closed, by whoever asked or by slurmctld at its own end; a program that still waits says so itself",
    ),
    known(
        "slurmctld",
        "No memory enforcing mechanism configured.",
        When::WithoutCgroups,
        "read_config.c: there is none to configure; docs/security.md says what follows from it",
    ),
    known(
        "slurmctld",
        "read_slurm_conf: backup_controller not specified",
        When::Always,
        "read_config.c: a container has one controller",
    ),
    known(
        "slurmctld",
        "select/cons_tres: part_data_create_array: *",
        When::Always,
        "part_data.c: a step of its own at each configuration",
    ),
    known(
        "slurmctld",
        "select/cons_tres: select_p_reconfigure: *",
        When::Always,
        "select_cons_tres.c: a step of its own at each configuration",
    ),
    known(
        "slurmctld",
        "High latency for 1000 calls to gettimeofday(): * microseconds",
        When::Always,
        "controller.c: the machine is busy, or a virtual one with a slow clock, which thousands of nodes would feel; sdiag has the number",
    ),
    known(
        "slurmctld",
        "sched: _update_job: setting delay_boot to 0 for *",
        When::Always,
        "job_mgr.c: how slurminit has slurmctld save what its backfill scheduler has started",
    ),
    known(
        "slurmctld",
        "_slurm_rpc_update_job: complete JobId=* uid=0 usec=*",
        When::Always,
        "proc_req.c: the line after it, and after each change that says by itself what was changed",
    ),
    known(
        "slurmctld",
        "_slurm_rpc_update_job: JobId=* uid=0: Job has already finished",
        When::Always,
        "the same for a job that has ended meanwhile, and is saved by that; whoever else asks is told so",
    ),
    known(
        "slurmd",
        "CPU frequency setting not configured for this node",
        When::Always,
        "cpu_frequency.c: the machine lets nobody set it, and only --cpu-freq asks for it",
    ),
    known(
        "munged",
        "Unauthorized credential for client UID=* GID=*",
        When::OfDaemon,
        "slurmctld and slurmd 24.11 try at each start to read a credential that is not for them, and end if that works (auth_munge.c, \
         init). Of anyone else it says that somebody tries to read another's credential",
    ),
    known("munged", "Set origin address to *", When::Always, START),
    known("munged", "Seeded PRNG with *", When::Always, START),
    known("munged", "Enabled PRNG entropy pool *", When::Always, START),
    known("munged", "Updating supplementary group mapping every *", When::Always, START),
    known("munged", "Enabled supplementary group mtime check of *", When::Always, START),
    known("munged", "Found * users with supplementary groups in *", When::Always, START),
    known("munged", "Set socket listen backlog to *", When::Always, START),
    known("munged", "Created * work threads", When::Always, START),
    known("munged", "Wrote * bytes to PRNG seed *", When::Always, START),
];

/// Whether this line of this daemon is harmless in these circumstances.
pub(super) fn is_harmless(daemon: &str, line: &[u8], now: &Circumstances) -> bool {
    let Ok(line) = std::str::from_utf8(line) else { return false };
    KNOWN.iter().filter(|known| known.daemon == daemon).any(|known| match known.when {
        When::Always => matches(known.line, line),
        When::NewState => now.new_state && matches(known.line, line),
        When::WithoutCgroups => now.without_cgroups && matches(known.line, line),
        When::OfDaemon => matches(known.line, line) && is_of_daemon(known.line, line, now),
    })
}

fn is_of_daemon(pattern: &str, line: &str, now: &Circumstances) -> bool {
    let begin = pattern.split('*').next().unwrap_or_default();
    let uid = line.strip_prefix(begin).and_then(|rest| rest.split(' ').next());
    uid.and_then(|uid| uid.parse().ok()).is_some_and(|uid| now.daemon_uids.contains(&uid))
}

/// Whether `text` matches `pattern`, in which `*` stands for anything.
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

    fn is_harmless(daemon: &str, line: &str, now: &Circumstances) -> bool {
        super::is_harmless(daemon, line.as_bytes(), now)
    }

    #[test]
    fn what_is_missing_is_harmless_at_the_first_start_alone() {
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
    fn state_that_cannot_be_read_is_never_harmless() {
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
    fn an_srun_that_is_gone_is_no_news() {
        let line = "slurm_send_node_msg: [socket:[61600]] slurm_bufs_sendto(msg_type=SRUN_JOB_COMPLETE) failed: Connection reset by peer";
        assert!(is_harmless("slurmctld", line, &Circumstances::default()));
        let old = "slurm_msg_sendto: address:port=127.0.0.1:40000 msg_type=7004: Connection reset by peer";
        assert!(is_harmless("slurmctld", old, &Circumstances::default()));
    }

    #[test]
    fn a_credential_that_a_person_tries_to_read_is_news() {
        let of = |uid: &str| format!("Unauthorized credential for client UID={uid} GID=100");
        for (uid, harmless) in
            [("0", true), ("64030", true), ("1000", false), ("6403", false), ("", false), ("0x", false)]
        {
            assert_eq!(is_harmless("munged", &of(uid), &first_start()), harmless, "{uid}");
        }
    }

    #[test]
    fn a_star_stands_for_anything_and_the_rest_for_itself() {
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
