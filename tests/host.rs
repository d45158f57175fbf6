//! Tests that start no container and need no root: files, decisions, verbs as processes. The ignored tests need a tool (Chromium,
//! buildx, compose, NVIDIA's library); parts of docker/test run them.

mod bake;
mod configure;
mod detect;
mod doctor;
mod install;
mod install_accounts;
mod install_prepare;
mod links;
mod metrics;
mod page;
mod pages;
mod reference;
mod render;
mod simulated_day;
mod slurm_verbs;
mod webhook;
mod words;
