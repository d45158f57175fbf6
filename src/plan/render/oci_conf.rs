//! oci.conf: what slurmstepd runs for a step with `--container`.

use crate::{FileName, HEADER, Images};

/// The name, where the user's text begins, is fixed: the runtime looks for its first occurrence.
///
/// slurmstepd puts the step's arguments (`%@`) and the value of `--container` (`%r`) into a command for sh, and quotes an apostrophe
/// wrongly. So they are in a comment, which sh does not read; the runtime finds them in the text of the command. They must be nowhere
/// else: slurmstepd runs the other commands of this file as root.
pub(super) fn text(images: &Images) -> String {
    let binds: String = images.binds.iter().map(|path| format!(" --bind {}", path.display())).collect();
    let cuda = images.cuda.as_ref().map(|release| format!(" --cuda {release}")).unwrap_or_default();
    let cleanup = if images.keeps_bundles {
        "# This Slurm removes files of a user as root, and follows links (CVE-2026-65109).\nDisableCleanup=true\n"
    } else {
        ""
    };
    let container_path = if images.has_bundle_directory { "%U/%n" } else { "%U/%j-%s-%n/task-%t/" };
    format!(
        "{HEADER}\n\
         # Jobs in container images: slurminit image import NAME, then srun --container=NAME. {name} without this first line is kept.\n\n\
         IgnoreFileConfigJson=true\n\
         CreateEnvFile=null\n\
         ContainerPath={bundles}/{container_path}\n\
         {cleanup}\
         # In %@ an apostrophe is quoted wrongly, and %r is any text: both are in a comment of this command, which slurminit decodes.\n\
         RunTimeRun=\"SLURMINIT_STEP=$(/usr/bin/tr '\\\\0' '\\\\n' </proc/$$/cmdline) exec slurminit oci --images {directory}{binds}{cuda} \
         --environment %e \\# slurminit %@ %r\"\n",
        name = FileName::OciConf,
        bundles = images.bundles.display(),
        directory = images.directory.display(),
    )
}
