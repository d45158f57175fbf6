//! The command lines and environments of children.

use super::*;
use crate::supervisor::fixture::supervisor;

impl Supervisor {
    /// The words of a command line; `slurminit` stands for the program beside this one.
    fn words(&self, child: Child) -> String {
        let words = self.command_line(child).0.into_argv().into_iter().map(|word| String::from_utf8(word).unwrap());
        let own = String::from_utf8(CommandLine::own("").into_argv().remove(0)).unwrap();
        words.map(|word| if word == own { "slurminit".to_owned() } else { word }).collect::<Vec<_>>().join(" ")
    }
}

#[test]
fn helpers_get_node_port_and_paths_of_container() {
    let all = supervisor("[slurm]\ndaemon_port = 7000\n");
    let (slurmctld, slurmd) = (all.unit("slurmctld"), all.unit("slurmd"));
    for (child, expected) in [
        (Child::Prepare, "slurminit prepare --given"),
        (Child::Explain(slurmd), "slurminit prepare --died slurmd --given"),
        (Child::Reload, "slurminit prepare --reload --node localhost --given"),
        (Child::Restore, "slurminit prepare --restore "),
        (Child::Reopen, "slurminit prepare --reopen"),
        (Child::Environments, "slurminit environments"),
        (Child::Associations, "slurminit associations"),
        (Child::TestJob, "slurminit test-job --node localhost --limit 60"),
        (Child::JobsRecover, "slurminit jobs --node localhost recover"),
        (Child::JobsAccount, "slurminit jobs --node localhost account"),
        (Child::JobsReclaim, "slurminit jobs --node localhost reclaim"),
        (Child::JobsReclaimDeadSteps, "slurminit jobs --node localhost reclaim --dead-steps"),
        (
            Child::JobsFollow,
            "slurminit jobs follow --slurm-conf /slurm/slurm.conf --state /state/slurmctld --socket /dev/null/run/control",
        ),
        (Child::JobsReached, "slurminit jobs --node localhost reached --port 7000 --socket /dev/null/run/control"),
        (Child::JobsWait, "slurminit jobs --node localhost wait"),
        (Child::JobsQuiesce, "slurminit jobs --node localhost quiesce --grace 3 --on-stop requeue"),
        (Child::Liveness, "slurminit liveness --run /dev/null/run"),
        (Child::OomScore, "slurminit oom-score --spare munge --spare slurm"),
        (Child::FreePort(slurmctld), "slurminit free-port --port 6817 --unit slurmctld"),
        (Child::FreePort(slurmd), "slurminit free-port --port 7000 --unit slurmd"),
        (Child::FreePort(all.unit("munged")), "slurminit free-port --port 0 --unit munged"),
        (Child::Reconfigure, "scontrol reconfigure"),
        (Child::NodeCheck, "sinfo --noheader --nodes localhost --format %T %u|%E"),
        (Child::NodeResume, "scontrol update nodename=localhost state=resume"),
    ] {
        assert_eq!(all.words(child), expected, "{child:?}");
    }
}

#[test]
fn preparation_changes_what_helpers_get() {
    let prepared =
        Prepared { node_name: "gpu-box".to_owned(), spool_directories: vec!["/spool".into()], ..Prepared::default() };
    let mut all = supervisor("").prepared(prepared);
    assert_eq!(all.words(Child::NodeResume), "scontrol update nodename=gpu-box state=resume");
    assert!(all.words(Child::OomScore).ends_with(" --spool /spool"));
    all.task.config_file = Some("/my.toml".into());
    all.task.has_other_nodes = true;
    assert_eq!(all.words(Child::Reopen), "slurminit prepare --config /my.toml --reopen");
    assert_eq!(all.words(Child::Liveness), "slurminit liveness --run /dev/null/run --recall 6818");
}

#[test]
fn helpers_of_other_roles_care_for_fewer_jobs() {
    let compute = supervisor("role = 'compute'\n[slurm]\ncontroller = 'head'\n");
    let quiesce = "slurminit jobs --node localhost quiesce --grace 3 --on-stop requeue --leave";
    assert_eq!(compute.words(Child::JobsQuiesce), quiesce);
    let controller = supervisor("role = 'controller'");
    assert_eq!(controller.words(Child::JobsQuiesce), "slurminit jobs --node localhost note-next");
    assert_eq!(controller.words(Child::NodeCheck), "scontrol ping");
}

