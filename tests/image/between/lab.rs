//! A cluster whose jobs run, and what a fault may do to them.

use std::time::{Duration, Instant};

use crate::docker::Container;
use crate::members::Cluster;

/// A cluster with computes `c1` ... that have a simulated GPU each, and a job on each of them.
pub(super) struct Lab {
    pub(super) computes: Vec<Container>,
    pub(super) jobs: Vec<String>,
    /// The node that each job began on.
    pub(super) nodes: Vec<String>,
    pub(super) cluster: Cluster,
}

impl Lab {
    pub(super) fn new(computes: usize) -> Self {
        let cluster = Cluster::new("");
        let computes: Vec<Container> = (1..=computes).map(|n| cluster.compute(&format!("c{n}"), 1)).collect();
        let jobs: Vec<String> = computes.iter().map(|_| cluster.submit("--gres=gpu:1")).collect();
        let mut lab = Self { computes, jobs, nodes: Vec::new(), cluster };
        lab.until_all_run();
        lab.nodes = lab.jobs.iter().map(|job| lab.node_of(job)).collect();
        // slurmctld saves a new node up to five seconds later, and what it has not saved a KILL costs.
        lab.cluster.controller.until_saved();
        lab
    }

    pub(super) fn until_all_run(&self) -> Duration {
        let jobs = self.jobs.join(",");
        // Names the job that does not, also one that is no job any more.
        let states =
            "for job in $(echo {jobs} | tr , \" \"); do scontrol -o show job $job | grep -o \"JobState=[A-Z]*\"; done";
        let states = states.replace("{jobs}", &jobs);
        self.cluster.until(&format!("[ $({states} | grep -c RUNNING) = {} ]", self.jobs.len()))
    }

    /// Until a job that needs each node has run on all, beside those that run.
    pub(super) fn until_it_works(&self) -> Duration {
        let nodes = self.computes.len();
        self.cluster.until(&format!("timeout 10 srun -N{nodes} --overlap --oversubscribe --mem=1 true 2>/dev/null"))
    }

    /// How often each job was requeued.
    pub(super) fn restarts(&self) -> Vec<String> {
        let line = |job| format!("scontrol -o show job {job} | grep -o 'Restarts=[0-9]*' | cut -d= -f2");
        self.jobs.iter().map(|job| self.cluster.controller.sh(&line(job))).collect()
    }

    /// The node that has the job.
    pub(super) fn node_of(&self, job: &str) -> String {
        self.cluster.controller.sh(&format!("squeue -h -j {job} -o %N"))
    }

    pub(super) fn processes(&self) -> usize {
        let count = |compute: &Container| compute.sh("pgrep -fc '^sleep 1000' || true").parse::<usize>().unwrap_or(0);
        self.computes.iter().map(count).sum()
    }

    /// Those of these nodes were requeued once, and no others.
    #[track_caller]
    pub(super) fn assert_requeued(&self, of: &[&str]) {
        let wanted = self.nodes.iter().map(|node| if of.contains(&node.as_str()) { "1" } else { "0" });
        let wanted: Vec<_> = wanted.collect();
        // slurmctld finds out when the node has registered.
        let begin = Instant::now();
        while !of.is_empty() && self.restarts() != wanted && begin.elapsed() < Duration::from_secs(60) {}
        assert_eq!(self.restarts(), wanted, "jobs of {:?}", self.nodes);
        self.until_all_run();
    }

    /// All jobs of the beginning run, as they did: none was requeued, each has its process.
    #[track_caller]
    pub(super) fn assert_nothing_was_lost(&self) {
        self.until_all_run();
        self.assert_requeued(&[]);
        assert_eq!(self.processes(), self.jobs.len());
    }

    pub(super) fn network(&self) -> &str {
        &self.cluster.network.0
    }
}
