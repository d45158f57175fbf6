//! NVIDIA's hardware, driver and toolkit.

use std::collections::BTreeSet;
use std::path::Path;
use std::time::Duration;

use super::{Nvidia, NvidiaGpu, Smi, Toolkit};
use crate::configure::look::{gpus_on_pci, names, read};
use model::inventory::{Inventory, Vendor};
use sys::tool;
use sys::tool::answer::{Answer, first_line};

pub(in crate::configure) fn observe(root: &Path, deadline: Duration, inventory: &Inventory) -> Nvidia {
    let (smi, list) = smi(root, deadline);
    let (listed, mig_ids) = parse_list(&list);
    let detected = inventory.gpus.iter().filter(|gpu| gpu.vendor == Vendor::Nvidia);
    let detected: Vec<NvidiaGpu> =
        detected.map(|gpu| NvidiaGpu { model: gpu.model.clone(), uuid: gpu.uuid.clone() }).collect();
    let detected_driver = inventory.drivers.iter().find(|driver| driver.vendor == Vendor::Nvidia);
    let driver = detected_driver.and_then(|driver| driver.version.clone());
    // WSL2 has no file with the driver's version.
    let driver = driver.or_else(|| if smi == Smi::Works { query_version(root, deadline) } else { None });
    Nvidia {
        // nvidia-smi lists the models. If nvidia-smi is missing or its library is broken, the GPUs are those that detection found.
        gpus: if listed.is_empty() { detected } else { listed },
        pci_count: gpus_on_pci(root, Vendor::Nvidia),
        driver,
        has_nouveau: root.join("sys/module/nouveau").exists(),
        smi,
        mig_ids,
        has_dxg: root.join("dev/dxg").exists(),
        has_wsl_library: root.join("usr/lib/wsl/lib/libnvidia-ml.so.1").exists(),
        toolkit: toolkit(root),
    }
}

fn smi(root: &Path, deadline: Duration) -> (Smi, String) {
    match run_smi(root, deadline, &["-L"]) {
        Answer::Missing => (Smi::Missing, String::new()),
        Answer::Silent => (Smi::Fails("timed out".to_owned()), String::new()),
        Answer::Ended { succeeded: true, stdout, .. } => (Smi::Works, stdout),
        // nvidia-smi reports errors on standard output.
        Answer::Ended { stdout, stderr, .. } => {
            (Smi::Fails(first_line([stdout.as_str(), stderr.as_str()])), String::new())
        }
    }
}

fn run_smi(root: &Path, deadline: Duration, arguments: &[&str]) -> Answer {
    match tool::ask("nvidia-smi", arguments, deadline) {
        // sudo's PATH does not contain WSL2's directory.
        Answer::Missing if root == Path::new("/") => tool::ask("/usr/lib/wsl/lib/nvidia-smi", arguments, deadline),
        answer => answer,
    }
}

fn query_version(root: &Path, deadline: Duration) -> Option<String> {
    let answer = run_smi(root, deadline, &["--query-gpu=driver_version", "--format=csv,noheader"]);
    answer.output()?.lines().next().map(|line| line.trim().to_owned()).filter(|line| !line.is_empty())
}

/// Parses the GPUs and the IDs of MIG instances in the output of `nvidia-smi -L`: `GPU 0: NVIDIA H200 (UUID: GPU-...)`
/// and `  MIG 1g.18gb Device 0: (UUID: MIG-...)`.
fn parse_list(text: &str) -> (Vec<NvidiaGpu>, Vec<String>) {
    let (mut gpus, mut mig_ids) = (Vec::new(), Vec::new());
    for line in text.lines() {
        let Some((head, id)) = line.trim_end().trim_end_matches(')').rsplit_once("(UUID: ") else { continue };
        if line.starts_with("GPU ") {
            let model = head.split_once(": ").map(|(_, model)| model.trim().to_owned());
            gpus.push(NvidiaGpu { model, uuid: Some(id.to_owned()) });
        } else if line.trim_start().starts_with("MIG ") {
            mig_ids.push(id.to_owned());
        }
    }
    (gpus, mig_ids)
}

fn toolkit(root: &Path) -> Toolkit {
    const PROGRAMS: [&str; 4] =
        ["nvidia-container-runtime", "nvidia-container-runtime-hook", "nvidia-container-cli", "nvidia-ctk"];
    const DIRECTORIES: [&str; 4] =
        ["usr/bin", "usr/local/bin", "usr/local/nvidia/toolkit", "run/current-system/sw/bin"];
    let is_installed = |name: &&str| DIRECTORIES.iter().any(|directory| root.join(directory).join(name).exists());
    let daemon: serde_json::Value = serde_json::from_str(&read(root, "etc/docker/daemon.json")).unwrap_or_default();
    let config: toml::Table = read(root, "etc/nvidia-container-runtime/config.toml").parse().unwrap_or_default();
    let no_cgroups = config.get("nvidia-container-cli").and_then(|table| table.get("no-cgroups"));
    Toolkit {
        programs: PROGRAMS.into_iter().filter(is_installed).collect(),
        is_in_daemon_json: daemon.pointer("/runtimes/nvidia").is_some(),
        has_no_cgroups: no_cgroups.and_then(toml::Value::as_bool).unwrap_or(false),
        cdi_specs: cdi_specs(root),
    }
}

/// CDI specifications that mention NVIDIA GPUs. `/run` is also searched directly, because `/var/run` is usually an
/// absolute link to it, which is wrong below another root.
fn cdi_specs(root: &Path) -> Vec<String> {
    let files = ["etc/cdi", "run/cdi", "var/run/cdi"]
        .into_iter()
        .flat_map(|directory| names(root, directory).into_iter().map(move |name| format!("{directory}/{name}")));
    let is_nvidia_spec = |path: &String| {
        (path.ends_with(".yaml") || path.ends_with(".json")) && read(root, path).contains("nvidia.com/gpu")
    };
    let specs: BTreeSet<String> =
        files.filter(is_nvidia_spec).map(|path| format!("/{}", path.trim_start_matches("var/"))).collect();
    specs.into_iter().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parses_nvidia_smi_list() {
        let (gpus, mig) = parse_list(
            "GPU 0: NVIDIA H200 (UUID: GPU-1c1d)\n  MIG 1g.18gb     Device  0: (UUID: MIG-aa)\n  \
             MIG 2g.35gb     Device  1: (UUID: MIG-bb)\nGPU 1: Tesla (old) K80 (UUID: GPU-2c2d)\nnonsense\n",
        );
        assert_eq!(mig, ["MIG-aa", "MIG-bb"]);
        let models: Vec<_> = gpus.iter().filter_map(|gpu| gpu.model.as_deref()).collect();
        assert_eq!(models, ["NVIDIA H200", "Tesla (old) K80"]);
        assert_eq!(gpus[1].uuid.as_deref(), Some("GPU-2c2d"));
    }

    #[test]
    fn lists_each_specification_once() {
        let root = tempfile::tempdir().unwrap();
        std::fs::create_dir_all(root.path().join("run/cdi")).unwrap();
        std::fs::create_dir(root.path().join("var")).unwrap();
        std::os::unix::fs::symlink("../run", root.path().join("var/run")).unwrap();
        for (name, kind) in [("a.yaml", "nvidia.com/gpu"), ("b.json", "nvidia.com/gpu"), ("c.yaml", "amd.com/gpu")] {
            std::fs::write(root.path().join("run/cdi").join(name), format!("kind: {kind}\n")).unwrap();
        }
        assert_eq!(cdi_specs(root.path()), ["/run/cdi/a.yaml", "/run/cdi/b.json"]);
    }
}
