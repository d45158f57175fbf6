//! The agent's files in the run directory, which only root can write to.

use std::io::{self, Write as _};
use std::path::Path;

use serde::Serialize;
use serde::de::DeserializeOwned;

use init::status;
use model::faults::report::{FILE, Report};
use model::faults::ward::Out;
use model::inventory::{Access, Inventory, Obstacle};
use sys::trusted_path;
use sys::trusted_path::Dir;

/// The GPUs that the next start or reload leaves out.
const OUT: &str = "gpus-out.json";

/// Replaces the report.
pub(super) fn write_report(run: &Path, report: &Report) -> io::Result<()> {
    replace(run, FILE, report, 0o644)
}

/// The report of an agent that ran before.
pub(super) fn former_report(run: &Path) -> Option<Report> {
    read(run, FILE)
}

/// The report of a running agent, readable for everyone.
pub fn report(run: &Path) -> Option<Report> {
    let text = std::fs::read(run.join(FILE)).ok()?;
    serde_json::from_slice::<Report>(&text).ok().filter(|report| status::is_alive(report.pid))
}

/// Replaces the list of GPUs that are left out.
pub(super) fn write_out(run: &Path, out: &[Out]) -> io::Result<()> {
    replace(run, OUT, &out, 0o644)
}

/// The GPUs to leave out.
pub fn left_out(run: &Path) -> Vec<Out> {
    read(run, OUT).unwrap_or_default()
}

/// Marks the GPUs to leave out.
pub fn leave_out(run: &Path, inventory: &mut Inventory) {
    for out in left_out(run) {
        for gpu in inventory.gpus.iter_mut().filter(|gpu| gpu.is_usable() && out.gpu.is(gpu)) {
            gpu.access = Access::unusable(Obstacle::Faulty, out.reason.clone());
        }
    }
}

/// Clears the list of left-out GPUs: a start checks all GPUs.
pub fn forget(run: &Path) -> io::Result<()> {
    let run = directory(run)?;
    run.remove(OUT)?;
    run.remove(FILE)
}

fn directory(run: &Path) -> io::Result<Dir> {
    let run = trusted_path::open(Path::new("/"), run)?;
    run.require_ours()?;
    Ok(run)
}

fn read<T: DeserializeOwned>(run: &Path, name: &str) -> Option<T> {
    let text = directory(run).ok()?.read(name).ok()?;
    serde_json::from_slice(&text).ok()
}

fn replace(run: &Path, name: &str, value: &impl Serialize, mode: u32) -> io::Result<()> {
    let (run, new) = (directory(run)?, format!("{name}.new"));
    run.remove(&new)?;
    run.create(&new, mode)?.write_all(&serde_json::to_vec(value)?)?;
    run.rename(&new, name)
}
