//! The commands that README.md and docs print, run as they are printed.
//!
//! A page's blocks of `bash`, `sh` and `console` are run from top to bottom, by a reader with a copy of the project and a cluster
//! with two simulated GPUs. A comment on the line before a block says what is different about it; it cannot be seen on the page:
//!
//! | comment | the block |
//! |---|---|
//! | none | is typed on the host, in the directory of compose.yaml |
//! | `<!-- test: in=container -->` | is typed in the cluster's container |
//! | `<!-- test: in=bare -->` | is typed in a container of the image in which no cluster runs |
//! | `<!-- test: file=PATH -->` | is the file PATH of the reader's, whatever its language |
//! | `<!-- test: fails -->` | ends with an error, and shows it; may stand beside `in=` |
//! | `<!-- test: skip WHY -->` | is not run: it needs a GPU, another machine, a browser, a registry; or another test does it, which is named |
//!
//! What a `console` block shows as a command's output must be what it prints, but for numbers and the width of columns; a line
//! `...` stands for any lines. The manual pages' EXAMPLES are typed in the cluster's container. `docker/test` runs this; by hand: `cargo test --test printed -- --ignored`, with PRINTED=README to
//! run the pages whose path has that in it.
#![expect(clippy::disallowed_methods, reason = "these tests run the docker command and are nobody's PID 1")]
#![expect(clippy::expect_used, reason = "without Docker there is nothing to test")]

#[expect(dead_code, reason = "it is also tests/image's, which needs more of it")]
#[path = "../image/docker.rs"]
mod docker;
mod inline;
#[path = "../pages/marked.rs"]
mod marked;
mod page;
mod reader;
#[expect(dead_code, reason = "it is tests/pages's, which makes the pages of it")]
#[path = "../pages/sections.rs"]
mod sections;
mod shape;

use std::path::{Path, PathBuf};
use std::{env, fs};

use page::{Block, How};
use reader::Reader;

fn root() -> &'static Path {
    harness::root()
}

/// README.md and the pages below docs, from the project's directory.
fn pages() -> Vec<(PathBuf, String)> {
    let folders = ["docs", "docs/decisions", "docs/reference"].map(|folder| root().join(folder));
    let entries = folders.iter().flat_map(|folder| fs::read_dir(folder).expect("a folder of docs"));
    let paths = entries.map(|entry| entry.expect("an entry").path());
    let mut paths: Vec<PathBuf> = paths.filter(|path| path.extension().is_some_and(|end| end == "md")).collect();
    paths.push(root().join("README.md"));
    paths.sort();
    let read = |path: PathBuf| {
        let text = fs::read_to_string(&path).expect("a page is text");
        (path.strip_prefix(root()).expect("it is the project's").to_owned(), text)
    };
    paths.into_iter().map(read).collect()
}

fn blocks(path: &Path, text: &str) -> Vec<Block> {
    page::blocks(text).map_err(|why| format!("{}:{why}", path.display())).expect("a page that can be read")
}

#[test]
fn readme_states_how_many_command_blocks_are_typed() {
    let (mut typed, mut all) = (0, 0);
    for (path, text) in pages() {
        for block in blocks(&path, &text).iter().filter(|block| block.is_commands) {
            all += 1;
            typed += usize::from(block.how != How::Skip);
        }
    }
    assert!(typed > 20, "only {typed} blocks are found: is the reading of pages broken?");
    let claim = format!("types {typed} of the {all} command blocks");
    let readme = fs::read_to_string(root().join("README.md")).expect("README.md").replace('\n', " ");
    assert!(readme.contains(&claim), "README.md must state: {claim}");
}

#[test]
#[ignore = "needs Docker, compose and the images: run docker/test"]
fn printed_commands_work() {
    let wanted = env::var("PRINTED").unwrap_or_default();
    let mut failures = Vec::new();
    let mut pages = pages();
    pages.retain(|(path, _)| path.to_string_lossy().contains(&wanted));
    assert!(!pages.is_empty(), "no page is called {wanted:?}");
    for (path, text) in pages {
        let mut reader = Reader::new(root());
        for block in blocks(&path, &text) {
            let begin = std::time::Instant::now();
            if let Err(why) = reader.take(&block) {
                failures.push(format!("{}:{}: {why}", path.display(), block.line));
            }
            eprintln!("{}:{} {:.1} s", path.display(), block.line, begin.elapsed().as_secs_f64());
        }
    }
    assert!(failures.is_empty(), "{}", failures.join("\n\n"));
}

#[test]
#[ignore = "needs Docker, compose and the images: run docker/test"]
fn examples_of_manual_work() {
    let mut reader = Reader::new(root());
    let verbs = sections::sections().verb;
    let examples = verbs.values().flat_map(|verb| &verb.examples).filter(|example| example.skip.is_none());
    let commands: Vec<&str> = examples.map(|example| example.command.as_str()).collect();
    assert!(commands.len() > 10, "{commands:?}");
    let failures = commands.iter().filter_map(|command| {
        let text = (*command).to_owned();
        let block =
            Block { line: 0, text, is_session: false, how: How::InTheContainer, is_commands: true, fails: false };
        reader.take(&block).err().map(|why| format!("{command}: {why}"))
    });
    let failures: Vec<String> = failures.collect();
    assert!(failures.is_empty(), "{}", failures.join("\n\n"));
}
