//! Both backends must show a job in an image the same files and variables.

use std::fmt::Write as _;

use crate::docker::{Container, Image, Outcome, PLAIN, directory, docker};
use crate::images::EXPORT;

const CONFIGURATION: &str = r#"
[images]
mounts = ["/srv/reference", "/opt/site/deep"]
[[user]]
name = "alice"
uid = 1501
home = "/people/alice"
"#;

/// Mounts at a path that the image does not contain, inside the image's /usr, and over a file of the image. Some variables have names
/// that only begin like those of a job (HOME, USER).
const BUNDLE: &str = r#"{
    "root": { "path": "/data/images/small/rootfs" },
    "process": { "env": ["PATH=/opt/none:/usr/bin", "HOMEBREW_PREFIX=/brew", "USERNAME_OF=image", "HOME=/root", "SLURM_JOB_ID=0", "LANG=C"] },
    "mounts": [
        { "destination": "/mnt/one/two", "source": "/srv/reference", "options": ["bind"] },
        { "destination": "/usr/share/site/file", "source": "/srv/reference/file", "options": ["rbind"] },
        { "destination": "/etc/mark", "source": "/srv/reference", "options": ["bind"] }
    ]
}"#;

/// The checks: a label, and a shell line that prints the result.
const CHECKS: &[(&str, &str)] = &[
    ("working directory", "pwd"),
    ("file there", "cat marker"),
    ("writable there", ": >made && echo yes"),
    ("home", "echo $HOME; cd && pwd"),
    ("mode of the home", "stat -c '%U %a %F' ~"),
    ("writable home", ": >~/made && echo yes"),
    ("user", "id"),
    ("umask", "umask"),
    ("open files", "ulimit -n; ulimit -Hn"),
    (
        "processes",
        "cat /proc/self/limits | { while read -r line; do case $line in *processes*) echo $line;; esac; done; }",
    ),
    ("core size", "ulimit -c"),
    ("stack", "ulimit -s"),
    ("locked memory", "ulimit -l"),
    ("priority", "cat /proc/self/stat | { read -r line; set -- $line; echo ${18} ${19}; }"),
    ("cgroup", "cat /proc/self/cgroup | { read -r line; case $line in *step_*|*/) echo step;; esac; }"),
    ("/tmp", "stat -c '%F %a' /tmp; : >/tmp/made-$SLURM_JOB_ID && echo writable"),
    ("/var/tmp", "stat -c '%F %a' /var/tmp; : >/var/tmp/made-$SLURM_JOB_ID && echo writable"),
    ("/data", "stat -c %F /data /data/images"),
    ("/home", "stat -c %F /home"),
    ("/dev", "stat -c '%F %t %T' /dev/null /dev/zero /dev/urandom /dev/tty; echo x >/dev/null && echo writable"),
    ("/dev/shm", ": >/dev/shm/made-$SLURM_JOB_ID && echo writable"),
    ("/dev/fd", "echo through | cat /dev/fd/0"),
    ("GPU", "stat -c '%F %t %T' /dev/nvidia0; : <>/dev/nvidia0 && echo open; echo $CUDA_VISIBLE_DEVICES"),
    ("/proc", "stat -c %F /proc/self/status; cat /proc/sys/kernel/ostype"),
    ("/sys", "stat -c %F /sys/kernel"),
    ("hosts", "cat /etc/hosts | { n=0; while read -r line; do n=$((n + 1)); done; test $n -gt 0 && echo some; }"),
    ("resolver", "cat /etc/resolv.conf >/dev/null && echo there"),
    ("accounts", "cat /etc/passwd | { while read -r line; do case $line in alice:*) echo $line;; esac; done; }"),
    ("groups", "cat /etc/group | { while read -r line; do case $line in alice:*) echo $line;; esac; done; }"),
    ("time zone", "stat -L -c %F /etc/localtime"),
    ("Slurm's configuration", "stat -c %F /etc/slurm/slurm.conf"),
    ("munge's socket", "stat -c %F /run/munge/munge.socket.2"),
    ("configured mount", "cat /srv/reference/file"),
    ("configured mount without a place", "cat /opt/site/deep/file; stat -c %F /opt /opt/site"),
    ("the bundle's mount without a place", "cat /mnt/one/two/file"),
    ("the bundle's mount inside /usr", "cat /usr/share/site/file; stat -c %F /usr/bin/env"),
    ("the bundle's mount on a file", "cat /etc/mark/file"),
    ("image's link", "stat -c %F /lib /usr/lib; cat /lib64/../etc/kept"),
    ("image's own file", "cat /etc/kept"),
    ("image is closed", "(: >/etc/new) 2>/dev/null || echo closed; (: >/usr/new) 2>/dev/null || echo closed"),
    ("root is closed", "(: >/new) 2>/dev/null || echo closed"),
    ("search path", "echo $PATH"),
    ("variables of the image", "echo $HOMEBREW_PREFIX $USERNAME_OF $LANG"),
    ("variables of the job", "test \"$SLURM_JOB_ID\" -gt 0 && echo $SLURM_PROCID $GIVEN"),
    ("no library path", "echo ${LD_LIBRARY_PATH-unset}"),
    ("Slurm's commands", "scontrol ping | { read -r line; case $line in *UP*) echo up;; esac; }"),
    ("descriptors", "set -- /proc/self/fd/*; echo $#"),
];

