//! The English of the program: no long messages, help texts that begin with a verb, few discouraged words. `draws_messages_and_comments` prints a
//! random draw of messages and comments for review: `SEED=1 cargo test --test words -- --ignored --nocapture`.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

#[path = "words/source.rs"]
mod source;

use std::fs;
use std::path::{Path, PathBuf};

use clap::{ArgAction, Command, CommandFactory as _};
use cli::Cli;
use source::{Text, Texts};

/// The longest line of a message, in characters.
const LONGEST: usize = 120;

/// Quotations, and texts for programs.
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

/// All messages in a row, a section for each crate.
fn list() -> String {
    let (mut list, mut last) = (String::new(), String::new());
    for (file, texts) in texts() {
        let of = file.split('/').nth(1).unwrap_or_default();
        if of != last {
            list += &format!("\n## {of}\n\n");
            of.clone_into(&mut last);
        }
        for Text { line, text, .. } in &texts.messages {
            list += &format!("- {}   <- {file}:{line}\n", text.replace('\n', "\\n"));
        }
    }
    list
}

#[test]
fn messages_have_at_most_120_characters() {
    let (mut long, mut seen) = (String::new(), 0);
    for (file, texts) in texts() {
        for Text { line, text, .. } in &texts.messages {
            seen += 1;
            let longest = text.lines().map(|line| line.chars().count()).max().unwrap_or_default();
            if longest > LONGEST && !MAY_BE_LONG.iter().any(|start| text.starts_with(start)) {
                long += &format!("{file}:{line}: {longest} characters: {text}\n");
            }
        }
    }
    assert!(seen > 1500, "only {seen} messages are found");
    harness::write_evidence(&list());
    assert!(long.is_empty(), "split these into message and repair, or shorten them:\n{long}");
}

/// The first words of help texts of verbs and switches.
const VERBS: [&str; 49] = [
    "Assume", "Cancel", "Change", "Check", "Close", "Compare", "Continue", "Create", "Detect", "Do", "Drain",
    "Examine", "Execute", "Exit", "Free", "Import", "Keep", "Kill", "Leave", "Let", "List", "Make", "Measure",
    "Monitor", "Notify", "Post", "Print", "Query", "Raise", "Read", "Record", "Refresh", "Release", "Remove",
    "Replace", "Report", "Requeue", "Restart", "Resume", "Run", "Sample", "Serve", "Show", "Skip", "Start", "Stop",
    "Submit", "Wait", "Write",
];

#[test]
fn help_texts_of_verbs_and_switches_begin_with_a_verb() {
    fn check(command: &Command, name: &str, wrong: &mut String, seen: &mut usize) {
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
        for verb in command.get_subcommands() {
            let name = format!("{name} {}", verb.get_name());
            helps.push((name.clone(), verb.get_about().map(ToString::to_string).unwrap_or_default()));
            check(verb, &name, wrong, seen);
        }
        for (name, help) in helps {
            *seen += 1;
            let first = help.split([' ', ',']).next().unwrap_or_default();
            if !VERBS.contains(&first) {
                *wrong += &format!("{name}: {help}\n");
            }
        }
    }
    let (mut wrong, mut seen) = (String::new(), 0);
    check(&Cli::command(), "slurminit", &mut wrong, &mut seen);
    assert!(seen > 60, "only {seen} help texts are found");
    assert!(wrong.is_empty(), "begin these with a verb, or add the verb to VERBS:\n{wrong}");
}

#[test]
fn scans_strings_and_comments() {
    let source = "//! One.\n//! Two.\nfn f<'a>() { let c = '\"'; // three\n    println!(\"four five \\\n        six\\n\"); r#\"a \" b c d\"#;\n}\n\
                  #[expect(x, reason = \"no message at all\")]\n/// Seven.\nstruct S;\n#[cfg(test)]\nmod tests {\n// eight\n}\n";
    let texts = source::texts(source);
    let words = |texts: &[Text]| texts.iter().map(|text| format!("{}: {}", text.line, text.text)).collect::<Vec<_>>();
    assert_eq!(words(&texts.messages), ["4: four five six\n"]);
    assert_eq!(words(&texts.comments), ["1: One. Two.", "3: three", "8: Seven."]);
    assert_eq!(texts.comments[2].next, "struct S;");
}

/// xorshift64*: reproducible for a seed, without a dependency.
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
    let of = |which: fn(&Texts) -> &Vec<Text>| {
        let each =
            all.iter().flat_map(|(file, texts)| which(texts).iter().map(move |text| (file.clone(), text.clone())));
        each.collect::<Vec<_>>()
    };
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    for (title, texts) in [("messages", of(|texts| &texts.messages)), ("comments", of(|texts| &texts.comments))] {
        println!("\n60 of {} {title}, seed {seed}", texts.len());
        for (number, (file, text)) in (1..).zip(draw(texts, 60, &mut state)) {
            let next = if text.next.is_empty() { String::new() } else { format!("   <- {}", text.next) };
            println!("{number:2} {file}:{}: {}{next}", text.line, text.text);
        }
    }
}
