use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;

use super::*;
use model::inventory::{Condition, Gpu, Readings};

const NODE: &str = "sys/class/kfd/kfd/topology/nodes";

/// A machine with two AMD GPUs, in the kernel's format. /dev/null stands for each device.
fn machine() -> tempfile::TempDir {
    let root = tempfile::tempdir().unwrap();
    let write = |path: &str, text: &str| {
        let path = root.path().join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    };
    write(&format!("{NODE}/0/properties"), "cpu_cores_count 8\nsimd_count 0\nvendor_id 0\ndrm_render_minor 0\n");
    for gpu in 1..=2 {
        let (location, minor) = (gpu * 0x100, 127 + gpu);
        let properties = format!(
            "cpu_cores_count 0\nsimd_count 1216\nvendor_id 4098\ndevice_id 29857\nlocation_id {location}\ndomain 0\n\
             drm_render_minor {minor}\ngfx_target_version 90402\nunique_id {gpu}\n"
        );
        write(&format!("{NODE}/{gpu}/properties"), &properties);
        write(&format!("{NODE}/{gpu}/mem_banks/0/properties"), "heap_type 1\nsize_in_bytes 206141652992\n");
        write(&format!("sys/bus/pci/devices/0000:0{gpu}:00.0/gpu_busy_percent"), &format!("{}\n", gpu * 10));
        write(&format!("sys/bus/pci/devices/0000:0{gpu}:00.0/ras/umc_err_count"), "ue: 0\nce: 1\n");
    }
    fs::create_dir_all(root.path().join("dev/dri")).unwrap();
    for device in ["kfd", "dri/renderD128", "dri/renderD129"] {
        symlink("/dev/null", root.path().join("dev").join(device)).unwrap();
    }
    root
}

/// Lines of each of `count` samples; `between` changes the machine after each sample.
fn samples(root: &Path, count: usize, closed: &[&str], mut between: impl FnMut(usize)) -> Vec<Vec<Line>> {
    let options = Options {
        root: root.to_owned(),
        library: None,
        vendor: Vendor::Amd,
        interval: Duration::from_millis(1),
        closed: closed.iter().map(|uuid| Identity { uuid: Some((*uuid).to_owned()), ..Identity::default() }).collect(),
        all_closed: false,
        meters: false,
        only: None,
    };
    let mut samples = vec![Vec::new()];
    let result = vendor::probe_of(Vendor::Amd).watch(&options, &mut |line| {
        let last = samples.len() - 1;
        samples[last].push(line.clone());
        if *line == Line::Done {
            between(last);
            if samples.len() == count {
                return Err(io::ErrorKind::BrokenPipe.into());
            }
            samples.push(Vec::new());
        }
        Ok(())
    });
    assert!(result.is_err());
    samples
}

fn listed_gpus(sample: &[Line]) -> Vec<String> {
    let Some(Line::Listed { gpus }) = sample.first() else { panic!("{sample:?}") };
    gpus.iter().map(|gpu| gpu.key().to_string()).collect()
}

fn seen(sample: &[Line]) -> Vec<GpuSample> {
    let seen = sample.iter().filter_map(|line| match line {
        Line::Seen { seen, .. } => Some((**seen).clone()),
        _ => None,
    });
    seen.collect()
}

#[test]
fn samples_amd_gpus_from_kernel_files_and_drops_lost_one() {
    let root = machine();
    let samples = samples(root.path(), 3, &[], |sample| match sample {
        0 => {
            fs::write(root.path().join("sys/bus/pci/devices/0000:01:00.0/ras/umc_err_count"), "ue: 3\n").unwrap();
        }
        _ => fs::remove_file(root.path().join("dev/dri/renderD129")).unwrap_or_default(),
    });
    assert_eq!(listed_gpus(&samples[0]), ["GPU-0000000000000001", "GPU-0000000000000002"]);
    let first = seen(&samples[0]);
    assert_eq!(first.iter().map(|seen| seen.condition.utilization).collect::<Vec<_>>(), [Some(10), Some(20)]);
    assert_eq!(first.iter().map(|seen| seen.readings.ras_uncorrected).collect::<Vec<_>>(), [Some(0), Some(0)]);
    assert_eq!(seen(&samples[1])[0].readings.ras_uncorrected, Some(3));
    assert_eq!(listed_gpus(&samples[2]), ["GPU-0000000000000001"]);
}

