//! Images of a registry, with a program in place of skopeo.

use super::*;

/// Downloads an image with the file `mark`, unless there is an error to report.
const SKOPEO: &str = r#"#!/bin/bash
directory=DIRECTORY
printf '%s %s\n' "$PWD" "$*" >>"$directory/calls"
printf '%s %s %s\n' "$XDG_DATA_HOME" "$TMPDIR" "$A" >>"$directory/variables"
cat "$directory/error" >&2 && exit 1
blobs=layout/blobs/sha256
mkdir -p $blobs
blob() { # PROGRAM...: keeps its output as a blob, whose descriptor begins with $blob
    "$@" >$blobs/new
    set -- $(sha256sum $blobs/new)
    blob="\"digest\": \"sha256:$1\", \"size\": $(stat --format=%s $blobs/new)"
    hash=$1
    mv $blobs/new $blobs/$1
}
blob tar -C "$directory" -c mark
layer=$blob
blob echo "{\"os\": \"linux\", \"config\": {\"Env\": [\"A=image\"]}, \"rootfs\": {\"diff_ids\": [\"sha256:$hash\"]}}"
blob echo "{\"config\": {$blob}, \"layers\": [{\"mediaType\": \"application/vnd.oci.image.layer.v1.tar\", $layer}]}"
echo '{"imageLayoutVersion": "1.0.0"}' >layout/oci-layout
echo "{\"manifests\": [{\"mediaType\": \"application/vnd.oci.image.manifest.v1+json\", $blob}]}" >layout/index.json
"#;

impl Container {
    fn with_skopeo() -> Self {
        let container = Self::new();
        container.stand_in("skopeo", SKOPEO.replace("DIRECTORY", container.directory.to_str().unwrap()));
        container.write("mark", "pulled\n");
        container.set_mode("mark", 0o644);
        fs::create_dir(container.path("images")).unwrap();
        container.set_mode("images", 0o755);
        container
    }

    fn lines(&self, name: &str) -> Vec<String> {
        let text = fs::read_to_string(self.path(name)).unwrap_or_default();
        text.lines().map(str::to_owned).collect()
    }
}

const START: &str = "oci --images \"$PWD/images\"";
const IMAGE: &str = "docker://registry.lab/tools:1";
const PRINT: &str = "read -r line </mark; echo $line $A";

#[test]
fn image_of_registry_is_pulled_once_by_first_task() {
    let container = Container::with_skopeo();
    container.environment(&["A=step"]);
    let first = container.sh_in(START, IMAGE, PRINT);
    assert_eq!(first.stdout, "pulled image\n", "{}", first.stderr);
    let store = container.path("images");
    let reports: Vec<&str> = first.stderr.lines().collect();
    let begin = format!("slurminit: pulling registry.lab/tools:1 into {}", store.display());
    assert_eq!(reports[0], begin);
    assert!(reports[1].starts_with("slurminit: pulled registry.lab/tools:1 in "), "{reports:?}");
    assert!(reports[1].ends_with(" s: 1 files, 1 MiB") && reports.len() == 2, "{reports:?}");
    assert_eq!(container.sh_in(START, IMAGE, PRINT).stdout, "pulled image\n");
    let [call] = container.lines("calls").try_into().unwrap();
    let (directory, arguments) = call.split_once(' ').unwrap();
    assert_eq!(arguments, "copy --quiet --retry-times 2 docker://registry.lab/tools:1 oci:layout");
    assert!(Path::new(directory).starts_with(&store), "{directory}");
    assert_eq!(container.lines("variables"), [format!("{directory} {directory} step")]);
    // The registry of this machine needs no TLS, and only one task of a node reports.
    for (local, reports) in [("0", 2), ("1", 0)] {
        container.environment(&[&format!("SLURM_LOCALID={local}")]);
        let end = container.sh_in(START, &format!("docker://localhost/tools:{local}"), PRINT);
        assert_eq!((end.stdout.as_str(), end.stderr.lines().count()), ("pulled image\n", reports), "{}", end.stderr);
        let call = container.lines("calls").pop().unwrap();
        assert!(call.contains(&format!(" --src-tls-verify=false docker://localhost/tools:{local} ")), "{call}");
    }
}

#[test]
fn failed_pull_names_error_of_registry() {
    let container = Container::with_skopeo();
    let failure = |error: &str| {
        container.write("error", error);
        let end = container.sh_in(START, IMAGE, "exit 5");
        assert_eq!(end.code, 126);
        end.stderr.lines().last().unwrap().to_owned()
    };
    let denied = failure("level=fatal msg=\"reading manifest 1: unauthorized\"\n");
    let why = "slurminit: cannot pull registry.lab/tools:1: reading manifest 1: unauthorized; check the name, and log in to registry.lab: ";
    assert!(denied.starts_with(why), "{denied}");
    let silent = "slurminit: cannot pull registry.lab/tools:1: skopeo failed: exit status: 1; pull the image again";
    assert_eq!(failure(""), silent);
    container.stand_in("skopeo", "#!/bin/sh\nln -s / layout\n");
    let link = failure("");
    assert!(link.ends_with("/download: Not a directory (os error 20)"), "{link}");
    fs::remove_file(container.path("stand-ins/skopeo")).unwrap();
    let missing = failure("");
    assert!(missing.contains("/usr/bin/skopeo is missing; install skopeo in slurminit's image"), "{missing}");
    assert_eq!(fs::read_dir(container.path("images")).unwrap().count(), 0);
}
