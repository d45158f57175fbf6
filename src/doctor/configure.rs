//! The host: whether Docker can pass this host's GPUs to a container, and the compose settings for that.
//!
//! [`look`] and `nvidia::look` read the host's files below a root directory and run its programs; [`files`] writes compose.gpus.yaml
//! and .env. The other modules are pure: they turn observations into verdicts, and verdicts into the text of files.

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
