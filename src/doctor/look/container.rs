//! Observes the container, and predicts what a start in it would write.

use std::collections::BTreeMap;
use std::io::{Read as _, Write as _};
use std::net::IpAddr;
use std::path::Path;

use super::{Ask, Scope};
use super::{cheap_facts, decode_credential, has_address, local_credential, slurm, with_deadline};
use crate::facts::{CheapFacts, ContainerFacts, Credential, Observed, SlurmFacts, has_no_slurmd};
use config::{Config, NodeName, Role};
use control::status;
use install::exposure;
use install::load_config;
use install::planned::{PlanError, Planned, cluster_name, plan_files, slurm_conf};
use machine::STATUS_FILE;
use machine::Snapshot;
use model::inventory::{Finding, Inventory};
use plan::{FileName, in_use};
use sys::sockets;
use watch::agent;

/// The maximum size of a credential, in bytes.
const MAX_CREDENTIAL_BYTES: u64 = 1 << 20;

/// The container, and what a start in it would report and write.
pub(super) fn facts(scope: &Scope, inventory: &Inventory) -> (ContainerFacts, StartPreview) {
    let ask = scope.ask();
    let (config, configuration) = match load_config::load(scope.config.as_deref()) {
        Ok(config) => (config, Ok(())),
        Err(error) => (Config::default(), Err(error.to_string())),
    };
    // A reload would exclude the GPUs that the agent has excluded.
    let mut inventory = inventory.clone();
    agent::files::leave_out(&sys::under(&scope.root, &config.paths.run), &mut inventory);
    let inventory = &inventory;
    let status = snapshot(&config, &scope.root);
    let config = status.as_ref().map_or(config.clone(), |status| with_running_role(config, status, &scope.root));
    let mut preview = preview_start_within_deadline(scope, &config, inventory);
    preview.configuration = configuration;
    let slurm = match &status {
        Ok(status) => {
            let node = (!has_no_slurmd(status)).then_some(preview.node.as_str());
            with_refused_line(slurm(&ask, node), &config.paths.slurm, &scope.root)
        }
        Err(why) => SlurmFacts::not_queried(why),
    };
    let munge = if status.is_ok() { local_credential(&ask) } else { Err("no cluster in this container".to_owned()) };
    let probe_images = |backend: &str| {
        let output = ask("slurminit", &["oci", "--probe", backend]).output_of("slurminit oci --probe");
        output.map(drop).map_err(|why| why.rsplit("slurminit: ").next().unwrap_or_default().to_owned())
    };
    let facts = ContainerFacts {
        cheap: cheap_facts_within_deadline(scope, &config, inventory, preview.cluster.clone()),
        foreign_credential: scope.credential.as_deref().map(|file| foreign_credential(&ask, file)),
        step_credential_lifetime: step_credential_lifetime(&config, &scope.root),
        has_address: has_address(&ask, &inventory.hostname),
        namespaces: probe_images("namespaces"),
        proot: probe_images("proot"),
        ordinary_user: exposure::ordinary_user(&config, &scope.root),
        ssh_clients: config.runs_sshd().then(|| ssh_clients(&config)),
        status,
        slurm,
        munge,
        gpu_health: agent::files::report(&sys::under(&scope.root, &config.paths.run))
            .ok_or_else(|| "no report of a running GPU agent".to_owned()),
    };
    (facts, preview)
}

/// The lifetime of a step's credential in seconds, from the running cluster's slurm.conf.
fn step_credential_lifetime(config: &Config, root: &Path) -> i64 {
    let files = install::read_applied(&config.paths, root).unwrap_or_default();
    plan::step_credential_lifetime(slurm_conf(&files))
}

/// The number of connections to sshd by address.
fn ssh_clients(config: &Config) -> BTreeMap<IpAddr, usize> {
    let port = config.login.port.map_or(0, std::num::NonZeroU16::get);
    let mut clients = BTreeMap::new();
    for connection in sockets::bound(port).unwrap_or_default().iter().filter(|socket| !socket.is_listening) {
        *clients.entry(connection.peer.ip()).or_default() += 1;
    }
    clients
}

/// The configuration with the role and controller of the running cluster, which may come from the options of `slurminit up`. A configured role
/// other than `all` remains.
fn with_running_role(mut config: Config, status: &Snapshot, root: &Path) -> Config {
    let role = status.role();
    if config.role == Role::All && role != Role::All {
        let installed = config.paths.slurm.join(FileName::SlurmConf.as_str());
        let text = std::fs::read_to_string(sys::under(root, &installed)).unwrap_or_default();
        let controller = plan::last_value(&text, "SlurmctldHost").and_then(|host| NodeName::try_from(host).ok());
        config.slurm.controller = config.slurm.controller.take().or(controller);
        config.role = role;
    }
    config
}

