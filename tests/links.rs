//! Checks the documentation: links in README.md, CHANGELOG.md and docs, pages named in code and scripts, cell counts of
//! tables, headings and index of the decisions, discouraged words and word budgets.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Component, Path, PathBuf};

/// Files and directories whose references to pages are checked.
const NAMED_IN: [&str; 10] = [
    "src",
    "tests",
    "docker",
    "config",
    "Dockerfile",
    "compose.yaml",
    "clippy.toml",
    "Cargo.toml",
    "README.md",
    "CHANGELOG.md",
];

fn root() -> &'static Path {
    harness::root()
}

/// Collects all files in a directory, without build output.
fn files(below: &Path, found: &mut Vec<PathBuf>) {
    if !below.is_dir() {
        return found.push(below.to_owned());
    }
    for entry in fs::read_dir(below).unwrap() {
        let path = entry.unwrap().path();
        if path.file_name().is_some_and(|name| name != "target" && name != "corpus") {
            files(&path, found);
        }
    }
}

/// README.md, CHANGELOG.md and the pages in docs, by path in the repository.
fn pages() -> BTreeMap<PathBuf, String> {
    let mut paths = vec![root().join("README.md"), root().join("CHANGELOG.md")];
    files(&root().join("docs"), &mut paths);
    paths.retain(|path| path.extension().is_some_and(|extension| extension == "md"));
    let read = |path: PathBuf| (path.strip_prefix(root()).unwrap().to_owned(), fs::read_to_string(&path).unwrap());
    paths.into_iter().map(read).collect()
}

/// Lines of a page without code blocks.
fn text(page: &str) -> impl Iterator<Item = &str> {
    let mut is_code = false;
    page.lines().filter(move |line| {
        let is_fence = line.trim_start().starts_with("```");
        is_code ^= is_fence;
        !is_code && !is_fence
    })
}

/// Heading anchors as GitHub generates them; a repeated heading gets a number.
fn anchors(page: &str) -> BTreeSet<String> {
    let mut anchors = BTreeSet::new();
    for heading in text(page).filter(|line| line.starts_with('#')) {
        let heading = heading.trim_start_matches('#').trim().to_lowercase().replace(' ', "-");
        let anchor: String = heading.chars().filter(|c| c.is_alphanumeric() || matches!(c, '-' | '_')).collect();
        let free = (1..).map(|number| format!("{anchor}-{number}"));
        let anchor = std::iter::once(anchor.clone()).chain(free).find(|anchor| !anchors.contains(anchor));
        anchors.extend(anchor);
    }
    anchors
}

/// Targets of a page's links, without external ones.
fn links(page: &str) -> impl Iterator<Item = &str> {
    let links = text(page).flat_map(|line| line.split("](").skip(1).filter_map(|rest| Some(rest.split_once(')')?.0)));
    links.filter(|link| !link.contains("://") && !link.starts_with("mailto:"))
}

/// Resolves `.` and `..`.
fn normalize(path: &Path) -> PathBuf {
    let mut normalized = PathBuf::new();
    for part in path.components() {
        match part {
            Component::ParentDir => {
                normalized.pop();
            }
            Component::CurDir => {}
            part => normalized.push(part),
        }
    }
    normalized
}

#[test]
fn every_link_target_exists() {
    let pages = pages();
    let (mut wrong, mut checked) = (String::new(), 0);
    for (name, page) in &pages {
        for link in links(page) {
            checked += 1;
            let (path, anchor) = link.split_once('#').map_or((link, None), |(path, anchor)| (path, Some(anchor)));
            let target = match path {
                "" => name.clone(),
                path => normalize(&name.parent().unwrap().join(path)),
            };
            let has_anchor = |anchor| pages.get(&target).is_some_and(|page| anchors(page).contains(anchor));
            if !root().join(&target).exists() || anchor.is_some_and(|anchor| !has_anchor(anchor)) {
                wrong += &format!("{}: {link}\n", name.display());
            }
        }
    }
    assert!(checked > 100, "only {checked} links found");
    assert!(wrong.is_empty(), "broken links:\n{wrong}");
}

#[test]
fn table_rows_have_as_many_cells_as_header() {
    let (mut wrong, mut checked) = (String::new(), 0);
    for (name, page) in pages() {
        let mut header = None;
        for line in text(&page) {
            if !line.starts_with('|') {
                header = None;
                continue;
            }
            checked += 1;
            let cells = line.replace("\\|", "").matches('|').count();
            if *header.get_or_insert(cells) != cells {
                wrong += &format!("{}: {line}\n", name.display());
            }
        }
    }
    assert!(checked > 100, "only {checked} rows found");
    assert!(wrong.is_empty(), "rows with a different number of cells than the table header:\n{wrong}");
}

