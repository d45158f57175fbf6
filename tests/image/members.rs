//! A cluster of several containers, which tests of other modules use.

use std::time::{Duration, Instant};

use crate::docker::{Container, DEMO, Image, Network, PLAIN, Volume, directory};

/// The controller, and the resources that all containers of the cluster share. Fields drop in this order, so the container comes first.
pub(crate) struct Cluster {
    pub(crate) controller: Container,
    pub(crate) network: Network,
    pub(crate) key: Volume,
    /// The directory with the controller's slurminit.toml.
    pub(crate) config: tempfile::TempDir,
}

impl Cluster {
    pub(crate) fn new(toml: &str) -> Self {
        let (network, key) = (Network::new(), Volume::new("key"));
        let config = directory(&[("slurminit.toml", toml)]);
        let controller = Image::new(PLAIN)
            .json_log()
            .with(["--hostname", "controller", "--network-alias", "controller", "--network", &network.0])
            .with(["--env", "SLURMINIT_ROLE=controller"])
            .mount(config.path(), "/config")
            .volume(&key, "/etc/munge")
            .serve();
        Self { controller, network, key, config }
    }

    /// The image and options of a member, which is not started yet.
    pub(crate) fn member(&self, image: &str, role: &str, name: &str) -> Image {
        Image::new(image)
            .with(["--hostname", name, "--network-alias", name, "--network", &self.network.0])
            .with(["--env", &format!("SLURMINIT_ROLE={role}"), "--env", "SLURMINIT_CONTROLLER=controller"])
            .volume(&self.key, "/etc/munge")
    }

    pub(crate) fn compute(&self, name: &str, gpus: u32) -> Container {
        self.member(DEMO, "compute", name).with(["--env", &format!("DEMO_GPUS={gpus}")]).serve()
    }

    /// Name, state and GRES of each node.
    pub(crate) fn nodes(&self) -> String {
        self.controller.sh("sinfo --noheader -N -o '%N %T %G' | sort")
    }

    /// Waits until the shell line succeeds on the controller. Returns how long it took.
    #[track_caller]
    pub(crate) fn until(&self, condition: &str) -> Duration {
        let begin = Instant::now();
        let outcome = self.controller.wait_until(300, condition);
        assert_eq!(outcome.code, 0, "{condition}: {}\n{}\n{}", outcome.stderr, self.nodes(), self.controller.log());
        begin.elapsed()
    }

    /// Submits a batch job that sleeps for 1000 s. Returns the job ID.
    pub(crate) fn submit(&self, options: &str) -> String {
        self.controller.sh(&format!("cd /tmp; sbatch --parsable --output=/dev/null {options} --wrap 'exec sleep 1000'"))
    }
}
