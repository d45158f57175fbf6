//! `slurminit join-command`: prints the command that joins another machine to this controller's cluster.

mod line;
mod mounts;
mod network;

use std::net::Ipv4Addr;
use std::path::Path;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use super::Configuration;
use super::period::parse_period;
use crate::output::error_line;
use anyhow::{Context as _, bail, ensure};
use config::token::{Token, TokenContents};
use config::{Config, Layers, Role};
use install::load_config;
use line::{JoinCommand, Network};
use mounts::SharedMount;
use slurm::client::Client;
use sys::trusted_path;

/// Timeout for Slurm's list of nodes and its version.
const QUERY_TIMEOUT: Duration = Duration::from_secs(5);

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The network of the new container: host, or a network of the container engine that the controller is in
    /// [default: host, if the controller uses its host's network]
    #[arg(long, value_name = "NAME", value_parser = line::parse_word)]
    network: Option<String>,
    /// The controller's address for the new node [default: the source address of the default route, else an address of the host name]
    #[arg(long, value_name = "ADDRESS")]
    address: Option<Ipv4Addr>,
    /// Validity of the token: 30m, 12h, 7d
    #[arg(long, value_name = "TIME", default_value = "24h", value_parser = parse_period)]
    expires: Duration,
    /// The name of the new container, and of the node unless --network is host [default: compute, or compute-N]
    #[arg(long, value_name = "NAME", value_parser = line::parse_word)]
    name: Option<String>,
    /// The image's name on the other machine [default: SLURMINIT_IMAGE, else slurminit:latest]
    #[arg(long, value_name = "IMAGE", value_parser = line::parse_image)]
    image: Option<String>,
    /// A volume, or a directory of the host, for the new container; can be repeated. If --network is a network of the container engine, the
    /// new container also gets those of this container, except the directories of slurminit and Slurm
    #[arg(long, value_name = "SOURCE:TARGET[:ro]", value_parser = SharedMount::parse)]
    volume: Vec<SharedMount>,
}

pub(crate) fn run(args: Args, configuration: &Configuration) -> anyhow::Result<()> {
    let layers = load_config::layers(configuration.file())?;
    let config = &layers.config;
    require_controller(config)?;
    let network = network(&args)?;
    let address = match args.address {
        Some(address) => address,
        None => network::address().context("found no IPv4 address that other machines can reach; set --address")?,
    };
    let pinned = network == Network::Host || args.address.is_some();
    let token = token(&args, &layers, address, pinned)?;
    let nodes = nodes();
    let name = args.name.clone().unwrap_or_else(|| match network {
        Network::Host => "compute".to_owned(),
        Network::Named(_) => line::free_name(&nodes),
    });
    // The GPUs of the demo image are simulated. If the cluster has nodes, but none with GPUs, the new node is assumed to have none either.
    let is_demo = std::env::var_os("SLURMINIT_DEMO").is_some();
    let gpu_type = config.gpu_type.filter(|_| !is_demo && (nodes.trim().is_empty() || nodes.contains("gpu:")));
    let mountinfo = std::fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    let mounts = mounts(&args.volume, config, &network, &mountinfo);
    let line = JoinCommand {
        name,
        network,
        gpu_type,
        mounts,
        image: image(args.image, std::env::var("SLURMINIT_IMAGE").ok())?,
        token: token.encode(),
    };
    super::print(&format!("{line}\n"))?;
    error_line(line.advice(&token.contents, config.slurm.controller_port, config.slurm.daemon_port).trim_end());
    if has_custom_slurm_conf(config) {
        error_line(format_args!(
            "warning: the token does not contain your own slurm.conf; mount it in the new container, too, as {}",
            config.paths.config.join("slurm.conf").display()
        ));
    }
    Ok(())
}

fn require_controller(config: &Config) -> anyhow::Result<()> {
    ensure!(
        config.role == Role::Controller || (config.role == Role::All && config.shares_a_cluster()),
        "not a controller (role {}); run this in the container with the role controller (docs/cluster.md)",
        config.role
    );
    Ok(())
}

fn network(args: &Args) -> anyhow::Result<Network> {
    Ok(match args.network.as_deref() {
        Some("host") => Network::Host,
        Some(name) => Network::Named(name.to_owned()),
        None if network::is_engine_network(Path::new("/")) => bail!(
            "cannot read the name of this container's network from inside; set --network.\nFor a node on the same host: docker inspect -f '{{{{json .NetworkSettings.Networks}}}}' CONTROLLER prints the name; then\n\x20   slurminit join-command --network NAME\nFor a node on another host, if the ports of this container are published on this host (docker run -p):\n\x20   slurminit join-command --network host --address ADDRESS-OF-THIS-HOST"
        ),
        None => Network::Host,
    })
}

fn token(args: &Args, layers: &Layers, address: Ipv4Addr, pinned: bool) -> anyhow::Result<Token> {
    let config = &layers.config;
    let host = nix::unistd::gethostname()?.to_string_lossy().into_owned();
    let controller = plan::controller(config, &host);
    let settings = layers.shared_settings(&controller);
    config::TokenSettings::parse(&settings).context("cannot read back the shared settings")?;
    let version = probe::slurm::detect(Path::new("/"), QUERY_TIMEOUT).version;
    let issued = now();
    let contents = TokenContents {
        controller,
        address,
        pinned,
        slurm: version.context("Slurm's version is unknown")?.to_string(),
        issued,
        expires: issued + args.expires.as_secs(),
        settings,
    };
    Ok(Token { contents, key: key(config)? })
}

