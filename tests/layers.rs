//! Who may use whom: docs/architecture.md, "One direction". Read from the sources, so that a wrong import fails like a wrong result.

use std::fs;
use std::path::{Path, PathBuf};

/// The modules of the crate from the bottom up. A module uses those of the lines above its own, and of its own line itself alone.
const LAYERS: [&[&str]; 18] = [
    &["exit_code", "inherited", "pidfd", "printable", "proc", "secret_variables", "text_type", "walk", "watch"],
    &["tool"],
    &["inventory", "leftovers", "lock"],
    &["gpu_health", "job_map"],
    &["config", "prepared", "sbatch_args", "token"],
    &["accounts", "control", "load_config", "logs", "mail", "memory_guard"],
    &["plan", "take_token", "take_variables"],
    &["detect", "render"],
    &["install", "supervise"],
    &["configure", "holders", "oom_score", "planned", "start", "timeline"],
    &["free_port", "init", "nodes", "now", "reloading", "state_disk"],
    &["agent"],
    &["associations", "doctor", "health", "liveness", "overview"],
    &["metrics", "top"],
    &["jobs", "prepare", "up"],
    &["commands"],
    &["cli"],
    &["lib", "main"],
];

/// What nothing pure does: IO, clocks, the environment.
const IMPURE: [&str; 10] = [
    "std::fs",
    "std::process::",
    "std::net",
    "std::env",
    "std::os::unix::net",
    "Instant::now",
    "SystemTime::now",
    "tokio::",
    "tracing::",
    "nix::unistd",
];

fn rank(module: &str) -> Option<usize> {
    LAYERS.iter().position(|layer| layer.contains(&module))
}

/// The program's part of a file, without comments.
fn code(text: &str) -> String {
    let program = text.split("#[cfg(test)]\nmod tests").next().unwrap_or_default();
    program.lines().map(|line| line.split("//").next().unwrap_or_default()).collect::<Vec<_>>().join("\n")
}

/// The paths after `crate::`, those in braces one by one.
fn imports(code: &str) -> Vec<String> {
    let path = |text: &str| text.split(|c: char| !c.is_alphanumeric() && !"_:".contains(c)).next().map(str::to_owned);
    let mut found = Vec::new();
    for rest in code.split("crate::").skip(1) {
        match rest.strip_prefix('{') {
            Some(list) => {
                let mut depth = 0;
                // What follows the statement has braces of its own.
                let list = list.split(';').next().unwrap_or_default();
                let inner = list.split(|c| {
                    depth += i32::from(c == '{') - i32::from(c == '}');
                    depth < 0 || (depth == 0 && c == ',')
                });
                found.extend(inner.filter_map(|part| path(part.trim())));
            }
            None => found.extend(path(rest)),
        }
    }
    found.retain(|path| path.chars().next().is_some_and(char::is_lowercase));
    found
}

/// Whether the header of a file says so.
fn is(text: &str, kind: &str) -> bool {
    let header = text.lines().take_while(|line| line.starts_with("//!"));
    header.flat_map(|line| line.split([' ', ';', ':'])).any(|word| word.trim_end_matches('.') == kind)
}

/// What is wrong with a file of the crate. `source` reads another one.
fn faults(file: &Path, text: &str, source: &dyn Fn(&Path) -> Option<String>) -> Vec<String> {
    let own = file.components().next().map(|part| part.as_os_str().to_string_lossy().replace(".rs", ""));
    let own = own.unwrap_or_default();
    let code = code(text);
    let mut faults = Vec::new();
    for import in imports(&code) {
        let module = import.split("::").next().unwrap_or_default();
        let (Some(from), Some(to)) = (rank(&own), rank(module)) else {
            if rank(&own).is_none() || Path::new("src").join(format!("{module}.rs")).exists() {
                faults.push(format!("{own} or {module} stands in no layer"));
            }
            continue;
        };
        if own != module && to >= from {
            faults.push(format!("crate::{import}: {own} must not use {module}"));
        }
        if is(text, "PURE") && used_file(&import, source).is_some_and(|text| is(&text, "EDGE") && !is(&text, "PURE")) {
            faults.push(format!("crate::{import}: an edge, in a pure module"));
        }
    }
    if is(text, "PURE") {
        let impure = IMPURE.iter().filter(|word| code.contains(*word));
        faults.extend(impure.map(|word| format!("{word} in a pure module")));
    }
    faults.into_iter().map(|fault| format!("src/{}: {fault}", file.display())).collect()
}

/// The file of the innermost module of a path.
fn used_file(import: &str, source: &dyn Fn(&Path) -> Option<String>) -> Option<String> {
    let mut parts: Vec<&str> = import.split("::").filter(|part| !part.is_empty()).collect();
    while !parts.is_empty() {
        if let Some(text) = source(&PathBuf::from(parts.join("/")).with_extension("rs")) {
            return Some(text);
        }
        parts.pop();
    }
    None
}

fn sources(directory: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(directory).into_iter().flatten().flatten() {
        let path = entry.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        match path.is_dir() {
            true if name != "tests" && name != "snapshots" => sources(&path, found),
            false if name.ends_with(".rs") && name != "tests.rs" => found.push(path),
            _ => {}
        }
    }
}

fn source(file: &Path) -> Option<String> {
    fs::read_to_string(Path::new("src").join(file)).ok()
}

#[test]
fn every_module_uses_only_what_lies_below_it_and_what_is_pure_does_nothing() {
    let mut files = Vec::new();
    sources(Path::new("src"), &mut files);
    assert!(files.len() > 200, "{}", files.len());
    let faults = files.iter().flat_map(|path| {
        let text = fs::read_to_string(path).unwrap();
        faults(path.strip_prefix("src").unwrap(), &text, &source)
    });
    assert_eq!(faults.collect::<Vec<_>>(), [""; 0]);
}

#[test]
fn what_is_planted_is_found() {
    for (file, planted, found) in [
        ("plan/node.rs", "//! x\n//!\n//! PURE.\nfn f() { std::fs::read(\"x\"); }", "std::fs in a pure module"),
        ("plan/node.rs", "use crate::render::Text;", "plan must not use render"),
        ("config.rs", "use crate::{exit_code, install::Owner};", "config must not use install"),
        ("config.rs", "use crate::{exit_code,\n    install::{Owner, under}};", "config must not use install"),
        ("supervise/machine.rs", "//! PURE\nuse crate::walk::Dir;", "an edge, in a pure module"),
        ("new.rs", "use crate::plan::Plan;", "new or plan stands in no layer"),
    ] {
        let faults = faults(Path::new(file), planted, &source);
        assert!(faults.iter().any(|fault| fault.contains(found)), "{planted}: {faults:?}");
    }
    for fine in ["// crate::commands::run\nuse crate::config::{Config, Level};", "use crate::inventory::Finding;"] {
        assert_eq!(faults(Path::new("plan/node.rs"), fine, &source), [""; 0], "{fine}");
    }
}
