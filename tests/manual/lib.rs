//! Generates the manual pages and the shell completions from the command line definition, the configuration's types and sections.toml.
//! The generated files are part of the image and of each release, but not of the repository.

#![expect(clippy::unwrap_used, clippy::expect_used, reason = "a generator of documents fails by panicking")]

mod configuration;
mod marked;
pub mod recorder;
pub mod reference;
pub mod sections;

use std::collections::BTreeMap;

use clap::{Command, CommandFactory as _};
use clap_complete::Shell;
use cli::Cli;

/// The command line definition without the hidden verbs, which PID 1 runs as child processes.
pub fn command() -> Command {
    let all = Cli::command();
    let visible: Vec<Command> = all.get_subcommands().filter(|verb| !verb.is_hide_set()).cloned().collect();
    // clap's completions contain hidden verbs, so build a new command from the visible ones.
    let mut command = Command::new("slurminit").version(env!("CARGO_PKG_VERSION"));
    command = command.about(all.get_about().cloned().unwrap_or_default()).subcommand_required(true);
    visible.into_iter().fold(command, Command::subcommand)
}

fn page(command: Command, sections: &str, see_also: &str) -> String {
    let mut page = Vec::new();
    // No date, so that the output is reproducible.
    let source = concat!("slurminit ", env!("CARGO_PKG_VERSION"));
    clap_mangen::Man::new(command).date("").source(source).manual("slurminit").render(&mut page).unwrap();
    format!("{}{sections}.SH SEE ALSO\n{see_also}\n", String::from_utf8(page).unwrap())
}

/// The text of each page and completion by its path, such as `man/slurminit.1`.
pub fn files() -> BTreeMap<String, String> {
    let mut pages_command = command().disable_help_subcommand(true);
    // Sets the verbs' display names, which are the page names.
    pages_command.build();
    let (sections, examples) = (sections::sections(), cli::examples::all());
    let codes = sections::list("EXIT STATUS", &sections::exit_codes());
    let configuration = configuration::page(&reference::reference());
    let mut generated = BTreeMap::from([("man/slurminit.toml.5".to_owned(), configuration)]);
    generated.insert("man/slurminit.1".to_owned(), page(pages_command.clone(), &codes, "slurminit.toml(5)"));
    for verb in pages_command.get_subcommands() {
        let name = verb.get_name();
        let more =
            sections.verb.get(name).map(|verb| sections::text(&sections, verb, &examples[name])).unwrap_or_default();
        let text = page(verb.clone(), &more, "slurminit(1), slurminit.toml(5)");
        generated.insert(format!("man/slurminit-{name}.1"), text);
        for part in verb.get_subcommands().filter(|part| part.get_name() != "help") {
            let see_also = format!("slurminit-{name}(1), slurminit(1)");
            generated.insert(format!("man/slurminit-{name}-{}.1", part.get_name()), page(part.clone(), "", &see_also));
        }
    }
    for shell in [Shell::Bash, Shell::Fish, Shell::Zsh] {
        let mut script = Vec::new();
        clap_complete::generate(shell, &mut command(), "slurminit", &mut script);
        generated.insert(format!("completions/slurminit.{shell}"), String::from_utf8(script).unwrap());
    }
    generated
}
