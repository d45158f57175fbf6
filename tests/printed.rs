//! Runs the commands in README.md and docs.
//!
//! The `bash`, `sh` and `console` blocks of a page run from top to bottom in a copy of the project, with a cluster that
//! has two simulated GPUs. An HTML comment on the line before a block changes how it is run:
//!
//! | comment | the block |
//! |---|---|
//! | none | runs on the host, in the directory of compose.yaml |
//! | `<!-- test: in=container -->` | runs in the cluster's container |
//! | `<!-- test: in=bare -->` | runs in a container of the image without a cluster |
//! | `<!-- test: file=PATH -->` | is written to the file PATH, whatever its language; bash must accept a script |
//! | `<!-- test: by=SCRIPT -->` | is run by this script, which reads it from the page |
//! | `<!-- test: image=full -->` | is the first block of a page whose cluster uses the image of the target `full` |
//! | `<!-- test: tty -->` | runs at a terminal; then `exit` is typed, which ends a shell that the block has opened |
//! | `<!-- test: fails -->` | exits with an error and shows it; can be combined with `in=` |
//! | `<!-- test: skip WHY -->` | is not run: needs a GPU, a browser, a registry etc., or has another test (see WHY) |
//!
//! The output in a `console` block must match what the command prints, except for numbers and column widths; `...`
//! matches any lines. The EXAMPLES of the manual pages run in the cluster's container. `docker/test` runs these tests.
//! By hand: `cargo test --test image printed -- --ignored`; PRINTED=README selects the pages whose path contains README.
#![expect(clippy::disallowed_methods, reason = "a test is not PID 1, so it may wait for the commands it runs")]
#![expect(clippy::expect_used, reason = "without Docker there is nothing to test")]

mod inline;
mod page;
mod reader;
mod shape;

use std::path::{Path, PathBuf};
use std::{env, fs};

use page::{Block, How, Target};
use reader::Reader;

fn root() -> &'static Path {
    harness::root()
}

/// README.md and the pages below docs, with paths relative to the project directory.
fn pages() -> Vec<(PathBuf, String)> {
    let folders = ["docs", "docs/decisions", "docs/reference"].map(|folder| root().join(folder));
    let entries = folders.iter().flat_map(|folder| fs::read_dir(folder).expect("a directory below docs"));
    let paths = entries.map(|entry| entry.expect("a directory entry").path());
    let mut paths: Vec<PathBuf> = paths.filter(|path| path.extension().is_some_and(|end| end == "md")).collect();
    paths.push(root().join("README.md"));
    paths.sort();
    let read = |path: PathBuf| {
        let text = fs::read_to_string(&path).expect("a page is UTF-8");
        (path.strip_prefix(root()).expect("a page is below the project directory").to_owned(), text)
    };
    paths.into_iter().map(read).collect()
}

fn blocks(path: &Path, text: &str) -> Vec<Block> {
    page::blocks(text).map_err(|why| format!("{}:{why}", path.display())).expect("a valid page")
}

#[test]
fn scripts_that_type_blocks_read_the_page() {
    let mut wrong = String::new();
    for (path, text) in pages() {
        for block in blocks(&path, &text) {
            let Target::Script(script) = &block.target else { continue };
            let content = fs::read_to_string(root().join(script)).unwrap_or_default();
            if !content.contains(&format!("typed {}", path.display())) {
                wrong += &format!("{}:{}: {script} does not type it\n", path.display(), block.line);
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong}");
}

#[test]
#[ignore = "needs Docker, compose and the images: run docker/test"]
fn printed_commands_work() {
    let filter = env::var("PRINTED").unwrap_or_default();
    let mut failures = Vec::new();
    let mut pages = pages();
    pages.retain(|(path, _)| path.to_string_lossy().contains(&filter));
    assert!(!pages.is_empty(), "no page path contains {filter:?}");
    for (path, text) in pages {
        let mut reader = Reader::new(root());
        for block in blocks(&path, &text) {
            let start = std::time::Instant::now();
            if let Err(why) = reader.process(&block) {
                failures.push(format!("{}:{}: {why}", path.display(), block.line));
            }
            eprintln!("{}:{} {:.1} s", path.display(), block.line, start.elapsed().as_secs_f64());
        }
    }
    assert!(failures.is_empty(), "{}", failures.join("\n\n"));
}

#[test]
#[ignore = "needs Docker, compose and the images: run docker/test"]
fn examples_of_manual_work() {
    let mut reader = Reader::new(root());
    let verbs = cli::examples::all();
    let examples = verbs.values().flatten().filter(|example| example.skip.is_none());
    let commands: Vec<&str> = examples.map(|example| example.command.as_str()).collect();
    assert!(commands.len() > 10, "{commands:?}");
    let failures = commands.iter().filter_map(|command| {
        let text = (*command).to_owned();
        let block = Block { line: 0, text, is_session: false, target: Target::Container, how: How::default() };
        reader.process(&block).err().map(|why| format!("{command}: {why}"))
    });
    let failures: Vec<String> = failures.collect();
    assert!(failures.is_empty(), "{}", failures.join("\n\n"));
}
