//! slurminit.toml: any content is either rejected with its file name in the error, or gives well-formed files.
#![no_main]

use std::path::Path;

use config::Config;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|text: &str| {
    match Config::parse(text, Path::new("slurminit.toml")) {
        Ok(config) => drop(slurminit_fuzz::plan_and_check(&config, &slurminit_fuzz::machine())),
        Err(error) => assert!(error.to_string().contains("slurminit.toml"), "{error}"),
    }
});
