//! The printed command, and the advice that is printed with it.

use std::fmt;

use config::token::TokenContents;
use model::inventory::GpuType;

use super::mounts::SharedMount;

/// The network of the new container.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Network {
    /// The host's network.
    Host,
    /// A network of the container engine.
    Named(String),
}

/// A `docker run` in one line. No part contains characters that are special to a shell.
#[derive(Debug)]
pub(super) struct JoinCommand {
    pub(super) name: String,
    pub(super) network: Network,
    pub(super) gpu_type: Option<GpuType>,
    pub(super) mounts: Vec<SharedMount>,
    pub(super) image: String,
    pub(super) token: String,
}

impl fmt::Display for JoinCommand {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { name, network, gpu_type, mounts, image, token } = self;
        // The same options as those of a compute node in compose.cluster.yaml.
        write!(f, "docker run -d --restart unless-stopped --stop-timeout 30 --name {name} ")?;
        match network {
            Network::Host => f.write_str("--network host ")?,
            // The engine's DNS resolves containers by name, and Slurm uses host names.
            Network::Named(network) => write!(f, "--hostname {name} --network {network} ")?,
        }
        let vendor = gpu_type.and_then(GpuType::vendor);
        let gpus = vendor.map(|vendor| format!("{} ", vendor.traits().docker_options)).unwrap_or_default();
        f.write_str("--shm-size 1g ")?;
        mounts.iter().try_for_each(|mount| write!(f, "{mount} "))?;
        write!(f, "{gpus}{image} --join {token}")
    }
}

impl JoinCommand {
    /// A hint to mount shared directories, because this host's volumes do not exist on another host; empty if the command has mounts.
    fn mount_advice(&self) -> &'static str {
        match self.mounts.is_empty() {
            true => {
                "Mount the shared directories of this cluster, such as homes and data, in the new container too: --volume SOURCE:/data\n"
            }
            false => "",
        }
    }

    /// Advice for the operator, for standard error.
    pub(super) fn advice(&self, contents: &TokenContents, controller_port: u16, daemon_port: u16) -> String {
        let TokenContents { controller, address, .. } = contents;
        let validity = match contents.expires.saturating_sub(contents.issued) {
            seconds @ 0..120 => format!("{seconds} s"),
            seconds @ 120..7200 => format!("{} min", seconds / 60),
            seconds => format!("{} h", seconds / 3600),
        };
        let ports = match self.network {
            Network::Host => format!(
                "The node takes the name of its host. In the firewalls, let the node connect to {address}:{controller_port}, and {controller} to port {daemon_port} of the node.\nTo use another address of {controller}, set --address.\n{}",
                self.mount_advice()
            ),
            Network::Named(_) => String::new(),
        };
        let gpus = match self.gpu_type {
            Some(GpuType::None) | None => {
                "The command passes no GPUs to the new container: this image has no GPU type, or its GPUs are simulated, or no node of this cluster has GPUs. To pass GPUs, add docker run's options, such as --gpus all.\n"
            }
            _ => "",
        };
        format!(
            "SECRET: the command contains the munge key of this cluster: anyone who reads it can act as any user of the cluster, even as root.\nThe key stays valid after the token expires; only a new key on all machines revokes it.\nRun the command on the new node's host within {validity}; {} must be the same image on that host as on this one. {ports}{gpus}",
            self.image
        )
    }
}

/// The first `compute-N` that is not the name of a node. Each line of `nodes` begins with a name.
pub(super) fn free_name(nodes: &str) -> String {
    let is_taken = |name: &String| nodes.lines().any(|line| line.split_whitespace().next() == Some(name));
    let mut names = (1..).map(|number| format!("compute-{number}"));
    names.find(|name| !is_taken(name)).unwrap_or_default()
}

/// Parses a name for the engine, without characters that are special to a shell or `docker run`.
pub(super) fn parse_word(text: &str) -> Result<String, String> {
    is_word(text, "_.-")
        .then(|| text.to_owned())
        .ok_or_else(|| "start with a letter or digit; then letters, digits, and . _ - are allowed".to_owned())
}

/// Parses the name of an image, such as `registry.example.org:5000/lab/slurminit:1`, also with `@sha256:...`.
pub(super) fn parse_image(text: &str) -> Result<String, String> {
    is_word(text, "_.-/:@").then(|| text.to_owned()).ok_or_else(|| "not an image name".to_owned())
}

fn is_word(text: &str, punctuation: &str) -> bool {
    text.starts_with(|c: char| c.is_ascii_alphanumeric())
        && text.len() <= 255
        && text.chars().all(|c| c.is_ascii_alphanumeric() || punctuation.contains(c))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(network: Network, gpu_type: Option<GpuType>) -> String {
        let (name, image, token) = ("compute-1".into(), "slurminit:latest".into(), "sj1-x".into());
        let mounts = vec![SharedMount::parse("lab_data:/data").unwrap()];
        JoinCommand { name, network, gpu_type, mounts, image, token }.to_string()
    }

    #[test]
    fn line_is_a_valid_docker_run() {
        assert_eq!(
            line(Network::Host, Some(GpuType::Nvidia)),
            "docker run -d --restart unless-stopped --stop-timeout 30 --name compute-1 --network host --shm-size 1g -v lab_data:/data --gpus all \
             slurminit:latest --join sj1-x"
        );
        assert_eq!(
            line(Network::Named("lab".into()), None),
            "docker run -d --restart unless-stopped --stop-timeout 30 --name compute-1 --hostname compute-1 --network lab --shm-size 1g \
             -v lab_data:/data slurminit:latest --join sj1-x"
        );
        assert!(line(Network::Host, Some(GpuType::Amd)).contains("--device /dev/kfd --device /dev/dri"));
    }

    #[test]
    fn rejects_words_with_shell_characters() {
        for bad in ["", "-d", "--privileged", "a b", "a;b", "$(x)", "`x`", "a'b", "lab\n", "ä"] {
            assert!(parse_word(bad).is_err() && parse_image(bad).is_err(), "{bad}");
        }
        assert!(parse_word("lab_default").is_ok() && parse_image("registry:5000/lab/slurminit@sha256:0f").is_ok());
    }

    #[test]
    fn new_node_gets_free_name() {
        assert_eq!(free_name(""), "compute-1");
        assert_eq!(free_name("compute-1\ncompute-10\ncompute-3\n"), "compute-2");
    }
}