/// munge's key, which only root and munge can read.
fn key(config: &Config) -> anyhow::Result<Vec<u8>> {
    let path = &config.paths.munge_key;
    let key = trusted_path::read(path).with_context(|| {
        format!(
            "cannot read the munge key {}: run this as root (docker exec) after the controller has started",
            path.display()
        )
    })?;
    ensure!(
        (32..=1024).contains(&key.len()),
        "{} is not a munge key: it has {} bytes, not 32 to 1024",
        path.display(),
        key.len()
    );
    Ok(key)
}

/// The image of the new container: the option, else SLURMINIT_IMAGE (compose.cluster.yaml sets it), else slurminit:latest.
fn image(given: Option<String>, variable: Option<String>) -> anyhow::Result<String> {
    let from_environment = || variable.filter(|image| !image.is_empty());
    let Some(image) = given.or_else(from_environment) else { return Ok("slurminit:latest".to_owned()) };
    line::parse_image(&image).map_err(|why| anyhow::anyhow!("SLURMINIT_IMAGE={image:?}: {why}"))
}

/// The mounts of the new container. On a network of the engine, the container runs on this host and can share this container's mounts,
/// except the directories of slurminit and Slurm.
fn mounts(volumes: &[SharedMount], config: &Config, network: &Network, mountinfo: &str) -> Vec<SharedMount> {
    let private = [config.paths.state.as_path(), &config.paths.run, &config.paths.slurm];
    let mut mounts = match network {
        Network::Host => Vec::new(),
        Network::Named(_) => SharedMount::of_container(mountinfo, &private),
    };
    mounts.retain(|mount| !volumes.iter().any(|other| other.target == mount.target));
    mounts.extend_from_slice(volumes);
    mounts
}

/// The nodes of the cluster, one per line with its GPUs; empty if slurmctld does not respond.
fn nodes() -> String {
    let client = Client::with_timeout(QUERY_TIMEOUT);
    client.output("sinfo", &["--noheader", "--Node", "--format", "%N %G"]).unwrap_or_default()
}

/// Whether there is a slurm.conf that slurminit did not write.
fn has_custom_slurm_conf(config: &Config) -> bool {
    let text = trusted_path::read(&config.paths.slurm.join("slurm.conf")).unwrap_or_default();
    !text.is_empty() && !text.starts_with(plan::HEADER.as_bytes())
}

#[expect(clippy::disallowed_methods, reason = "a token expires by the wall clock")]
fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO).as_secs()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn option_overrides_image_of_environment() {
        let image = |given: Option<&str>, variable: Option<&str>| {
            super::image(given.map(str::to_owned), variable.map(str::to_owned)).ok()
        };
        assert_eq!(image(Some("lab/slurm:2"), Some("lab/slurm:1")).as_deref(), Some("lab/slurm:2"));
        assert_eq!(image(None, Some("lab/slurm:1")).as_deref(), Some("lab/slurm:1"));
        for variable in [None, Some("")] {
            assert_eq!(image(None, variable).as_deref(), Some("slurminit:latest"));
        }
        assert_eq!(image(None, Some("a; reboot")), None);
    }

    #[test]
    fn only_controller_prints_command() {
        let is_controller = |role| require_controller(&Config { role, ..Config::default() }).is_ok();
        assert!(is_controller(Role::Controller));
        assert!(![Role::All, Role::Compute, Role::Login].into_iter().any(is_controller));
    }

    #[test]
    fn munge_key_has_valid_length() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("munge.key");
        let config = Config::parse(&format!("[paths]\nmunge_key = {path:?}"), Path::new("x")).unwrap();
        assert!(key(&config).is_err(), "it does not exist");
        for (length, is_valid) in [(31, false), (32, true), (1024, true), (1025, false)] {
            std::fs::write(&path, vec![7; length]).unwrap();
            assert_eq!(key(&config).ok(), is_valid.then(|| vec![7; length]), "{length}");
        }
    }

    #[test]
    fn detects_slurm_conf_of_operator() {
        let directory = tempfile::tempdir().unwrap();
        let toml = format!("[paths]\nslurm = {:?}", directory.path());
        let config = Config::parse(&toml, Path::new("x")).unwrap();
        assert!(!has_custom_slurm_conf(&config));
        for (text, is_custom) in [("ClusterName=lab\n", true), (plan::HEADER, false), ("", false)] {
            std::fs::write(directory.path().join("slurm.conf"), text).unwrap();
            assert_eq!(has_custom_slurm_conf(&config), is_custom, "{text}");
        }
    }

    #[test]
    fn volume_replaces_mount_of_this_container() {
        let mountinfo = "1 0 0:1 /a /data rw - ext4 /dev/vda rw\n2 0 0:1 /b /home rw - ext4 /dev/vda rw\n\
            3 0 0:1 /c /var/lib/slurm rw - ext4 /dev/vda rw\n";
        let volume = SharedMount::parse("lab:/data").unwrap();
        let mounts = |network| {
            let all = mounts(std::slice::from_ref(&volume), &Config::default(), &network, mountinfo);
            all.iter().map(ToString::to_string).collect::<Vec<_>>()
        };
        assert_eq!(mounts(Network::Host), ["-v lab:/data"]);
        let shared = "--mount type=bind,source=/b,target=/home";
        assert_eq!(mounts(Network::Named("lab".to_owned())), [shared, "-v lab:/data"]);
    }
}
