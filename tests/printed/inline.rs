//! Checks that the `slurminit` verbs and options in inline code spans exist.

use clap::{Command, CommandFactory as _};
use cli::Cli;

/// The words after `slurminit` in each code span, up to a shell operator.
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
    // Each line is parsed alone, so that a stray backquote affects only its line. Spans over two lines are ignored.
    page.lines().filter(is_text).flat_map(|line| line.split('`').skip(1).step_by(2)).filter_map(words).collect()
}

/// The reason why a command is invalid, or `None`.
fn find_error(program: &Command, words: &[&str]) -> Option<String> {
    let name = words.first()?;
    // Skip placeholders, options without a verb and paths of other programs.
    if !name.starts_with(|c: char| c.is_ascii_lowercase()) || *name == "help" {
        return None;
    }
    let Some(mut verb) = program.find_subcommand(name) else {
        return Some(format!("there is no verb {name}"));
    };
    if let Some(inner) = words.get(1).and_then(|word| verb.find_subcommand(word)) {
        verb = inner;
    }
    // The words after `--` are another program's command line.
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
    let (mut count, mut errors) = (0, String::new());
    for (path, text) in super::pages() {
        for words in commands(&text) {
            count += 1;
            if let Some(why) = find_error(&program, &words) {
                errors += &format!("{}: `slurminit {}`: {why}\n", path.display(), words.join(" "));
            }
        }
    }
    assert!(errors.is_empty(), "{errors}");
    assert!(count > 50, "found only {count} commands");
}

#[test]
fn unknown_verb_and_option_are_detected() {
    let program = Cli::command();
    let found = commands("`docker compose exec slurm slurminit logs --tail 3 | cat` and `slurminit detekt`");
    let why: Vec<_> = found.iter().filter_map(|words| find_error(&program, words)).collect();
    assert_eq!(why, ["logs has no option --tail", "there is no verb detekt"]);
}
