//! The verbs that send requests to PID 1, with the real daemons.

use crate::docker::{Image, PLAIN};

#[test]
#[ignore = "needs Docker and the images: run docker/test"]
fn restarts_each_daemon_on_request_and_step_continues() {
    let container = Image::new(PLAIN).serve();
    let count = "for i in $(seq 150); do echo $i >> /tmp/count; sleep 0.1; done";
    container.sh(&format!(
        "srun sh -c '{count}' > /dev/null 2>&1 & timeout 120 sh -c 'until test -s /tmp/count; do sleep 0.1; done'"
    ));
    for name in ["slurmd", "slurmctld", "munged"] {
        let restart = container.exec(&["slurminit", "restart", name]);
        assert_eq!(restart.code, 0, "{restart:?}\n{}", container.log());
    }
    container.until("test $(wc -l < /tmp/count) = 150");
    assert_eq!(container.sh("seq 150 | cmp - /tmp/count && echo whole"), "whole", "the step lost a number");
    assert_eq!(container.sh("slurminit status --json | grep -c '\"restarts\": 1,'"), "3");
    container.wait_until_healthy();
    assert_eq!(container.sh("srun hostname | wc -l"), "1");
    assert!(container.sh("slurminit logs slurmctld").contains(" slurmctld: "));
    container.sh("slurminit stop");
    assert_eq!(container.exit_code(), 0, "{}", container.log());
}
