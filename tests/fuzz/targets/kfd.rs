//! The AMD kernel driver's topology: properties, memory banks, links, PCI names. NUL separates the texts.
#![no_main]

use config::Config;
use libfuzzer_sys::fuzz_target;
use probe::vendor::amd;

fuzz_target!(|bytes: &[u8]| {
    let root = slurminit_fuzz::Root::new();
    let nodes = "sys/class/kfd/kfd/topology/nodes";
    root.device("dev/kfd");
    for minor in 128..132 {
        root.device(&format!("dev/dri/renderD{minor}"));
    }
    for (number, chunk) in slurminit_fuzz::texts(bytes).chunks(4).take(4).enumerate() {
        let names = ["properties", "mem_banks/0/properties", "io_links/0/properties", "name"];
        for (name, text) in names.iter().zip(chunk) {
            root.write(&format!("{nodes}/{number}/{name}"), text);
        }
    }
    let probe = amd::probe(root.path());
    let mut inventory = slurminit_fuzz::machine();
    inventory.gpus = probe.gpus;
    let _ = slurminit_fuzz::plan_and_check(&Config::default(), &inventory);
});
