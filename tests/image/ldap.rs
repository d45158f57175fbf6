//! Users of a directory service: a real slapd, nslcd as a service as docs/users.md has it, and logins with ssh.

use std::fs;
use std::time::{Duration, Instant};

use crate::built_image::BuiltImage;
use crate::docker::{Container, Image, LOGIN, Network, Outcome, directory, docker, tag, unique};

/// The last block of TOML on the page, and accounts beside the directory's.
fn configuration() -> String {
    let page = fs::read_to_string(harness::root().join("docs/users.md")).expect("the page exists");
    let service = page.rsplit("```toml\n").next().and_then(|rest| rest.split("```").next()).unwrap_or_default();
    assert!(service.contains("nslcd"), "{page}");
    format!("{service}\n[login]\nkeys = \"/work\"\n[[user]]\nname = \"alice\"\nuid = 1501\n")
}

fn ssh(container: &Container, user: &str, line: &str) -> Outcome {
    let options =
        "-i /key/id -o StrictHostKeyChecking=no -o UserKnownHostsFile=/dev/null -o LogLevel=ERROR -o BatchMode=yes";
    container.exec(&["sh", "-c", &format!("timeout 60 ssh {options} {user}@localhost '{line}'")])
}

#[test]
#[ignore = "needs Docker and the images: run docker/test"]
fn user_of_directory_runs_jobs_and_its_silence_stops_nothing() {
    let image = BuiltImage::new("ldap", "tests/image/ldap", &[&format!("IMAGE={}", tag(LOGIN))]);
    let network = Network::new();
    let server = Container { name: unique("ldap") };
    let slapd = ["--entrypoint", "slapd", &image.0, "-d", "0", "-f", "/etc/ldap/slapd.conf", "-h", "ldap:///"];
    let options = ["run", "--detach", "--name", &server.name, "--network", &network.0, "--network-alias", "directory"];
    docker(options.iter().chain(&slapd)).ok();

    let (client, keys) = (directory(&[]), directory(&[]));
    let mount = format!("{}:/key", client.path().display());
    let keygen = Image::new(&image.0).with(["--volume", &mount]).with(["--entrypoint", "ssh-keygen"]);
    keygen.run(&["-q", "-t", "ed25519", "-N", "", "-f", "/key/id"]).ok();
    for user in ["zoe", "alice", "slurm", "nslcd"] {
        fs::copy(client.path().join("id.pub"), keys.path().join(user)).expect("ssh-keygen made it");
    }
    let config = directory(&[("slurminit.toml", &configuration())]);
    let cluster = Image::new(&image.0).with(["--network", &network.0]).mount(config.path(), "/config");
    let container = cluster.mount(client.path(), "/key").mount(keys.path(), "/work").serve();
    container.until("slurminit status | grep -q \"^nslcd *ready\"");
    container.sh("install -d -o zoe -g zoe -m 700 /home/zoe");

    let ids = "uid=20001(zoe) gid=20001(zoe) groups=20001(zoe),20100(physics)\n";
    assert_eq!(ssh(&container, "zoe", "srun id").ok(), ids, "{}", container.log());
    let job = ssh(&container, "zoe", "sbatch --parsable --wait --output=out --wrap id && cat out").ok();
    assert_eq!(job.split_once('\n').map(|(_, output)| output), Some(ids), "{job}");
    assert_eq!(
        container.sh("stat -c '%u %g' /home/zoe/out; sacct -c -X -n -o user%20 | sort -u"),
        "20001 20001\n          zoe(20001)"
    );
    for daemon in ["slurm", "nslcd"] {
        assert_eq!(ssh(&container, daemon, "id").code, 255, "a daemon's user logs in");
    }

    // A directory that does not answer delays who asks for its users, and nothing else.
    docker(["pause", &server.name]).ok();
    container.sh("slurminit restart nslcd");
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
