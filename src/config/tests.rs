//! Tests of slurminit.toml and the environment variables.

use std::time::Duration;

use super::example::Example;
use super::*;

fn parse(text: &str) -> Result<Config, ConfigError> {
    Config::parse(text, Path::new("/config/slurminit.toml"))
}

fn refusal(text: &str) -> String {
    parse(text).unwrap_err().to_string()
}

#[test]
fn unmodified_example_equals_defaults() {
    assert_eq!(parse(EXAMPLE).unwrap(), Config::default());
}

#[test]
fn defaults_in_example_match_code() {
    let text = Example::parse(EXAMPLE).defaults;
    assert_eq!(parse(&text).unwrap(), Config::default());
    // Checks that the lines were uncommented: otherwise the comparison above would pass, too.
    for key in ["role = ", "detect_timeout = ", "controller_port = ", "ready_timeout = ", "munge_secret = "] {
        assert!(text.lines().any(|line| line.starts_with(key)), "{key}");
    }
}

#[test]
fn uncommented_example_is_valid() {
    let config = parse(&Example::parse(EXAMPLE).uncommented).unwrap();
    assert_eq!(config.gpu_type, Some(GpuType::Nvidia));
    assert_eq!(config.partitions[0].settings.get("maxtime").unwrap().as_str(), "01:00:00");
    assert_eq!(config.services[0].readiness.as_ref().unwrap().test, ReadinessTest::Port(8000));
    let liveness =
        LivenessTest::Command { command: vec!["/opt/api/ping".to_owned()], timeout: Some(Duration::from_secs(2)) };
    assert_eq!(config.services[0].liveness, Some(liveness));
    assert_eq!(config.hooks.pre_start[0].timeout, Duration::from_secs(300));
    let slurmctld = &config.daemons[&DaemonName::Slurmctld];
    assert_eq!(slurmctld.readiness.as_ref().unwrap().timeout, Some(Duration::from_secs(30)));
    assert_eq!(slurmctld.restart, Some(RestartPolicy::Always));
    assert_eq!(config.slurm.conf.get("maxjobcount").unwrap().as_str(), "50000");
}

#[test]
fn errors_quote_no_secret() {
    for text in [
        "[[notify]]\nurl = \"htps://chat.example.org/hunter2\"",
        "[[notify]]\nurl = [\n\"https://chat.example.org/hunter2\"]",
        "[[notify]]\nurl = \"https://chat.example.org/hunter2",
        "notify = [{ url = \"https://chat.example.org/hunter2\", at_least = \"bad\" }]",
        "[slurm.conf]\nJobCompPass = \"hunter2#\"",
        "[slurm.conf]\nJobCompPass = { key = \"hunter2\" }",
        "[daemon.slurmd]\nenv = \"hunter2\"",
        "[daemon.slurmd]\nenv = { KEY = [\"hunter2\"] }",
        "[daemon.slurmd.env]\nKEY = \"hunter2",
        "[daemon.slurmd.env]\nKEY = hunter2",
        "[daemon.slurmd.env]\nhunter2",
    ] {
        let refusal = refusal(text);
        assert!(refusal.starts_with("/config/slurminit.toml:") && !refusal.contains("hunter2"), "{text}: {refusal}");
    }
}

