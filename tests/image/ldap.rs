//! Users of a directory service: a real slapd, nslcd or sssd configured as in docs/users.md, and SSH logins.

use std::fs;
use std::time::{Duration, Instant};

use crate::built_image::BuiltImage;
use crate::docker::{Container, FULL, Image, Network, Outcome, directory, docker, tag, unique};

/// A name service: its daemon, its name in nsswitch.conf, and its packages.
struct NameService {
    daemon: &'static str,
    source: &'static str,
    packages: &'static str,
}

/// The daemon's TOML block from docs/users.md, plus a local account.
fn configuration(daemon: &str) -> String {
    let page = fs::read_to_string(harness::root().join("docs/users.md")).expect("the page exists");
    let mut blocks = page.split("```toml\n").filter_map(|rest| rest.split("```").next());
    let service = blocks.find(|block| block.contains(&format!("name = \"{daemon}\"")));
    let service = service.expect("docs/users.md configures the daemon");
    format!("{service}\n[login]\nport = 22\nkeys = \"/work\"\n[[user]]\nname = \"alice\"\nuid = 1501\n")
}

fn ssh(container: &Container, user: &str, line: &str) -> Outcome {
    let options =
        "-i /key/id -o StrictHostKeyChecking=no -o UserKnownHostsFile=/dev/null -o LogLevel=ERROR -o BatchMode=yes";
    container.exec(&["sh", "-c", &format!("timeout 60 ssh {options} {user}@localhost '{line}'")])
}

#[test]
#[ignore = "needs Docker and the images: run docker/test"]
fn nslcd_user_runs_jobs_and_hung_directory_blocks_no_other_user() {
    test_directory_users(&NameService { daemon: "nslcd", source: "ldap", packages: "libnss-ldapd nslcd" });
}

#[test]
#[ignore = "needs Docker and the images: run docker/test"]
fn sssd_user_runs_jobs_and_hung_directory_blocks_no_other_user() {
    test_directory_users(&NameService { daemon: "sssd", source: "sss", packages: "libnss-sss sssd-ldap" });
}

fn test_directory_users(service: &NameService) {
    let NameService { daemon, source, packages } = service;
    let arguments = [format!("IMAGE={}", tag(FULL)), format!("SOURCE={source}"), format!("PACKAGES={packages}")];
    let image = BuiltImage::new(daemon, "tests/image/ldap", &arguments.each_ref().map(String::as_str));
    let network = Network::new();
    let server = Container { name: unique("ldap") };
    let slapd = ["--entrypoint", "slapd", &image.0, "-d", "0", "-f", "/etc/ldap/slapd.conf", "-h", "ldap:///"];
    let options = ["run", "--detach", "--name", &server.name, "--network", &network.0, "--network-alias", "directory"];
    docker(options.iter().chain(&slapd)).ok();

    let (client, keys) = (directory(&[]), directory(&[]));
    let mount = format!("{}:/key", client.path().display());
    let keygen = Image::new(&image.0).with(["--volume", &mount]).with(["--entrypoint", "ssh-keygen"]);
    keygen.run(&["-q", "-t", "ed25519", "-N", "", "-f", "/key/id"]).ok();
    for user in ["zoe", "alice", "slurm", daemon] {
        fs::copy(client.path().join("id.pub"), keys.path().join(user)).expect("ssh-keygen made it");
    }
    let config = directory(&[("slurminit.toml", &configuration(daemon))]);
    let cluster = Image::new(&image.0).with(["--network", &network.0, "--env", "SLURMINIT_ACCOUNTING=none"]);
    let cluster = cluster.mount(config.path(), "/config");
    let container = cluster.mount(client.path(), "/key").mount(keys.path(), "/work").serve();
    container.until(&format!("slurminit status | grep -q \"^{daemon} *ready\""));
    container.sh("install -d -o zoe -g zoe -m 700 /home/zoe");

    let ids = "uid=20001(zoe) gid=20001(zoe) groups=20001(zoe),20100(physics)\n";
    assert_eq!(ssh(&container, "zoe", "srun id").ok(), ids, "{}", container.log());
    let job = ssh(&container, "zoe", "sbatch --parsable --wait --output=out --wrap id && cat out").ok();
    assert_eq!(job.split_once('\n').map(|(_, output)| output), Some(ids), "{job}");
    assert_eq!(
        container.sh("stat -c '%u %g' /home/zoe/out; sacct -c -X -n -o user%20 | sort -u"),
        "20001 20001\n          zoe(20001)"
    );
    for user in ["slurm", daemon] {
        assert_eq!(ssh(&container, user, "id").code, 255, "SSH login as {user} was accepted");
    }

    // An unresponsive directory delays only lookups of its users.
    docker(["pause", &server.name]).ok();
    container.sh(&format!("slurminit restart {daemon}"));
    let begin = Instant::now();
    assert_eq!(ssh(&container, "alice", "srun id -un").ok(), "alice\n", "{}", container.log());
    container.sh("slurminit health && slurminit status");
    assert!(begin.elapsed() < Duration::from_secs(40), "{:?}", begin.elapsed());
    assert!(!container.sh("cat /proc/1/maps").contains("libnss"), "PID 1 uses a name service");
    assert_eq!(container.unit("slurmctld")["restarts"], 0, "{}", container.log());
    docker(["unpause", &server.name]).ok();
    container.until("getent passwd zoe");
    assert_eq!(ssh(&container, "zoe", "srun id -un").ok(), "zoe\n");
}
