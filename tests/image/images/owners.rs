//! Attacks by a user on the jobs of another user or of root that run in images.

use tempfile::TempDir;

use crate::docker::{Container, Image, Outcome, PLAIN, Volume, directory, docker};
use crate::images::{CONFIGURATION, EXPORT, alice};

fn as_user(container: &Container, user: &str, line: &str) -> Outcome {
    docker(["exec", "--user", user, "--workdir", "/tmp", &container.name, "sh", "-c", line])
}

/// Starts a cluster on a volume where alice has created the directory of shared images, with an image that claims to be root's import.
fn serve_with_planted_image(volume: &Volume) -> (TempDir, Container) {
    let mount = format!("{}:/data", volume.name);
    let plant = "mkdir -p /data/images/ubuntu/rootfs/bin; echo '{\"imported_by\": \"root\"}' >/data/images/ubuntu/image.json; \
        printf '#!/bin/sh\\nid >>/tmp/ran\\n' >/data/images/ubuntu/rootfs/bin/hello; chmod -R 755 /data/images; \
        chown -R 1501:1501 /data/images";
    docker(["run", "--rm", "--volume", &mount, "--entrypoint", "sh", &crate::docker::tag(PLAIN), "-ec", plant]).ok();
    let config = directory(&[("slurminit.toml", CONFIGURATION)]);
    let container = Image::new(PLAIN).mount(config.path(), "/config").volume(volume, "/data").json_log().serve();
    container.sh(EXPORT);
    (config, container)
}

#[test]
#[ignore = "needs Docker and the images: run docker/test"]
fn image_of_another_user_is_neither_used_nor_adopted() {
    let volume = Volume::new("images");
    let (_config, container) = serve_with_planted_image(&volume);
    let refused = |user: &str| {
        let step = as_user(&container, user, "srun --container=ubuntu hello");
        assert!(step.code != 0 && step.stderr.contains("uid 1501"), "{user}: {step:?}");
        assert_ne!(container.exec(&["cat", "/tmp/ran"]).code, 0, "{user} ran alice's program");
    };
    let import = container.exec(&["slurminit", "image", "import", "small", "/tmp/image.tar"]);
    assert!(import.code != 0 && import.stderr.contains("chown 0 /data/images"), "{import:?}");
    ["bob", "root"].iter().for_each(|user| refused(user));
    assert_eq!(container.records("images-untrusted").len(), 1, "{}", container.log());
    // The directory now belongs to root, as after an import by an earlier version, but its content does not.
    container.sh("chown root:root /data/images && slurminit image import small /tmp/image.tar");
    ["bob", "root"].iter().for_each(|user| refused(user));
    let list = as_user(&container, "bob", "slurminit image list");
    assert!(!list.stdout.contains("ubuntu") && list.stderr.contains("slurminit image remove ubuntu"), "{list:?}");
    assert_eq!(as_user(&container, "bob", "srun --container=small cat /etc/mark").ok(), "inside\n");
    container.sh("slurminit image remove ubuntu && slurminit image import ubuntu /tmp/image.tar");
    assert_eq!(as_user(&container, "bob", "srun --container=ubuntu cat /etc/mark").ok(), "inside\n");
}

pub(crate) fn root_runs_and_imports_nothing_that_alice_can_change(container: &Container) {
    assert_eq!(container.sh("stat -c '%U %a' /data/images"), "root 755");
    assert_ne!(as_user(container, "alice", "mkdir /data/images/x").code, 0);
    container.sh("chmod g+w /data/images");
    let list = as_user(container, "alice", "slurminit image list");
    assert!(list.stderr.contains("chmod go-w /data/images") && !list.stdout.contains("import one"), "{list:?}");
    container.sh("chmod g-w /data/images");
    // HOME decides which images are used as root's own.
    let plant = "mkdir -p ~/.local/share/slurminit/images/planted/rootfs; echo '{}' >~/.local/share/slurminit/images/planted/image.json; \
        cp -r /tmp/image /tmp/theirs";
    alice(container, plant).ok();
    for name in ["planted", "/tmp/theirs"] {
        let step = container.exec(&["sh", "-c", &format!("HOME=/home/alice srun --container={name} id")]);
        assert!(step.code != 0 && step.stderr.contains("uid 1501"), "{name}: {step:?}");
    }
    assert_eq!(as_user(container, "bob", "srun --container=/tmp/theirs cat /etc/mark").ok(), "inside\n");
    alice(container, "rm -r ~/.local").ok();
    container.sh("mkdir -m 700 /root/private && echo secret >/root/private/file");
    alice(container, "ln -s /root/private /data/tree; ln -s /root/private/file /data/archive; mkfifo /data/fifo").ok();
    for path in ["/data/tree", "/data/archive", "/data/fifo", "/root/private"] {
        let import = container.exec(&["timeout", "10", "slurminit", "image", "import", "leak", path]);
        assert!(import.code == 1 && import.stderr.contains(path), "{path}: {import:?}");
    }
    container.sh("! [ -e /data/images/leak ]");
    assert!(container.sh("bash -c 'slurminit image import piped <(cat /tmp/image.tar)'").contains("imported piped"));
    container.sh("slurminit image remove piped");
}

