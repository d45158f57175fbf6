//! scrontab. The module name sorts early because the test waits for the next full minute.

use crate::docker::{Image, PLAIN};

#[test]
#[ignore = "needs Docker and the images: run docker/test"]
fn runs_crontab_entry_at_next_minute() {
    let container = Image::new(PLAIN).serve();
    container.sh("echo '* * * * * touch /tmp/by-the-clock' >/tmp/table; scrontab /tmp/table");
    assert_eq!(container.sh("scrontab -l | tail -n 1"), "* * * * * touch /tmp/by-the-clock");
    // Up to one minute until the entry is due, plus sched_interval.
    container.wait_until(150, "[ -e /tmp/by-the-clock ]").ok();
}
