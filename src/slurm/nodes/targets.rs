//! The targets of `slurminit submit`, and the Slurm request for exactly their GPUs.
//!
//! Slurm chooses among the GPUs of one type itself. So individual GPUs can be requested only together with all other GPUs of their
//! types. If each GPU has its own type (`type_name = "index"`), any selection is possible.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::str::FromStr;

use super::{ClusterNode, GpuState, NodeGpu};
use model::inventory::{file_kind, gres};

/// A node and a selection of its GPUs: `compute-1::0,2`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Target {
    /// The node's name.
    pub node: String,
    /// The selected GPUs.
    pub gpus: GpuSelection,
}

/// Selection of a node's GPUs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum GpuSelection {
    /// No GPU: `compute-1`.
    None,
    /// All GPUs: `compute-1::all`.
    All,
    /// Some GPUs: `compute-1::0,2-3`. These are the driver's indices, in ascending order.
    Indices(Vec<u32>),
}

impl FromStr for Target {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (node, gpus) = text.split_once("::").map_or((text, None), |(node, gpus)| (node, Some(gpus)));
        let is_plain = |c: char| c.is_ascii_alphanumeric() || "_-.".contains(c);
        if !node.starts_with(|c: char| c.is_ascii_alphanumeric()) || !node.chars().all(is_plain) || node.len() > 255 {
            return Err(format!("not a node: {node:?}; write NODE, NODE::0,2 or NODE::all"));
        }
        let gpus = match gpus {
            None => GpuSelection::None,
            Some("all") => GpuSelection::All,
            Some(list) => GpuSelection::Indices(indices(list)?),
        };
        Ok(Self { node: node.to_owned(), gpus })
    }
}

/// Parses a list of indices: `0,2-3` is 0, 2 and 3.
fn indices(list: &str) -> Result<Vec<u32>, String> {
    let invalid = || format!("not a list of GPUs: {list:?}; write numbers such as 0,2 or 0-3, or all");
    let mut all = Vec::new();
    for part in list.split(',') {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let number = |text: &str| text.parse::<u16>().map(u32::from).map_err(|_| invalid());
        let (first, last) = (number(first)?, number(last)?);
        if first > last || last as usize >= gres::MAX_GPUS {
            return Err(invalid());
        }
        all.extend(first..=last);
    }
    all.sort_unstable();
    match all.windows(2).find(|pair| pair[0] == pair[1]) {
        Some(pair) => Err(format!("GPU {} is listed twice in {list:?}", pair[0])),
        None => Ok(all),
    }
}

/// The Slurm request of a target.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GpuRequest {
    /// The value of `--gres`, if there is one: `gpu:gpu0:1,gpu:gpu2:1`.
    pub gres: Option<String>,
    /// The driver's indices of the GPUs.
    pub gpus: Vec<u32>,
    /// The selected GPUs that are in use, so that the job waits: `GPU 0 (job 17 of alice)`.
    pub busy: Vec<String>,
}

/// Why there is no Slurm request for exactly these GPUs.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct ImpossibleRequest(String);

impl Target {
    /// The request for exactly the selected GPUs of `node`.
    ///
    /// # Errors
    /// The node accepts no jobs or has no such GPU, GPUs of several vendors have the same number, or Slurm has no request for exactly these GPUs.
    pub fn request(&self, node: &ClusterNode) -> Result<GpuRequest, ImpossibleRequest> {
        if !node.accepts_jobs() {
            let response_note = if node.report.responding { "" } else { ", and does not respond to the controller" };
            let fix = if node.drained { format!("; run `slurminit resume {}`", node.name) } else { String::new() };
            let why = format!("{} accepts no jobs: it is {}{response_note}{fix}", node.name, node.report);
            return Err(ImpossibleRequest(why));
        }
        let all: BTreeSet<u32> = node.gpus.iter().map(|gpu| gpu.index).collect();
        let requested = match &self.gpus {
            GpuSelection::None => return Ok(GpuRequest { gres: None, gpus: Vec::new(), busy: Vec::new() }),
            GpuSelection::All => all.iter().copied().collect(),
            GpuSelection::Indices(gpus) => gpus.clone(),
        };
        if node.gpus.is_empty() {
            return Err(ImpossibleRequest(format!("{} has no GPU", node.name)));
        }
        if let Some(missing) = requested.iter().find(|index| !all.contains(index)) {
            return Err(ImpossibleRequest(format!("{} has no GPU {missing}; it has {}", node.name, numbers(all))));
        }
        // Each vendor's driver counts from 0; the instances of a GPU share its number.
        let files = |index: &u32| {
            let own = node.gpus.iter().filter(move |gpu| gpu.index == *index);
            own.filter_map(|gpu| gpu.file.as_deref()).collect::<Vec<_>>()
        };
        let kinds = |index: &u32| files(index).into_iter().map(file_kind).collect::<BTreeSet<_>>().len();
        let is_list = matches!(self.gpus, GpuSelection::Indices(_));
        if let Some(several) = requested.iter().find(|index| is_list && kinds(index) > 1) {
            let files = files(several).join(" and ");
            let name = &node.name;
            let fix = format!("to select by type, use --target {name} --sbatch=--gres=gpu:TYPE:1");
            let why = format!("{name} has several GPUs with the number {several}: {files}; {fix}");
            return Err(ImpossibleRequest(why));
        }
        let gpus = node.gpus.iter().filter(|gpu| requested.contains(&gpu.index));
        let busy = gpus.filter_map(|gpu| Some(format!("GPU {} ({})", gpu.index, describe_use(gpu)?))).collect();
        Ok(GpuRequest { gres: Some(gres_value(node, &requested)?), gpus: requested, busy })
    }
}

