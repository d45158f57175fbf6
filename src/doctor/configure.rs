//! The host: whether Docker can pass this host's GPUs to a container, and the compose settings for that.
//!
//! [`situation`], [`choice`], [`passthrough`], [`assess`], [`gpu_file`], [`env_file`] and `text` are pure: they
//! turn observations into verdicts, and verdicts into the text of files. [`look`] reads the
//! host's files below a root directory and runs its programs; `files` writes compose.gpus.yaml and .env.

pub mod assess;
pub mod choice;
pub mod env_file;
pub mod files;
pub mod gpu_file;
pub mod host_gpus;
pub mod look;
pub mod nvidia;
pub mod passthrough;
pub mod situation;
pub mod text;
