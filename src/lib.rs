//! slurminit: PID 1 of a GPU-aware Slurm container.
//!
//! # Code map
//!
//! Data flows one way: what the operator wants and what the machine has become a plan, the plan becomes text, the text
//! becomes files, and only then the daemons start.
//!
//! | module | does | kind |
//! |---|---|---|
//! | [`config`] | the operator's TOML and environment -> validated types | pure |
//! | [`accounts`] | `[[user]]` -> the text of /etc/passwd, /etc/group, /etc/shadow | pure |
//! | [`inventory`] | what a detection found | pure |
//! | [`plan`] | configuration + inventory -> decisions, each with its reason | pure |
//! | [`render`] | plan -> the text of slurm.conf, gres.conf, cgroup.conf | pure |
//! | [`printable`] | text of others -> one line that does nothing to a terminal | pure |
//! | [`report`] | what the preparation child tells PID 1 | pure |
//! | [`supervise`] | keeps the daemons alive; its state machine is pure | composes |
//! | [`detect`] | NVML, /proc, /sys -> inventory | edge |
//! | [`leftovers`] | the processes that a job left behind | pure; two parts edge |
//! | [`install`] | writes files, accounts and the munge key | edge |
//! | [`configure`] | the host's Docker and GPUs -> verdicts, compose's override file | pure; two parts edge |
//! | [`sbatch_args`] | a method.json -> the arguments of sbatch | pure |
//! | [`control`] | the socket of PID 1: its protocol is pure, its two ends are not | edge |
//! | [`doctor`] | what was seen -> an answer for each symptom | pure; `look` is edge |
//! | [`logs`] | standard error, written without ever waiting | edge |
//! | [`now`] | what Slurm says of the node and its GPUs at this moment | edge; `answer` is pure |
//! | [`walk`] | opening a path where others could have laid something | edge |
//! | [`watch`] | waiting for a descriptor | edge |
//! | [`commands`] | one file for each verb | composes |
//!
//! PURE modules do no IO, read no clock and no environment, and import only each other. EDGE modules import pure types
//! and never another edge but [`walk`] and [`watch`]. Only [`commands`] and [`supervise`] compose.

pub mod accounts;
pub mod cli;
pub mod commands;
pub mod config;
pub mod configure;
pub mod control;
pub mod detect;
pub mod doctor;
pub mod exit_code;
pub mod install;
pub mod inventory;
pub mod leftovers;
pub mod logs;
pub mod now;
pub mod plan;
pub mod printable;
pub mod render;
pub mod report;
pub mod sbatch_args;
pub mod supervise;
pub mod walk;
pub mod watch;
