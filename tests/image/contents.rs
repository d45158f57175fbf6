//! Files, labels and symbols that the images must or must not contain.

use std::process::Command;

use crate::docker::{AMD, Container, DEMO, FULL, Image, PLAIN, built, docker, tag, unique};

/// Runs a shell line in the image without slurminit.
fn shell(image: &str, line: &str) -> String {
    Image::new(image).with(["--entrypoint", "sh"]).run(&["-c", line]).ok()
}

#[test]
#[ignore = "needs Docker and the images: run docker/test"]
fn image_contains_no_munge_key() {
    for image in built([PLAIN, DEMO, AMD]) {
        assert_eq!(shell(image, "find / -xdev -name 'munge.key*' -o -xdev -name munge.seed"), "", "{image}");
    }
}

#[test]
#[ignore = "needs Docker and the images: run docker/test"]
fn image_layers_contain_no_munge_key() {
    // A file that a later layer removes is still part of the image.
    // Layers are NAME/layer.tar; since Docker 25 they are blobs, possibly compressed.
    let directory = tempfile::TempDir::new().expect("a temporary directory");
    let names = "docker save \"$1\" | tar -x && find . -type f -exec tar -tf {} ';' 2>/dev/null || true";
    let mut shell = Command::new("sh");
    shell.args(["-c", names, "sh", &tag(PLAIN)]).current_dir(directory.path());
    let output = shell.output().expect("a shell");
    let names = String::from_utf8_lossy(&output.stdout);
    assert!(names.lines().any(|name| name == "usr/sbin/munged"), "the listing does not show the files of the layers");
    assert_eq!(names.lines().filter(|name| name.contains("munge.key") || name.contains("munge.seed")).count(), 0);
}

#[test]
#[ignore = "needs Docker and the images: run docker/test"]
fn image_records_gpu_type() {
    for image in built([PLAIN, DEMO, AMD]) {
        let gpu_type = match image {
            PLAIN => "none",
            AMD => "amd",
            _ => "nvidia",
        };
        let format =
            "{{range .Config.Env}}{{println .}}{{end}}label={{index .Config.Labels \"io.slurminit.gpu-type\"}}";
        let found = docker(["image", "inspect", "--format", format, &tag(image)]).ok();
        assert!(found.contains(&format!("GPU_TYPE={gpu_type}\n")), "{image}: {found}");
        assert!(found.contains(&format!("label={gpu_type}\n")), "{image}: {found}");
        assert_eq!(found.contains("NVIDIA_DRIVER_CAPABILITIES=compute,utility\n"), gpu_type == "nvidia", "{found}");
        assert_eq!(found.contains("LD_LIBRARY_PATH=/usr/local/nvidia/lib64\n"), gpu_type == "nvidia", "{found}");
        assert_eq!(found.contains(":/usr/local/nvidia/bin\n"), gpu_type == "nvidia", "{found}");
    }
}

#[test]
#[ignore = "needs Docker and the images: run docker/test"]
fn image_contains_no_setuid_or_setgid_file() {
    for image in built([PLAIN, DEMO, AMD, FULL]) {
        assert_eq!(shell(image, "find / -xdev -type f -perm /6000"), "", "{image}");
        shell(image, "su -s /bin/sh nobody -c true");
        let removed = shell(image, "cat /usr/share/slurminit/setuid-removed");
        assert!(removed.lines().any(|line| line == "4755 /usr/bin/su"), "{image}: {removed}");
    }
}

#[test]
#[ignore = "needs Docker and the images: run docker/test"]
fn image_labels_have_version_and_commit() {
    let git = Command::new("git").args(["rev-parse", "HEAD"]).output();
    let in_git = git.is_ok_and(|git| git.status.success());
    for image in built([PLAIN, DEMO, AMD]) {
        let label = |name: &str| {
            let format = format!("{{{{index .Config.Labels \"org.opencontainers.image.{name}\"}}}}");
            docker(["image", "inspect", "--format", &format, &tag(image)]).ok().trim().to_owned()
        };
        assert_eq!(label("version"), env!("CARGO_PKG_VERSION"), "{image}");
        assert!(label("base.name").contains(':'), "{image}");
        let revision = label("revision");
        assert!(
            !in_git || revision.len() == 40 && revision.bytes().all(|c| c.is_ascii_hexdigit()),
            "{image}: {revision}"
        );
    }
}

