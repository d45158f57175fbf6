//! Requirements on GPUs and drivers, each with a verdict based on one detection.
//!
//! Doctor's entries use the same functions for the same requirements. A fact that the driver does not report has no
//! verdict.

use serde::Serialize;

use super::entries::{cuda, work};
use super::facts::{CudaFacts, Environment, Observed};
use super::{Observation, Observations};
use config::{ComputeCapability, GpuSettings};
use model::inventory::{Access, Condition, Gpu, Inventory, MigInstance};

/// The facts that the requirements are compared with.
#[derive(Clone, Copy, Debug)]
pub struct RequirementFacts<'a> {
    /// The result of detection, with the condition of the GPUs.
    pub inventory: &'a Inventory,
    /// The environment variables that doctor's entries refer to.
    pub environment: &'a Environment,
    /// CUDA in this container.
    pub cuda: &'a CudaFacts,
    /// The operator's minimum requirements.
    pub minimum: &'a Observed<GpuSettings>,
}

/// A requirement and the observation about it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Requirement {
    /// The name: the ID of doctor's entry for this requirement, if there is one.
    pub name: &'static str,
    /// The verdict, with its cause and fix.
    #[serde(flatten)]
    pub observation: Observation,
}

/// A verdict on each requirement for which facts are known.
pub fn requirements(facts: &RequirementFacts<'_>) -> Vec<Requirement> {
    let gpus: Vec<&Gpu> = facts.inventory.usable_gpus().collect();
    let conditions: Vec<&Condition> = gpus.iter().filter_map(|gpu| gpu.condition.as_ref()).collect();
    let minimum = facts.minimum.as_ref().ok();
    let config_error = facts.minimum.as_ref().err().map(|why| Observations::could_not_look(why.as_str()));
    let for_each_condition =
        |check: fn(&Condition) -> Option<Observations>| conditions.iter().filter_map(move |it| check(it));
    let compute = |gpu: &&Gpu| compute(gpu, minimum?.min_compute?);
    let memory =
        |gpu: &&Gpu| minimum.and_then(|minimum| Some(memory(gpu, minimum.min_memory_mib?))).unwrap_or_default();
    let answers: [(&'static str, Vec<Observations>); 7] = [
        ("cuda-version", driver(facts).into_iter().collect()),
        ("configuration", config_error.into_iter().collect()),
        ("compute", gpus.iter().filter_map(compute).collect()),
        ("memory", gpus.iter().flat_map(memory).collect()),
        ("gpu-speed", for_each_condition(work::speed).collect()),
        ("ecc", for_each_condition(ecc).collect()),
        ("persistence", work::persistence_of(&conditions).into_iter().collect()),
    ];
    let with_name =
        |name| move |answer: Observations| answer.observations().to_vec().into_iter().map(move |it| (name, it));
    let all = answers.into_iter().flat_map(|(name, answers)| answers.into_iter().flat_map(with_name(name)));
    all.map(|(name, observation)| Requirement { name, observation }).collect()
}

/// Compares the driver with the container's CUDA. Without CUDA in the container, reports the CUDA releases that the driver supports.
fn driver(facts: &RequirementFacts<'_>) -> Option<Observations> {
    let driver = facts.inventory.cuda_driver()?;
    let image_cuda = facts.environment.cuda_version.as_deref().or(facts.cuda.toolkit.as_deref());
    image_cuda.map(|image_cuda| cuda::compare_cuda(Some(driver), image_cuda)).or_else(|| cuda::supported_cuda(driver))
}

fn name(gpu: &Gpu) -> String {
    format!("{} GPU {}", gpu.vendor, gpu.index)
}

fn below_minimum(description: String, key: &str, minimum: &str) -> Observations {
    Observations::fail(
        description,
        format!("below the minimum of slurminit.toml: [gpu] {key} = {minimum}"),
        format!("pass other GPUs to the container (slurminit configure --gpus LIST on the host), or lower `{key}`"),
    )
}

/// Compares the GPU's compute capability with the minimum. AMD's names for instruction sets have no order, so they are
/// not compared.
fn compute(gpu: &Gpu, minimum: ComputeCapability) -> Option<Observations> {
    let capability: ComputeCapability = gpu.compute.as_deref()?.parse().ok()?;
    let description = format!("{} has compute capability {capability} (minimum {minimum})", name(gpu));
    Some(if capability >= minimum {
        Observations::ok(description)
    } else {
        below_minimum(description, "min_compute", &format!("\"{minimum}\""))
    })
}

/// Compares the memory with the minimum: that of each usable MIG instance in MIG mode, otherwise that of the GPU.
fn memory(gpu: &Gpu, minimum: u64) -> Vec<Observations> {
    let whole_gpu = || gpu.memory_mib.map(|memory_mib| (name(gpu), memory_mib)).into_iter().collect::<Vec<_>>();
    let devices: Vec<(String, u64)> = gpu.mig.as_ref().map_or_else(whole_gpu, |instances| {
        let usable = instances.iter().filter(|instance| instance.access == Access::Usable);
        let with_name = |(number, mib)| (format!("MIG instance {number} of {}", name(gpu)), mib);
        let with_memory = |(number, instance): (u32, &MigInstance)| Some((number, instance.memory_mib?));
        (0_u32..).zip(usable).filter_map(with_memory).map(with_name).collect()
    });
    let check = |(name, memory_mib): (String, u64)| {
        let description = format!("{name} has {memory_mib} MiB of memory (minimum {minimum} MiB)");
        if memory_mib >= minimum {
            Observations::ok(description)
        } else {
            below_minimum(description, "min_memory_mib", &minimum.to_string())
        }
    };
    devices.into_iter().map(check).collect()
}

fn ecc(condition: &Condition) -> Option<Observations> {
    let (index, ecc) = (condition.index, condition.ecc?);
    Some(match (ecc.is_on, ecc.uncorrected) {
        (true, Some(0)) => Observations::ok(format!("GPU {index}: ECC on, no uncorrectable errors")),
        (true, None) => Observations::ok(format!("GPU {index}: ECC on")),
        (true, Some(errors)) => Observations::warn(
            format!("GPU {index}: uncorrectable memory errors since the driver was loaded: {errors}"),
            "the GPU's memory is failing; each such error kills the program that uses the memory",
            format!(
                "see nvidia-smi -i {index} -q -d ECC,ROW_REMAPPER; to retire the bad rows, run sudo nvidia-smi -i UUID -r on the host, or reboot (UUID: see nvidia-smi -L)"
            ),
        ),
        (false, _) => Observations::hint(
            format!("ECC is off for GPU {index}"),
            "ECC was turned off, or is off by default: flipped bits are not detected",
            "run sudo nvidia-smi -i UUID -e 1 on the host, then reboot (UUID: see nvidia-smi -L)",
        ),
    })
}

#[cfg(test)]
mod tests;
