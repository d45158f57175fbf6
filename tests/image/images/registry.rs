//! Pulls images from a registry: Debian's docker-registry and skopeo in a container.

use crate::built_image::BuiltImage;
use crate::docker::{Image, PLAIN, tag};

#[test]
#[ignore = "needs Docker and the images: run docker/test"]
fn pulls_image_and_leaves_nothing_after_failed_pull() {
    let base = format!("IMAGE={}", tag(PLAIN));
    let image = BuiltImage::new("registry", "tests/image/images/registry", &[&base]);
    let container = Image::new(&image.0).with(["--hostname", "node1"]).serve();
    container.exec(&["sh", "-c", "docker-registry serve /etc/docker/registry/config.yml >/tmp/registry 2>&1 &"]).ok();
    // The image's only layer: a shell, `cat` and their libraries.
    container.sh(
        "mkdir -p /tmp/tree && cd /tmp/tree && for file in /bin/sh /bin/cat $(ldd /bin/sh /bin/cat | grep -o '/[^ ]*'); do \
         mkdir -p .$(dirname $file) && cp -L $file .$file; done && echo pulled >kind && tar -cf /tmp/tree.tar .",
    );
    container.until("grep -q \"listening on\" /tmp/registry");
    container
        .sh("skopeo copy --quiet --dest-tls-verify=false tarball:/tmp/tree.tar docker://localhost:5000/lab/tools:1");
    let pull = |arguments: &str| container.exec(&["sh", "-c", &format!("slurminit image pull {arguments}")]);
    for source in ["docker://localhost:5000/lab/tools:1", "localhost:5000/lab/tools:1"] {
        pull(&format!("--replace tools {source}")).ok();
        assert_eq!(container.sh("srun --container=tools cat /kind"), "pulled");
    }
    for (arguments, cause) in [
        ("tools localhost:5000/lab/tools:1", "exists"),
        ("other localhost:5000/lab/none:1", "none"),
        ("other dir:/etc", "dir"),
        ("other -- --help", "--help"),
    ] {
        let outcome = pull(arguments);
        assert_ne!(outcome.code, 0, "{arguments}: {outcome:?}");
        assert!(outcome.stderr.contains(cause) && outcome.stdout.is_empty(), "{arguments}: {outcome:?}");
    }
    assert_eq!(container.sh("ls -A /data/images"), "tools");
}
