//! The host's side: can Docker hand this host's GPUs to a container, and what must compose be told?
//!
//! [`situation`], [`answer`], [`choice`], [`passthrough`], [`assess`], [`gpu_file`] and [`env_file`] are PURE: what was seen
//! becomes verdicts, and verdicts become the text of files. [`look`] and [`tool`] are EDGE: the host's files below a root,
//! and commands with a deadline.

pub mod answer;
pub mod assess;
pub mod choice;
pub mod env_file;
pub mod gpu_file;
pub mod look;
pub mod passthrough;
pub mod situation;
pub mod tool;
