//! Selects the usable GPUs that jobs may use, according to `[gpu] only` and `except`. Unless `only` names it, jobs get an
//! integrated GPU only if there is no discrete GPU for jobs, and only from vendors whose table allows it.

use config::{Config, GpuSelector};
use model::inventory::{Access, Finding, Gpu, Inventory, Kind, Obstacle};

use super::offer::{display_name, one_line};

/// The inventory for the plan. GPUs and MIG instances that are left out are marked unusable, with the reason. Reports selectors without a
/// match.
pub fn select(config: &Config, inventory: &Inventory, findings: &mut Vec<Finding>) -> Inventory {
    let (only, except) = (&config.gpu.only, &config.gpu.except);
    let mut selected = inventory.clone();
    for gpu in selected.gpus.iter_mut().filter(|gpu| gpu.access == Access::Usable) {
        leave_out(gpu, only, except);
    }
    let has_discrete = selected.gpus.iter().any(is_discrete_gpu_for_jobs);
    let is_requested = |gpu: &Gpu| only.iter().any(|selector| selector.matches(gpu));
    let is_secondary = |gpu: &Gpu| gpu.integrated && (has_discrete || !gpu.vendor.traits().offers_integrated);
    let others = |gpu: &&mut Gpu| gpu.access == Access::Usable && is_secondary(gpu) && !is_requested(gpu);
    for gpu in selected.gpus.iter_mut().filter(others) {
        gpu.access = Access::unusable(Obstacle::Integrated, "integrated into the processor");
    }
    for (key, selectors) in [("only", only), ("except", except)] {
        findings.extend(
            selectors
                .iter()
                .filter(|selector| !matches_any_gpu(selector, inventory))
                .map(|selector| unmatched_selector(key, selector, inventory)),
        );
    }
    selected
}

/// Whether this is a discrete GPU that jobs get now, or once it has started or recovered. Meanwhile jobs do not get an integrated GPU
/// instead.
fn is_discrete_gpu_for_jobs(gpu: &Gpu) -> bool {
    let obstacle = gpu.access.obstacle();
    !gpu.integrated && obstacle.is_none_or(|obstacle| obstacle.is_present() && obstacle != Obstacle::NotChosen)
}

fn leave_out(gpu: &mut Gpu, only: &[GpuSelector], except: &[GpuSelector]) {
    let exception = except.iter().find(|selector| selector.matches(gpu));
    if let Some(selector) = exception {
        gpu.access = Access::unusable(Obstacle::NotChosen, format!("excluded by `{selector}` in `[gpu] except`"));
        return;
    }
    let is_included = only.is_empty() || only.iter().any(|selector| selector.matches(gpu));
    let mut left = 0;
    for instance in gpu.mig.iter_mut().flatten().filter(|instance| instance.access == Access::Usable) {
        let exception = except.iter().find(|selector| selector.matches_instance(instance));
        if let Some(selector) = exception {
            let reason = format!("excluded by `{selector}` in `[gpu] except`");
            instance.access = Access::unusable(Obstacle::NotChosen, reason);
        } else if !is_included && !only.iter().any(|selector| selector.matches_instance(instance)) {
            instance.access = Access::unusable(Obstacle::NotChosen, NOT_IN_ONLY);
        } else {
            left += 1;
        }
    }
    if !is_included && left == 0 {
        gpu.access = Access::unusable(Obstacle::NotChosen, NOT_IN_ONLY);
    }
}

const NOT_IN_ONLY: &str = "not in `[gpu] only`";

fn matches_any_gpu(selector: &GpuSelector, inventory: &Inventory) -> bool {
    let mut instances = inventory.gpus.iter().flat_map(|gpu| gpu.mig.iter().flatten());
    inventory.gpus.iter().any(|gpu| selector.matches(gpu))
        || instances.any(|instance| selector.matches_instance(instance))
}

fn unmatched_selector(key: &str, selector: &GpuSelector, inventory: &Inventory) -> Finding {
    let describe = |gpu: &Gpu| {
        let mut parts = vec![display_name(gpu)];
        parts.extend(gpu.pci_address.map(|address| address.to_string()));
        parts.extend(gpu.uuid.as_deref().map(one_line));
        format!("{} {} ({})", gpu.vendor, gpu.index, parts.join(", "))
    };
    let here: Vec<String> = inventory.gpus.iter().map(describe).collect();
    let here = if here.is_empty() { "no GPU".to_owned() } else { here.join("; ") };
    Finding::warning(
        Kind::GpuLeftOut,
        format!("[gpu] {key}: `{selector}` matches no GPU"),
        format!("detected: {here}"),
        "use a number, UUID, PCI address or model from `slurminit detect`, or remove the entry",
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use model::inventory::Vendor;

    /// Otherwise jobs would run on the processor's GPU while the card starts or after it has failed.
    #[test]
    fn integrated_gpu_does_not_stand_in_for_a_discrete_one() {
        let is_offered = |access: Access| {
            let integrated = Gpu { vendor: Vendor::Amd, integrated: true, ..Gpu::default() };
            let discrete = Gpu { vendor: Vendor::Amd, index: 1, access, ..Gpu::default() };
            let inventory = Inventory { gpus: vec![integrated, discrete], ..Inventory::default() };
            select(&Config::default(), &inventory, &mut Vec::new()).gpus[0].is_usable()
        };
        assert!(!is_offered(Access::Usable));
        for obstacle in Obstacle::ALL {
            // Jobs get the integrated GPU if the card is not in the container or not for jobs.
            let is_alone = !obstacle.is_present() || obstacle == Obstacle::NotChosen;
            assert_eq!(is_offered(Access::unusable(obstacle, "")), is_alone, "{obstacle:?}");
        }
    }

    #[test]
    fn one_instance_of_a_gpu_may_be_selected() {
        let instance = |uuid: &str| model::inventory::MigInstance { uuid: Some(uuid.to_owned()), ..Default::default() };
        let usable = |setting: &str| {
            let gpu = Gpu { mig: Some(vec![instance("MIG-aaaa"), instance("MIG-bbbb")]), ..Gpu::default() };
            let config = Config::parse(&format!("[gpu]\n{setting}\n"), std::path::Path::new("x")).unwrap();
            let mut findings = Vec::new();
            let inventory = Inventory { gpus: vec![gpu], ..Inventory::default() };
            let selected = select(&config, &inventory, &mut findings).gpus.remove(0);
            let instances = selected.mig.unwrap().into_iter().map(|one| one.access == Access::Usable);
            (selected.access == Access::Usable, instances.collect::<Vec<_>>(), findings.len())
        };
        assert_eq!(usable(""), (true, vec![true, true], 0));
        assert_eq!(usable("only = ['MIG-aaaa']"), (true, vec![true, false], 0));
        assert_eq!(usable("except = ['MIG-aaaa']"), (true, vec![false, true], 0));
        assert_eq!(usable("only = ['MIG-cccc']"), (false, vec![false, false], 1));
        assert_eq!(usable("except = ['nvidia']"), (false, vec![true, true], 0));
    }
}
