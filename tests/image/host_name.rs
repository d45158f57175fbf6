//! The host's own name without an address in /etc/hosts, as with `--network host` and podman's `--no-hosts`.

use std::fs;
use std::path::Path;

use crate::docker::{Image, Outcome, PLAIN, directory};

/// The line that Slurm logs for each second in which it looks up a name without an address.
const RETRY: &str = "getaddrinfo() failed";

/// Runs a container with this /etc/hosts.
fn run(hosts: &str, hostname: &str, mode: &str, options: &[&str], command: &[&str]) -> (Outcome, String) {
    let files = directory(&[("hosts", hosts)]);
    let path = files.path().join("hosts");
    let mount = format!("{}:/etc/hosts:{mode}", path.display());
    let image = Image::new(PLAIN).with(["--hostname", hostname, "--volume", &mount]);
    let image = options.chunks(2).fold(image, |image, option| match option {
        [name, value] => image.with([*name, *value]),
        _ => image,
    });
    (image.run(command), fs::read_to_string(Path::new(&path)).expect("the file is readable"))
}

#[test]
#[ignore = "needs Docker and the images: run docker/test"]
fn own_name_without_address_is_added_before_daemons_start() {
    let controller = ["--env", "SLURMINIT_ROLE=controller"];
    let srun: &[&str] = &["srun", "hostname"];
    // A file with only localhost, an empty file, a name with a domain, and a controller, whose address the other hosts read in credentials.
    for (hosts, hostname, options, command) in [
        ("127.0.0.1\tlocalhost\n", "gpubox", &[][..], srun),
        ("", "gpubox", &[], srun),
        ("127.0.0.1\tlocalhost\n", "gpubox.lab.example", &[], &["getent", "hosts", "gpubox", "gpubox.lab.example"]),
        ("127.0.0.1\tlocalhost\n", "head", &controller, &["getent", "ahostsv4", "head"]),
    ] {
        let (outcome, hosts) = run(hosts, hostname, "rw", options, command);
        assert_eq!(outcome.code, 0, "{hostname}: {outcome:?}");
        assert!(!outcome.stderr.contains(RETRY), "{hostname}: {outcome:?}");
        let line = hosts.lines().find(|line| line.ends_with(&format!("\t{hostname}"))).unwrap_or_default();
        assert_eq!(line.starts_with("127."), options.is_empty(), "{hosts}");
        assert!(!line.is_empty(), "{hosts}");
    }
}

/// An /etc/nsswitch.conf without nss-myhostname, as in images that do not have it.
const WITHOUT_MYHOSTNAME: &str = "passwd: files\ngroup: files\nhosts: files dns\n";

#[test]
#[ignore = "needs Docker and the images: run docker/test"]
fn own_name_resolves_with_read_only_hosts_file() {
    let hosts = "127.0.0.1\tlocalhost\n";
    // The second srun waits for the first one's CPUs, and slurmctld then looks up the host that it runs on.
    let line = "srun hostname && srun hostname";
    let (outcome, after) = run(hosts, "gpubox", "ro", &[], &["timeout", "120", "sh", "-c", line]);
    assert_eq!((outcome.stdout.as_str(), after.as_str()), ("gpubox\ngpubox\n", hosts), "{outcome:?}");
    for message in [RETRY, "has no address", "Failed to lookup"] {
        assert!(!outcome.stderr.contains(message), "{message}: {outcome:?}");
    }
    // Without nss-myhostname, the start logs the cause and the fix.
    let files = directory(&[("nsswitch.conf", WITHOUT_MYHOSTNAME)]);
    let mount = format!("{}:/etc/nsswitch.conf:ro", files.path().join("nsswitch.conf").display());
    let (outcome, _) = run(hosts, "gpubox", "ro", &["--volume", &mount], &["srun", "hostname"]);
    let warning = outcome.stderr.lines().find(|line| line.contains("gpubox has no address")).expect("a warning");
    assert!(warning.contains("--add-host gpubox:127.0.0.1"), "{warning}");
}