#[test]
#[ignore = "needs Docker and the images: run docker/test"]
fn image_has_gpu_plugin_and_tools_of_vendor() {
    let plugins = "find / -xdev -name gpu_nvml.so -o -xdev -name gpu_rsmi.so | xargs -r -n1 basename";
    for image in built([PLAIN, DEMO, AMD]) {
        let (plugin, tools) = match image {
            DEMO => ("gpu_nvml.so\n", "true"),
            AMD => ("gpu_rsmi.so\n", "command -v rocm-smi && command -v rocminfo"),
            _ => ("", "true"),
        };
        assert_eq!(shell(image, plugins), plugin, "{image}");
        shell(image, tools);
    }
}

#[test]
#[ignore = "needs Docker and the images: run docker/test"]
fn image_contains_man_pages() {
    let files = manual::files();
    let pages: Vec<&str> = files.keys().filter_map(|path| path.strip_prefix("man/")).collect();
    for image in built([PLAIN, DEMO, AMD]) {
        let found =
            shell(image, "cd /usr/local/share/man && find . -name 'slurminit*' -printf '%f\\n' | LC_ALL=C sort");
        assert_eq!(found.lines().collect::<Vec<_>>(), pages, "{image}");
    }
}

#[test]
#[ignore = "needs Docker and the images: run docker/test"]
fn shells_complete_verbs() {
    for image in built([PLAIN, DEMO, AMD]) {
        let completed = shell(
            image,
            "bash -ic 'COMP_WORDS=(slurminit con) COMP_CWORD=1 && _slurminit slurminit con slurminit && echo ${COMPREPLY[*]}' 2>/dev/null",
        );
        assert_eq!(completed, "config configure\n", "{image}");
        shell(
            image,
            "test -s /usr/share/zsh/vendor-completions/_slurminit -a -s /usr/share/fish/vendor_completions.d/slurminit.fish",
        );
    }
}

#[test]
#[ignore = "needs Docker and the images: run docker/test"]
fn packages_keep_licence_and_no_installation_files() {
    for image in built([PLAIN, DEMO, AMD]) {
        let without_licence = "dpkg-query -W -f '${Package}\\n' | while read -r package; do \
             [ -s /usr/share/doc/$package/copyright ] || echo $package; done";
        assert_eq!(shell(image, without_licence), "", "{image}");
        let leftovers = "find /var/lib/apt/lists /var/cache/apt/archives /var/lib/dpkg -type f -size +0 \
             '(' -path '*/apt/*' -o -name '*-old' -o -name '*.symbols' ')'";
        assert_eq!(shell(image, leftovers), "", "{image}");
    }
}

#[test]
#[ignore = "needs Docker and the images: run docker/test"]
fn only_demo_image_contains_simulated_gpus() {
    for image in built([PLAIN, AMD, FULL]) {
        assert_eq!(shell(image, "find / -xdev -name 'libnvidia-ml*' -o -xdev -name demo-gpus"), "", "{image}");
    }
}

#[test]
#[ignore = "needs Docker and the images: run docker/test"]
fn image_contains_licences_of_slurminit_and_its_crates() {
    for image in built([PLAIN, DEMO, AMD, FULL]) {
        let licence = shell(image, "cat /usr/share/doc/slurminit/LICENSE");
        assert_eq!(licence, std::fs::read_to_string(harness::root().join("LICENSE")).expect("the file"), "{image}");
        let notices = shell(image, "zcat /usr/share/doc/slurminit/third-party-notices.gz");
        // The notices list a crate, the text of its licence, and Rust's standard library.
        assert!(notices.lines().any(|line| line.starts_with("nix 0.") && line.contains(": MIT (")), "{notices}");
        assert!(notices.contains("\nPermission is hereby granted, free of charge"), "{notices}");
        assert!(notices.contains("\nRust's standard library\n"), "{notices}");
        assert!(!notices.contains("slurminit 0."), "{notices}");
    }
}