/// Lines that end a step, each run in a separate step: `srun` must return the same code with both backends.
const ENDS: &[&str] = &[
    "exit 7",
    "kill -TERM $$",
    "kill -KILL $$",
    "kill -SEGV $$",
    "exec /no/such/program",
    "exec /etc",
    "exec /etc/kept",
    "trap 'echo caught; exit 5' USR1; kill -USR1 $$; sleep 5",
];

fn serve(options: &[&str]) -> (tempfile::TempDir, tempfile::TempDir, Container) {
    let (config, work) = (directory(&[("slurminit.toml", CONFIGURATION)]), directory(&[("marker", "mounted\n")]));
    let image = Image::new(PLAIN).with(["--device", "/dev/null:/dev/nvidia0"]).with(["--env", "GPU_TYPE=nvidia"]);
    let image = image.mount(config.path(), "/config").with(["--hostname", "node1", "--workdir", "/work"]);
    let image = image.with(["--volume", &format!("{}:/work", work.path().display())]);
    let image = options.iter().fold(image, |image, option| image.with([option]));
    let container = image.serve();
    container.sh("chmod 777 /work && mkdir -p /srv/reference /opt/site/deep /data/bundle");
    container.sh("echo genome >/srv/reference/file && echo deep >/opt/site/deep/file && umask 022");
    container.sh(EXPORT);
    // Like some real images, this one has a dangling link where a file of the container is mounted, and no /tmp.
    container.sh(
        "cd /tmp/image && mkdir -p opt/none && printf '#!/bin/sh\necho own\n' >opt/none/tty && chmod 755 opt/none/tty",
    );
    container.sh("cd /tmp/image && mkdir -p usr/share && ln -s ../run/none/resolv.conf etc/resolv.conf && echo kept >etc/kept && tar -c . >/tmp/image.tar");
    container.sh("slurminit image import small /tmp/image.tar");
    container.sh(&format!("cat >/data/bundle/config.json <<'END'\n{BUNDLE}\nEND"));
    container.sh(&format!("cat >/work/checks <<'END'\n{}\nEND", script()));
    (config, work, container)
}

fn script() -> String {
    CHECKS.iter().fold(String::new(), |mut text, (label, check)| {
        let _ = writeln!(text, "echo \"== {label}\"; ( {check} )");
        text
    })
}

fn alice(container: &Container, line: &str) -> Outcome {
    docker(["exec", "--user", "alice", &container.name, "sh", "-c", line])
}

#[test]
#[ignore = "needs Docker and the images: run docker/test"]
fn both_backends_show_jobs_the_same_environment() {
    let profile = format!("seccomp={}", harness::root().join("docker/seccomp-userns.json").display());
    let (_proot_config, _proot_work, proot) = serve(&[]);
    let (_config, _work, namespaces) = serve(&["--security-opt", &profile]);
    assert_ne!(proot.exec(&["slurminit", "oci", "--probe", "namespaces"]).code, 0);
    assert_eq!(namespaces.exec(&["slurminit", "oci", "--probe", "namespaces"]).code, 0);
    let step = "GIVEN=given srun --gres=gpu:1 --container=/data/bundle sh /work/checks 2>&1";
    let [traced, inside] = [&proot, &namespaces].map(|container| alice(container, step).stdout);
    let results = |text: &str| text.split("== ").map(str::to_owned).collect::<Vec<_>>();
    for (traced, inside) in results(&traced).iter().zip(&results(&inside)) {
        assert_eq!(inside, traced, "namespaces, then PRoot");
    }
    let expect = |label: &str, value: &str| {
        let found = results(&inside).into_iter().find(|result| result.starts_with(&format!("{label}\n")));
        assert_eq!(found.as_deref(), Some(format!("{label}\n{value}\n").as_str()), "{inside}");
    };
    expect("working directory", "/work");
    expect("file there", "mounted");
    expect("home", "/people/alice\n/people/alice");
    expect("writable home", "yes");
    expect("configured mount without a place", "deep\ndirectory\ndirectory");
    expect("the bundle's mount without a place", "genome");
    expect("the bundle's mount inside /usr", "genome\nregular file");
    expect("the bundle's mount on a file", "genome");
    expect("image's own file", "kept");
    expect("image is closed", "closed\nclosed");
    expect("variables of the image", "/brew image C");
    expect("variables of the job", "0 given");
    expect("Slurm's commands", "up");
    expect("GPU", "character special file 1 3\nopen\n0");
    for end in ENDS {
        let step = format!("srun --container=/data/bundle sh -c '{}' 2>/dev/null; echo $?", end.replace('\'', "'\\''"));
        let [traced, inside] = [&proot, &namespaces].map(|container| alice(container, &step).stdout);
        assert_eq!(inside, traced, "{end}");
    }
    // A name is searched for in the PATH of the image, which finds a different program than in the container. A path is used as it is
    // typed, even inside the image.
    for (name, output) in [
        ("/no/such/program", "126\n"),
        ("nothing", "126\n"),
        ("tty", "own\n0\n"),
        ("/usr/bin/tty", "not a tty\n1\n"),
        ("sh -c 'srun --overlap --container=/data/bundle tty'", "own\n0\n"),
        ("sh -c 'srun --overlap --container=/data/bundle /usr/bin/tty'", "not a tty\n1\n"),
    ] {
        let step = format!("srun --container=/data/bundle {name} 2>/dev/null; echo $?");
        assert_eq!(alice(&proot, &step).stdout, output, "{name}");
        assert_eq!(alice(&namespaces, &step).stdout, output, "{name}");
    }
}

