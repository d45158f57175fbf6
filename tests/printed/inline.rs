//! What stands between backquotes in the text: there is such a verb, and such an option of it.

use clap::{Command, CommandFactory as _};
use cli::Cli;

/// The words after `slurminit` of each command in the text, up to what is another command's.
fn commands(page: &str) -> Vec<Vec<&str>> {
    let mut is_block = false;
    let is_text = |line: &&str| {
        let is_fence = line.trim_start().starts_with("```");
        is_block ^= is_fence;
        !is_block && !is_fence
    };
    let words = |span| {
        let (before, rest): (&str, &str) = str::split_once(span, "slurminit ")?;
        let is_command = before.is_empty() || before.ends_with(['(', '/']) || before.contains("docker ");
        let end = rest.find(['|', '&', ';', ')', '>', '<']).unwrap_or(rest.len());
        Some(rest[..end].split_whitespace().collect::<Vec<_>>()).filter(|words| is_command && !words.is_empty())
    };
    // A span that goes on in the next line is left out: a backquote too many would turn all that follows inside out.
    page.lines().filter(is_text).flat_map(|line| line.split('`').skip(1).step_by(2)).filter_map(words).collect()
}

/// Why there is no such command.
fn why_not(program: &Command, words: &[&str]) -> Option<String> {
    let name = words.first()?;
    // Placeholders, options of slurminit itself, a program of another one's.
    if !name.starts_with(|c: char| c.is_ascii_lowercase()) || *name == "help" {
        return None;
    }
    let Some(verb) = program.find_subcommand(name) else {
        return Some(format!("there is no verb {name}"));
    };
    // What follows `--` is another program's.
    let options = words[1..].iter().take_while(|word| **word != "--").filter(|word| word.starts_with("--"));
    for option in options {
        let long = option.trim_start_matches('-').split('=').next().unwrap_or_default();
        let has = verb.get_arguments().any(|argument| argument.get_long() == Some(long));
        if !has && long != "help" {
            return Some(format!("{name} has no option --{long}"));
        }
    }
    None
}

#[test]
fn every_verb_and_option_in_text_exists() {
    let program = Cli::command();
    let (mut seen, mut wrong) = (0, String::new());
    for (path, text) in crate::pages() {
        for words in commands(&text) {
            seen += 1;
            if let Some(why) = why_not(&program, &words) {
                wrong += &format!("{}: `slurminit {}`: {why}\n", path.display(), words.join(" "));
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong}");
    assert!(seen > 50, "only {seen} commands are found");
}

#[test]
fn wrong_one_is_seen() {
    let program = Cli::command();
    let found = commands("`docker compose exec slurm slurminit logs --tail 3 | cat` and `slurminit detekt`");
    let why: Vec<_> = found.iter().filter_map(|words| why_not(&program, words)).collect();
    assert_eq!(why, ["logs has no option --tail", "there is no verb detekt"]);
}
