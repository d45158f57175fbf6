//! Unusual uses of the commands: pipes whose reader exits first, and timeouts that exceed any clock.

use crate::docker::{Image, PLAIN, directory};

#[test]
#[ignore = "needs Docker and the images: run docker/test"]
fn no_verb_panics_when_reader_of_its_output_has_exited() {
    let container = Image::new(PLAIN).serve();
    for verb in [
        "health",
        "reload",
        "status",
        "status --json",
        "doctor",
        "nodes",
        "config show",
        "render",
        "detect",
        "logs slurmd",
        "logs slurmd --follow",
        "usage",
        "drain --help",
    ] {
        // The reader exits before the verb starts.
        let line = format!("exec 3> >(exec true); wait $!; timeout 60 slurminit {verb} >&3; exec 3>&-");
        let outcome = container.exec(&["bash", "-c", &line]);
        let complaint = format!("{}{}", outcome.stdout, outcome.stderr);
        assert!(!complaint.contains("panicked") && !complaint.contains("Broken pipe"), "{verb}: {outcome:?}");
        assert!(outcome.code != 101 && outcome.code < 128, "{verb}: {outcome:?}");
    }
}

#[test]
#[ignore = "needs Docker and the images: run docker/test"]
fn huge_or_invalid_timeout_causes_no_panic() {
    let container = Image::new(PLAIN).serve();
    for line in [
        "slurminit restart slurmd --timeout 1e19",
        "slurminit restart slurmd --timeout 1e300",
        "slurminit health --wait 1e19",
        "slurminit restart slurmd --timeout -1",
        "slurminit restart slurmd --timeout nan",
    ] {
        let outcome = container.exec(&["timeout", "60", "sh", "-c", line]);
        assert!(!outcome.stderr.contains("panicked") && [0, 2].contains(&outcome.code), "{line}: {outcome:?}");
    }
    container.exec(&["srun", "true"]).ok();
}

/// The configuration names the directory of the images, so a broken one must not cause an image to be stored elsewhere silently.
#[test]
#[ignore = "needs Docker and the images: run docker/test"]
fn image_import_fails_with_a_broken_configuration() {
    let files = directory(&[("slurminit.toml", "[images]\ndirectory = \"/srv/images\"\n")]);
    let container = Image::new(PLAIN).with(["--tmpfs", "/srv"]).mount(files.path(), "/config").serve();
    container.sh("mkdir -p /tmp/tree/bin && cp /bin/true /tmp/tree/bin/ && tar -C /tmp/tree -cf /tmp/image.tar .");
    container.sh("slurminit image import good /tmp/image.tar && test -d /srv/images/good");
    std::fs::write(files.path().join("slurminit.toml"), "[images\n").expect("own file");
    let import = container.exec(&["slurminit", "image", "import", "bad", "/tmp/image.tar"]);
    assert!(import.code != 0 && import.stderr.contains("slurminit.toml:1"), "{import:?}");
    assert_eq!(container.sh("find / -xdev -type d -name bad; ls /srv/images"), "good");
    // The fix that a refused reload prints is one for a running cluster.
    let reload = container.exec(&["slurminit", "reload"]);
    assert!(reload.code != 0 && reload.stderr.contains("slurminit.toml:1"), "{reload:?}");
    assert!(!reload.stderr.contains("start again") && !reload.stderr.contains("docker compose restart"), "{reload:?}");
    container.exec(&["srun", "true"]).ok();
}
