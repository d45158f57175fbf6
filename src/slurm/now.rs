//! The current state of the node, as Slurm reports it.
//!
//! `status` and `health` ask slurmctld themselves when they run, so the answer is current and PID 1 need not ask.
//! Each question has a deadline.

mod answer;

use std::fs::File;
use std::io::Read as _;
use std::path::Path;
use std::time::{Duration, Instant};

use machine::Snapshot;
use machine::node_report::NodeReport;
use model::prepared::OfferedGpu;
use probe::sandbox::Sandbox;
use sys::tool;
use sys::tool::answer::Answer;
use sys::under;

pub use answer::{GpuState, GpuUse, NodeNow};
use answer::{Holder, gpu_uses};

/// How long all questions to slurmctld may take together.
const PATIENCE: Duration = Duration::from_secs(3);
/// How long reading the PCI bus may take.
const LOOKING: Duration = Duration::from_secs(1);
/// How many jobs are asked individually about their GPUs.
const MOST_JOBS: usize = 64;

/// The current state.
#[derive(Clone, Debug)]
pub struct Now {
    /// slurmctld's report about the node, or why there is none.
    pub node: Result<NodeNow, String>,
    /// The node's GPUs.
    pub gpus: Vec<GpuUse>,
}

impl Now {
    /// Why no job can start, in one line; `None` if jobs can start.
    pub fn why_closed(&self) -> Option<String> {
        self.node.as_ref().map_or_else(|why| Some(why.clone()), NodeNow::why_closed)
    }
}

/// Asks slurmctld, if the cluster is ready. `lost` is the result of [`lost`].
pub fn now(snapshot: &Snapshot, lost: &[Option<String>]) -> Now {
    let (name, gpus) =
        snapshot.prepared.as_ref().map_or(("", &[][..]), |prepared| (&prepared.node_name, &prepared.gpus));
    let node = if snapshot.ready { node(name) } else { Err(snapshot.why.clone()) };
    // `slurminit nodes` has the GPUs of each simulated node.
    let is_simulated = snapshot.prepared.as_ref().is_some_and(|prepared| prepared.simulated_nodes > 0);
    let gpus = if is_simulated { &[][..] } else { gpus };
    let holders = (node.is_ok() && !name.is_empty()).then(|| holders(name).ok()).flatten();
    Now { gpus: gpu_uses(gpus, lost, holders.as_deref()), node }
}

/// The node and its partitions.
///
/// # Errors
/// Why slurmctld could not be asked.
pub fn node(name: &str) -> Result<NodeNow, String> {
    if name.is_empty() {
        // A container without a node can do its part where the controller answers.
        let text = output("scontrol", &["ping"], PATIENCE)?;
        let report = text.lines().find_map(NodeReport::of_controller);
        return report.map(|report| NodeNow { report, has_open_partition: true }).ok_or_else(|| text.trim().to_owned());
    }
    let arguments = ["--noheader", "--all", "--Node", "--nodes", name, answer::SINFO];
    let text = output("sinfo", &arguments, PATIENCE)?;
    NodeNow::parse(&text).ok_or_else(|| format!("slurmctld knows no node {name} in any partition"))
}

/// For each GPU, why it cannot be reached, if so. Opens no device, because that would wake a sleeping GPU.
///
/// Reading a device that is being reset blocks, so a process of its own does it.
pub fn lost(root: &Path, gpus: &[OfferedGpu]) -> Vec<Option<String>> {
    let probe = || gpus.iter().map(|gpu| why_lost(root, gpu)).collect::<Vec<_>>();
    let nobody_knows = |verdict| vec![Some(format!("its place on the PCI bus {verdict}")); gpus.len()];
    Sandbox::start(probe).finish(Instant::now() + LOOKING).unwrap_or_else(nobody_knows)
}

/// Reads from a device that has fallen off the bus return all ones (PCI Express Base Specification, "Completion
/// Timeout").
fn why_lost(root: &Path, gpu: &OfferedGpu) -> Option<String> {
    if !under(root, Path::new(&gpu.file)).exists() {
        return Some(format!("{} is gone", gpu.file));
    }
    let address = gpu.pci_address.as_ref()?;
    let mut vendor = [0; 2];
    let config = under(root, &Path::new("/sys/bus/pci/devices").join(address).join("config"));
    File::open(config).and_then(|mut file| file.read_exact(&mut vendor)).ok()?;
    (vendor == [0xff; 2]).then(|| format!("it does not answer at {address}: it has fallen off the PCI bus"))
}

/// Who holds the GPUs, according to slurmctld.
///
/// # Errors
/// Why slurmctld could not be asked.
fn holders(node: &str) -> Result<Vec<Holder>, String> {
    let begin = Instant::now();
    let left = || PATIENCE.saturating_sub(begin.elapsed()).max(Duration::from_millis(100));
    let used = answer::used(&output("scontrol", &["--details", "show", "node", node], left())?);
    if used.is_empty() {
        return Ok(Vec::new());
    }
    // Asks for all nodes: for squeue 24.11, `--nodelist localhost` is an "Invalid node name".
    let jobs = output("squeue", &["--noheader", answer::HOLDING, answer::SQUEUE], left())?;
    let mut holders: Vec<Holder> = used.into_iter().map(Holder::unknown).collect();
    for (id, user) in answer::jobs(&jobs).take(MOST_JOBS) {
        let Ok(text) = output("scontrol", &["--details", "show", "job", id], left()) else { continue };
        answer::assign(&mut holders, &answer::indices_of_job(&text), id, user);
    }
    Ok(holders)
}

fn output(program: &str, arguments: &[&str], deadline: Duration) -> Result<String, String> {
    match tool::ask(program, arguments, deadline) {
        Answer::Silent => Err(format!("slurmctld does not answer ({program} had {:.1} s)", deadline.as_secs_f64())),
        answer => answer.output_of(program),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_gpu_that_fell_off_the_bus_is_lost_and_one_of_an_unknown_place_is_not() {
        let root = tempfile::tempdir().unwrap();
        let file = |path: &str, content: &[u8]| {
            let path = root.path().join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, content).unwrap();
        };
        let gpu = |number: usize, address: Option<&str>| OfferedGpu {
            file: format!("/dev/nvidia{number}"),
            model: "NVIDIA H200".to_owned(),
            memory_mib: None,
            pci_address: address.map(str::to_owned),
            line: String::new(),
        };
        let gpus = [
            gpu(0, Some("0000:10:00.0")),
            gpu(1, Some("0000:11:00.0")),
            gpu(2, Some("0000:12:00.0")),
            gpu(3, None),
            gpu(4, None),
        ];
        for number in 0..4 {
            file(&format!("dev/nvidia{number}"), b"");
        }
        file("sys/bus/pci/devices/0000:10:00.0/config", b"\xde\x10\x35\x23");
        file("sys/bus/pci/devices/0000:11:00.0/config", b"\xff\xff\xff\xff");
        let lost: Vec<_> = gpus.iter().map(|gpu| why_lost(root.path(), gpu)).collect();
        assert_eq!(lost[0], None);
        assert!(lost[1].as_ref().is_some_and(|why| why.contains("fallen off the PCI bus")), "{lost:?}");
        assert_eq!((&lost[2], &lost[3]), (&None, &None));
        assert_eq!(lost[4].as_deref(), Some("/dev/nvidia4 is gone"));
    }
}
