//! Texts from NVML, /proc and sysfs: model, UUID, profile, device file, ISA, host name.
#![no_main]

use config::Config;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let mut texts = slurminit_fuzz::texts(bytes).into_iter();
    let mut inventory = slurminit_fuzz::machine();
    for gpu in &mut inventory.gpus {
        gpu.model = texts.next();
        gpu.uuid = texts.next();
        gpu.compute = texts.next();
        if let Some(file) = texts.next().filter(|text| !text.is_empty()) {
            gpu.device_file = Some(file.into());
        }
        for instance in gpu.mig.iter_mut().flatten() {
            instance.profile = texts.next();
            instance.uuid = texts.next();
            if let Some(file) = texts.next() {
                instance.device_files.push(file.into());
            }
        }
    }
    if let Some(name) = texts.next() {
        inventory.hostname = name;
    }
    for driver in &mut inventory.drivers {
        driver.version = texts.next();
        driver.cuda_version = texts.next();
    }
    let _ = slurminit_fuzz::plan_and_check(&Config::default(), &inventory);
});
