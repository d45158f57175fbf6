//! `slurminit config`: checks a slurminit.toml, and shows the effective configuration.

use std::path::{Path, PathBuf};

use serde_json::json;

use super::Configuration;
use config::Config;
use config::effective::{Origin, Setting};
use install::load_config;
use model::printable;

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    verb: ConfigVerb,
}

#[derive(Debug, clap::Subcommand)]
enum ConfigVerb {
    /// Check a slurminit.toml, and print its first error with line and key
    Check {
        /// The slurminit.toml to check
        file: PathBuf,
    },
    /// Show each effective value and its origin: default, file, variable, or join token
    Show {
        /// Print everything as JSON
        #[arg(long)]
        json: bool,
    },
}

pub(crate) fn run(args: Args, configuration: &Configuration) -> anyhow::Result<()> {
    match args.verb {
        ConfigVerb::Check { file } => check(&file),
        ConfigVerb::Show { json } => show(json, configuration.file()),
    }
}

fn check(file: &Path) -> anyhow::Result<()> {
    let source = load_config::source(Some(file))?;
    Config::parse(&source.text, &source.origin)?;
    super::print(&printable::lines(&format!("{}: valid\n", file.display())))
}

fn show(as_json: bool, file: Option<&Path>) -> anyhow::Result<()> {
    let settings = load_config::layers(file)?.settings();
    let settings: Vec<Setting> = settings.into_iter().map(Setting::without_secrets).collect();
    let lines = || settings.iter().map(|setting| format!("{setting}\n")).collect::<String>();
    super::print(&match as_json {
        true => super::json(&json!({ "file": load_config::source(file)?.origin, "settings": all(&settings) }))?,
        false => printable::lines(&lines()).into_owned(),
    })
}

fn all(settings: &[Setting]) -> Vec<serde_json::Value> {
    let one = |setting: &Setting| {
        let (origin, variable) = match setting.origin {
            Origin::Default => ("default", None),
            Origin::File => ("file", None),
            Origin::Token => ("token", None),
            Origin::Variable(name) => ("variable", Some(name)),
        };
        json!({ "key": setting.key, "value": setting.value, "origin": origin, "variable": variable })
    };
    settings.iter().map(one).collect()
}
