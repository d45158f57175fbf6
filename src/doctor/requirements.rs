//! Requirements on GPUs and drivers, each with a verdict based on one detection.
//!
//! Doctor's entries use the same functions for the same requirements. A fact that the driver does not report has no
//! verdict.

use serde::Serialize;

use super::entries::{cuda, work};
use super::facts::{CudaFacts, Environment, Observed};
use super::{Observation, Observations};
use config::{ComputeCapability, Floors};
use model::inventory::{Access, Condition, Gpu, Inventory};

/// The facts to judge.
#[derive(Clone, Copy, Debug)]
pub struct RequirementFacts<'a> {
    /// The result of detection, with the condition of the GPUs.
    pub inventory: &'a Inventory,
    /// The variables of the environment.
    pub environment: &'a Environment,
    /// CUDA in this container.
    pub cuda: &'a CudaFacts,
    /// The operator's minimum requirements.
    pub floors: &'a Observed<Floors>,
}

/// A requirement and the observation about it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Requirement {
    /// The name; that of doctor's entry, if there is one.
    pub name: &'static str,
    /// The observation.
    #[serde(flatten)]
    pub observation: Observation,
}

/// A verdict on each requirement for which facts are known.
pub fn requirements(known: &RequirementFacts<'_>) -> Vec<Requirement> {
    let gpus: Vec<&Gpu> = known.inventory.usable_gpus().collect();
    let conditions: Vec<&Condition> = gpus.iter().filter_map(|gpu| gpu.condition.as_ref()).collect();
    let (floors, unread) = match known.floors {
        Ok(floors) => (*floors, None),
        Err(why) => (Floors::default(), Some(Observations::could_not_look(why.as_str()))),
    };
    let of_each = |judge: fn(&Condition) -> Option<Observations>| conditions.iter().filter_map(move |it| judge(it));
    let compute = |gpu: &&Gpu| compute(gpu, floors.compute?);
    let memory = |gpu: &&Gpu| floors.memory_mib.map(|least| memory(gpu, least)).unwrap_or_default();
    let answers: [(&'static str, Vec<Observations>); 7] = [
        ("cuda-version", driver(known).into_iter().collect()),
        ("configuration", unread.into_iter().collect()),
        ("compute", gpus.iter().filter_map(compute).collect()),
        ("memory", gpus.iter().flat_map(memory).collect()),
        ("gpu-speed", of_each(work::speed).collect()),
        ("ecc", of_each(ecc).collect()),
        ("persistence", work::persistence_of(&conditions).into_iter().collect()),
    ];
    let of_answer =
        |name| move |answer: Observations| answer.observations().to_vec().into_iter().map(move |it| (name, it));
    let all = answers.into_iter().flat_map(|(name, answers)| answers.into_iter().flat_map(of_answer(name)));
    all.map(|(name, observation)| Requirement { name, observation }).collect()
}

/// Compares the driver with the container's CUDA; if the container has none, with CUDA releases in general.
fn driver(known: &RequirementFacts<'_>) -> Option<Observations> {
    let driver = known.inventory.cuda_driver()?;
    let of_image = known.environment.cuda_version.as_deref().or(known.cuda.toolkit.as_deref());
    of_image.map(|of_image| cuda::cuda_of(Some(driver), of_image)).or_else(|| cuda::driver_alone(driver))
}

fn name(gpu: &Gpu) -> String {
    format!("{} GPU {}", gpu.vendor, gpu.index)
}

fn too_little(seen: String, key: &str, least: &str) -> Observations {
    Observations::fail(
        seen,
        format!("below the minimum of slurminit.toml: [gpu] {key} = {least}"),
        format!("give the container other GPUs (slurminit configure --gpus LIST on the host), or lower {key}"),
    )
}

/// AMD's names of instruction sets cannot be compared by order.
fn compute(gpu: &Gpu, least: ComputeCapability) -> Option<Observations> {
    let has: ComputeCapability = gpu.compute.as_deref()?.parse().ok()?;
    let seen = format!("{} has compute capability {has} (minimum {least})", name(gpu));
    Some(if has >= least { Observations::ok(seen) } else { too_little(seen, "min_compute", &format!("\"{least}\"")) })
}

/// In MIG mode, only a GPU's instances can be used.
fn memory(gpu: &Gpu, least: u64) -> Vec<Observations> {
    let whole = || gpu.memory_mib.map(|has| (name(gpu), has)).into_iter().collect::<Vec<_>>();
    let parts: Vec<(String, u64)> = gpu.mig.as_ref().map_or_else(whole, |instances| {
        let usable = instances.iter().filter(|instance| instance.access == Access::Usable);
        let part = |(at, mib)| (format!("MIG instance {at} of {}", name(gpu)), mib);
        (0_u32..).zip(usable).filter_map(|(at, instance)| Some((at, instance.memory_mib?))).map(part).collect()
    });
    let judge = |(name, has): (String, u64)| {
        let seen = format!("{name} has {has} MiB of memory (minimum {least})");
        if has >= least { Observations::ok(seen) } else { too_little(seen, "min_memory_mib", &least.to_string()) }
    };
    parts.into_iter().map(judge).collect()
}

fn ecc(condition: &Condition) -> Option<Observations> {
    let (index, ecc) = (condition.index, condition.ecc?);
    Some(match (ecc.is_on, ecc.uncorrected) {
        (true, Some(0)) => Observations::ok(format!("GPU {index}: ECC on, no uncorrectable errors")),
        (true, None) => Observations::ok(format!("GPU {index}: ECC on")),
        (true, Some(errors)) => Observations::warn(
            format!("GPU {index}: {errors} uncorrectable memory errors since the driver was loaded"),
            "failing memory; each such error kills the program",
            format!(
                "nvidia-smi -i {index} -q -d ECC,ROW_REMAPPER; sudo nvidia-smi -i {index} -r, or a reboot, retires the bad rows"
            ),
        ),
        (false, _) => Observations::hint(
            format!("ECC is off for GPU {index}"),
            "ECC was turned off, or is off by default: flipped bits are not detected",
            format!("sudo nvidia-smi -i {index} -e 1 on the host, then a reboot"),
        ),
    })
}

#[cfg(test)]
mod tests;
