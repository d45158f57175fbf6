//! oci.conf: what slurmstepd runs for a step with `--container`.

use crate::{FileName, HEADER, Images};

/// The text of oci.conf.
///
/// `# slurminit` is followed by text from the user. This marker must not change, because the runtime searches for its first occurrence.
///
/// slurmstepd puts the step's arguments (`%@`) and the value of `--container` (`%r`) into a command for sh, and quotes an apostrophe
/// wrongly. So both are in a comment, which sh ignores, and the runtime reads them from the text of the command. They must not be
/// used anywhere else, because slurmstepd runs the other commands of this file as root.
///
/// As root, slurmstepd creates the directories of `ContainerPath` before the first one with `%t`, and changes the owner of each by its path
/// to the user (`_mkpath` of container.c). If the user owned the parent directory, they could replace the new directory with a symbolic
/// link between these two steps, and would become the owner of any file. As root, slurmstepd also removes `environment` in each task's
/// directory, and follows symbolic links there. So only the user's own directory comes before `%t`, and nothing is removed. The other
/// directories, including those that Slurm 25.05 and newer add, are created as the user.
pub(super) fn text(images: &Images) -> String {
    let own = [("slurm", &images.slurm), ("munge", &images.munge)];
    let own = own.into_iter().filter_map(|(name, path)| Some((name, path.as_ref()?)));
    let mounts = images.mounts.iter().map(|path| ("bind", path));
    let binds: String = own.chain(mounts).map(|(name, path)| format!(" --{name} {}", path.display())).collect();
    let cuda = images.cuda.as_ref().map(|release| format!(" --cuda {release}")).unwrap_or_default();
    let user_directory = if images.has_several_nodes { "%U-%n" } else { "%U" };
    format!(
        "{HEADER}\n\
         # Jobs in container images: slurminit image import NAME, then srun --container=NAME. Without the first line, {name} is not replaced.\n\n\
         IgnoreFileConfigJson=true\n\
         CreateEnvFile=null\n\
         # As root, slurmstepd creates only the user's directory, whose parent is owned by root. slurminit removes the directories below it.\n\
         ContainerPath={bundles}/{user_directory}/%j-%s-%n-%t\n\
         DisableCleanup=true\n\
         # Slurm quotes apostrophes in %@ wrongly, and %r can be any text: both are passed in a comment, which slurminit parses.\n\
         RunTimeRun=\"SLURMINIT_STEP=$(/usr/bin/tr '\\\\0' '\\\\n' </proc/$$/cmdline) exec slurminit oci --images {directory}{binds}{cuda} \
         --bundles {bundles} --environment %e \\# slurminit %@ %r\"\n",
        name = FileName::OciConf,
        bundles = images.bundles.display(),
        directory = images.directory.display(),
    )
}