/// A bundle's `ro` and `readonly` apply to root, too. PRoot cannot enforce them: jobs with `ro` are refused, and `readonly` causes a
/// warning.
#[test]
#[ignore = "needs Docker and the images: run docker/test"]
fn read_only_mounts_of_bundle_cannot_be_written() {
    let profile = format!("seccomp={}", harness::root().join("docker/seccomp-userns.json").display());
    for options in [&["--security-opt", profile.as_str()][..], &[]] {
        let (_config, _work, container) = serve(options);
        let bundle = r#"{"root": {"path": "/data/images/small/rootfs", "readonly": true}, "mounts": [MOUNT]}"#;
        let run = |mount: &str| {
            container.sh(&format!("cat >/data/bundle/config.json <<'END'\n{}\nEND", bundle.replace("MOUNT", mount)));
            let write = "for file in /mnt/file /etc/kept /etc/new; do (echo changed >$file) 2>/dev/null && echo $file; done; cat /etc/kept";
            container.exec(&["srun", "--container=/data/bundle", "sh", "-c", write])
        };
        let closed = run(r#"{"destination": "/mnt", "source": "/srv/reference", "options": ["rbind", "ro"]}"#);
        assert_eq!(container.sh("cat /srv/reference/file"), "genome", "{closed:?}");
        if options.is_empty() {
            assert!(closed.code != 0 && closed.stderr.contains("/mnt"), "{closed:?}");
            // `ro` is accepted for /sys, because every step has the container's /sys.
            let open = run(r#"{"destination": "/sys", "source": "/sys", "options": ["rbind", "ro"]}"#);
            assert!(open.code == 0 && open.stderr.contains("readonly"), "{open:?}");
        } else {
            assert_eq!((closed.stdout.as_str(), closed.code), ("kept\n", 0), "{closed:?}");
        }
    }
}

/// renameat2(2) with flags fails, as on NFS, CephFS, Lustre and 9p. unshare(2) is allowed but mounts are not, as with Ubuntu's AppArmor: jobs run
/// with PRoot.
#[test]
#[ignore = "needs Docker and the images: run docker/test"]
fn store_needs_no_flags_of_renameat2() {
    let text = std::fs::read_to_string(harness::root().join("docker/seccomp-userns.json")).unwrap();
    let mut profile: serde_json::Value = serde_json::from_str(&text).unwrap();
    let rules = profile["syscalls"].as_array_mut().unwrap();
    rules.retain_mut(|rule| {
        let names = rule["names"].as_array_mut().unwrap();
        names.retain(|name| name != "renameat2" && name != "mount");
        !names.is_empty()
    });
    let flags = |operator: &str| serde_json::json!([{"index": 4, "value": 0, "op": operator}]);
    rules.push(serde_json::json!({"names": ["renameat2"], "args": flags("SCMP_CMP_EQ"), "action": "SCMP_ACT_ALLOW"}));
    rules.push(
        serde_json::json!({"names": ["renameat2"], "args": flags("SCMP_CMP_NE"), "action": "SCMP_ACT_ERRNO", "errnoRet": 22}),
    );
    let files = directory(&[("profile.json", &profile.to_string())]);
    let (_config, _work, container) =
        serve(&["--security-opt", &format!("seccomp={}", files.path().join("profile.json").display())]);
    let exchange =
        "perl -e 'my ($a, $b) = (q(/work/a), q(/work/b)); syscall(316, -100, $a, -100, $b, 2); exit($! != 22)'";
    container.sh(&format!("touch /work/a /work/b; {exchange}"));
    let probe = container.exec(&["slurminit", "oci", "--probe", "namespaces"]);
    assert!(probe.code != 0 && probe.stderr.contains("mount"), "{probe:?}");
    let import = |options: &str| {
        container.exec(&["sh", "-c", &format!("slurminit image import {options} small /tmp/image.tar")])
    };
    assert!(import("").stderr.contains("exists"));
    container.sh("cd /tmp/image && echo second >etc/kept && tar -c . >/tmp/image.tar");
    import("--replace").ok();
    assert_eq!(container.exec(&["srun", "--container=small", "cat", "/etc/kept"]).ok(), "second\n");
    assert_eq!(container.sh("ls -A /data/images"), "small");
    container.sh("slurminit image remove small");
    assert_eq!(container.sh("ls -A /data/images"), "");
    import("").ok();
}
