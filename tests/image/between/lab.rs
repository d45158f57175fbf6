//! A cluster with running jobs, and assertions about these jobs after a fault.

use std::time::{Duration, Instant};

use crate::docker::Container;
use crate::members::Cluster;

/// A cluster with computes `c1`, `c2`, ... Each has one simulated GPU and runs one job.
pub(super) struct Lab {
    pub(super) computes: Vec<Container>,
    pub(super) jobs: Vec<String>,
    /// The node on which each job started.
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
        // slurmctld saves a new node after up to five seconds. SIGKILL loses unsaved nodes.
        lab.cluster.controller.until_saved();
        lab
    }

    pub(super) fn until_all_run(&self) -> Duration {
        let jobs = self.jobs.join(",");
        // A job that was removed from slurmctld counts as not running.
        let states =
            "for job in $(echo {jobs} | tr , \" \"); do scontrol -o show job $job | grep -o \"JobState=[A-Z]*\"; done";
        let states = states.replace("{jobs}", &jobs);
        self.cluster.until(&format!("[ $({states} | grep -c RUNNING) = {} ]", self.jobs.len()))
    }

    /// Waits until a job has run on all nodes, in addition to the running jobs.
    pub(super) fn until_it_works(&self) -> Duration {
        let nodes = self.computes.len();
        self.cluster.until(&format!("timeout 10 srun -N{nodes} --overlap --oversubscribe --mem=1 true 2>/dev/null"))
    }

    /// Requeue count of each job.
    pub(super) fn restarts(&self) -> Vec<String> {
        let line = |job| format!("scontrol -o show job {job} | grep -o 'Restarts=[0-9]*' | cut -d= -f2");
        self.jobs.iter().map(|job| self.cluster.controller.sh(&line(job))).collect()
    }

    /// The node that runs the job.
    pub(super) fn node_of(&self, job: &str) -> String {
        self.cluster.controller.sh(&format!("squeue -h -j {job} -o %N"))
    }

    pub(super) fn processes(&self) -> usize {
        let count = |compute: &Container| compute.sh("pgrep -fc '^sleep 1000' || true").parse::<usize>().unwrap_or(0);
        self.computes.iter().map(count).sum()
    }

    /// Asserts that the jobs of these nodes were requeued once and the other jobs not at all.
    #[track_caller]
    pub(super) fn assert_requeued(&self, nodes: &[&str]) {
        let expected = self.nodes.iter().map(|node| if nodes.contains(&node.as_str()) { "1" } else { "0" });
        let expected: Vec<_> = expected.collect();
        // slurmctld requeues the jobs when the node has registered.
        let begin = Instant::now();
        while !nodes.is_empty() && self.restarts() != expected && begin.elapsed() < Duration::from_secs(60) {
            std::thread::sleep(Duration::from_millis(200));
        }
        assert_eq!(self.restarts(), expected, "jobs of {:?}", self.nodes);
        self.until_all_run();
    }

    /// Asserts that all initial jobs are running with one process each and that none was requeued.
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
