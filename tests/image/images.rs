//! Jobs in container images, run by PRoot in a plain container. The `long` test suite repeats them in user namespaces.

#[path = "images/owners.rs"]
mod owners;

use std::fs;
use std::os::unix::fs::{PermissionsExt as _, symlink};

use tempfile::TempDir;

use crate::docker::{Container, DEMO, Image, Outcome, PLAIN, directory, docker};

pub(crate) const CONFIGURATION: &str = r#"
[images]
mounts = ["/srv/reference"]
[slurm.conf]
SlurmdLogFile = "/var/log/slurm/slurmd.log"
[[user]]
name = "alice"
uid = 1501
[[user]]
name = "bob"
uid = 1502
"#;

/// Creates a root file system with a shell and a few programs, in the format of `docker export`.
pub(crate) const EXPORT: &str = r#"set -e
mkdir -p /tmp/image/etc && echo inside >/tmp/image/etc/mark && ln -s usr/bin usr/lib usr/lib64 /tmp/image/
cd / && programs=$(for name in sh env id cat sleep echo stat tty yes; do echo "usr/bin/$name"; done)
libraries=$(for name in $programs; do ldd "$name"; done | grep -o '/[^ ]*' | sort -u | xargs -n 1 readlink -f)
for library in $libraries; do mkdir -p "/tmp/image$(dirname "$library")"; done
for name in $programs; do mkdir -p /tmp/image/usr/bin && cp -L "$name" /tmp/image/usr/bin/; done
for name in $(for name in $programs; do ldd "$name"; done | grep -o '/[^ ]*' | sort -u); do
    target=$(readlink -f "$(dirname "$name")"); mkdir -p "/tmp/image$target" && cp -L "$name" "/tmp/image$target/"
done
tar -C /tmp/image -c . >/tmp/image.tar && chmod 644 /tmp/image.tar"#;

/// Starts a cluster with the image `small`. Keep the returned directory: dropping it changes the container's configuration.
pub(crate) fn serve(options: &[&str]) -> (TempDir, Container) {
    serve_on(Image::new(PLAIN).with(["--device", "/dev/null:/dev/nvidia0"]).with(["--env", "GPU_TYPE=nvidia"]), options)
}

fn serve_on(image: Image, options: &[&str]) -> (TempDir, Container) {
    let config = directory(&[("slurminit.toml", CONFIGURATION)]);
    let image = image.mount(config.path(), "/config").with(["--hostname", "node1"]);
    let image = options.iter().fold(image, |image, option| image.with([option]));
    let container = image.serve();
    container.sh(EXPORT);
    container.sh("mkdir --parents /srv/reference && echo genome >/srv/reference/file");
    container.sh("slurminit image import small /tmp/image.tar");
    (config, container)
}

/// `docker exec -u alice -w /home/alice NAME sh -c LINE`
pub(crate) fn alice(container: &Container, line: &str) -> Outcome {
    let outcome = docker(["exec", "--user", "alice", "--workdir", "/home/alice", &container.name, "sh", "-c", line]);
    // slurmstepd writes errors that occur before it has the step's output only to SlurmdLogFile.
    if outcome.stderr.contains("launch failed") {
        eprintln!("{}", container.sh("cat /var/log/slurm/slurmd.log"));
    }
    outcome
}

/// Asserts that a line has the same exit code and output with and without the image. Returns the output.
#[track_caller]
fn same(container: &Container, line: &str) -> String {
    let run = |options: &str| {
        let Outcome { code, stdout, .. } = alice(container, &line.replace("OPTIONS", options));
        (code, stdout)
    };
    let outside = run("");
    let inside = run("--container=small");
    assert_eq!(inside, outside, "{line}");
    inside.1
}

