//! slurminit.toml: whatever it holds, it is refused with a place in it, or gives whole files.
#![no_main]

use std::path::Path;

use libfuzzer_sys::fuzz_target;
use config::Config;

fuzz_target!(|text: &str| {
    match Config::parse(text, Path::new("slurminit.toml")) {
        Ok(config) => drop(slurminit_fuzz::plan_and_check(&config, &slurminit_fuzz::machine())),
        Err(error) => assert!(error.to_string().contains("slurminit.toml"), "{error}"),
    }
});
