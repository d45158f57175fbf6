//! The variables of a step in an image: those of the job, and those of the image.

use std::ffi::OsString;
use std::fs;
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::path::Path;

use super::{RuntimeError, bundle};

/// The search path of an image that has none.
pub(super) const DEFAULT_PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";
/// The directory of Slurm's commands in an image: after the image's own directories.
const CLIENTS: &str = "/.slurminit/bin";
/// The directory of the GPU driver's libraries in an image.
const DRIVER: &str = "/.slurminit/driver";
/// Variables that describe the job, its user and its GPUs. An image cannot replace them.
const JOB_VARIABLES: [&str; 14] = [
    "SLURM",
    "SBATCH_",
    "SRUN_",
    "SALLOC_",
    "PMI",
    "CUDA_VISIBLE_DEVICES",
    "NVIDIA_VISIBLE_DEVICES",
    "ROCR_VISIBLE_DEVICES",
    "HIP_VISIBLE_DEVICES",
    "ZE_AFFINITY_MASK",
    "GPU_DEVICE_ORDINAL",
    "HOME",
    "USER",
    "LOGNAME",
];

/// Reads the variables that slurmstepd wrote, each terminated by NUL.
pub(super) fn read(path: &Path) -> Result<Vec<(OsString, OsString)>, RuntimeError> {
    let bytes = fs::read(path).map_err(|source| RuntimeError::Read { path: path.to_owned(), source })?;
    let variable = |text: &[u8]| {
        let equals = text.iter().position(|byte| *byte == b'=')?;
        Some((OsString::from_vec(text[..equals].to_vec()), OsString::from_vec(text[equals + 1..].to_vec())))
    };
    Ok(bytes.split(|byte| *byte == 0).filter_map(variable).collect())
}

/// Merges the variables. The image's replace those of the job, because they describe the locations of its programs.
pub(super) fn merge(
    mut job: Vec<(OsString, OsString)>,
    image: &[String],
    has_driver: bool,
) -> Vec<(OsString, OsString)> {
    let mut path = OsString::from(DEFAULT_PATH);
    for (name, value) in image.iter().filter_map(|text| bundle::variable(text)) {
        if name == "PATH" {
            path = value;
        } else if !JOB_VARIABLES.iter().any(|prefix| name.as_bytes().starts_with(prefix.as_bytes())) {
            set(&mut job, name, value);
        }
    }
    path.push(":");
    path.push(CLIENTS);
    set(&mut job, "PATH".into(), path);
    if has_driver {
        let image_libraries = job.iter().find(|(name, _)| name == "LD_LIBRARY_PATH").map(|(_, value)| value.clone());
        let mut libraries = image_libraries.filter(|list| !list.is_empty()).map_or_else(OsString::new, |mut list| {
            list.push(":");
            list
        });
        libraries.push(DRIVER);
        set(&mut job, "LD_LIBRARY_PATH".into(), libraries);
    }
    job
}

fn set(all: &mut Vec<(OsString, OsString)>, name: OsString, value: OsString) {
    match all.iter_mut().find(|(other, _)| *other == name) {
        Some((_, old)) => *old = value,
        None => all.push((name, value)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn image_overrides_all_but_job_specific_variables() {
        let job = ["PATH=/usr/games", "A=job", "SLURM_JOB_ID=7", "CUDA_VISIBLE_DEVICES=1", "HOME=/home/alice"];
        let job = job.iter().filter_map(|text| bundle::variable(text)).collect();
        let image = [
            "PATH=/opt/bin",
            "A=image",
            "SLURM_JOB_ID=0",
            "CUDA_VISIBLE_DEVICES=all",
            "HOME=/root",
            "LD_LIBRARY_PATH=/l",
        ];
        let merged = merge(job, &image.map(str::to_owned), true);
        let value =
            |name: &str| merged.iter().find(|(other, _)| other == name).map(|(_, value)| value.to_str().unwrap());
        assert_eq!(value("PATH"), Some("/opt/bin:/.slurminit/bin"));
        assert_eq!(value("A"), Some("image"));
        assert_eq!(value("SLURM_JOB_ID"), Some("7"));
        assert_eq!(value("CUDA_VISIBLE_DEVICES"), Some("1"));
        assert_eq!(value("HOME"), Some("/home/alice"));
        assert_eq!(value("LD_LIBRARY_PATH"), Some("/l:/.slurminit/driver"));
        let merged = merge(Vec::new(), &[], false);
        assert_eq!(merged.len(), 1);
    }
}
