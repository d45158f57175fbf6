//! The hosts other than this one in the user's slurm.conf whose names slurmctld looks up when it starts. It tries each for 10 s (24.11,
//! `xgetaddrinfo`), and waits for a database forever.

use std::net::IpAddr;
use std::path::PathBuf;

use model::hostlist;

use super::{Names, UserFile, own_node, parse};

/// A host that slurmctld looks up, and the line that names it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RemoteHost {
    /// The host name.
    pub name: String,
    /// The file of the line.
    pub file: PathBuf,
    /// The number of the line, counted from 1.
    pub line: usize,
}

/// Finds the names of other hosts and lists each once. An IP address needs no lookup.
pub(super) fn find(slurm: &UserFile, names: &Names) -> Vec<RemoteHost> {
    let lines = slurm.lines();
    let has_database = parse::last_value(&slurm.read.text, "AccountingStorageType")
        .is_some_and(|value| value.eq_ignore_ascii_case("accounting_storage/slurmdbd"));
    let database: &[&str] = if has_database { &["AccountingStorageHost", "AccountingStorageBackupHost"] } else { &[] };
    let nodes =
        own_node::nodes(&lines).into_iter().filter_map(|line| Some((node_hosts(&line)?, line.number_in_file())));
    let controllers =
        lines.iter().filter_map(|line| Some((controller(line.get("SlurmctldHost")?), line.number_in_file())));
    let databases = lines
        .iter()
        .flat_map(|line| database.iter().filter_map(|key| Some((line.get(key)?.to_owned(), line.number_in_file()))));
    let mut found: Vec<RemoteHost> = Vec::new();
    for (hosts, line) in controllers.chain(databases).chain(nodes) {
        let (file, line) = slurm.place_read(line);
        let is_new = |name: &String| !names.has(name) && name.parse::<IpAddr>().is_err();
        for name in hostlist::expand(&hosts).into_iter().filter(is_new) {
            if !found.iter().any(|other| other.name == name) {
                found.push(RemoteHost { name, file: file.clone(), line });
            }
        }
    }
    found
}

/// The addresses of a line's nodes; `None` if slurmctld does not look them up until the nodes register.
fn node_hosts(line: &parse::Line) -> Option<String> {
    let state = line.get("State").unwrap_or_default().to_ascii_uppercase();
    let is_absent = state.starts_with("CLOUD") || state.starts_with("FUTURE");
    let hosts = ["NodeAddr", "NodeHostname", "NodeName"].into_iter().find_map(|key| line.get(key));
    hosts.filter(|_| !is_absent).map(str::to_owned)
}

/// The address in `head(10.0.0.1)`, or else the name.
fn controller(value: &str) -> String {
    match value.split_once('(') {
        Some((_, address)) => address.trim_end_matches(')').to_owned(),
        None => value.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::super::{FileName, Origin};
    use super::*;

    #[test]
    fn finds_hosts_that_slurmctld_looks_up() {
        let found = |text: &str| {
            let path = PathBuf::from("/config/slurm.conf");
            let file = UserFile::new(FileName::SlurmConf, Origin::Config, path, text, &|_| Err(String::new()));
            let names = Names { hostname: "box.lab".to_owned(), ..Names::default() };
            find(&file, &names).into_iter().map(|host| format!("{}:{}", host.line, host.name)).collect::<Vec<_>>()
        };
        let nodes = "NodeName=DEFAULT CPUs=2\nNodeName=box\nNodeName=n[1-2]\nNodeName=a NodeAddr=10.0.0.1\n\
                     NodeName=b NodeHostname=bb NodeAddr=bbb\nNodeName=c NodeHostname=cc\n";
        assert_eq!(found(nodes), ["3:n1", "3:n2", "5:bbb", "6:cc"]);
        assert!(found("NodeName=DEFAULT State=CLOUD\nNodeName=n1\nNodeName=n2 State=FUTURE\n").is_empty());
        let controllers = "SlurmctldHost=box\nSlurmctldHost=head(10.0.0.1)\nSlurmctldHost=spare\nNodeName=spare\n";
        assert_eq!(found(controllers), ["3:spare"], "each once");
        let database = "AccountingStorageHost=db\n";
        assert!(found(database).is_empty(), "no database is used");
        assert_eq!(found(&format!("{database}AccountingStorageType=accounting_storage/slurmdbd\n")), ["1:db"]);
    }
}
