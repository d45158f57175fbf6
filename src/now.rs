//! What Slurm says of the node at this moment.
//!
//! EDGE. `status` and `health` ask slurmctld themselves, when somebody wants to know: what they say has no age, and PID 1 asks nothing
//! more than before. Each question has a deadline.

mod answer;

use std::fs::File;
use std::io::Read as _;
use std::path::Path;
use std::time::{Duration, Instant};

use crate::configure::answer::{Answer, first_line};
use crate::configure::tool;
use crate::detect::sandbox::Sandbox;
use crate::install::under;
use crate::report::OfferedGpu;
use crate::supervise::machine::Snapshot;

pub use answer::{GpuState, GpuUse, NodeNow};
use answer::{Holder, gpu_uses};

/// How long slurmctld may take, all questions together.
const PATIENCE: Duration = Duration::from_secs(3);
/// How long the PCI bus may take.
const LOOKING: Duration = Duration::from_secs(1);
/// So many jobs are asked for their GPUs, one by one.
const MOST_JOBS: usize = 64;

/// What holds at this moment.
#[derive(Clone, Debug)]
pub struct Now {
    /// What slurmctld says of the node, or why it does not.
    pub node: Result<NodeNow, String>,
    /// The GPUs of the node.
    pub gpus: Vec<GpuUse>,
}

impl Now {
    /// Why no job can start, in one line; `None` where jobs can.
    pub fn why_closed(&self) -> Option<String> {
        self.node.as_ref().map_or_else(|why| Some(why.clone()), NodeNow::why_closed)
    }
}

/// Asks for everything. `lost` is what [`lost`] said. A cluster that is not ready is not asked.
pub fn now(snapshot: &Snapshot, lost: &[Option<String>]) -> Now {
    let (name, gpus) =
        snapshot.prepared.as_ref().map_or(("", &[][..]), |prepared| (&prepared.node_name, &prepared.gpus));
    let node = if snapshot.ready { node(name) } else { Err(snapshot.why.clone()) };
    let holders = node.is_ok().then(|| holders(name).ok()).flatten();
    Now { gpus: gpu_uses(gpus, lost, holders.as_deref()), node }
}

/// The node and its partitions.
///
/// # Errors
/// Why slurmctld cannot be asked, for a person.
pub fn node(name: &str) -> Result<NodeNow, String> {
    let arguments = ["--noheader", "--all", "--Node", "--nodes", name, answer::SINFO];
    let text = output("sinfo", &arguments, PATIENCE)?;
    NodeNow::parse(&text).ok_or_else(|| format!("slurmctld knows no node {name} in any partition"))
}

/// Why each GPU is out of reach, if it is. This opens no device: that would wake a GPU that sleeps.
///
/// Forks, so it comes before the first question to Slurm, which starts a thread: a device that is being reset lets its reader wait.
pub fn lost(root: &Path, gpus: &[OfferedGpu]) -> Vec<Option<String>> {
    let probe = || gpus.iter().map(|gpu| why_lost(root, gpu)).collect::<Vec<_>>();
    let nobody_knows = |verdict| vec![Some(format!("its place on the PCI bus {verdict}")); gpus.len()];
    Sandbox::start(probe).finish(Instant::now() + LOOKING).unwrap_or_else(nobody_knows)
}

/// A device that has fallen off the bus reads as ones (PCI Express Base Specification, "Completion Timeout").
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

/// Who has the GPUs, by what slurmctld says.
///
/// # Errors
/// Why slurmctld cannot be asked, for a person.
fn holders(node: &str) -> Result<Vec<Holder>, String> {
    let begin = Instant::now();
    let left = || PATIENCE.saturating_sub(begin.elapsed()).max(Duration::from_millis(100));
    let used = answer::used(&output("scontrol", &["--details", "show", "node", node], left())?);
    if used.is_empty() {
        return Ok(Vec::new());
    }
    // Of all nodes: `--nodelist localhost` is "Invalid node name" to squeue 24.11.
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
        Answer::Missing => Err(format!("{program} is not here")),
        Answer::Silent => Err(format!("slurmctld does not answer ({program} had {:.1} s)", deadline.as_secs_f64())),
        Answer::Ended { succeeded: true, stdout, .. } => Ok(stdout),
        Answer::Ended { stdout, stderr, .. } => {
            Err(format!("{program}: {}", first_line([stderr.as_str(), stdout.as_str()])))
        }
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
