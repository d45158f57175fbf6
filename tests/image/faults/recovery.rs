//! Recovery time of each daemon after SIGKILL: twenty kills each, in one container.

use super::case::LIBRARY;
use crate::docker::{Image, PLAIN, directory};

/// Each daemon, and a shell condition that holds once it serves requests.
const PROBES: [(&str, &str); 3] = [
    ("munged", "munge -n 2>/dev/null | unmunge >/dev/null 2>&1"),
    ("slurmctld", "scontrol ping 2>/dev/null | grep -q 'is UP'"),
    // A job needs both: slurmd listening and the node in service.
    ("slurmd", "scontrol show slurmd >/dev/null 2>&1 && sinfo --noheader --format=%T | grep -Eqx 'idle|mixed'"),
];

const KILLS: usize = 20;

#[test]
#[ignore = "needs Docker and the images: run docker/test"]
fn each_daemon_answers_after_twenty_kills() {
    // Each crash counts as the first: no backoff and no crash loop.
    let toml = "[supervise]\nreset_after = 0.001\ngive_up_after = 1000\n";
    let files = directory(&[("slurminit.toml", toml), ("library", LIBRARY)]);
    let container = Image::new(PLAIN).with(["--hostname", "node1"]).mount(files.path(), "/config").serve();
    for (name, probe) in PROBES {
        let script = format!(
            ". /config/library; i=0; while [ $i -lt {KILLS} ]; do i=$((i+1)); old=$(pid {name}); \
             begin=$(date +%s%N); kill -KILL $old; until renewed {name} && {probe}; do :; done; \
             echo $(( ($(date +%s%N) - begin) / 1000000 )); until slurminit health >/dev/null; do sleep 0.05; done; done"
        );
        let printed = container.exec(&["timeout", "600", "sh", "-c", &script]);
        let mut times: Vec<u64> = printed.stdout.lines().filter_map(|line| line.parse().ok()).collect();
        assert_eq!(times.len(), KILLS, "{name}: {printed:?}\n{}", container.log());
        times.sort_unstable();
        let median = times[KILLS / 2];
        println!("{name}: median {median} ms, {} to {}", times[0], times[KILLS - 1]);
    }
}