#[test]
fn error_names_file_line_column_key_and_expected_value() {
    let refusals = [
        "role = \"al\"",
        "rol = \"all\"",
        "[gpu]\n\ngres = 3",
        "[gpu]\ndetect_timeout = -1",
        "[gpu",
        "[node]\nname = \"a b\"",
        "[node]\nfeatures = [\"ok\", \"no,no\"]",
        "[slurm.conf]\nPrologFlags = \"a\\nInclude /etc/passwd\"",
        "[slurm.conf]\nMailProg = \"x\"\nmailprog = \"y\"",
        "[slurm.conf]\nnodename = \"x\"",
        "[slurm.conf]\n\"bad key\" = 1",
        "[[partition]]\nMaxTime = 1",
        "[paths]\nrun = \"run\"",
        "[paths]\nmunge_key = \"/etc/a\\tb\"",
        "[[partition]]\nname = \"a\"\n[[partition]]\nname = \"a\"",
        "[daemon.sackd]\nuser = \"x\"",
        "[daemon.slurmd]\nreadiness = { port = 1, socket = \"/x\" }",
        "[daemon.slurmd]\nreadiness = \"soon\"",
        "[daemon.slurmd]\ncommand = []",
        "[daemon.slurmd]\nliveness = \"on\"",
        "[daemon.slurmd]\nliveness = { port = 1 }",
        "[supervise]\nprobe_interval = 0.01",
        "[supervise]\nprobe_timeout = 0",
        "[[service]]\nname = \"Api\"\ncommand = [\"x\"]",
        "[[service]]\nname = \"slurmd\"\ncommand = [\"x\"]",
        "[[service]]\nname = \"api\"",
        "[[service]]\nname = \"api\"\ncommand = [\"x\"]\nafter = [\"munged\", \"nginx\"]",
        "[[service]]\nname = \"a\"\ncommand = [\"x\"]\nafter = [\"b\"]\n[[service]]\nname = \"b\"\ncommand = [\"x\"]\nafter = [\"a\"]",
    ]
    .map(refusal);
    insta::assert_snapshot!(refusals.join("\n"));
}

fn with_environment(text: &str, variables: &[(&str, &str)]) -> Result<Config, ConfigError> {
    let find = |name: &str| variables.iter().find(|(key, _)| *key == name).map(|(_, value)| (*value).to_owned());
    Layers::merge(text, Path::new("/config/slurminit.toml"), None, &find).map(|layers| layers.config)
}

#[test]
fn precedence_is_slurminit_variable_then_file_then_image() {
    let gpu_type = |text, variables: &[(&str, &str)]| with_environment(text, variables).unwrap().gpu_type;
    assert_eq!(gpu_type("", &[("DSHPC_GPU_TYPE", "amd")]), Some(GpuType::Amd));
    assert_eq!(gpu_type("", &[("DSHPC_GPU_TYPE", "amd"), ("GPU_TYPE", "none")]), Some(GpuType::None));
    assert_eq!(gpu_type("gpu_type = \"nvidia\"", &[("GPU_TYPE", "none")]), Some(GpuType::Nvidia));
    let own = [("GPU_TYPE", "none"), ("SLURMINIT_GPU_TYPE", "AMD")];
    assert_eq!(gpu_type("gpu_type = \"nvidia\"", &own), Some(GpuType::Amd));

    let cluster = |text, variables: &[(&str, &str)]| with_environment(text, variables).unwrap().cluster_name;
    assert_eq!(cluster("", &[("CLUSTER_NAME", "lab")]).unwrap().as_str(), "lab");
    assert_eq!(cluster("cluster_name = \"own\"", &[("CLUSTER_NAME", "lab")]).unwrap().as_str(), "own");
}

#[test]
fn empty_variable_counts_as_unset() {
    let empty = [("SLURMINIT_ROLE", ""), ("GPU_TYPE", " "), ("CLUSTER_NAME", ""), ("USER_CUSTOMIZED", "")];
    assert_eq!(with_environment("", &empty).unwrap(), Config::default());
}

/// Kubernetes sets `LOGIN_PORT` for a Service with the name `login`.
#[test]
fn address_of_kubernetes_service_counts_as_unset() {
    for variable in VARIABLES {
        for address in ["tcp://10.96.0.7:22", "udp://10.96.0.7:22"] {
            assert_eq!(with_environment("", &[(variable.name, address)]), Ok(Config::default()), "{}", variable.name);
        }
    }
}

