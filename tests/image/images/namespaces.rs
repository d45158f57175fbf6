//! Jobs in container images in user namespaces, with a seccomp profile that allows them.

mod backends;
mod mpi;
mod registry;
mod tools;

use crate::docker::{Image, PLAIN, docker};
use crate::images::{
    batch_jobs_behave_as_without_an_image, images_belong_to_their_users, jobs_behave_as_without_an_image, serve,
};

fn profile() -> String {
    format!("seccomp={}", harness::root().join("docker/seccomp-userns.json").display())
}

#[test]
#[ignore = "needs Docker and the images: run docker/test"]
fn images_run_in_user_namespaces() {
    let (_config, container) = serve(&["--security-opt", &profile()]);
    assert_eq!(container.exec(&["slurminit", "oci", "--probe", "namespaces"]).code, 0);
    jobs_behave_as_without_an_image(&container);
    batch_jobs_behave_as_without_an_image(&container);
    images_belong_to_their_users(&container);
}

/// The profile allows creating a user namespace together with a mount namespace, but no other namespace or mount call.
#[test]
#[ignore = "needs Docker and the images: run docker/test"]
fn profile_refuses_other_namespaces_and_mount_calls() {
    let container = Image::new(PLAIN).with(["--security-opt", &profile()]).serve();
    let code = |line: &str| docker(["exec", "--user", "nobody", &container.name, "sh", "-c", line]).code;
    let inside = "unshare --user --mount --map-root-user";
    assert_eq!(code(&format!("{inside} true")), 0);
    for line in ["unshare --user true", "unshare --user --mount --net true", "unshare --user --mount --ipc true"] {
        assert_ne!(code(line), 0, "{line}");
    }
    // x86-64 system calls: clone with CLONE_NEWNET, a mount without flags, and below setns, open_tree to fspick, and mount_setattr. Root of
    // the namespace makes the calls, because it has the capabilities for them.
    for perl in [
        "exit 1 if syscall(56, 0x40000011, 0, 0, 0, 0) < 0",
        "exit 1 if syscall(165, q(x), q(/tmp), q(tmpfs), 0, 0) < 0",
    ] {
        assert_ne!(code(&format!("{inside} perl -e '{perl}'")), 0, "{perl}");
    }
    let numbers = "$! = 0, syscall($_, -1, 0, 0, 0, 0), $! == 1 || exit 1 for 308, 428 .. 433, 442";
    assert_eq!(code(&format!("{inside} perl -e '{numbers}'")), 0);
}
