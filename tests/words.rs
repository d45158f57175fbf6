//! Style of messages and help texts: no long messages, help texts that begin with a verb.
//! `draws_messages_and_comments` prints a random sample of messages and comments for review:
//! `SEED=1 cargo test --test words -- --ignored --nocapture`.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

#[path = "words/source.rs"]
mod source;

use std::fs;
use std::path::{Path, PathBuf};

use clap::{ArgAction, Command, CommandFactory as _};
use cli::Cli;
use source::{Text, Texts};

/// The maximum length of a message line, in characters.
const MAX_LENGTH: usize = 120;

/// Beginnings of messages without a length limit: quotations and program input.
const MAY_BE_LONG: [&str; 3] =
    ["default-src 'none'", "`successful NUMA node read from SysFS", "{HEADER}\n# Jobs in container images"];

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

/// A Markdown list of all messages with a section per crate.
fn list() -> String {
    let (mut list, mut last) = (String::new(), String::new());
    for (file, texts) in texts() {
        let crate_name = file.split('/').nth(1).unwrap_or_default();
        if crate_name != last {
            list += &format!("\n## {crate_name}\n\n");
            crate_name.clone_into(&mut last);
        }
        for Text { line, text, .. } in &texts.messages {
            list += &format!("- {}   <- {file}:{line}\n", text.replace('\n', "\\n"));
        }
    }
    list
}

#[test]
fn messages_have_at_most_120_characters() {
    let (mut long, mut count) = (String::new(), 0);
    for (file, texts) in texts() {
        for Text { line, text, .. } in &texts.messages {
            count += 1;
            let longest = text.lines().map(|line| line.chars().count()).max().unwrap_or_default();
            if longest > MAX_LENGTH && !MAY_BE_LONG.iter().any(|start| text.starts_with(start)) {
                long += &format!("{file}:{line}: {longest} characters: {text}\n");
            }
        }
    }
    assert!(count > 1500, "found only {count} messages");
    harness::write_evidence(&list());
    assert!(long.is_empty(), "split these into message and repair, or shorten them:\n{long}");
}

/// The permitted first words of help texts of commands and switches.
const VERBS: [&str; 49] = [
    "Assume", "Cancel", "Change", "Check", "Close", "Compare", "Continue", "Create", "Detect", "Do", "Drain",
    "Examine", "Execute", "Exit", "Free", "Import", "Keep", "Kill", "Leave", "Let", "List", "Make", "Measure",
    "Monitor", "Notify", "Post", "Print", "Query", "Raise", "Read", "Record", "Refresh", "Release", "Remove",
    "Replace", "Report", "Requeue", "Restart", "Resume", "Run", "Sample", "Serve", "Show", "Skip", "Start", "Stop",
    "Submit", "Wait", "Write",
];

#[test]
fn help_texts_of_commands_and_switches_begin_with_a_verb() {
    fn check(command: &Command, name: &str, wrong: &mut String, count: &mut usize) {
        let switches = command.get_arguments().filter(|argument| {
            matches!(argument.get_action(), ArgAction::SetTrue)
                && argument.get_id() != "help"
                && argument.get_id() != "version"
        });
        let mut helps: Vec<(String, String)> = switches
            .map(|argument| {
                (
                    format!("{name} --{}", argument.get_id()),
                    argument.get_help().map(ToString::to_string).unwrap_or_default(),
                )
            })
            .collect();
        for subcommand in command.get_subcommands() {
            let name = format!("{name} {}", subcommand.get_name());
            helps.push((name.clone(), subcommand.get_about().map(ToString::to_string).unwrap_or_default()));
            check(subcommand, &name, wrong, count);
        }
        for (name, help) in helps {
            *count += 1;
            let first = help.split([' ', ',']).next().unwrap_or_default();
            if !VERBS.contains(&first) {
                *wrong += &format!("{name}: {help}\n");
            }
        }
    }
    let (mut wrong, mut count) = (String::new(), 0);
    check(&Cli::command(), "slurminit", &mut wrong, &mut count);
    assert!(count > 60, "found only {count} help texts");
    assert!(wrong.is_empty(), "begin these with a verb, or add the verb to VERBS:\n{wrong}");
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
