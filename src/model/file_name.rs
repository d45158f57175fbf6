//! The names of the files that slurminit writes to Slurm's configuration directory, except slurmdbd.conf.

use std::fmt;

/// A file that slurminit writes to Slurm's configuration directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum FileName {
    /// slurm.conf.
    SlurmConf,
    /// gres.conf.
    GresConf,
    /// cgroup.conf.
    CgroupConf,
    /// The script of `TaskProlog`.
    TaskProlog,
    /// The script of `Prolog`.
    Prolog,
    /// The script of `Epilog`.
    Epilog,
    /// The script of `ResumeProgram`, which starts nodes.
    Resume,
    /// The script of `SuspendProgram`, which stops nodes.
    Suspend,
    /// oci.conf.
    OciConf,
    /// The script that srun, sbatch and salloc run before they submit: `CliFilterPlugins`.
    CliFilter,
    /// The script of `MailProg`.
    Mail,
}

impl FileName {
    /// The files that the user may provide.
    pub const ALL: [Self; 3] = [Self::SlurmConf, Self::GresConf, Self::CgroupConf];

    /// All files that slurminit writes.
    pub const WRITTEN: [Self; 11] = [
        Self::SlurmConf,
        Self::GresConf,
        Self::CgroupConf,
        Self::TaskProlog,
        Self::Prolog,
        Self::Epilog,
        Self::Resume,
        Self::Suspend,
        Self::OciConf,
        Self::CliFilter,
        Self::Mail,
    ];

    /// The file's name in Slurm's configuration directory.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::SlurmConf => "slurm.conf",
            Self::GresConf => "gres.conf",
            Self::CgroupConf => "cgroup.conf",
            Self::TaskProlog => "task_prolog",
            Self::Prolog => "prolog",
            Self::Epilog => "epilog",
            Self::Resume => "resume",
            Self::Suspend => "suspend",
            Self::OciConf => "oci.conf",
            Self::CliFilter => "cli_filter.lua",
            Self::Mail => "mail",
        }
    }

    /// The file's mode. Slurm runs the task prolog as the job's user.
    pub const fn mode(self) -> u32 {
        match self {
            Self::SlurmConf | Self::GresConf | Self::CgroupConf | Self::OciConf | Self::CliFilter => 0o644,
            _ => 0o755,
        }
    }
}

impl fmt::Display for FileName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}
