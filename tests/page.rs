//! The page of `[metrics]` in a browser: desktop and phone, light and dark. Screenshots go to target/tmp.
#![expect(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]
#![expect(clippy::disallowed_methods, reason = "a test is not PID 1, so it may wait for the commands it runs")]

mod browser;
mod site;

use std::path::Path;

use serde_json::{Value, json};

use browser::Browser;
use site::{EVIL_MODEL, EVIL_USER, Site};

const SCREENS: [(&str, (u32, u32)); 2] = [("desktop", (1280, 900)), ("phone", (390, 844))];

const PAGE_STATE_SCRIPT: &str = include_str!("page/look.js");

fn texts(value: &Value) -> Vec<&str> {
    value.as_array().unwrap().iter().map(|text| text.as_str().unwrap()).collect()
}

#[test]
fn server_answers_known_paths_and_own_names_without_rights() {
    let site = Site::start();
    let get = |path: &str| site.response(&format!("GET {path}"), "127.0.0.1");
    for (path, kind, text) in [
        ("/", "text/html", "<!doctype html>"),
        ("/page.css", "text/css", ".trough"),
        ("/page.js", "text/javascript", "/api/state"),
        ("/metrics", "text/plain; version=0.0.4", "slurminit_gpu_utilization"),
        ("/metrics?a=b", "text/plain; version=0.0.4", "slurm_node"),
        ("/api/state", "application/json", "gpu-node-1"),
        ("/api/state", "application/json", "19_[1-99]"),
    ] {
        let response = get(path);
        let head = format!("HTTP/1.1 200 OK\r\ncontent-type: {kind}");
        assert!(response.starts_with(&head) && response.contains(text), "{path}: {response}");
    }
    assert!(get("/page").starts_with("HTTP/1.1 404 "), "{}", get("/page"));
    assert!(site.response("GET /metrics", "evil.example").starts_with("HTTP/1.1 421 "));
    assert!(site.response("GET /metrics", "localhost\r\nHost: evil.example").starts_with("HTTP/1.1 421 "));
    assert!(site.response("POST /metrics", "localhost").starts_with("HTTP/1.1 405 "));
    let (head, body) = get("/").split_once("\r\n\r\n").map(|(head, body)| (head.to_owned(), body.len())).unwrap();
    assert!(body > 0 && site.response("HEAD /", "localhost") == format!("{head}\r\n\r\n"));
    assert_eq!(site.process_field("NoNewPrivs"), "1");
    if nix::unistd::geteuid().is_root() {
        let ids = ["Uid", "Gid"].map(|name| site.process_field(name));
        assert!(ids.iter().all(|ids| ids.split_whitespace().all(|id| id != "0")), "{ids:?}");
        assert_eq!(site.process_field("Groups"), "");
    }
}

#[test]
fn answer_of_slurmctld_is_shared_for_some_seconds_and_files_are_not() {
    let site = Site::start();
    let state = || {
        let response = site.response("GET /api/state", "localhost");
        serde_json::from_str::<Value>(response.split_once("\r\n\r\n").unwrap().1).unwrap().to_string()
    };
    assert!(state().contains("gpu-node-1") && state().contains("97"));
    site.rename_node("renamed");
    site.set_utilization(41);
    let (known, sample) = (state(), site.response("GET /metrics", "localhost"));
    assert!(known.contains("gpu-node-1") && !known.contains("renamed"), "{known}");
    assert!(sample.contains("slurminit_gpu_utilization_ratio") && sample.contains("0.41"), "{sample}");
}

#[test]
#[ignore = "needs Chromium: run docker/test --only page"]
fn browser_renders_every_view_without_external_requests() {
    let mut site = Site::start();
    let mut browser = Browser::start();
    let mut backgrounds = Vec::new();
    for (screen, size) in SCREENS {
        for scheme in ["light", "dark"] {
            browser.open(&site.url("/"), size, scheme);
            browser.wait_for("document.querySelectorAll('#gpus .card, #queue tr, #nodes tr').length > 6");
            let state = browser.value(PAGE_STATE_SCRIPT);
            browser.screenshot(&Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("page-{screen}-{scheme}.png")));
            check(&state, size.0, &format!("{screen}, {scheme}"));
            backgrounds.push(state["background"].clone());
        }
    }
    assert!(
        backgrounds[0] == backgrounds[2] && backgrounds[1] == backgrounds[3] && backgrounds[0] != backgrounds[1],
        "{backgrounds:?}"
    );
    // The page updates without a reload.
    site.set_utilization(3);
    browser.wait_for("document.querySelector('#gpus .card').innerText.includes('\\n3 %')");
    assert!(browser.errors.is_empty(), "{:?}", browser.errors);
    // Stale data is marked.
    site.stop();
    browser.wait_for("document.querySelector('#notes').innerText.includes('Connection lost')");
    browser.screenshot(&Path::new(env!("CARGO_TARGET_TMPDIR")).join("page-lost.png"));
    let external: Vec<&String> =
        browser.requests.iter().filter(|url| !url.starts_with(&site.url("/")) && !url.starts_with("data:")).collect();
    assert!(external.is_empty() && browser.requests.len() >= 8, "{:?}", browser.requests);
}

fn check(state: &Value, width: u32, view: &str) {
    let has = |part: &str, index: usize, words: &[&str]| {
        let texts = texts(&state[part]);
        let text = texts.get(index).unwrap_or_else(|| panic!("{view}: no {part} {index}: {texts:?}"));
        words.iter().for_each(|word| assert!(text.contains(word), "{view}: no {word:?} in {part} {index}: {text:?}"));
    };
    let header = (&state["name"], &state["ready"], &state["live"]);
    assert_eq!(header, (&json!("gpu-node-1"), &json!("ready"), &json!("live")));
    has("titles", 0, &["3 GPUs, 1 free"]);
    has(
        "gpus",
        0,
        &["GPU 0", "NVIDIA H200", "97 %", "33 / 140 GiB", "627 / 700 W", "52 °C", "job 17 of alice for 1 min"],
    );
    has("gpus", 1, &["GPU 1", EVIL_MODEL, &format!("job 18 of {EVIL_USER}"), "out", "fell off the bus"]);
    has("gpus", 2, &["GPU 2", "NVIDIA H200", "0 %", "no job", "free"]);
    has("faults", 0, &["XID 79", "fell off the bus"]);
    has("titles", 2, &["2 running, 2 waiting"]);
    has("queue", 0, &["17 | train | alice | running | 1 | 3"]);
    has("queue", 2, &["after", "bob", "pending", "job 17"]);
    has("queue", 3, &[EVIL_USER, "2 GPUs"]);
    has("titles", 3, &["3 nodes"]);
    has("nodes", 2, &["gpu-node-1", "mixed", "GPU 0: 17 (alice)"]);
    has("nodes", 0, &["drained", "the fan of the power supply"]);
    has("daemons", 0, &["munged | ready"]);
    has("daemons", 1, &["slurmd | backing off", "3"]);
    // Names are inserted as text, not as HTML.
    assert_eq!(state["alien"], json!(0), "{view}");
    // A phone browser widens its viewport if the page is too wide.
    let widths = [&state["width"], &state["whole"]];
    assert_eq!(widths, [&json!(width); 2], "{view}: the page scrolls sideways: {}", state["beyond"]);
    for defect in ["beyond", "cut", "faint"] {
        assert!(texts(&state[defect]).is_empty(), "{view}: {defect}: {}", state[defect]);
    }
}