pub(crate) fn jobs_behave_as_without_an_image(container: &Container) {
    let ok = |line: &str| alice(container, line).ok();
    assert_eq!(ok("srun --container=small cat /etc/mark"), "inside\n");
    // Arguments arrive unchanged: quotes, spaces, empty strings and shell syntax.
    let typed = r#"srun OPTIONS sh -c 'for a; do echo "[$a]"; done' x "it's" "''" 'a  b' '$(id)' '' '"' '\' '*' "a
b""#;
    assert_eq!(same(container, typed), "[it's]\n['']\n[a  b]\n[$(id)]\n[]\n[\"]\n[\\]\n[*]\n[a\nb]\n");
    for script in ["exit 7", "exit 0", "kill -TERM $$", "kill -KILL $$", "kill -SEGV $$"] {
        same(container, &format!("srun OPTIONS sh -c '{script}'; echo $?"));
    }
    same(container, "srun OPTIONS /no/such/program; test $? -ne 0; echo $?");
    assert_eq!(same(container, "srun OPTIONS id -u"), "1501\n");
    same(container, "srun OPTIONS sh -c 'id; pwd; echo $HOME; umask; ulimit -n; stat -c %U:%a ~'");
    same(container, "echo typed | srun OPTIONS cat");
    same(container, "srun --ntasks=2 --overcommit OPTIONS sh -c 'echo $SLURM_PROCID' | sort");
    same(
        container,
        "srun --gres=gpu:1 OPTIONS sh -c 'echo $CUDA_VISIBLE_DEVICES; stat -c %F /dev/nvidia0; : <>/dev/nvidia0 && echo open'",
    );
    same(container, "srun --chdir=/data OPTIONS sh -c pwd");
    assert_eq!(same(container, "srun OPTIONS cat /srv/reference/file"), "genome\n");
    same(container, "srun OPTIONS sh -c 'sleep 1000 & exit 4'; echo $?");
    same(container, "srun OPTIONS sh -c 'yes | { read -r line; echo $line; }'");
    same(
        container,
        "script -qec 'srun --pty OPTIONS sh -c \"tty >/dev/null && echo terminal\"' /dev/null | grep -c terminal",
    );
    ok("srun --container=small sh -c 'echo made >~/made && echo data >/data/made'");
    assert_eq!(ok("cat ~/made /data/made"), "made\ndata\n");
    assert_eq!(ok("srun --container=small sh -c 'scontrol show job $SLURM_JOB_ID' | grep -c Container=small"), "1\n");
    assert_eq!(ok("srun --container=small sh -c 'srun --overlap --container=small cat /etc/mark'"), "inside\n");
    let missing = alice(container, "srun --container=missing true");
    assert!(missing.code != 0 && missing.stderr.contains("missing"), "{missing:?}");
}

pub(crate) fn batch_jobs_behave_as_without_an_image(container: &Container) {
    let ok = |line: &str| alice(container, line).ok();
    let script = "#!/bin/sh\ncat /etc/mark\necho \"it's $1 $SLURM_ARRAY_TASK_ID\"\nexit 3\n";
    ok(&format!("printf '%s' '{}' >job && chmod 755 job", script.replace('\'', "'\\''")));
    let job = "sbatch --parsable --wait --array=1-2 --output=out-%a --container=small job \"o'ne\"";
    assert_eq!(alice(container, job).code, 3);
    assert_eq!(ok("cat out-1 out-2"), "inside\nit's o'ne 1\ninside\nit's o'ne 2\n");
    // `--batch` and `--full` each deliver the signal to the script once.
    ok(
        "printf '#!/bin/sh\ntrap \"echo heard\" USR1\ntrap \"exit 5\" USR2\necho up\nwhile :; do sleep 0.1; done\n' >listener",
    );
    let id = ok("sbatch --parsable --output=heard.out --container=small listener");
    container.until("grep -qs up /home/alice/heard.out");
    for (option, count) in [("--batch", 1), ("--full", 2)] {
        ok(&format!("scancel {option} --signal=USR1 {id}"));
        container.until(&format!("test \"$(grep -c heard /home/alice/heard.out)\" -ge {count}"));
    }
    // A script that handles a signal to all processes decides the job's exit code.
    ok(&format!("scancel --full --signal=USR2 {id}"));
    container.until("test -z \"$(squeue --noheader)\"");
    assert_eq!(ok("grep -c heard heard.out"), "2\n");
    assert_eq!(ok(&format!("scontrol show job {} | grep -o ExitCode=.*", id.trim())).trim(), "ExitCode=5:0");
    // A cancelled job gets SIGTERM, and no process or bundle remains.
    ok("printf '#!/bin/sh\ntrap \"echo notice; exit 0\" TERM\necho up\nwhile :; do sleep 0.1; done\n' >long");
    let id = ok("sbatch --parsable --output=long.out --container=small long");
    container.until("grep -qs up /home/alice/long.out");
    ok(&format!("scancel --full {id}"));
    container.until("grep -qs notice /home/alice/long.out");
    container.until("test -z \"$(squeue --noheader)\"");
    let state = ok(&format!("scontrol show job {} | grep -o JobState=[A-Z]*", id.trim()));
    assert_eq!(state, "JobState=CANCELLED\n");
    container.until("test \"$(pgrep -c -u alice)\" = 0");
    assert_eq!(container.sh("find /run/slurminit/oci -mindepth 2 | wc -l"), "0", "bundle not removed");
}

