//! rsync and sftp of a large file through a real ssh into a job. The daily tests copy 64 MiB.

use std::time::{Duration, Instant};

use crate::built_image::BuiltImage;
use crate::docker::{FULL, Image, tag};
use crate::session::Site;

#[test]
#[ignore = "needs Docker and the images: run docker/test"]
fn copies_one_gigabyte_with_rsync_and_sftp() {
    let image = BuiltImage::new("session", "tests/image/session", &[&format!("IMAGE={}", tag(FULL))]);
    let site = Site::start_on(Image::new(&image.0));
    site.configure("alice", "--keep 0");
    site.login("alice", "head -c 1G /dev/urandom >big; ssh -o StrictHostKeyChecking=no gpu true").ok();
    for (tool, line) in [
        ("rsync", "rsync --archive big gpu:copy"),
        ("sftp, put", "echo put big copy | sftp -q -b - gpu"),
        ("sftp, get", "echo get big copy | sftp -q -b - gpu"),
    ] {
        let begin = Instant::now();
        site.login("alice", line).ok();
        eprintln!("{tool}: {:.1} s", begin.elapsed().as_secs_f64());
        site.login("alice", "cmp big copy && rm copy").ok();
    }
    // A directory tree; a second run copies nothing.
    site.login("alice", "mkdir --parents tree/a/b && seq 200 | split --lines 1 - tree/a/b/").ok();
    let copy =
        "rsync --archive --delete --stats tree/ gpu:copied | sed -n 's/^Number of regular files transferred: //p'";
    assert_eq!([copy, copy].map(|line| site.login("alice", line).ok()), ["200\n", "0\n"]);
    site.login("alice", "diff -r tree copied").ok();
    site.wait_until_free(Duration::from_secs(60));
}