#[test]
fn daemons_start_through_verbs_that_prepare_them() {
    let unit = |supervisor: &Supervisor, name| supervisor.words(Child::Unit(supervisor.unit(name)));
    let embedded = "[accounting]\nmode = 'embedded'\n";
    let all = supervisor(embedded);
    let mariadb = "slurminit mariadb --template /usr/share/slurminit/mariadb --data /state/mysql/data -- mariadbd ";
    assert!(unit(&all, "mariadbd").starts_with(mariadb), "{}", unit(&all, "mariadbd"));
    for (name, command) in [("slurmdbd", "slurmdbd -D"), ("slurmctld", "slurmctld -D"), ("slurmd", "slurmd -D")] {
        assert_eq!(unit(&all, name), command);
    }

    let number = "slurminit jobs number --slurm-conf /slurm/slurm.conf --state /state/slurmctld slurmctld -D";
    let own_cgroup = "slurminit jobs own-cgroup -- slurmd -D";
    for (toml, prepared, slurmctld, slurmd) in [
        ("", Prepared { new_state: true, ..Prepared::default() }, "slurmctld -D", own_cgroup),
        (embedded, Prepared { new_state: true, ..Prepared::default() }, number, own_cgroup),
        ("", Prepared { saved_jobs: true, without_cgroups: true, ..Prepared::default() }, number, "slurmd -D"),
    ] {
        let all = supervisor(toml).prepared(prepared);
        assert_eq!((unit(&all, "slurmctld").as_str(), unit(&all, "slurmd").as_str()), (slurmctld, slurmd), "{toml}");
    }

    let prepared =
        Prepared { node_name: "c1".to_owned(), dynamic_node: Some("CPUs=4".to_owned()), ..Prepared::default() };
    let compute = supervisor("role = 'compute'\n[slurm]\ncontroller = 'head'\ndaemon_port = 7000\n").prepared(prepared);
    let join = "slurminit jobs --node c1 join --conf CPUs=4 --gpus  --port 7000 -- slurmd -D";
    assert_eq!(unit(&compute, "slurmd"), join);
    let named = Prepared { configured_node_name: Some("n2".to_owned()), without_cgroups: true, ..Prepared::default() };
    assert_eq!(unit(&supervisor("").prepared(named), "slurmd"), "slurmd -D -N n2");
}

#[test]
fn unit_gets_its_user_and_variables() {
    let service = "[[service]]\nname = 'api'\ncommand = ['api']\nuser = 'nobody'\nenv = { A = 'b', HOME = '/srv' }\n";
    let all = supervisor(service);
    let program = all.program(Child::Unit(all.unit("api")));
    let variables: Vec<&str> = program.env.iter().map(|pair| std::str::from_utf8(pair).unwrap()).collect();
    for pair in ["A=b", "HOME=/srv", "USER=nobody"] {
        assert!(variables.contains(&pair), "{pair}: {variables:?}");
    }
    assert_eq!(program.user.map(|user| user.uid), Some(65534));
    assert_eq!(program.argv, [b"api"]);
    // A directory service may know this user.
    let all = supervisor(&service.replace("nobody", "no-such-user"));
    let program = all.program(Child::Unit(all.unit("api")));
    let words: Vec<_> = program.argv.iter().map(|word| String::from_utf8_lossy(word)).collect();
    assert_eq!(words[1..], ["as-user", "no-such-user", "--", "api"]);
    assert!(program.user.is_none() && program.env.contains(&b"A=b".to_vec()));
}

#[test]
fn only_children_of_slurminit_report_and_get_role() {
    let all = supervisor("");
    let has = |program: &Program, name: &str| program.env.iter().any(|pair| pair.starts_with(name.as_bytes()));
    for (child, reports, has_role) in [
        (Child::JobsRecover, true, true),
        (Child::Reconfigure, false, true),
        (Child::Unit(all.unit("slurmctld")), false, false),
        // The role comes from the configuration, which is read again.
        (Child::Prepare, true, false),
    ] {
        let program = all.program(child);
        assert_eq!((program.reports, has(&program, "SLURMINIT_ROLE=all")), (reports, has_role), "{child:?}");
        assert_eq!(has(&program, &format!("{}=1", model::message::REPORTS)), reports, "{child:?}");
    }
    for (name, is_marked) in [("slurmd", true), ("slurmctld", false)] {
        let program = all.program(Child::Unit(all.unit(name)));
        assert_eq!((program.is_marked, program.is_cmd), (is_marked, false));
    }
    assert!(all.program(Child::Cmd).is_cmd);
}
