//! Customized slurm.conf, gres.conf and cgroup.conf, which are parsed and never changed. NUL separates the texts.
#![no_main]

use std::path::Path;

use config::Config;
use libfuzzer_sys::fuzz_target;
use model::prepared::Apply;
use plan::{FileName, FileState, Names, Origin, Text, UserFile, change, plan, select_user_files};

fuzz_target!(|bytes: &[u8]| {
    let inventory = slurminit_fuzz::machine();
    let config = Config::default();
    let files: Vec<UserFile> = FileName::ALL
        .into_iter()
        .zip(slurminit_fuzz::texts(bytes))
        .map(|(name, text)| {
            let path = Path::new("/config").join(name.as_str());
            let text = format!("# USER_CUSTOMIZED=true\n{text}");
            UserFile::new(name, Origin::Config, path, &text, &|_| Err("no such file".to_owned()))
        })
        .collect();
    // A reload compares the files with the running configuration.
    let text = |file: &UserFile| Text { name: file.name, text: file.text.clone() };
    let new: Vec<Text> = files.iter().map(text).collect();
    assert_eq!(change(&new, &new).apply, Apply::Nothing);
    let _ = change(&[], &new);
    let Ok(mut plan) = plan(&config, &inventory) else { return };
    let state = |path: &Path| match path.to_str() {
        Some("/dev/nvidia0") => FileState::Present,
        Some("/bin/true") => FileState::Program,
        _ => FileState::Missing,
    };
    let names = Names { hostname: inventory.hostname.clone(), ..Names::default() };
    let customized = plan.apply_user_files(&config, select_user_files(&config, &files), &inventory, &names, &state);
    for file in &files {
        assert_eq!(
            customized.get(file.name).map(|user_file| &user_file.text),
            Some(&file.text),
            "a customized file was changed"
        );
    }
});