/// slurmstepd creates directories for each step, some of them as root, and removes files in them as root.
pub(crate) fn directories_of_steps_give_no_user_rights_of_another(container: &Container) {
    let stat = "cd /run/slurminit/oci && stat -c '%n %u %a' . 0 1501";
    assert_eq!(container.sh(stat), ". 0 711\n0 0 700\n1501 1501 700");
    for line in ["mkdir /run/slurminit/oci/7", "ls /run/slurminit/oci/1502", "ls /run/slurminit/oci/0"] {
        assert_ne!(as_user(container, "alice", line).code, 0, "{line}");
    }
    // Only root can create files in a directory that its owner cannot write: a link there would give alice access to any file.
    alice(container, "chmod 500 /run/slurminit/oci/1501").ok();
    let step = alice(container, "srun --container=small id");
    assert!(step.code != 0 && !step.stdout.contains("uid"), "slurmstepd created directories as root: {step:?}");
    alice(container, "chmod 700 /run/slurminit/oci/1501").ok();
    // slurmctld keeps the environment of each batch job in a file of this name.
    container.sh("mkdir -m 755 /srv/victim && echo kept >/srv/victim/environment");
    let step = "srun --container=small sh -c 'echo $SLURM_JOB_ID-$SLURM_STEP_ID-$SLURMD_NODENAME >/data/step; \
        while ! [ -e /data/go ]; do sleep 0.1; done'";
    docker(["exec", "--detach", "--user", "alice", "--workdir", "/home/alice", &container.name, "sh", "-c", step]).ok();
    container.until("test -s /data/step");
    let swap = "cd /run/slurminit/oci/1501; rm -rf *; name=$(cat /data/step); mkdir $name; \
        ln -s /srv/victim $name/task-0; ln -s /srv/victim $name-0; touch /data/go";
    alice(container, swap).ok();
    container.until("test -z \"$(squeue --noheader)\"");
    assert_eq!(container.sh("cat /srv/victim/environment"), "kept");
    alice(container, "rm -rf /run/slurminit/oci/1501/*").ok();
    assert_eq!(container.sh("srun --container=small id -u"), "0");
}

/// An account of a directory service is not in /etc/passwd, so slurmstepd creates its directory, open to the account's primary group.
pub(crate) fn slurmstepd_makes_closed_directory_of_unknown_account(container: &Container) {
    container.sh("rmdir /run/slurminit/oci/1501");
    assert_eq!(alice(container, "srun --container=small id -u").ok(), "1501\n");
    assert_eq!(container.sh("stat -c '%u %a' /run/slurminit/oci/1501"), "1501 700");
    // The directory as slurmstepd creates it, before the first step closes it.
    container.sh("cd /run/slurminit/oci; mkdir 1503; chown 1503:1502 1503; chmod 770 1503");
    for line in ["ls", "ln -s /etc/passwd", "touch"] {
        let denied = as_user(container, "1502:1502", &format!("cd /run/slurminit/oci; {line} 1503/7-0-localhost-0"));
        assert!(denied.stderr.contains("denied"), "{line}: {denied:?}");
    }
    container.sh("rmdir /run/slurminit/oci/1503");
}

/// PRoot runs outside the image: variables of the image or of the step could make it load their libraries.
pub(crate) fn proot_gets_no_variable_of_image_or_step(container: &Container) {
    let bundle =
        r#"{"root": {"path": "/data/images/small/rootfs"}, "process": {"env": ["LD_LIBRARY_PATH=/data/evil"]}}"#;
    container.sh(&format!("mkdir /data/bundle && echo '{bundle}' >/data/bundle/config.json"));
    let step = "GCONV_PATH=/data/evil PROOT_LOADER=/data/evil srun --container=/data/bundle \
        sh -c 'echo $LD_LIBRARY_PATH $GCONV_PATH $PROOT_LOADER >/data/inside; sleep 100'";
    docker(["exec", "--detach", "--user", "alice", "--workdir", "/home/alice", &container.name, "sh", "-c", step]).ok();
    container.until("grep -qs evil /data/inside");
    assert_eq!(container.sh("cat /data/inside"), "/data/evil /data/evil /data/evil");
    let processes = docker(["top", &container.name, "-eo", "pid,args"]).ok();
    let pid = processes.lines().find(|line| line.contains(" proot ")).and_then(|line| line.split_whitespace().next());
    let environment = std::fs::read_to_string(format!("/proc/{}/environ", pid.expect(&processes))).expect("needs root");
    assert_eq!(environment, "");
    container.sh("scancel --user=alice");
    container.until("test -z \"$(squeue --noheader)\"");
}
