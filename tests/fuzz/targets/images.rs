//! Files that users can place beside an image or in a step's directory: image.json, the config.json of an OCI bundle, and the environment of a step.
#![no_main]

use std::path::Path;

use images::runtime::{Bundle, parse_environment};
use images::{ImageName, ImageRecord};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let name: ImageName = "ubuntu".parse().expect("a name");
    if let Some(record) = ImageRecord::parse(&String::from_utf8_lossy(bytes), &name) {
        assert_eq!(record.name, name.as_str(), "the directory names the image, not its record");
        let written = serde_json::to_string(&record).expect("JSON");
        assert_eq!(ImageRecord::parse(&written, &name), Some(record));
    }
    if let Ok(bundle) = Bundle::parse(bytes, Path::new("/bundle")) {
        assert!(bundle.root.is_absolute(), "{:?}", bundle.root);
    }
    for (name, value) in parse_environment(bytes) {
        let (name, value) = (name.as_encoded_bytes(), value.as_encoded_bytes());
        assert!(
            !name.contains(&b'=') && !name.contains(&0) && !value.contains(&0),
            "not valid in an environment: {name:?}"
        );
    }
});
