//! The MIG instances of a GPU, which jobs use instead of the whole GPU in MIG mode.

use std::fs;
use std::path::{Path, PathBuf};

use nvml_wrapper::Device;
use nvml_wrapper::error::NvmlError;

use super::raw_calls::instance_ids;
use super::{Answers, MAX_TEXT_LENGTH, memory, plausible_memory};
use crate::device;
use model::inventory::{Access, Gpu, InstanceReadings, MIG_MINORS, MigInstance, MigMinors, Obstacle};

/// More slots than any GPU has (7 up to B200).
const MAX_INSTANCES: u32 = 64;

/// The instances of `gpu` in NVML's order; `None` unless NVML reports that the GPU is in MIG mode.
pub(super) fn instances(root: &Path, gpu: &Gpu, device: &Device<'_>, answers: &Answers) -> Option<Vec<MigInstance>> {
    if answers.of(device.mig_mode()).is_none_or(|mode| mode.current != 1) {
        return None;
    }
    let minors = fs::read_to_string(root.join(MIG_MINORS)).map(|text| MigMinors::parse(&text)).unwrap_or_default();
    let handles = handles(device, answers);
    Some(handles.iter().map(|instance| describe(root, gpu, instance, &minors, answers)).collect())
}

/// The memory usage of each instance whose IDs NVML reports; empty unless NVML reports that the GPU is in MIG mode.
pub(super) fn readings(device: &Device<'_>, answers: &Answers) -> Vec<InstanceReadings> {
    if answers.of(device.mig_mode()).is_none_or(|mode| mode.current != 1) {
        return Vec::new();
    }
    let of = |instance: &Device<'_>| {
        let (gpu_instance, compute_instance) = answers.of(instance_ids(instance))?;
        let memory = answers.of(memory(instance)).filter(|memory| memory.used.max(memory.free) <= memory.total);
        Some(InstanceReadings {
            uuid: answers.of(instance.uuid()).filter(|uuid| is_uuid(uuid)),
            gpu_instance,
            compute_instance,
            profile: answers.of(instance.name()).and_then(|name| profile(&name)),
            memory_used: memory.map(|memory| memory.used),
            memory_free: memory.map(|memory| memory.free),
            ..InstanceReadings::default()
        })
    };
    handles(device, answers).iter().filter_map(of).collect()
}

fn handles<'nvml>(device: &Device<'nvml>, answers: &Answers) -> Vec<Device<'nvml>> {
    let slots = answers.of(device.mig_device_count()).unwrap_or(0).min(MAX_INSTANCES);
    let mut handles = Vec::new();
    for slot in 0..slots {
        match device.mig_device_by_index(slot) {
            Ok(instance) => handles.push(instance),
            // A later slot can be in use after an empty one, so the search ends early only if the call is not supported.
            Err(NvmlError::FailedToLoadSymbol(_) | NvmlError::NotSupported) => break,
            other @ Err(_) => drop(answers.of(other)),
        }
    }
    handles
}

fn describe(root: &Path, gpu: &Gpu, instance: &Device<'_>, minors: &MigMinors, answers: &Answers) -> MigInstance {
    let mut found = MigInstance {
        profile: answers.of(instance.name()).and_then(|name| profile(&name)),
        uuid: answers.of(instance.uuid()).filter(|uuid| is_uuid(uuid)),
        memory_mib: answers.of(memory(instance)).map(|memory| memory.total >> 20).filter(plausible_memory),
        ..MigInstance::default()
    };
    match instance_ids(instance) {
        Ok((gpu_instance, compute_instance)) => {
            (found.gpu_instance, found.compute_instance) = (Some(gpu_instance), Some(compute_instance));
            match device_files(gpu, (gpu_instance, compute_instance), minors) {
                Ok(files) => found.device_files = files,
                Err(reason) => found.access = Access::unusable(Obstacle::UnknownFile, reason),
            }
        }
        Err(error) => {
            let reason = format!("NVML does not report the instance ID: {error}");
            answers.of::<()>(Err(error));
            found.access = Access::unusable(Obstacle::UnknownFile, reason);
        }
    }
    if found.access == Access::Usable {
        found.access = access(root, gpu, &found.device_files);
    }
    if found.access == Access::Usable && found.uuid.is_none() {
        found.access =
            Access::unusable(Obstacle::Nameless, "no UUID from the driver; CUDA requires it to select an instance");
    }
    found
}

/// The profile in a name: `1g.18gb` in `NVIDIA H200 MIG 1g.18gb`.
fn profile(name: &str) -> Option<String> {
    let (_, profile) = name.rsplit_once(" MIG ")?;
    let profile = profile.trim();
    let valid = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'+' | b'-' | b'_');
    (!profile.is_empty() && profile.len() <= 32 && profile.bytes().all(valid)).then(|| profile.to_owned())
}