fn describe_use(gpu: &NodeGpu) -> Option<String> {
    match &gpu.state {
        GpuState::Allocated { job: Some(job) } => Some(format!("job {} of {}", job.job, job.user)),
        GpuState::Allocated { job: None } => Some("an unknown job".to_owned()),
        GpuState::Shared { jobs } if jobs.is_empty() => Some("shared by unknown jobs".to_owned()),
        GpuState::Shared { jobs } => {
            let jobs: Vec<String> = jobs.iter().map(|job| format!("job {} of {}", job.job, job.user)).collect();
            Some(format!("shared by {}", jobs.join(", ")))
        }
        GpuState::Free | GpuState::Unavailable => None,
    }
}

/// The `--gres` value for exactly these GPUs, which must be all GPUs of their types.
fn gres_value(node: &ClusterNode, requested: &[u32]) -> Result<String, ImpossibleRequest> {
    let mut counts: BTreeMap<&str, (usize, usize)> = BTreeMap::new();
    for gpu in &node.gpus {
        let (chosen, all) = counts.entry(&gpu.gres_type).or_default();
        *chosen += usize::from(requested.contains(&gpu.index));
        *all += 1;
    }
    if let Some((name, (_, all))) = counts.iter().find(|(_, (chosen, all))| *chosen > 0 && chosen < all) {
        return Err(ImpossibleRequest(format!(
            "Slurm chooses among the {all} GPUs of type {name}; use {0}::all, or --target {0} --sbatch=--gres=gpu:{1}, or set \
             `[gpu] type_name = \"index\"`",
            node.name,
            requested.len()
        )));
    }
    let chosen = counts.iter().filter(|(_, (chosen, _))| *chosen > 0);
    let each = chosen.map(
        |(name, (chosen, _))| if *name == "gpu" { format!("gpu:{chosen}") } else { format!("gpu:{name}:{chosen}") },
    );
    Ok(each.collect::<Vec<_>>().join(","))
}

/// Formats the GPUs: `GPUs 0,2`.
impl fmt::Display for GpuRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&numbers(self.gpus.iter().copied()))
    }
}