#[test]
fn every_page_named_in_code_exists() {
    let mut paths = Vec::new();
    for name in NAMED_IN {
        files(&root().join(name), &mut paths);
    }
    let (mut wrong, mut checked) = (String::new(), 0);
    for path in paths {
        let Ok(text) = fs::read_to_string(&path) else { continue };
        for (at, _) in text.match_indices("docs/") {
            let name = text[at..].split(|c: char| !c.is_alphanumeric() && !"/-_.".contains(c)).next().unwrap();
            // A preceding `/` means a URL of another project.
            let before = text[..at].chars().next_back();
            if !name.ends_with(".md") || before.is_some_and(|c| c == '/' && !text[..at].ends_with("../")) {
                continue;
            }
            checked += 1;
            if !root().join(name).is_file() {
                wrong += &format!("{}: {name}\n", path.strip_prefix(root()).unwrap().display());
            }
        }
    }
    assert!(checked > 50, "only {checked} page names found");
    assert!(wrong.is_empty(), "missing pages:\n{wrong}");
}

/// Modules of the long tier without a representative: each run has a shorter test of the same subject.
const COVERED: [(&str, &str, &str); 4] = [
    ("idle_nodes", "report.rs", "exactly_the_idle_jobs_are_warned_and_then_cancelled"),
    ("mpi", "images/mpi.rs", "mpi_ranks_in_images_form_one_job"),
    ("session", "session.rs", "killed_clients_leave_no_job"),
    ("transfers", "session.rs", "ssh_connections_share_one_job_and_forward_ports_and_files"),
];

#[test]
fn every_module_of_the_long_tier_is_represented_in_each_run() {
    let folder = root().join("tests/image");
    let read = |name: &str| fs::read_to_string(folder.join(name)).unwrap();
    let long = read("long.rs");
    let modules: BTreeSet<&str> =
        long.lines().filter_map(|line| line.rsplit_once("mod ")?.1.strip_suffix(';')).collect();
    let mut sources = Vec::new();
    files(&folder, &mut sources);
    let sources: String = sources.into_iter().filter_map(|file| fs::read_to_string(file).ok()).collect();
    let representatives = read("representatives");
    let mut represented = BTreeSet::new();
    for test in representatives.lines() {
        let (module, name) = test.strip_prefix("long::").and_then(|test| test.rsplit_once("::")).unwrap();
        assert!(sources.contains(&format!("fn {name}(")), "{test}");
        represented.insert(module.split("::").next().unwrap());
    }
    for (module, file, test) in COVERED {
        assert!(read(file).contains(&format!("fn {test}(")), "{file}: {test}");
        assert!(represented.insert(module), "{module} has a representative");
    }
    assert_eq!(represented, modules);
}

#[test]
fn every_decision_has_required_headings_and_index_entry() {
    let pages = pages();
    let folder = Path::new("docs/decisions");
    let index = &pages[&folder.join("README.md")];
    let listed: BTreeSet<&str> = links(index).filter(|link| !link.contains('/')).collect();
    let (mut wrong, mut checked) = (String::new(), 0);
    for (path, page) in pages.iter().filter(|(path, _)| path.parent() == Some(folder)) {
        let name = path.file_name().unwrap().to_str().unwrap();
        if name == "README.md" {
            continue;
        }
        checked += 1;
        let headings: Vec<&str> = text(page).filter_map(|line| line.strip_prefix("## ")).collect();
        if !matches!(headings[..], ["Context", "Decision"] | ["Context", "Decision", "What was measured"]) {
            wrong += &format!("{name} has the headings {headings:?}\n");
        }
        let title = text(page).next().and_then(|line| line.strip_prefix("# ")).unwrap_or_default();
        if !listed.contains(name) || !index.contains(&format!("- [{title}]({name})")) {
            wrong += &format!("docs/decisions/README.md has no line - [{title}]({name})\n");
        }
    }
    assert!(checked > 10, "only {checked} decisions found");
    assert!(wrong.is_empty(), "{wrong}");
}

/// Names with a placeholder in capital letters are skipped.
#[test]
fn every_file_named_in_contributing_page_exists() {
    let pages = pages();
    let page = &pages[Path::new("docs/contributing.md")];
    let spans = text(page).flat_map(|line| line.split('`').skip(1).step_by(2));
    let is_file = |span: &&str| ["src/", "config/", "docker/", "tests/"].iter().any(|folder| span.starts_with(folder));
    let is_placeholder = |span: &str| span.contains("TABLE") || span.contains("NAME");
    let files: Vec<&str> = spans.filter(is_file).filter(|span| !is_placeholder(span)).collect();
    assert!(files.len() > 10, "only {files:?} found");
    // The first word of a command is the program.
    let missing = |span: &&str| !root().join(span.split(' ').next().unwrap_or_default()).exists();
    let missing: Vec<&str> = files.into_iter().filter(missing).collect();
    assert!(missing.is_empty(), "docs/contributing.md names missing files: {missing:?}");
}
