//! Jobs in container images in user namespaces, with a seccomp profile that allows them.

mod mpi;
mod registry;

use crate::images::{
    batch_jobs_behave_as_without_an_image, images_belong_to_their_users, jobs_behave_as_without_an_image, serve,
};

#[test]
#[ignore = "needs Docker and the images: run docker/test"]
fn images_run_in_user_namespaces() {
    let profile = format!("seccomp={}", harness::root().join("docker/seccomp-userns.json").display());
    let (_config, container) = serve(&["--security-opt", &profile]);
    assert_eq!(container.exec(&["slurminit", "oci", "--probe"]).code, 0);
    jobs_behave_as_without_an_image(&container);
    batch_jobs_behave_as_without_an_image(&container);
    images_belong_to_their_users(&container);
}
