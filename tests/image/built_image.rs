//! An image that a test builds on top of a slurminit image.

use std::process::Command;

use crate::docker::{Outcome, docker, label, unique};

/// The name of a built image. Dropping the value removes the image.
pub(crate) struct BuiltImage(pub(crate) String);

impl BuiltImage {
    /// Builds `directory` (relative to the project root) with these build arguments.
    pub(crate) fn new(name: &str, directory: &str, arguments: &[&str]) -> Self {
        let name = unique(name);
        let line = "say() { :; }; die() { exit 1; }; . docker/engine.sh
            label=$1 name=$2 directory=$3; shift 3
            docker build --quiet --label \"$label\" --tag \"$name\" \
                --build-arg \"EXTRA_CA_CERTS=$(extra_ca_certs)\" \"${@/#/--build-arg=}\" \"$directory\"";
        let mut command = Command::new("bash");
        command.current_dir(harness::root()).args(["-c", line, "build", label(), &name, directory]).args(arguments);
        Outcome::of(&command.output().expect("bash is installed")).ok();
        Self(name)
    }
}

impl Drop for BuiltImage {
    fn drop(&mut self) {
        docker(["image", "rm", "--force", &self.0]);
    }
}