/// SBOM scanners read the list of crates that cargo-auditable leaves in a program.
#[test]
#[ignore = "needs Docker and the images: run docker/test"]
fn programs_list_their_crates_for_scanners() {
    for (program, package) in [("slurminit", "slurminit"), ("slurminit-init", "init")] {
        let (_directory, file) = copied(program);
        let section = file.with_extension("crates");
        let objcopy = ["-O", "binary", "--set-section-flags", ".dep-v0=alloc", "--only-section=.dep-v0"];
        let status =
            Command::new("objcopy").args(objcopy).arg(&file).arg(&section).status().expect("objcopy (binutils)");
        assert!(status.success(), "{program}");
        // Replaces the zlib header with a gzip header.
        let script = r"{ printf '\037\213\010\000\000\000\000\000\000\377'; tail -c +3; } <$1 | gzip -dc 2>/dev/null";
        let output = Command::new("sh").args(["-c", script, "sh"]).arg(&section).output().expect("a shell");
        let crates: serde_json::Value = serde_json::from_slice(&output.stdout).expect("cargo-auditable's JSON");
        let names: Vec<_> =
            crates["packages"].as_array().into_iter().flatten().map(|package| &package["name"]).collect();
        assert!(names.iter().any(|name| *name == "nix") && names.iter().any(|name| *name == package), "{names:?}");
    }
}

/// Copies a program of the image into a directory on this machine.
fn copied(program: &str) -> (tempfile::TempDir, std::path::PathBuf) {
    let container = Container { name: unique("symbols") };
    docker(["create", "--name", &container.name, &tag(PLAIN)]).ok();
    let directory = tempfile::TempDir::new().expect("a temporary directory");
    let file = directory.path().join(program);
    let source = format!("{}:/usr/local/bin/{program}", container.name);
    docker(["cp", &source, &file.display().to_string()]).ok();
    (directory, file)
}

/// The dynamic symbols of a program in the image.
fn symbols(program: &str) -> String {
    let (_directory, file) = copied(program);
    let output = Command::new("objdump").arg("-T").arg(&file).output().expect("objdump (binutils) is installed");
    String::from_utf8_lossy(&output.stdout).into_owned()
}

#[test]
#[ignore = "needs Docker and the images: run docker/test"]
fn programs_run_with_glibc_of_debian12() {
    for program in ["slurminit", "slurminit-init"] {
        let newest = symbols(program)
            .split_whitespace()
            .filter_map(|word| word.trim_matches(['(', ')']).strip_prefix("GLIBC_2."))
            .filter_map(|minor| minor.split('.').next()?.parse::<u32>().ok())
            .max()
            .expect("the program is linked with glibc");
        println!("{program} needs glibc 2.{newest}");
        assert!(newest <= 36, "{program} needs glibc 2.{newest}, Debian 12 has 2.36");
    }
}

#[test]
#[ignore = "needs Docker and the images: run docker/test"]
fn init_program_does_not_use_dlopen_or_nss() {
    let [slurminit, init] = ["slurminit", "slurminit-init"].map(symbols);
    let has =
        |symbols: &str, symbol: &str| symbols.split_whitespace().any(|word| word.trim_end_matches("_r") == symbol);
    for symbol in ["dlopen", "getaddrinfo", "getpwnam", "getgrouplist"] {
        assert!(has(&slurminit, symbol), "slurminit does not use {symbol}, so this test cannot detect it");
        assert!(!has(&init, symbol), "{symbol}");
    }
    for symbol in
        ["getpwuid", "getpwent", "getgrnam", "getgrgid", "getgrent", "initgroups", "gethostbyname", "getservbyname"]
    {
        assert!(!has(&init, symbol), "{symbol}");
    }
}

#[test]
#[ignore = "needs Docker and the images: run docker/test"]
fn image_records_slurm_version() {
    for image in built([PLAIN, DEMO, AMD]) {
        assert!(shell(image, "cat /usr/share/slurminit/slurm-version").contains("24.11"), "{image}");
    }
}

#[test]
#[ignore = "needs Docker and the images: run docker/test"]
fn build_rejects_unknown_gpu_type() {
    // Any local image works as the base: the build fails before it uses it.
    let bases = ["BASE_IMAGE", "BUILDER_IMAGE"].map(|name| format!("{name}={}", tag(PLAIN)));
    let [base, builder] = bases.each_ref().map(String::as_str);
    let arguments = ["--build-arg", base, "--build-arg", builder, "--build-arg", "GPU_TYPE=voodoo"];
    let build = docker(
        ["build"].iter().chain(&arguments).chain(&[harness::root().to_str().expect("a path of ASCII characters")]),
    );
    assert_ne!(build.code, 0);
    let output = build.stdout + &build.stderr;
    // BuildKit shows the lines around the missing stage; older engines show only its name.
    assert!(output.contains("must be none, nvidia, amd") || output.contains("gpu-type-voodoo"), "{output}");
}
