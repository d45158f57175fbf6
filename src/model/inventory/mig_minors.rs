//! Which capability file belongs to which MIG instance: the driver's list (NVIDIA's driver documentation, "MIG capabilities").

use std::collections::BTreeMap;

/// The path of the list, relative to the root directory.
pub const MIG_MINORS: &str = "proc/driver/nvidia-caps/mig-minors";

/// N of `/dev/nvidia-caps/nvidia-capN`, by GPU minor, GPU instance and compute instance.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MigMinors(BTreeMap<(u32, u32, Option<u32>), u32>);

impl MigMinors {
    /// Parses `gpu0/gi9/access 84` and `gpu0/gi9/ci0/access 85`; the first number is the GPU's minor, not its index.
    pub fn parse(text: &str) -> Self {
        let entry = |line: &str| {
            let (path, minor) = line.split_once(' ')?;
            let mut parts = path.strip_suffix("/access")?.split('/');
            let mut number = |prefix: &str| parts.next().map(|part| part.strip_prefix(prefix)?.parse::<u32>().ok());
            let (gpu, gpu_instance) = (number("gpu")??, number("gi")??);
            let compute_instance = match number("ci") {
                Some(number) => Some(number?),
                None => None,
            };
            Some(((gpu, gpu_instance, compute_instance), minor.trim().parse().ok()?))
        };
        Self(text.lines().filter_map(entry).collect())
    }

    /// The number of the capability file of a GPU instance, or of one of its compute instances.
    pub fn capability(&self, gpu: u32, gpu_instance: u32, compute_instance: Option<u32>) -> Option<u32> {
        self.0.get(&(gpu, gpu_instance, compute_instance)).copied()
    }

    /// The GPU's minor and the GPU instance that a capability belongs to.
    pub fn instance(&self, capability: u32) -> Option<(u32, u32)> {
        self.0.iter().find(|(_, known)| **known == capability).map(|((gpu, instance, _), _)| (*gpu, *instance))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn maps_mig_instances_to_capability_minors_and_back() {
        let minors = MigMinors::parse(
            "config 1\nmonitor 2\ngpu0/gi2/access 21\ngpu3/gi9/access 84\ngpu3/gi9/ci1/access 86\ngpu3/gi9/x 1\ngpux/gi1/access 9\n",
        );
        assert_eq!(minors.0.len(), 3);
        assert_eq!((minors.capability(3, 9, None), minors.capability(3, 9, Some(1))), (Some(84), Some(86)));
        assert_eq!((minors.instance(86), minors.instance(84), minors.instance(2)), (Some((3, 9)), Some((3, 9)), None));
    }
}
