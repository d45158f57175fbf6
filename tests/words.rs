//! Prints a random sample of messages and comments, for a person who reads them:
//! `SEED=1 cargo test --test host words -- --ignored --nocapture`.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod source;

use std::fs;
use std::path::{Path, PathBuf};

use source::{Text, Texts};

fn files(below: &Path, found: &mut Vec<PathBuf>) {
    if !below.is_dir() {
        return found.push(below.to_owned());
    }
    for entry in fs::read_dir(below).unwrap() {
        files(&entry.unwrap().path(), found);
    }
}

/// All messages and comments below src, by file name.
fn texts() -> Vec<(String, Texts)> {
    let mut paths = Vec::new();
    files(&harness::root().join("src"), &mut paths);
    paths.sort();
    let name = |path: &Path| path.strip_prefix(harness::root()).unwrap().display().to_string();
    let is_source = |path: &&PathBuf| path.extension().is_some_and(|end| end == "rs") && !source::is_test(path);
    let texts = |path: &PathBuf| (name(path), source::texts(&fs::read_to_string(path).unwrap()));
    paths.iter().filter(is_source).map(texts).collect()
}

#[test]
fn scans_strings_and_comments() {
    let source = "//! One.\n//! Two.\nfn f<'a>() { let c = '\"'; // three\n    println!(\"four five \\\n        six\\n\"); r#\"a \" b c d\"#;\n}\n\
                  #[expect(x, reason = \"no message at all\")]\n/// Seven.\nstruct S;\n#[cfg(test)]\nmod tests {\n// eight\n}\n";
    let texts = source::texts(source);
    let lines = |texts: &[Text]| texts.iter().map(|text| format!("{}: {}", text.line, text.text)).collect::<Vec<_>>();
    assert_eq!(lines(&texts.messages), ["4: four five six\n"]);
    assert_eq!(lines(&texts.comments), ["1: One. Two.", "3: three", "8: Seven."]);
    assert_eq!(texts.comments[2].next, "struct S;");
}

/// A random sample, by xorshift64*: reproducible for a seed and needs no dependency.
fn draw<T: Clone>(mut from: Vec<T>, count: usize, state: &mut u64) -> Vec<T> {
    let mut next = || {
        *state ^= *state >> 12;
        *state ^= *state << 25;
        *state ^= *state >> 27;
        usize::try_from(state.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 33).unwrap()
    };
    (0..count).map(|_| from.swap_remove(next() % from.len())).collect()
}

#[test]
#[ignore = "prints a draw for a person, who judges whether each text is understood at first reading"]
fn draws_messages_and_comments() {
    let seed: u64 = std::env::var("SEED").unwrap_or_default().parse().unwrap_or(1);
    let all = texts();
    let pick = |which: fn(&Texts) -> &Vec<Text>| {
        let each =
            all.iter().flat_map(|(file, texts)| which(texts).iter().map(move |text| (file.clone(), text.clone())));
        each.collect::<Vec<_>>()
    };
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    for (title, texts) in [("messages", pick(|texts| &texts.messages)), ("comments", pick(|texts| &texts.comments))] {
        println!("\n60 of {} {title}, seed {seed}", texts.len());
        for (number, (file, text)) in (1..).zip(draw(texts, 60, &mut state)) {
            let next = if text.next.is_empty() { String::new() } else { format!("   <- {}", text.next) };
            println!("{number:2} {file}:{}: {}{next}", text.line, text.text);
        }
    }
}