/// The predicted result of a start with the present files, configuration and hardware.
pub(super) struct StartPreview {
    pub(super) configuration: Observed<()>,
    pub(super) findings: Vec<Finding>,
    pub(super) stale_files: Observed<Vec<String>>,
    cluster: String,
    node: String,
}

impl StartPreview {
    /// The part of the preview that needs no plan.
    pub(super) fn without_plan(config: &Config, inventory: &Inventory) -> Self {
        let (findings, node) = (inventory.findings.clone(), config.node.name.to_string());
        Self { configuration: Ok(()), findings, stale_files: Ok(Vec::new()), cluster: String::new(), node }
    }
}

fn preview_start_within_deadline(scope: &Scope, config: &Config, inventory: &Inventory) -> StartPreview {
    let preview = {
        let (config, inventory, root) = (config.clone(), inventory.clone(), scope.root.clone());
        let config_file = scope.config.clone();
        move || preview_start(&config, config_file.as_deref(), &inventory, &root)
    };
    with_deadline(scope.deadline, preview).unwrap_or_else(|| StartPreview {
        stale_files: Err("timeout while reading Slurm's files: the file system may be hanging".to_owned()),
        ..StartPreview::without_plan(config, inventory)
    })
}

fn preview_start(config: &Config, config_file: Option<&Path>, inventory: &Inventory, root: &Path) -> StartPreview {
    let mut preview = StartPreview::without_plan(config, inventory);
    match plan_files(config, config_file, inventory, root) {
        Ok(mut planned) => {
            keep_entries_in_use(config, root, &mut planned);
            let Planned { plan, files, customized } = planned;
            preview.node = customized.own_node.as_ref().map_or_else(|| plan.node_names(), |node| node.name.clone());
            preview.findings.extend(plan.findings);
            let differs = |name: &str, text: &str| {
                let path = sys::under(root, &config.paths.slurm.join(name));
                std::fs::read_to_string(path).is_ok_and(|installed| installed != text)
            };
            let stale = files.iter().filter(|file| differs(file.name.as_str(), &file.text));
            preview.stale_files = Ok(stale.map(|file| file.name.as_str().to_owned()).collect());
            preview.cluster = cluster_name(&files);
        }
        Err(PlanError::Refused(refusal)) => {
            preview.findings.push(refusal.finding);
            preview.stale_files = Err("a start would fail now".to_owned());
        }
        Err(PlanError::Unreadable(error)) => preview.stale_files = Err(error.to_string()),
    }
    preview
}

/// Adds the partitions and nodes that the installed slurm.conf contains only for jobs that still use them. Otherwise it would count as outdated.
fn keep_entries_in_use(config: &Config, root: &Path, planned: &mut Planned) {
    let installed = sys::under(root, &config.paths.slurm.join(FileName::SlurmConf.as_str()));
    let installed = std::fs::read_to_string(installed).unwrap_or_default();
    let planned_text = slurm_conf(&planned.files);
    let mut partitions = in_use::removed_partitions(&installed, planned_text);
    partitions.retain(|gone| !gone.is_up);
    let mut nodes = in_use::removed_nodes(&installed, planned_text);
    nodes.retain(|gone| gone.is_kept);
    planned.keep(&partitions, &nodes);
}

fn snapshot(config: &Config, root: &Path) -> Observed<Snapshot> {
    let directory = sys::under(root, &config.paths.run);
    let status = status::read(&directory).map_err(|error| no_status(&directory.join(STATUS_FILE), &error))?;
    if status::is_process_alive(&status) {
        Ok(status.snapshot)
    } else {
        Err(format!("slurminit (PID {}) has exited", status.process.pid))
    }
}

fn no_status(file: &Path, error: &std::io::Error) -> String {
    match error.kind() {
        std::io::ErrorKind::PermissionDenied => format!("cannot read {}: {error}", file.display()),
        _ => "no cluster in this container: PID 1 is not slurminit, or is still starting".to_owned(),
    }
}

/// If slurmctld refuses the node's registration, adds the node's line in slurm.conf, with which slurmctld compares the
/// node.
fn with_refused_line(mut facts: SlurmFacts, directory: &Path, root: &Path) -> SlurmFacts {
    if let Ok(node) = facts.node.as_mut() {
        let file = directory.join(FileName::SlurmConf.as_str());
        node.refused_line = node.report.is_refused().then(|| slurm::node_line(&file, root, &node.name)).flatten();
    }
    facts
}