pub(crate) fn images_belong_to_their_users(container: &Container) {
    let ok = |line: &str| alice(container, line).ok();
    ok("slurminit image import mine /tmp/image.tar && srun --container=mine cat /etc/mark");
    assert!(ok("slurminit image list").contains("mine"));
    assert!(!container.sh("slurminit image list").contains("mine"));
    let denied = alice(container, "slurminit image remove small");
    assert_eq!(denied.code, 1, "{denied:?}");
    // As in Slurm, a path names a bundle or a root file system.
    assert_eq!(ok("srun --container=/tmp/image cat /etc/mark"), "inside\n");
    ok("slurminit image remove mine");
    assert_eq!(container.sh("find /home/alice/.local /data/images -perm /6022 ! -type l | wc -l"), "0");
}

/// An empty file is enough as the library, because only its name (the driver version) is read.
#[test]
#[ignore = "needs Docker and the images: run docker/test"]
fn gpu_step_warns_about_image_requiring_newer_driver() {
    let library = directory(&[("libcuda.so", "")]);
    let mount = format!("{}:/usr/lib/libcuda.so.550.54.15:ro", library.path().join("libcuda.so").display());
    // NVML reports the CUDA release.
    let (_config, container) = serve_on(Image::new(DEMO), &["--volume", &mount]);
    let bundle =
        r#"{"root": {"path": "/data/images/small/rootfs"}, "process": {"env": ["NVIDIA_REQUIRE_CUDA=cuda>=99.0"]}}"#;
    container.sh(&format!("mkdir /data/bundle && echo '{bundle}' >/data/bundle/config.json"));
    let warnings = |line: &str| {
        let outcome = alice(&container, &format!("{line} echo"));
        assert_eq!(outcome.code, 0, "{outcome:?}");
        let is_warning =
            |line: &&str| ["image /data/bundle needs", "550.54.15", "99.0"].iter().all(|text| line.contains(text));
        outcome.stderr.lines().filter(is_warning).count()
    };
    assert_eq!(warnings("srun --gres=gpu:1 --ntasks=2 --overcommit --container=/data/bundle"), 1);
    assert_eq!(warnings("srun --container=/data/bundle"), 0);
    assert_eq!(warnings("srun --gres=gpu:1 --container=small"), 0);
    container.sh("mkdir -p /data/musl/lib && touch /data/musl/lib/ld-musl-x86_64.so.1");
    let musl = alice(&container, "srun --gres=gpu:1 --container=/data/musl true");
    assert!(musl.stderr.contains("image /data/musl has no glibc"), "{musl:?}");
    assert!(musl.stderr.contains("No such file") && musl.code == 126, "{musl:?}");
}

/// GKE's device plugin mounts the driver this way. The library content is not used.
#[test]
#[ignore = "needs Docker and the images: run docker/test"]
fn jobs_in_images_find_driver_mounted_as_directory() {
    let driver = directory(&[]);
    let at = |name: &str| driver.path().join(name);
    for name in ["lib64", "bin"] {
        fs::create_dir(at(name)).unwrap();
    }
    fs::write(at("lib64/libcuda.so.580.159.04"), "library\n").unwrap();
    symlink("libcuda.so.580.159.04", at("lib64/libcuda.so.1")).unwrap();
    fs::write(at("bin/nvidia-tool"), "#!/bin/sh\necho tool\n").unwrap();
    fs::set_permissions(at("bin/nvidia-tool"), fs::Permissions::from_mode(0o755)).unwrap();
    let mount = format!("{}:/usr/local/nvidia:ro", driver.path().display());
    let (_config, container) = serve(&["--volume", &mount]);
    let find = "IFS=:; for path in $LD_LIBRARY_PATH; do cat $path/libcuda.so.1; done; nvidia-tool";
    let outcome = alice(&container, &format!("srun --gres=gpu:1 --container=small sh -c '{find}'"));
    assert_eq!(outcome.ok(), "library\ntool\n");
}

#[test]
#[ignore = "needs Docker and the images: run docker/test"]
fn images_run_in_a_plain_container() {
    let (_config, container) = serve(&[]);
    assert_ne!(
        container.exec(&["slurminit", "oci", "--probe", "namespaces"]).code,
        0,
        "the default profile allows namespaces"
    );
    jobs_behave_as_without_an_image(&container);
    batch_jobs_behave_as_without_an_image(&container);
    images_belong_to_their_users(&container);
    owners::root_runs_and_imports_nothing_that_alice_can_change(&container);
    owners::directories_of_steps_give_no_user_rights_of_another(&container);
    owners::slurmstepd_makes_closed_directory_of_unknown_account(&container);
    owners::proot_gets_no_variable_of_image_or_step(&container);
}
