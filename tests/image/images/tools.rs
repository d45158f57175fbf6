//! Archives of docker, podman, buildah, skopeo, umoci, GNU tar and bsdtar. Unit tests of the crate `images` cover the layouts of tools that
//! are not in Debian: crane, kaniko, ko and Bazel's rules.

use std::process::Command;

use crate::built_image::BuiltImage;
use crate::docker::{Image, PLAIN, docker, tag, unique};
use crate::images::EXPORT;

/// Makes the file tree of the container `$1` the docker image `$2`, with two tags, and imports the output of `docker save` and `export`.
const DOCKER: &str = r#"set -euo pipefail
docker exec "$1" cat /srv/tree.tar | docker import - "$2:1" >/dev/null && docker tag "$2:1" "$2:2"
docker save "$2:1" "$2:2" | docker exec --interactive "$1" slurminit image import docker-save
docker save "$2:1" | gzip | docker exec --interactive "$1" slurminit image import docker-save-gzip
docker create --name "$2" "$2:1" sh >/dev/null
docker export "$2" | docker exec --interactive "$1" slurminit image import docker-export
"#;

#[test]
#[ignore = "needs Docker and the images: run docker/test"]
fn archives_of_real_tools_import_and_run() {
    let image = BuiltImage::new("tools", "tests/image/images/tools", &[&format!("IMAGE={}", tag(PLAIN))]);
    // buildah and podman need the right to mount.
    let options = ["--cap-add", "SYS_ADMIN", "--security-opt", "seccomp=unconfined", "--hostname", "node1"];
    let container = Image::new(&image.0).with(options).serve();
    container.sh(EXPORT);
    container.sh("archives");
    container.sh("cd /srv/archives && for name in *; do slurminit image import $name $name || exit; done");
    let name = unique("tools");
    let written = Command::new("bash").args(["-c", DOCKER, "bash", &container.name, &name]).output();
    docker(["rm", "--force", &name]);
    docker(["image", "rm", "--force", &format!("{name}:1"), &format!("{name}:2")]);
    let written = written.expect("bash is installed");
    assert!(written.status.success(), "{written:?}");
    let images = container.sh("ls /data/images");
    assert_eq!(images.lines().count(), 21, "{images}");
    for image in images.lines() {
        let step = container.exec(&["srun", &format!("--container={image}"), "cat", "/etc/mark"]);
        assert_eq!(step.ok(), "inside\n", "{image}");
        let record = container.sh(&format!("slurminit image show {image} --json"));
        assert!(record.contains("\"skipped\": 1"), "the FIFO is left out: {image}: {record}");
    }
}