#[test]
fn merged_tables_give_parsed_configuration() {
    let text = Example::parse(EXAMPLE).uncommented;
    assert_eq!(with_environment(&text, &[]), parse(&text));
    let slow_driver = "[gpu]\ndetect_timeout = 20\n";
    let config = with_environment(slow_driver, &[]);
    assert_eq!(config.as_ref().unwrap().supervise.prepare_timeout(), Duration::from_secs(60));
    assert_eq!(config, parse(slow_driver));
}

#[test]
fn value_of_slurm_conf_cannot_continue_its_line() {
    for value in [r"x\", r"x\ ", r" \"] {
        let error = parse(&format!("[slurm.conf]\nMailProg = '{value}'\n")).unwrap_err();
        assert!(error.to_string().contains("continues the line"), "{value}: {error}");
    }
    assert!(parse("[slurm.conf]\nMailProg = ' /bin/mail '\n").is_ok());
}

#[test]
fn variable_shortens_configured_grace() {
    let stop = [("SLURMINIT_STOP_TIMEOUT", "2")];
    assert_eq!(with_environment("[jobs]\ngrace = 4\n", &stop).unwrap().jobs.grace, Duration::from_secs(1));
    assert!(with_environment("[jobs]\ngrace = 9\n", &[]).unwrap_err().place.contains("jobs.grace"));
}

#[test]
fn error_names_invalid_variable() {
    let refused = |name, value| with_environment("", &[(name, value)]).unwrap_err().to_string();
    insta::assert_snapshot!(
        [
            refused("GPU_TYPE", "nvida"),
            refused("SLURMINIT_ROLE", "master"),
            refused("SLURMINIT_RESERVE_MIB", "4G"),
            refused("SLURMINIT_NODE_NAME", "a,b"),
            refused("CLUSTER_NAME", "x\nNodeName=y"),
            refused("USER_CUSTOMIZED", "maybe"),
            refused("SLURMINIT_NODES", "513"),
            refused("SLURMINIT_ACCOUNTING", "external"),
            refused("SLURMINIT_METRICS", "9835"),
            refused("LOGIN_PORT", "0"),
        ]
        .join("\n")
    );
}

#[test]
fn job_grace_must_fit_into_stop_timeout() {
    let parse = |text: &str| Config::parse(text, Path::new("x"));
    let error = parse("[supervise]\nstop_timeout = 4\n[jobs]\ngrace = 4.5\n").unwrap_err().to_string();
    assert!(error.starts_with("x:4:9: jobs.grace: ") && error.contains("4.5 s"), "{error}");
    // Only a default grace period is shortened. A short timeout reserves a quarter for the daemons and a quarter for
    // Slurm's commands.
    assert_eq!(parse("[supervise]\nstop_timeout = 2\n").unwrap().jobs.grace, Duration::from_secs(1));
    assert_eq!(parse("[jobs]\ngrace = 4.5\n").unwrap().jobs.grace, Duration::from_millis(4_500));
    let error = parse("[jobs]\ngrace = 8\n").unwrap_err().to_string();
    assert!(error.starts_with("x:2:9: jobs.grace"), "{error}");
}

#[test]
fn error_names_table_that_is_expected() {
    for (text, table) in [
        ("[slurm]\nconf = 5", "a table of slurm.conf keys"),
        ("partition = [5]", "a table with `name` and, optionally, other keys of a PartitionName line"),
        ("qos = [5]", "a table with `name` and, optionally, sacctmgr settings"),
    ] {
        let why = refusal(text);
        assert!(why.contains(table), "{text}: {why}");
    }
}

#[test]
fn error_for_list_names_expected_table() {
    for (text, key, table) in [
        ("[hooks]\npre_start = [[\"sleep\", \"30\"]]", "hooks.pre_start[0]", "[[hooks.pre_start]]"),
        ("user = [[\"alice\", 1000]]", "user[0]", "[[user]]"),
        ("[[simulate.node]]\nfeatures = [[\"a\"]]", "simulate.node[0].features[0]", "[[simulate.node.features]]"),
    ] {
        let error = Config::parse(text, Path::new("t")).unwrap_err();
        assert!(error.place.contains(key) && error.what.contains(table), "{error}");
    }
}

