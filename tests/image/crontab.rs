//! scrontab. It waits for the next full minute, so its name lets it begin early among the tests.

use crate::docker::{Image, PLAIN};

#[test]
#[ignore = "needs Docker and the images: run docker/test"]
fn runs_a_line_each_minute() {
    let container = Image::new(PLAIN).serve();
    container.sh("echo '* * * * * touch /tmp/by-the-clock' >/tmp/table; scrontab /tmp/table");
    assert_eq!(container.sh("scrontab -l | tail -n 1"), "* * * * * touch /tmp/by-the-clock");
    // The next full minute, and sched_interval.
    container.wait_until(150, "[ -e /tmp/by-the-clock ]").ok();
}