fn numbers(gpus: impl IntoIterator<Item = u32>) -> String {
    let numbers: Vec<String> = gpus.into_iter().map(|index| index.to_string()).collect();
    match numbers.len() {
        0 => "no GPU".to_owned(),
        1 => format!("GPU {}", numbers.concat()),
        _ => format!("GPUs {}", numbers.join(",")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use machine::node_report::NodeReport;
    use model::queued_job::OwnedJob;

    fn node(types: &[&str]) -> ClusterNode {
        let gpu = |(index, name): (usize, &&str)| NodeGpu {
            index: u32::try_from(index).unwrap(),
            slurm_index: index,
            file: None,
            gres_type: (*name).to_owned(),
            model: None,
            memory_mib: None,
            state: GpuState::Free,
        };
        let gpus = types.iter().enumerate().map(gpu).collect();
        ClusterNode { gpus, ..ClusterNode::empty("idle", true, "") }
    }

    fn gres(target: &str, types: &[&str]) -> Result<String, String> {
        let request = target.parse::<Target>()?.request(&node(types)).map_err(|error| error.to_string())?;
        Ok(request.gres.unwrap_or_else(|| "-".to_owned()))
    }

    #[test]
    fn parses_targets() {
        let these = |list: &str| format!("c1::{list}").parse::<Target>().map(|target| target.gpus);
        assert_eq!(these("2,0"), Ok(GpuSelection::Indices(vec![0, 2])));
        assert_eq!(these("0-2,7"), Ok(GpuSelection::Indices(vec![0, 1, 2, 7])));
        assert_eq!(these("all"), Ok(GpuSelection::All));
        assert_eq!("c-1.lab".parse::<Target>().map(|target| target.gpus), Ok(GpuSelection::None));
        for bad in ["", ",", "0,", "a", "-1", "2-1", "0,0", "0-99999999", "1::2", " 1"] {
            assert!(these(bad).is_err(), "{bad}");
        }
        let (last, beyond) = (gres::MAX_GPUS - 1, gres::MAX_GPUS);
        assert!(these(&last.to_string()).is_ok() && these(&beyond.to_string()).is_err());
        let node = |length: usize| "c".repeat(length).parse::<Target>();
        assert!(node(255).is_ok() && node(256).is_err());
        for bad in ["", "::0", "-x", "a b", "c1;id", "c[1-2]::0", "c1:0"] {
            assert!(bad.parse::<Target>().is_err(), "{bad}");
        }
    }

    #[test]
    fn requests_exactly_the_selected_gpus() {
        let each = ["gpu0", "gpu1", "gpu2"];
        assert_eq!(gres("c1::2,0", &each).unwrap(), "gpu:gpu0:1,gpu:gpu2:1");
        assert_eq!(gres("c1::all", &each).unwrap(), "gpu:gpu0:1,gpu:gpu1:1,gpu:gpu2:1");
        assert_eq!(gres("c1", &each).unwrap(), "-");
        assert_eq!(gres("c1::0,1", &["a", "a", "b"]).unwrap(), "gpu:a:2");
        assert_eq!(gres("c1::2", &["a", "a", "b"]).unwrap(), "gpu:b:1");
        assert_eq!(gres("c1::all", &["gpu", "gpu"]).unwrap(), "gpu:2");
        let chosen = gres("c1::1", &["nvidia", "nvidia"]).unwrap_err();
        assert!(chosen.contains("among the 2 GPUs of type nvidia") && chosen.contains("\"index\""), "{chosen}");
    }

    /// GPU 0 was released, so that Slurm's first GPU is the driver's second.
    #[test]
    fn numbers_are_the_drivers() {
        let mut node = node(&["gpu1", "gpu2", "gpu0"]);
        let places = [(1, "/dev/nvidia1"), (2, "/dev/nvidia2"), (0, "/dev/dri/renderD128")];
        for (gpu, (index, file)) in node.gpus.iter_mut().zip(places) {
            (gpu.index, gpu.file) = (index, Some(file.to_owned()));
        }
        let request = |target: &str| target.parse::<Target>().unwrap().request(&node).map(|request| request.gres);
        assert_eq!(request("c1::2"), Ok(Some("gpu:gpu2:1".to_owned())));
        node.gpus[0].index = 0;
        let request = |target: &str| target.parse::<Target>().unwrap().request(&node).map(|request| request.gres);
        let why = request("c1::0").unwrap_err().to_string();
        assert!(why.contains("/dev/nvidia1 and /dev/dri/renderD128"), "{why}");
        assert_eq!(request("c1::all"), Ok(Some("gpu:gpu0:1,gpu:gpu1:1,gpu:gpu2:1".to_owned())));
    }

    #[test]
    fn request_is_shown_by_its_gpus() {
        let shown =
            |target: &str| target.parse::<Target>().unwrap().request(&node(&["gpu0", "gpu1"])).unwrap().to_string();
        assert_eq!([shown("c1"), shown("c1::1"), shown("c1::all")], ["no GPU", "GPU 1", "GPUs 0,1"]);
    }

    #[test]
    fn impossible_request_names_available_gpus() {
        assert_eq!(gres("c1::0,3", &["a", "a"]).unwrap_err(), "c1 has no GPU 3; it has GPUs 0,1");
        assert_eq!(gres("c1::1", &["a"]).unwrap_err(), "c1 has no GPU 1; it has GPU 0");
        assert_eq!(gres("c1::all", &[]).unwrap_err(), "c1 has no GPU");
        let mut closed = node(&["a"]);
        closed.report =
            NodeReport { state: "drained".to_owned(), responding: true, reason: "fan".to_owned(), is_roots: false };
        closed.drained = true;
        let target: Target = "c1".parse().unwrap();
        let why = target.request(&closed).unwrap_err().to_string();
        assert_eq!(why, "c1 accepts no jobs: it is drained (fan); run `slurminit resume c1`");
        closed.report = NodeReport {
            state: "down".to_owned(),
            responding: false,
            reason: "Not responding".to_owned(),
            is_roots: false,
        };
        closed.drained = false;
        let why = target.request(&closed).unwrap_err().to_string();
        assert_eq!(why, "c1 accepts no jobs: it is down (Not responding), and does not respond to the controller");
        let mut busy = node(&["a", "b"]);
        let job = |job| OwnedJob { job, user: "alice".to_owned() };
        busy.gpus[0].state = GpuState::Allocated { job: Some(job(17)) };
        let request = "c1::0-1".parse::<Target>().unwrap().request(&busy).unwrap();
        assert_eq!(request.busy, ["GPU 0 (job 17 of alice)"]);
        busy.gpus[0].state = GpuState::Allocated { job: None };
        busy.gpus[1].state = GpuState::Shared { jobs: vec![job(17), job(18)] };
        let shared = "c1::0-1".parse::<Target>().unwrap().request(&busy).unwrap();
        assert_eq!(shared.busy, ["GPU 0 (an unknown job)", "GPU 1 (shared by job 17 of alice, job 18 of alice)"]);
        busy.gpus[1].state = GpuState::Shared { jobs: Vec::new() };
        let unknown = "c1::1".parse::<Target>().unwrap().request(&busy).unwrap();
        assert_eq!(unknown.busy, ["GPU 1 (shared by unknown jobs)"]);
        assert_eq!(request.to_string(), "GPUs 0,1");
    }
}