#[test]
fn node_is_dynamic_if_its_cluster_has_several_containers() {
    let node = |text: &str| {
        let config = parse(text).unwrap();
        (config.has_dynamic_node(), config.names_node_after_container())
    };
    for (text, expected) in [
        ("", (false, false)),
        ("role = 'controller'", (false, false)),
        ("role = 'login'\nslurm.controller = 'head'", (false, false)),
        ("role = 'compute'\nslurm.controller = 'head'", (true, true)),
        ("slurm.controller = 'head'", (true, true)),
        ("slurm.controller = 'head'\nnode.name = 'c1'", (true, false)),
    ] {
        assert_eq!(node(text), expected, "{text}");
    }
}

#[test]
fn agent_runs_beside_a_real_slurmd_that_has_something_to_watch() {
    for (text, expected) in [
        ("", true),
        ("agent.interval = 0", false),
        ("gpu_type = 'nvidia'", true),
        ("gpu_type = 'none'\nmemory.guard = false", false),
        ("gpu_type = 'none'\nmemory.guard = true", true),
        ("gpu_type = 'none'\nmemory.guard = false\nnode.directory_limits = ['/scratch=10']", true),
        ("simulate.nodes = 2", false),
        ("role = 'compute'\nslurm.controller = 'head'", true),
        ("role = 'controller'", false),
        ("role = 'login'\nslurm.controller = 'head'", false),
        ("role = 'none'", false),
    ] {
        assert_eq!(parse(text).unwrap().runs_agent(), expected, "{text}");
    }
}

#[test]
fn each_role_runs_its_services() {
    let services = |role: &str| {
        let listen = "rest.listen = '127.0.0.1:6820'\nmetrics.listen = '127.0.0.1:9835'\nlogin.port = 22";
        let config = parse(&format!("role = '{role}'\nslurm.controller = 'head'\n{listen}")).unwrap();
        [config.runs_rest(), config.runs_metrics(), config.runs_sshd(), config.shares_a_cluster()]
    };
    assert_eq!(services("all"), [true; 4]);
    assert_eq!(services("controller"), [true; 4]);
    assert_eq!(services("compute"), [false, true, true, true]);
    assert_eq!(services("login"), [false, true, true, true]);
    assert_eq!(services("none"), [false; 4]);
    let default = parse("").unwrap();
    assert!(!default.runs_rest() && !default.runs_metrics() && !default.runs_sshd() && !default.shares_a_cluster());
}

#[test]
fn secrets_are_urls_environments_and_slurms_passwords() {
    for (text, has_secrets) in [
        ("", false),
        ("[[notify]]\ncommand = ['x']", false),
        ("[[notify]]\nurl = 'https://example.org/x'", true),
        ("[[service]]\nname = 'api'\ncommand = ['x']", false),
        ("[[service]]\nname = 'api'\ncommand = ['x']\nenv = { A = 'b' }", true),
        ("[daemon.slurmd]\nuser = 'x'", false),
        ("[daemon.slurmd]\nenv = { A = 'b' }", true),
        ("[slurm.conf]\nMaxJobCount = 7", false),
        ("[slurm.conf]\nJobCompPass = 'x'", true),
    ] {
        assert_eq!(parse(text).unwrap().has_secrets(), has_secrets, "{text}");
    }
}

