//! Finds this machine's node in the user's slurm.conf.

use super::parse;
use model::hostlist;

/// The names by which the user's files can refer to this machine.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Names {
    /// The configured name of the node, if it is not the default.
    pub configured: Option<String>,
    /// The host name.
    pub hostname: String,
    /// The host's other names, from /etc/hosts.
    pub aliases: Vec<String>,
}

impl Names {
    /// The host's names in the order in which slurmd looks for them (24.11, `slurmd.c`).
    fn of_host(&self) -> impl Iterator<Item = &str> {
        let short = self.hostname.split('.').next().unwrap_or(&self.hostname);
        [self.hostname.as_str(), short].into_iter().chain(self.aliases.iter().map(String::as_str)).chain(["localhost"])
    }

    /// Whether this is one of the machine's host names.
    pub(super) fn has(&self, host: &str) -> bool {
        self.of_host().any(|own| own == host)
    }
}

/// This node in the user's slurm.conf.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OwnNode {
    /// The node's name.
    pub name: String,
    /// The value of Gres; empty if the line has none.
    pub gres: String,
    /// Whether slurmd needs `-N`, because it would not derive this name from the host's names.
    pub is_configured: bool,
    /// The node's line, with the values of the preceding `NodeName=DEFAULT` lines.
    pub(super) line: parse::Line,
}

/// The NodeName lines, each with the values of the `NodeName=DEFAULT` lines before it.
pub(crate) fn nodes(lines: &[parse::Line]) -> Vec<parse::Line> {
    let (mut found, mut defaults) = (Vec::new(), parse::Line::default());
    for line in lines {
        match line.get("NodeName") {
            Some(name) if name.eq_ignore_ascii_case("DEFAULT") => defaults = line.with_defaults(&defaults),
            Some(_) => found.push(line.with_defaults(&defaults)),
            None => {}
        }
    }
    found
}

/// The node of this machine; `None` if no line matches.
pub(super) fn find(lines: &[parse::Line], names: &Names) -> Option<OwnNode> {
    let nodes = nodes(lines);
    let by_host = names.of_host().find_map(|host| nodes.iter().find_map(|line| Some((line, node_of(line, host)?))));
    let configured = names.configured.as_deref();
    let has_configured = |line: &&parse::Line| {
        line.get("NodeName").zip(configured).is_some_and(|(own, name)| hostlist::contains(own, name))
    };
    let configured_node = nodes.iter().find(has_configured).zip(configured.map(str::to_owned));
    let is_configured = configured_node
        .as_ref()
        .is_some_and(|(_, configured_node)| by_host.as_ref().is_none_or(|(_, name)| name != configured_node));
    let (line, name) = configured_node.or(by_host)?;
    let gres = line.get("Gres").unwrap_or_default().to_owned();
    Some(OwnNode { name, gres, is_configured, line: line.clone() })
}

/// Whether a line of gres.conf with this NodeName applies to the node, or to any of the simulated nodes. If the node's name is unknown, a
/// line applies if it contains any name of the host.
pub(super) fn is_for_node(hosts: &str, node: Option<&str>, names: &Names) -> bool {
    match node {
        Some(node) => hostlist::expand(node).iter().any(|node| hostlist::contains(hosts, node)),
        None => hostlist::expand(hosts).iter().any(|host| names.has(host)),
    }
}

/// The name of this host's node in a NodeName line; `None` if the line does not contain the host. NodeHostname lists one host per node in
/// the same order, or one host for all nodes; the first node is then returned.
fn node_of(line: &parse::Line, host: &str) -> Option<String> {
    let names = line.get("NodeName")?;
    let hosts = line.get("NodeHostname").unwrap_or(names);
    let at = hostlist::expand(hosts).iter().position(|own| own == host)?;
    let names = hostlist::expand(names);
    names.get(at).or(names.first()).cloned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(conf: &str, configured: Option<&str>) -> Option<(String, String, bool)> {
        let names = Names {
            configured: configured.map(str::to_owned),
            hostname: "dgx2.lab".to_owned(),
            aliases: vec!["gpu".to_owned()],
        };
        find(&parse::lines(conf), &names).map(|node| (node.name, node.gres, node.is_configured))
    }

    #[test]
    fn finds_own_node_like_slurmd() {
        let node = |name: &str, gres: &str, is_configured| Some((name.to_owned(), gres.to_owned(), is_configured));
        let ranges = "NodeName=DEFAULT Gres=gpu:8\nNodeName=cpu1 Gres=\nNodeName=dgx[1-4]\n";
        assert_eq!(found(ranges, None), node("dgx2", "gpu:8", false));
        assert_eq!(
            found("NodeName=a NodeHostname=dgx1\nNodeName=b,c NodeHostname=dgx[1-2]\n", None),
            node("c", "", false)
        );
        assert_eq!(found("NodeName=localhost\nNodeName=dgx2\n", None), node("dgx2", "", false));
        assert_eq!(found("NodeName=localhost\nNodeName=n1\n", None), node("localhost", "", false));
        assert_eq!(found("NodeName=gpu\n", None), node("gpu", "", false));
        assert_eq!(found("NodeName=n[1-2]\n", None), None);
    }

    #[test]
    fn prefers_configured_name_if_file_contains_it() {
        let node = |name: &str, is_configured| Some((name.to_owned(), String::new(), is_configured));
        assert_eq!(found("NodeName=n[1-2]\n", Some("n2")), node("n2", true));
        assert_eq!(found("NodeName=n1,dgx2\n", Some("n1")), node("n1", true));
        assert_eq!(found("NodeName=n1,dgx2\n", Some("dgx2")), node("dgx2", false));
        assert_eq!(found("NodeName=dgx2\n", Some("n1")), node("dgx2", false));
        assert_eq!(found("NodeName=x\n", Some("n1")), None);
    }
}
