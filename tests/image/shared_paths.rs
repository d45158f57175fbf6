//! The table in docs/security.md lists everything in a running container that more than one user can write or connect to, with its mode.

use std::collections::BTreeSet;
use std::fs;
use std::thread;

use crate::docker::{Container, DEMO, FULL, Image, PLAIN, directory, docker, is_built};

const USERS: &str = "[[user]]\nname = \"alice\"\nuid = 1501\n[[user]]\nname = \"bob\"\nuid = 1502\n\
                     [metrics]\nlisten = \"0.0.0.0:9835\"\n";

/// Prints `PATH OWNER:GROUP MODE` of each path that alice or bob can write or connect to and that is not theirs alone, and `KIND:NAME ADDRESS`
/// of each bound port and abstract socket. An access control list shows as permission of the group.
const WALK: &str = r#"
find / \( -path /proc -o -path /sys \) -prune -o ! -type l -perm /0022 -printf '%p %u:%g %m\n' >/run/walked
for user in alice bob; do
    setpriv --reuid=$user --regid=$user --init-groups sh -c 'while read -r path rest; do [ ! -w "$path" ] || echo "$path $rest"; done' </run/walked
done
awk '$8 ~ /^@/ { print "abstract:" substr($8, 2), "any" }' /proc/net/unix
for kind in tcp udp; do
    awk -v kind=$kind '$4 == "0A" || $4 == "07" { split($2, local, ":"); print kind, local[2], local[1] }' /proc/net/$kind /proc/net/${kind}6
done | while read -r kind port address; do
    case $address in 0100007F | 00000000000000000000000001000000) address=loopback ;; *) address=any ;; esac
    port=$((0x$port))
    [ $port -lt 32768 ] || port=ephemeral
    echo "$kind:$port $address"
done"#;

/// A row of the table.
#[derive(Debug)]
struct Row {
    /// Names, in which `*` stands for any text without a slash.
    names: Vec<String>,
    mode: String,
    /// The tests that attack it, as `FILE::TEST`.
    attacks: Vec<String>,
}

/// The texts between backticks.
fn code(cell: &str) -> Vec<String> {
    cell.split('`').skip(1).step_by(2).map(str::to_owned).collect()
}

fn table() -> Vec<Row> {
    let document = fs::read_to_string(harness::root().join("docs/security.md")).expect("the document exists");
    let section =
        document.split("\n## ").find(|section| section.starts_with("Shared paths")).expect("the section exists");
    let rows = section.lines().filter(|line| line.starts_with("| `")).map(|line| {
        let cells: [&str; 4] = line.trim_matches('|').split('|').collect::<Vec<_>>().try_into().expect("four cells");
        let [names, mode, _, attacks] = cells;
        Row { names: code(names), mode: code(mode).concat(), attacks: code(attacks) }
    });
    rows.collect()
}

fn matches(pattern: &str, name: &str) -> bool {
    match pattern.split_once('*') {
        None => pattern == name,
        Some((begin, rest)) => name.strip_prefix(begin).is_some_and(|name| {
            let end = name.find('/').unwrap_or(name.len());
            name.char_indices()
                .map(|(at, _)| at)
                .chain([name.len()])
                .take_while(|at| *at <= end)
                .any(|at| matches(rest, &name[at..]))
        }),
    }
}

/// Starts a container in which a user has a job with a step, and returns the lines that [`WALK`] prints there.
fn walk(image: &str) -> BTreeSet<String> {
    let more = "[login]
port = 22
keys = \"/keys\"
[rest]
listen = \"0.0.0.0:6820\"
";
    let toml = if image == FULL { format!("{more}{USERS}") } else { USERS.to_owned() };
    let config = directory(&[("slurminit.toml", &toml)]);
    let container: Container = Image::new(image)
        .with(["--hostname", "node1", "--tmpfs", "/keys:mode=755"])
        .mount(config.path(), "/config")
        .serve();
    let job = "cd /tmp && sbatch --output=/tmp/out --wrap 'srun sleep 300'";
    docker(["exec", "--user", "alice", &container.name, "sh", "-c", job]).ok();
    // The socket of the step is closed to other users soon after the step has started.
    container.until("stat --format=%a /var/lib/slurm/slurmd/*_*.0 | grep -qx 600");
    container.sh(WALK).lines().map(str::to_owned).collect()
}

#[test]
#[ignore = "needs Docker and the images: run docker/test"]
fn documentation_lists_everything_that_users_share() {
    let images: Vec<&str> = [PLAIN, DEMO, FULL].into_iter().filter(|image| is_built(image)).collect();
    let walks: Vec<_> = thread::scope(|scope| {
        let threads: Vec<_> = images.iter().map(|image| scope.spawn(|| walk(image))).collect();
        threads.into_iter().map(|thread| thread.join().expect("a walk")).collect()
    });
    let (table, mut problems, mut found) = (table(), BTreeSet::new(), BTreeSet::new());
    for line in walks.iter().flatten() {
        let (name, mode) = line.split_once(' ').expect("a name and a mode");
        let row = table.iter().enumerate().find(|(_, row)| row.names.iter().any(|pattern| matches(pattern, name)));
        match row {
            None => drop(problems.insert(format!("not in the table: {line}"))),
            Some((_, row)) if row.mode != mode => drop(problems.insert(format!("the table has {}: {line}", row.mode))),
            Some((index, _)) => drop(found.insert(index)),
        }
    }
    for (index, row) in table.iter().enumerate() {
        if images.len() == 3 && !found.contains(&index) {
            problems.insert(format!("in no container: {row:?}"));
        }
    }
    let lines: Vec<String> = problems.into_iter().collect();
    assert!(lines.is_empty(), "{}", lines.join("\n"));
}

#[test]
fn table_names_existing_tests_and_patterns_match_within_directory() {
    let table = table();
    assert!(table.len() > 5, "{table:?}");
    for attack in table.iter().flat_map(|row| &row.attacks) {
        let (file, test) = attack.split_once("::").expect("FILE::TEST");
        let source = fs::read_to_string(harness::root().join(format!("tests/image/{file}.rs"))).unwrap_or_default();
        assert!(source.contains(&format!("fn {test}(")), "no test {attack}");
    }
    assert!(matches("/dev/nvidia*", "/dev/nvidia0") && matches("/a/*.*/x", "/a/1.2/x") && matches("/a*", "/a"));
    assert!(!matches("/a/*", "/a/b/c") && !matches("/a/*", "/b") && !matches("/a*c", "/ab"));
}