#[test]
fn only_host_of_accounting_database_has_associations() {
    for (text, has_associations) in [
        ("[accounting]\nmode = 'embedded'", false),
        ("[accounting]\nmode = 'embedded'\n[[account]]\nname = 'lab'", true),
        ("[accounting]\nmode = 'embedded'\n[[qos]]\nname = 'long'", true),
        ("[accounting]\nmode = 'embedded'\n[[user]]\nname = 'eve'\nuid = 1500", false),
        ("[accounting]\nmode = 'embedded'\n[[user]]\nname = 'eve'\nuid = 1500\naccount = 'root'", true),
        ("[accounting]\nmode = 'embedded'\n[users]\nfrom = '/etc/host'", false),
        ("[accounting]\nmode = 'embedded'\n[users]\nfrom = '/etc/host'\naccount = 'root'", true),
        ("[accounting]\nmode = 'embedded'\n[users]\naccount = 'root'", false),
    ] {
        assert_eq!(parse(text).unwrap().has_associations(), has_associations, "{text}");
    }
    let mut elsewhere = parse("[accounting]\nmode = 'embedded'\n[[qos]]\nname = 'long'").unwrap();
    elsewhere.role = Role::Compute;
    assert!(!elsewhere.has_associations());
}

#[test]
fn readiness_and_job_hooks_have_defaults() {
    let config = parse(
        "[daemon.slurmd]\nreadiness = { socket = '/run/x' }\n[[hooks.pre_job]]\ncommand = ['x']\n\
         [[hooks.post_job]]\ncommand = ['x']\ntimeout = 5",
    );
    let config = config.unwrap();
    let readiness = config.daemons[&DaemonName::Slurmd].readiness.clone().unwrap();
    assert_eq!((readiness.test, readiness.timeout), (ReadinessTest::Socket("/run/x".into()), None));
    let timeouts = [&config.hooks.pre_job[0], &config.hooks.post_job[0]].map(|hook| hook.timeout.as_secs());
    assert_eq!(timeouts, [60, 5]);
}

#[test]
fn several_users_isolate_gpus() {
    let is_isolated = |count: u32, more: &str| {
        let user = |index: u32| format!("[[user]]\nname = 'u{index}'\nuid = {}\n", 1500 + index);
        let users: String = (0..count).map(user).collect();
        parse(&format!("{users}{more}")).unwrap().isolates_gpus()
    };
    assert_eq!([0, 1, 2, 3].map(|count| is_isolated(count, "")), [false, false, true, true]);
    assert!(is_isolated(0, "[gpu]\nisolate = true") && !is_isolated(3, "[gpu]\nisolate = false"));
}

#[test]
fn accounts_are_unique_and_each_user_has_one() {
    let lab = "[[account]]\nname = 'lab'\n";
    let eve = "[[user]]\nname = 'eve'\nuid = 1500\n";
    for (text, is_valid) in [
        (format!("{lab}[[qos]]\nname = 'lab'\n"), true),
        (format!("{lab}[[account]]\nname = 'LAB'\n"), false),
        ("[[qos]]\nname = 'long'\n[[qos]]\nname = 'Long'\n".to_owned(), false),
        (format!("{lab}{eve}account = 'lab'"), true),
        (format!("{lab}{eve}"), false),
        (eve.to_owned(), true),
        // The controller has the accounts.
        (format!("role = 'compute'\nslurm.controller = 'head'\n{lab}{eve}"), true),
        (format!("role = 'login'\nslurm.controller = 'head'\n{lab}{eve}"), true),
        (format!("role = 'controller'\n{lab}{eve}"), false),
    ] {
        assert_eq!(parse(&text).is_ok(), is_valid, "{text}");
    }
}

#[test]
fn user_has_own_group_and_home_by_default() {
    let user = |more: &str| {
        let config = parse(&format!("[[user]]\nname = 'eve'\nuid = 1500\n{more}")).unwrap();
        (config.users[0].gid(), config.users[0].home())
    };
    assert_eq!(user(""), (1500, "/home/eve".into()));
    assert_eq!(user("gid = 100\nhome = '/data/eve'"), (100, "/data/eve".into()));
}

#[test]
fn option_sets_number_of_simulated_nodes() {
    let nodes = |nodes| Config::default().with_simulated_nodes(nodes);
    assert_eq!(nodes(3).unwrap().simulated().map(|nodes| nodes.range()), Some("node[1-3]".to_owned()));
    assert!(nodes(0).unwrap_err().to_string().contains("--nodes"));
}