/// Whether the text can be an instance's UUID: `MIG-` and a UUID, or, from drivers before 470, `MIG-GPU-.../1/0`. Only the prefix, the characters
/// and the length are checked.
fn is_uuid(text: &str) -> bool {
    let valid = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'/');
    text.starts_with("MIG-") && text.len() <= MAX_TEXT_LENGTH && text.bytes().all(valid)
}

/// The files that a job must open: those of the GPU, the GPU instance and the compute instance.
fn device_files(gpu: &Gpu, ids: (u32, u32), minors: &MigMinors) -> Result<Vec<PathBuf>, String> {
    let (Some(own), Some(minor)) = (&gpu.device_file, gpu.minor) else {
        return Err("unknown device file of the GPU".to_owned());
    };
    let capability = |compute_instance: Option<u32>| {
        let number = minors.capability(minor, ids.0, compute_instance).ok_or_else(|| {
            format!("/{MIG_MINORS} has no line for a capability of GPU instance {} of /dev/nvidia{minor}", ids.0)
        })?;
        Ok::<_, String>(PathBuf::from(format!("/dev/nvidia-caps/nvidia-cap{number}")))
    };
    Ok(vec![own.clone(), capability(None)?, capability(Some(ids.1))?])
}

fn access(root: &Path, gpu: &Gpu, files: &[PathBuf]) -> Access {
    if gpu.access != Access::Usable {
        return gpu.access.clone();
    }
    let capabilities =
        files.iter().skip(1).map(|file| device::access_for_reading(&root.join(file.strip_prefix("/").unwrap_or(file))));
    capabilities.into_iter().find(|access| *access != Access::Usable).unwrap_or(Access::Usable)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parses_profile_at_end_of_name() {
        for (name, expected) in [
            ("NVIDIA H200 MIG 1g.18gb", Some("1g.18gb")),
            ("NVIDIA A100-SXM4-40GB MIG 1c.3g.20gb", Some("1c.3g.20gb")),
            ("NVIDIA H200 MIG 1g.18gb+me", Some("1g.18gb+me")),
            ("NVIDIA H200", None),
            ("NVIDIA H200 MIG ", None),
            ("NVIDIA H200 MIG 1g\nCount=9", None),
        ] {
            assert_eq!(profile(name).as_deref(), expected, "{name:?}");
        }
    }

    #[test]
    fn rejects_uuid_with_shell_characters() {
        assert!(is_uuid("MIG-fa4e0000-0000-0000-0000-000000000001") && is_uuid("MIG-GPU-fa4e/1/0"));
        for bad in ["", "GPU-1", "MIG-$(x)", "MIG-1\n", "MIG-1;"] {
            assert!(!is_uuid(bad), "{bad:?}");
        }
    }

    #[test]
    fn instance_needs_its_gpu_and_both_capabilities() {
        let root = tempfile::tempdir().unwrap();
        let caps = root.path().join("dev/nvidia-caps");
        fs::create_dir_all(&caps).unwrap();
        let minors = MigMinors::parse("gpu3/gi9/access 84\ngpu3/gi9/ci0/access 85\n");
        let gpu = Gpu { minor: Some(3), device_file: Some("/dev/nvidia3".into()), ..Gpu::default() };
        let files = device_files(&gpu, (9, 0), &minors).unwrap();
        let expected = ["/dev/nvidia3", "/dev/nvidia-caps/nvidia-cap84", "/dev/nvidia-caps/nvidia-cap85"];
        assert_eq!(files, expected.map(PathBuf::from));
        assert!(device_files(&gpu, (10, 0), &minors).unwrap_err().contains("GPU instance 10"));
        assert!(device_files(&gpu, (9, 1), &minors).is_err());
        assert!(device_files(&Gpu { minor: None, ..gpu.clone() }, (9, 0), &minors).is_err());
        // The GPU's own file was opened before.
        std::os::unix::fs::symlink("/dev/null", caps.join("nvidia-cap84")).unwrap();
        assert_eq!(access(root.path(), &gpu, &files).obstacle(), Some(Obstacle::NotGiven));
        std::os::unix::fs::symlink("/dev/null", caps.join("nvidia-cap85")).unwrap();
        assert_eq!(access(root.path(), &gpu, &files), Access::Usable);
        let denied = Gpu { access: Access::unusable(Obstacle::Denied, ""), ..gpu };
        assert_eq!(access(root.path(), &denied, &files).obstacle(), Some(Obstacle::Denied));
    }
}