#[test]
fn lists_unresponsive_gpu_without_query() {
    let root = machine();
    let samples = samples(root.path(), 1, &["GPU-0000000000000002"], |_| ());
    assert_eq!((listed_gpus(&samples[0]).len(), seen(&samples[0]).len()), (2, 1));
    let has_traces = |vendor| vendor::probe_of(vendor).has_traces(root.path());
    assert!(has_traces(Vendor::Amd) && !has_traces(Vendor::Nvidia));
}

#[test]
fn maps_open_errors_to_faults_and_ignores_file_mode() {
    for (obstacle, fault) in [
        (Obstacle::Denied, Some(FaultKind::DeviceDenied)),
        (Obstacle::NoDriver, Some(FaultKind::Lost)),
        (Obstacle::Lost, Some(FaultKind::Lost)),
        (Obstacle::Mode, None),
        (Obstacle::Other, None),
    ] {
        assert_eq!(fault_of_access(&Access::unusable(obstacle, "")), fault);
    }
    assert_eq!(fault_of_access(&Access::Usable), None);
}

fn gpu(index: u32) -> Identity {
    Identity { index, uuid: Some(format!("GPU-{index}")), ..Identity::default() }
}

/// Options with GPU 0 closed.
fn options() -> Options {
    Options {
        root: "/".into(),
        library: None,
        vendor: Vendor::Nvidia,
        interval: Duration::from_millis(1),
        closed: vec![gpu(0)],
        all_closed: false,
        meters: false,
        only: None,
    }
}

#[test]
fn closed_gpus_are_listed_without_library_if_all_are_closed() {
    let options = Options { all_closed: true, library: Some("/nonexistent/libnvidia-ml.so.1".into()), ..options() };
    let mut lines = Vec::new();
    let result = vendor::probe_of(Vendor::Nvidia).watch(&options, &mut |line| {
        lines.push(line.clone());
        if lines.len() < 4 { Ok(()) } else { Err(io::ErrorKind::BrokenPipe.into()) }
    });
    let listed = Line::Listed { gpus: vec![gpu(0)] };
    assert_eq!(lines, [listed.clone(), Line::Done, listed, Line::Done]);
    assert_eq!(result.unwrap_err().kind(), io::ErrorKind::BrokenPipe);
}

#[test]
fn nvidia_gpus_are_listed_from_kernel_files() {
    let root = crate::tests::tree(&[
        ("proc/driver/nvidia/gpus/0000:17:00.0/information", "Model: NVIDIA H200\nDevice Minor: 3\n"),
        ("proc/driver/nvidia/gpus/0000:18:00.0/information", "Model: NVIDIA H200\nDevice Minor: 4\n"),
    ]);
    let gpus = vendor::probe_of(Vendor::Nvidia).list(root.path());
    let addresses: Vec<_> = gpus.iter().map(|gpu| gpu.pci_address.unwrap().to_string()).collect();
    assert_eq!(addresses, ["0000:17:00.0", "0000:18:00.0"]);
}

#[test]
fn vendor_without_events_waits_until_next_sample() {
    let until = std::time::Instant::now() + Duration::from_millis(20);
    let mut events = vendor::probe_of(Vendor::Intel).events();
    events.receive(until, &mut |line| panic!("{line:?}")).unwrap();
    assert!(std::time::Instant::now() >= until);
}

#[test]
fn vendor_without_measurements_reports_only_the_index() {
    let (condition, readings) =
        vendor::probe_of(Vendor::Intel).sample(Path::new("/"), &Gpu { index: 3, ..Gpu::default() });
    assert_eq!(condition, Condition { index: 3, ..Condition::default() });
    assert_eq!(readings, Readings::default());
}

#[test]
fn closed_gpu_is_not_sampled() {
    let options = options();
    let lines = |index| {
        let mut lines = Vec::new();
        let mut send = |line: &Line| {
            lines.push(line.clone());
            Ok(())
        };
        sample_gpu(&options, &gpu(index), &mut send, GpuSample::default).unwrap();
        lines
    };
    assert_eq!(lines(0), []);
    let (gpu, seen) = (gpu(1).key(), Box::new(GpuSample::default()));
    assert_eq!(lines(1), [Line::Asking { gpu: gpu.clone() }, Line::Seen { gpu, seen }]);
}