fn cheap_facts_within_deadline(scope: &Scope, config: &Config, inventory: &Inventory, cluster: String) -> CheapFacts {
    let state = config.paths.state.display().to_string();
    let observe = {
        let (root, config, inventory, cluster) =
            (scope.root.clone(), config.clone(), inventory.clone(), cluster.clone());
        move || cheap_facts(&root, &config, &inventory, &cluster)
    };
    with_deadline(scope.deadline, observe).unwrap_or_else(|| CheapFacts {
        key: Err("not checked".to_owned()),
        cluster,
        saved_cluster: Err("not checked".to_owned()),
        state_disk: Err(format!("timeout while reading {state} or another file: a file system may be hanging")),
        state,
        ports: Vec::new(),
        cuda: crate::facts::CudaFacts::default(),
        memory_kills: Err("not checked".to_owned()),
        has_oom_group: false,
        has_kfd: false,
        settings: crate::facts::ContainerSettings::default(),
        exposed_secrets: Vec::new(),
    })
}

/// Decodes the credential in `file`. `-` is standard input, which is copied to a file, so that unmunge can run with a timeout.
fn foreign_credential(ask: Ask<'_>, file: &Path) -> Observed<Credential> {
    if file != Path::new("-") {
        return decode_credential(ask, file);
    }
    let copy = || {
        let mut text = Vec::new();
        std::io::stdin().take(MAX_CREDENTIAL_BYTES).read_to_end(&mut text)?;
        let path = std::env::temp_dir().join(format!("slurminit-credential-{}", std::process::id()));
        // Do not follow a link that another user created.
        std::fs::OpenOptions::new().write(true).create_new(true).open(&path)?.write_all(&text)?;
        Ok::<_, std::io::Error>(path)
    };
    let path = copy()
        .map_err(|error| format!("cannot copy the credential from standard input to a temporary file: {error}"))?;
    let credential = decode_credential(ask, &path);
    let _ = std::fs::remove_file(path);
    credential
}

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, TcpListener, TcpStream};

    use machine::UnitSnapshot;

    use super::*;

    fn running(units: &[&str]) -> Snapshot {
        let unit = |name: &&str| UnitSnapshot { name: (*name).to_owned(), ..UnitSnapshot::default() };
        Snapshot { units: units.iter().map(unit).collect(), ..Snapshot::default() }
    }

    #[test]
    fn daemons_show_the_role_that_an_option_has_set() {
        let root = tempfile::tempdir().unwrap();
        std::fs::create_dir_all(root.path().join("etc/slurm")).unwrap();
        std::fs::write(root.path().join("etc/slurm/slurm.conf"), "SlurmctldHost=head\n").unwrap();
        let shown = |config: Config, units: &[&str]| {
            let config = with_running_role(config, &running(units), root.path());
            (config.role, config.slurm.controller.map(|host| host.to_string()))
        };
        let head = || Some("head".to_owned());
        for (units, role, controller) in [
            (&["slurmctld", "slurmd"][..], Role::All, None),
            (&["munged", "slurmctld"], Role::Controller, head()),
            (&["munged", "slurmd"], Role::Compute, head()),
            (&["munged"], Role::Login, head()),
        ] {
            assert_eq!(shown(Config::default(), units), (role, controller), "{units:?}");
        }
        let toml = "role = 'login'\n[slurm]\ncontroller = 'other'\n";
        let config = Config::parse(toml, Path::new("slurminit.toml")).unwrap();
        assert_eq!(shown(config, &["munged", "slurmd"]), (Role::Login, Some("other".to_owned())));
    }

    #[test]
    fn status_that_cannot_be_read_is_not_a_missing_cluster() {
        let why = |kind: std::io::ErrorKind| no_status(Path::new("/run/slurminit/status.json"), &kind.into());
        assert_eq!(
            why(std::io::ErrorKind::PermissionDenied),
            "cannot read /run/slurminit/status.json: permission denied"
        );
        assert!(why(std::io::ErrorKind::NotFound).starts_with("no cluster in this container"));
    }

    #[test]
    fn hanging_file_system_leaves_stale_files_unknown() {
        let root = tempfile::tempdir().unwrap();
        std::fs::create_dir_all(root.path().join("etc/slurm")).unwrap();
        // The open of a pipe that no process writes to never returns.
        nix::unistd::mkfifo(&root.path().join("etc/slurm/epilog"), nix::sys::stat::Mode::S_IRUSR).unwrap();
        let scope = Scope {
            root: root.path().to_owned(),
            deadline: std::time::Duration::from_millis(50),
            config: None,
            credential: None,
            image: String::new(),
            no_trial: true,
        };
        let inventory = Inventory { hostname: "box".to_owned(), ..Inventory::default() };
        let preview = preview_start_within_deadline(&scope, &Config::default(), &inventory);
        let why = preview.stale_files.unwrap_err();
        assert!(why.contains("file system may be hanging"), "{why}");
    }

    #[test]
    fn counts_connections_to_sshd_by_address() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let _clients = [(); 3].map(|()| TcpStream::connect(address).unwrap());
        let mut config = Config::default();
        config.login.port = std::num::NonZeroU16::new(address.port());
        assert_eq!(ssh_clients(&config), BTreeMap::from([(IpAddr::from(Ipv4Addr::LOCALHOST), 3)]));
    }
}
