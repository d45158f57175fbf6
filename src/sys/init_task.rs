//! The data that `slurminit run` passes to PID 1 in a memory file (memfd_create(2)). The file's descriptor number is on the command line.

use std::fs::File;
use std::io::{self, Read as _, Seek as _, Write as _};
use std::os::fd::RawFd;

use nix::sys::memfd::{MFdFlags, memfd_create};
use serde::{Deserialize, Serialize};

use crate::inherited::Inherited;
use model::task::Task;

/// The file name of PID 1's program, in the same directory as slurminit.
pub const PROGRAM: &str = "slurminit-init";
/// The search path for Slurm's and the system's programs.
pub const SEARCH_PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";
/// The option that takes the descriptor number. `--` and the command follow it.
pub const TASK_OPTION: &str = "--task";

/// The content of the memory file.
#[derive(Debug, Serialize, Deserialize)]
pub struct InitTask {
    /// The task of PID 1.
    pub task: Task,
    /// The signal state to restore in children, and the umask to restore in the container's command. All signals are blocked during the exec.
    pub inherited: Inherited,
    /// The descriptors that hold the locks of the run directory and of the state directories.
    pub locks: Vec<RawFd>,
}

impl InitTask {
    /// Writes the memory file. It stays open across an exec.
    ///
    /// # Errors
    /// The seccomp profile forbids memfd_create(2), or memory is exhausted.
    pub fn write(&self) -> io::Result<File> {
        let mut file = File::from(memfd_create("slurminit task", MFdFlags::empty())?);
        file.write_all(&serde_json::to_vec(self)?)?;
        file.rewind()?;
        Ok(file)
    }

    /// Reads the memory file.
    ///
    /// # Errors
    /// The file is not open, or another version of slurminit wrote it.
    pub fn read(mut file: File) -> io::Result<Self> {
        let mut text = String::new();
        file.read_to_string(&mut text)?;
        serde_json::from_str(&text).map_err(|error| {
            io::Error::other(format!(
                "cannot parse the task: {error}; install the same version of slurminit and {PROGRAM}"
            ))
        })
    }
}
