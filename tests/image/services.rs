//! Services: users, dependencies and readiness commands.

use std::time::{Duration, Instant};

use serde_json::Value;

use crate::docker::{Image, PLAIN, directory};

/// Prints the user, groups and relevant variables of a process.
const WHO: &str = r#"echo "$(id -un) $(id -Gn) $HOME $USER $LOGNAME $SECRET""#;

const CONFIG: &str = r#"
[supervise]
probe_interval = 1
probe_timeout = 1

[[service]]
name = "api"
user = "worker"
command = ["sh", "-c", "WHO > /tmp/main; exec sleep 1000"]
env = { SECRET = "of-the-unit" }
readiness = { command = ["sh", "-c", "WHO > /tmp/readiness"] }
liveness = { command = ["sh", "-c", "WHO > /tmp/liveness"] }

[[service]]
name = "hangs-once"
command = ["sleep", "1000"]
readiness = { command = ["sh", "-c", "test -e /tmp/asked || { touch /tmp/asked; sleep 1000; }"], timeout = 600 }

[[service]]
name = "migrate"
restart = "never"
command = ["sh", "-c", "sleep 0.2; touch /tmp/migrated"]

[[service]]
name = "app"
after = ["migrate"]
command = ["sh", "-c", "test -e /tmp/migrated && touch /tmp/app; exec sleep 1000"]

[[service]]
name = "broken"
restart = "never"
command = ["sh", "-c", "test -e /tmp/repaired"]

[[service]]
name = "waits"
essential = true
after = ["broken"]
command = ["sleep", "1000"]

[[hooks.pre_start]]
command = ["sh", "-c", "useradd --create-home worker && usermod --append --groups video worker"]
"#;

#[test]
#[ignore = "needs Docker and the images: run docker/test"]
fn services_respect_user_and_order_and_survive_hung_readiness() {
    let config = directory(&[("slurminit.toml", &CONFIG.replace("WHO", &WHO.replace('"', "\\\"")))]);
    let container = Image::new(PLAIN).mount(config.path(), "/config").start();
    let unit = |name: &str| -> Value {
        let status: Value =
            serde_json::from_str(&container.exec(&["cat", "/run/slurminit/status.json"]).stdout).unwrap_or_default();
        status["units"].as_array().into_iter().flatten().find(|unit| unit["name"] == name).cloned().unwrap_or_default()
    };
    let wait_for = |name: &str, state: &str| {
        let deadline = Instant::now() + Duration::from_secs(60);
        while unit(name)["state"] != state {
            assert!(Instant::now() < deadline, "{name} is not {state}: {}", unit(name));
            std::thread::sleep(Duration::from_millis(100));
        }
    };

    wait_for("hangs-once", "ready");
    assert_eq!(unit("hangs-once")["starts"], 1);
    container.until("test -e /tmp/app");
    assert_eq!(unit("migrate")["state"], "finished");
    assert_eq!((unit("broken")["state"].as_str(), unit("waits")["starts"].as_u64()), (Some("finished"), Some(0)));
    assert_ne!(container.exec(&["slurminit", "health"]).code, 0, "an essential service cannot start");
    container.sh("touch /tmp/repaired && slurminit restart broken");
    wait_for("waits", "ready");
    container.wait_until_healthy();

    let who = "worker worker video /home/worker worker worker of-the-unit";
    // With a source in addition to files, slurminit looks up the groups through NSS in a separate program.
    for sources in ["files", "files sss"] {
        container
            .sh(&format!("rm -f /tmp/main /tmp/readiness /tmp/liveness; echo 'group: {sources}' > /etc/nsswitch.conf"));
        container.sh("slurminit restart api");
        for file in ["main", "readiness", "liveness"] {
            container.until(&format!("test -s /tmp/{file}"));
            assert_eq!(container.sh(&format!("cat /tmp/{file}")), who, "{file}, {sources}");
        }
    }
    let restarts = unit("api")["restarts"].as_u64();
    assert_eq!(restarts, Some(2), "more restarts than requested");
}
