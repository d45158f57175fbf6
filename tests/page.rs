//! The page of `[metrics]` as a browser shows it, on a desktop and a phone, light and dark. Pictures go to target/tmp.
#![expect(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]
#![expect(clippy::disallowed_methods, reason = "a test is no PID 1: it may wait for the commands that it runs")]

#[path = "page/browser.rs"]
mod browser;
#[path = "page/site.rs"]
mod site;

use std::path::Path;

use serde_json::{Value, json};

use browser::Browser;
use site::{EVIL_MODEL, EVIL_USER, Site};

const SCREENS: [(&str, (u32, u32)); 2] = [("desktop", (1280, 900)), ("phone", (390, 844))];

const LOOK: &str = include_str!("page/look.js");

fn texts(value: &Value) -> Vec<&str> {
    value.as_array().unwrap().iter().map(|text| text.as_str().unwrap()).collect()
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
            let seen = browser.value(LOOK);
            browser.picture(&Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("page-{screen}-{scheme}.png")));
            check(&seen, size.0, &format!("{screen}, {scheme}"));
            backgrounds.push(seen["background"].clone());
        }
    }
    assert!(
        backgrounds[0] == backgrounds[2] && backgrounds[1] == backgrounds[3] && backgrounds[0] != backgrounds[1],
        "{backgrounds:?}"
    );
    // What changes is drawn anew, without a reload.
    site.utilization(3);
    browser.wait_for("document.querySelector('#gpus .card').innerText.includes('\\n3 %')");
    assert!(browser.complaints.is_empty(), "{:?}", browser.complaints);
    // What is old is not passed off as new.
    site.stop();
    browser.wait_for("document.querySelector('#notes').innerText.includes('Connection lost')");
    browser.picture(&Path::new(env!("CARGO_TARGET_TMPDIR")).join("page-lost.png"));
    let foreign: Vec<&String> =
        browser.requests.iter().filter(|url| !url.starts_with(&site.url("/")) && !url.starts_with("data:")).collect();
    assert!(foreign.is_empty() && browser.requests.len() >= 8, "{:?}", browser.requests);
}

fn check(seen: &Value, width: u32, on: &str) {
    let has = |part: &str, number: usize, words: &[&str]| {
        let texts = texts(&seen[part]);
        let text = texts.get(number).unwrap_or_else(|| panic!("{on}: {part} has no {number}: {texts:?}"));
        words.iter().for_each(|word| assert!(text.contains(word), "{on}: {part} {number} lacks {word:?}: {text:?}"));
    };
    assert_eq!((&seen["name"], &seen["ready"], &seen["live"]), (&json!("gpu-node-1"), &json!("ready"), &json!("live")));
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
    // A name is a text and nothing else.
    assert_eq!(seen["alien"], json!(0), "{on}");
    // A phone makes its screen wider where the page is too wide.
    let wide = [&seen["width"], &seen["whole"]];
    assert_eq!(wide, [&json!(width); 2], "{on}: it scrolls sideways: {}", seen["beyond"]);
    for fault in ["beyond", "cut", "faint"] {
        assert!(texts(&seen[fault]).is_empty(), "{on}: {fault}: {}", seen[fault]);
    }
}
