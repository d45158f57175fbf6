//! Slurm's REST API and its tokens.

use crate::docker::{Container, FULL, Image, PLAIN, Volume, directory};

const REST: &str = "[rest]\nlisten = '127.0.0.1:6820'\n[[user]]\nname = 'alice'\nuid = 1501\n";

/// The response to a GET request. The image has no curl.
fn get(container: &Container, path: &str, token: &str) -> String {
    let header = if token.is_empty() { String::new() } else { format!("X-SLURM-USER-TOKEN: {token}\\r\\n") };
    container.sh(&format!(
        "timeout 20 bash -c \"exec 3<>/dev/tcp/127.0.0.1/6820; printf 'GET {path} HTTP/1.1\\r\\nHost: x\\r\\n{header}Connection: close\\r\\n\\r\\n' >&3; cat <&3\""
    ))
}

#[test]
#[ignore = "needs Docker and the images: run docker/test"]
fn rest_api_accepts_only_valid_token() {
    let config = directory(&[("slurminit.toml", REST)]);
    let state = Volume::new("rest");
    let image = Image::new(FULL).mount(config.path(), "/config").volume(&state, "/var/lib/slurm").json_log();
    let container = image.serve();
    container.until("slurminit status | grep -q \"slurmrestd *ready\"");
    let token = container.sh("slurminit token alice --lifespan 600");
    let ping = get(&container, "/slurm/v0.0.42/ping", &token);
    assert!(ping.starts_with("HTTP/1.1 200") && ping.contains("\"pinged\": \"UP\""), "{ping}");
    container.sh("su alice -c 'cd /tmp; srun --job-name by-rest true'");
    container.sh("timeout 120 sh -c 'until sacct -nX -o State | grep -q COMPLETED; do :; done'");
    let jobs = get(&container, "/slurmdb/v0.0.42/jobs", &token);
    assert!(jobs.contains("by-rest"), "{jobs}");
    for wrong in ["", "eyJhbGciOiJIUzI1NiIsInR5cCI6IkpXVCJ9.eyJleHAiOjk5OTk5OTk5OTksImlhdCI6MCwic3VuIjoicm9vdCJ9.AAAA"]
    {
        let response = get(&container, "/slurm/v0.0.42/nodes", wrong);
        assert!(!response.contains("\"architecture\""), "{response}");
    }
    // A user cannot create a token for another user or read the key.
    let other = container.exec(&["su", "alice", "-c", "slurminit token root"]);
    assert!(other.code == 1 && other.stderr.contains("docs/accounting.md"), "{} {}", other.stdout, other.stderr);
    assert_eq!(
        container.sh("stat -c '%U %a' /var/lib/slurm/jwt /var/lib/slurm/jwt/jwt_hs256.key"),
        "slurm 700\nslurm 600"
    );
    let status = container.sh("cat /proc/$(pidof slurmrestd)/status");
    assert!(status.contains("CapEff:\t0000000000000000"), "{status}");
    // The log contains no token. A token stays valid in a new container with the same volume.
    assert!(!container.log().contains(&token), "{}", container.log());
    // Rejected requests are logged as errors.
    let warned: Vec<_> = container.warnings().into_iter().filter(|record| record["level"] == "warn").collect();
    assert!(warned.is_empty(), "{warned:#?}");
    assert_eq!(container.stop(), 0);
    drop(container);
    let container = image.serve();
    container.until("slurminit status | grep -q \"slurmrestd *ready\"");
    assert!(get(&container, "/slurm/v0.0.42/ping", &token).starts_with("HTTP/1.1 200"));
    // The cluster works without slurmrestd.
    container.sh("pkill -KILL slurmrestd; srun true");
}

#[test]
#[ignore = "needs Docker and the images: run docker/test"]
fn reports_image_without_feature() {
    let config = directory(&[("slurminit.toml", REST)]);
    let outcome = Image::new(PLAIN).mount(config.path(), "/config").run(&["true"]);
    let output = outcome.stderr + &outcome.stdout;
    assert!(outcome.code == 78 && output.contains("--target full"), "{output}");
}
