//! `slurminit oci`, as slurmstepd runs it for a step of root's job. It runs in its own mount namespace.

mod proot;
mod pull;

use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::os::unix::net::UnixListener;

use serde_json::json;

use super::*;

/// The directory of Slurm's bundles and those of programs that tests replace. The working directory is that of the test.
const SETUP: &str = r#"
cd "$1"
mount -t tmpfs -o mode=755 run /run && mkdir -p /run/slurminit/oci/0/step && chmod 700 /run/slurminit/oci/0
cp environment /run/slurminit/oci/0/step/environment
mkdir -p programs && mount --bind /usr/bin programs && mount -t tmpfs -o mode=755 programs /usr/bin
programs/ln -s "$1"/programs/* /usr/bin/
rm -f /usr/bin/proot /usr/bin/skopeo && cp --recursive --preserve=mode stand-ins/. /usr/bin
oci() { cd work && exec "$0" oci --environment /run/slurminit/oci/0/step/environment "$@"; }
"#;

/// The container of a step, with a bundle at `bundle` whose image has links to the container's /usr.
struct Container {
    _keep: tempfile::TempDir,
    directory: PathBuf,
}

impl Container {
    fn new() -> Self {
        let (keep, directory) = scratch();
        let container = Self { _keep: keep, directory };
        for (name, mode) in [
            ("bundle/image/etc", 0o755),
            ("bundle/image/opt", 0o705),
            ("bundle/image/usr", 0o755),
            ("bundle/image/srv", 0o755),
            ("bundle/image/.slurminit-former", 0o755),
            ("bundle/reference", 0o755),
            ("stand-ins", 0o755),
            ("work", 0o755),
            ("home", 0o755),
        ] {
            fs::create_dir_all(container.path(name)).unwrap();
            container.set_mode(name, mode);
        }
        container.set_mode("bundle/image", 0o755);
        for name in ["bin", "lib", "lib64"] {
            symlink(Path::new("usr").join(name), container.path("bundle/image").join(name)).unwrap();
        }
        // The step gets all these files of the container, so none of them is missing in the image.
        for name in ["hosts", "resolv.conf", "passwd", "group", "localtime"] {
            container.write(&format!("bundle/image/etc/{name}"), "of the image\n");
        }
        container.write("bundle/image/etc/mark", "of the image\n");
        container.write("bundle/reference/file", "genome\n");
        container.bundle(json!({}));
        container.environment(&[]);
        container
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.join(name)
    }

    fn set_mode(&self, name: &str, mode: u32) {
        fs::set_permissions(self.path(name), fs::Permissions::from_mode(mode)).unwrap();
    }

    fn write(&self, name: &str, text: &str) {
        fs::write(self.path(name), text).unwrap();
    }

    /// Installs a program in place of one of /usr/bin.
    fn stand_in(&self, name: &str, program: impl AsRef<[u8]>) {
        let file = format!("stand-ins/{name}");
        fs::write(self.path(&file), program).unwrap();
        self.set_mode(&file, 0o755);
    }

    /// Writes the bundle's config.json. The image always gets /usr; `changes` replaces keys.
    fn bundle(&self, changes: serde_json::Value) {
        let usr = json!({ "destination": "/usr", "source": "/usr", "options": ["rbind"] });
        let mut config = json!({ "root": { "path": "image" }, "mounts": [usr] });
        for (key, value) in changes.as_object().unwrap() {
            match config[key].as_array_mut() {
                Some(list) => list.extend(value.as_array().unwrap().iter().cloned()),
                None => config[key] = value.clone(),
            }
        }
        self.write("bundle/config.json", &config.to_string());
    }

    /// Sets the variables of the step, after its search path and its home directory.
    fn environment(&self, variables: &[&str]) {
        let home = format!("HOME={}", self.path("home").display());
        let all = [&["PATH=/nowhere:/usr/bin", &home], variables].concat();
        self.write("environment", &(all.join("\0") + "\0"));
    }

    /// A step with the image. The part of a shell script `start` calls `oci`.
    fn step(&self, start: &str, image: &str, arguments: &[&str]) -> Command {
        let quoted = arguments.iter().map(|word| format!("'{}' ", word.replace('\'', "'\"'\"''"))).collect::<String>();
        let script = format!("{SETUP}{start}");
        let mut command = Command::new("unshare");
        command.args(["--mount", "--propagation", "private", "--", "bash", "-c", &script, slurminit()]);
        command.arg(&self.directory).env("SLURMINIT_STEP", format!("/bin/sh -c : # slurminit {quoted}{image}"));
        command.env_remove("SLURMINIT_CONFIG");
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }

    /// Runs a line of a shell in an image without programs.
    fn sh_in(&self, start: &str, image: &str, line: &str) -> End {
        let sh = self.path("sh");
        fs::copy("/bin/sh", &sh).unwrap();
        let arguments = [LOADER, "--library-path", "/.slurminit/lib", sh.to_str().unwrap(), "-c", line];
        run(self.step(start, image, &arguments))
    }

    /// Runs a line of a shell in the image of the bundle.
    fn sh(&self, start: &str, line: &str) -> End {
        run(self.step(start, self.path("bundle").to_str().unwrap(), &["sh", "-c", line]))
    }
}

/// The dynamic loader of the container in an image.
const LOADER: &str = if cfg!(target_arch = "aarch64") {
    "/.slurminit/lib/ld-linux-aarch64.so.1"
} else {
    "/.slurminit/lib/ld-linux-x86-64.so.2"
};

/// Checks in an image: a line of a shell, and its output.
type Checks<'a> = &'a [(&'a str, &'a str)];

#[track_caller]
fn check(container: &Container, start: &str, checks: Checks<'_>) {
    let lines: Vec<String> = checks.iter().map(|(line, _)| format!("({line}) 2>&1; echo .")).collect();
    let end = container.sh(start, &lines.join("\n"));
    let outputs: Vec<&str> = end.stdout.split_terminator(".\n").collect();
    assert_eq!((outputs.len(), end.code), (checks.len(), 0), "{}{}", end.stdout, end.stderr);
    for ((line, expected), output) in checks.iter().zip(outputs) {
        assert_eq!(output.trim_end(), *expected, "{line}");
    }
}

#[test]
fn image_in_namespaces_has_files_of_container_and_stays_unchanged() {
    let container = Container::new();
    let image = container.path("bundle/image");
    container.write("bundle/image/srv/mark", "of the image\n");
    symlink("/proc/self/root", image.join("magic")).unwrap();
    symlink("/nowhere", image.join("srv/dangling")).unwrap();
    fs::create_dir(image.join("srv/directory")).unwrap();
    // A file that cannot be opened, only mounted.
    let _socket = UnixListener::bind(image.join("socket")).unwrap();
    let mount =
        |destination: &str, source: &str| json!({ "destination": destination, "source": source, "options": ["bind"] });
    container.bundle(json!({
        "process": { "env": ["A=image"] },
        "mounts": [
            mount("/mnt/one/two", "reference"),
            mount("opt/site/deep/file", "reference/file"),
            mount("/srv/mark", "reference"),
            mount("/srv/directory", "reference/file"),
            mount("/srv/dangling", "reference/file"),
            mount("/magic/file", "reference/file"),
            { "destination": "/mnt/closed", "source": "reference", "options": ["rbind", "ro"] },
            { "destination": "/none", "source": "/none", "options": [] },
        ],
    }));
    container.environment(&["A=job", "B=x y"]);
    let tree = || sh_output(&format!("cd '{}' && find . -printf '%p %m %y %l\n' | sort", image.display()));
    let before = tree();
    let work = container.path("work");
    check(
        &container,
        "ls /proc/self/fd >descriptors; oci",
        &[
            ("cat /etc/mark", "of the image"),
            ("pwd", work.to_str().unwrap()),
            ("echo $A $B $HOME", &format!("image x y {}", container.path("home").display())),
            (
                "cmp /etc/hosts /usr/bin/../../etc/hosts && [ \"$(cat /etc/hosts)\" != 'of the image' ] && echo same",
                "same",
            ),
            ("cat /mnt/one/two/file /opt/site/deep/file", "genome\ngenome"),
            ("cat /srv/mark/file /srv/directory /srv/dangling", "genome\ngenome\ngenome"),
            // The link would lead the mount out of its place.
            ("cat /magic/file; [ -L /magic ] || [ -e /file ] || echo replaced", "genome\nreplaced"),
            ("stat --format=%F /socket", "socket"),
            ("cat /mnt/closed/file; (: >/mnt/closed/new) 2>/dev/null || echo closed", "genome\nclosed"),
            ("stat --format=%a /opt /opt/site", "705\n755"),
            // Nothing but the image and its mounts is there, and what was added is closed.
            ("cd / && echo .[!.]*; (: >/new) 2>/dev/null || echo closed", ".slurminit\nclosed"),
            ("(: >/opt/new) 2>/dev/null || echo closed", "closed"),
            (
                "grep ' - tmpfs slurminit ' /proc/self/mountinfo | cut -d ' ' -f 5,6 | sort",
                "/ ro,nosuid,nodev,relatime\n/opt ro,nosuid,nodev,relatime\n/srv ro,nosuid,nodev,relatime",
            ),
            ("ls /proc/self/fd >descriptors; diff ../descriptors descriptors && echo same", "same"),
            ("echo written >/etc/made && cat /etc/made", "written"),
        ],
    );
    assert_eq!(fs::read_to_string(image.join("etc/made")).unwrap(), "written\n");
    fs::remove_file(image.join("etc/made")).unwrap();
    assert_eq!(tree(), before);
}

fn sh_output(script: &str) -> String {
    let output = Command::new("sh").args(["-c", script]).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn files_of_read_only_image_cannot_be_written() {
    let container = Container::new();
    let _socket = UnixListener::bind(container.path("bundle/image/socket")).unwrap();
    container.bundle(json!({ "root": { "path": "image", "readonly": true } }));
    let checks = [
        ("(: >/etc/new) 2>/dev/null || echo closed", "closed"),
        ("(: >/etc/mark) 2>/dev/null || echo closed", "closed"),
        (": >/tmp/new && rm /tmp/new && : >made && echo open", "open"),
    ];
    check(&container, "oci", &checks);
    assert_eq!(fs::read_to_string(container.path("bundle/image/etc/mark")).unwrap(), "of the image\n");
    assert!(container.path("work/made").exists());
}

#[test]
fn image_is_found_by_name_in_home_of_user_and_among_those_of_all() {
    let container = Container::new();
    let home = container.path("home/.local/share/slurminit/images");
    fs::create_dir_all(home.parent().unwrap()).unwrap();
    container.environment(&[&format!("HOME={}", container.path("home").display())]);
    let import = |name: &str, images: &Path| {
        let image = container.path("bundle/image");
        container.write("slurminit.toml", &format!("[images]\ndirectory = {images:?}\n"));
        let mut import = Command::new(slurminit());
        import.args(["image", "import", name]).arg(image).env("SLURMINIT_CONFIG", container.path("slurminit.toml"));
        let output = import.output().unwrap();
        assert!(output.status.success(), "{output:?}");
    };
    import("mine", &home);
    import("ours", &container.path("images"));
    for name in ["mine", "ours"] {
        let end = container.sh_in("oci --images \"$PWD/images\"", name, "read -r line </etc/mark; echo $line");
        assert_eq!(end.stdout, "of the image\n", "{}", end.stderr);
    }
    let missing = container.sh_in("oci --images \"$PWD/images\"", "none", "true");
    let directories = format!("{} and {};", home.display(), container.path("images").display());
    assert!(missing.stderr.contains(&directories) && missing.code == 126, "{}", missing.stderr);
}

#[test]
fn program_that_cannot_be_executed_is_named() {
    let container = Container::new();
    let (missing, denied) = ("No such file or directory (os error 2)", "Permission denied (os error 13)");
    let lacks = "; this program or its interpreter is missing in the image";
    for (path, program, why, more) in [
        ("/usr/bin", "none", missing, lacks),
        ("/usr/bin", "/etc/mark", denied, ""),
        // As in a shell, the search continues past a file that cannot be executed, and past one in place of a directory.
        ("/etc:/nowhere", "mark", denied, ""),
        ("/etc/mark:/nowhere", "mark", missing, lacks),
    ] {
        container.bundle(json!({ "process": { "env": [format!("PATH={path}")] } }));
        let end = run(container.step("oci", container.path("bundle").to_str().unwrap(), &[program, "x"]));
        let expected = format!("slurminit: cannot execute {program} in the image: {why}{more}\n");
        assert_eq!((end.stderr.as_str(), end.code), (expected.as_str(), 126));
    }
}

#[test]
fn only_first_task_with_gpu_warns_that_image_needs_newer_driver() {
    let container = Container::new();
    // The container runtime has mounted the driver's directory; only the names of its files are read.
    let driver = "mount -t tmpfs driver /usr/src && mkdir /usr/src/lib64 && echo library >/usr/src/lib64/libcuda.so.550.54.15\n\
        ln -s libcuda.so.550.54.15 /usr/src/lib64/libcuda.so.1; oci --cuda 12.4";
    container.bundle(json!({ "process": { "env": ["NVIDIA_REQUIRE_CUDA=cuda>=99.0"] } }));
    for (task, gpus, warns) in [
        ("SLURM_PROCID=0", "CUDA_VISIBLE_DEVICES=0", true),
        ("SLURM_PROCID=1", "CUDA_VISIBLE_DEVICES=0", false),
        ("SLURM_PROCID=0", "CUDA_VISIBLE_DEVICES=", false),
        ("SLURM_PROCID=0", "CUDA_VISIBLE_DEVICES=NoDevFiles", false),
        ("SLURM_PROCID=0", "A=0", false),
    ] {
        container.environment(&[task, gpus]);
        let end = container.sh(driver, "cat $LD_LIBRARY_PATH/libcuda.so.1; echo $LD_LIBRARY_PATH");
        assert_eq!(end.stdout, "library\n/.slurminit/driver\n", "{}", end.stderr);
        let needs = format!("image {} needs cuda>=99.0", container.path("bundle").display());
        let warning = end.stderr.contains(&needs) && end.stderr.contains("driver 550.54.15");
        assert_eq!((warning, end.stderr.lines().count()), (warns, usize::from(warns)), "{task} {gpus}: {}", end.stderr);
    }
}

#[test]
fn image_gets_slurms_commands_if_container_has_their_script() {
    let container = Container::new();
    container.stand_in("squeue", "#!/bin/sh\n");
    let script = "mount -t tmpfs -o mode=755 share /usr/share && mkdir /usr/share/slurminit";
    let script = format!(
        "{script} && printf '#!/bin/sh\\necho $0\\n' >/usr/share/slurminit/client && chmod 755 /usr/share/slurminit/client\noci"
    );
    check(
        &container,
        &script,
        &[
            ("/.slurminit/bin/squeue", "/.slurminit/bin/squeue"),
            ("[ -e /.slurminit/host-bin/sh ] && echo there", "there"),
        ],
    );
    check(
        &container,
        "oci",
        &[
            ("[ -e /.slurminit/bin/squeue ] || echo missing", "missing"),
            ("[ -e /.slurminit/host-bin ] || echo missing", "missing"),
        ],
    );
}

#[test]
fn only_slurmstepd_runs_this_command() {
    let container = Container::new();
    let mut step = container.step("oci", "image", &[]);
    let end = run(step.env_remove("SLURMINIT_STEP"));
    assert!(
        end.stderr.contains("SLURMINIT_STEP is missing, or does not have the form") && end.code == 126,
        "{}",
        end.stderr
    );
}
