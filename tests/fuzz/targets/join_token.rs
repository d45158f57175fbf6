//! Join tokens, and the settings in them, which become a container's configuration. NUL separates texts.
#![no_main]

use std::path::Path;

use config::token::{Token, TokenContents};
use config::{Layers, TokenSettings};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let texts = slurminit_fuzz::texts(bytes);
    for text in &texts {
        if let Ok(token) = Token::decode(text) {
            assert_eq!(Token::decode(&token.encode()), Ok(token));
        }
        // Random texts fail at the checksum, so tokens with random contents are built as well.
        if let Ok(contents) = serde_json::from_str::<TokenContents>(text) {
            let token = Token { contents, key: vec![7; 32] };
            assert_eq!(Token::decode(&token.encode()), Ok(token));
        }
    }
    let [settings, rest @ ..] = texts.as_slice() else { return };
    let Ok(settings) = TokenSettings::parse(settings) else { return };
    let (file, origin) = (rest.first().map_or("", String::as_str), Path::new("slurminit.toml"));
    if let Ok(Layers { config: joined, .. }) = Layers::merge(file, origin, Some(&settings), &|_| None) {
        assert!(joined.slurm.controller.is_some());
        drop(slurminit_fuzz::plan_and_check(&joined, &slurminit_fuzz::machine()));
    }
});
