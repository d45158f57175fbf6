//! A cluster across several hosts. Each container uses its host's network; a router between the hosts forwards only the documented
//! ports. An idle container that owns a network namespace simulates a host; on a real host, use `--network host`.

use std::process::Command;

use crate::docker::{Container, DEMO, Image, PLAIN, Volume, directory, docker};

/// Runs a command on this machine. Requires root.
#[track_caller]
fn host(line: &str) {
    let status = Command::new("sh").args(["-ec", line]).status().expect("sh is installed");
    assert!(status.success(), "{line} (needs root, iproute2, iptables and nsenter)");
}

/// A network namespace that forwards between the hosts.
struct Router(String);

impl Router {
    fn new(ports: &[&str]) -> Self {
        let router = Self(format!("slurminit-{}", std::process::id()));
        let name = &router.0;
        host(&format!("ip netns add {name}"));
        host(&format!("ip netns exec {name} sysctl -qw net.ipv4.ip_forward=1"));
        let rule = |rule: &str| host(&format!("ip netns exec {name} iptables {rule}"));
        rule("-P FORWARD DROP");
        rule("-A FORWARD -m conntrack --ctstate ESTABLISHED,RELATED -j ACCEPT");
        ports.iter().for_each(|port| rule(&format!("-A FORWARD -p tcp --dport {port} -j ACCEPT")));
        router
    }

    /// Starts a host named `gpuN` in its own network.
    fn host(&self, number: u8) -> Container {
        let (name, hostname) = (&self.0, format!("gpu{number}"));
        let names = ["--add-host", "gpu0:10.201.0.2", "--add-host", "gpu1:10.201.1.2"];
        let image = Image::new(PLAIN).with(["--network", "none", "--hostname", &hostname, "--entrypoint", "sleep"]);
        let container = image.with(names).command(["1000"]).start();
        let pid = docker(["inspect", "--format", "{{.State.Pid}}", &container.name]).ok();
        let pid = pid.trim();
        host(&format!(
            "ip -n {name} link add gpu{number} type veth peer name eth0 netns {pid}
             ip -n {name} addr add 10.201.{number}.1/24 dev gpu{number}
             ip -n {name} link set gpu{number} up
             nsenter -t {pid} -n ip addr add 10.201.{number}.2/24 dev eth0
             nsenter -t {pid} -n ip link set eth0 up
             nsenter -t {pid} -n ip route add default via 10.201.{number}.1"
        ));
        container
    }
}

impl Drop for Router {
    fn drop(&mut self) {
        let _ = Command::new("ip").args(["netns", "del", &self.0]).status();
    }
}

#[test]
#[ignore = "needs Docker and the images: run docker/test"]
fn hosts_behind_firewall_form_cluster_on_configured_ports() {
    let toml = "[slurm]\ncontroller_port = 7817\ndaemon_port = 7818\n[slurm.conf]\nSrunPortRange = \"60001-60100\"\n";
    let (config, key) = (directory(&[("slurminit.toml", toml)]), Volume::new("key"));
    let router = Router::new(&["7817", "7818", "60001:60100"]);
    let hosts = [router.host(0), router.host(1)];
    let on = |number: usize| {
        Image::new(DEMO)
            .with(["--network", &format!("container:{}", hosts[number].name)])
            .with(["--env", "SLURMINIT_CONTROLLER=gpu0", "--env", "DEMO_GPUS=2"])
            .mount(config.path(), "/config")
            .volume(&key, "/etc/munge")
    };
    let head = on(0).serve();
    let compute = on(1).with(["--env", "SLURMINIT_ROLE=compute"]).serve();
    let addresses = "gpu0 10.201.0.2\ngpu1 10.201.1.2";
    assert_eq!(head.sh("sinfo --noheader -N -o '%N %o' | sort"), addresses);
    for from in [&head, &compute] {
        assert_eq!(from.sh("srun -N2 --gres=gpu:2 hostname | sort"), "gpu0\ngpu1");
    }
    head.sh("cd /tmp && sbatch --wait --output=/dev/null -w gpu1 --wrap true");
    // A killed host rejoins after it starts again.
    docker(["kill", &compute.name]).ok();
    docker(["start", &compute.name]).ok();
    compute.wait_until_healthy();
    assert_eq!(head.sh("srun -N2 hostname | sort"), "gpu0\ngpu1");
    assert_eq!(compute.stop(), 0, "{}", compute.log());
    assert_eq!(head.sh("sinfo --noheader -N -o %N"), "gpu0");
    drop((head, compute, hosts));
}
