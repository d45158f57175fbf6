//! For each entry, the test that applies its fix in the situation that prints it, or the reason why there is no such test.

use std::collections::BTreeSet;
use std::fs;

use doctor::PARTS;

/// How the fix of an entry is tested.
enum Fix {
    /// A test with the real daemons: its file below `tests/image`, and its name.
    Tested(&'static str, &'static str),
    /// The fix changes the host: its driver, kernel, engine, clock, firewall or another machine.
    OfHost,
    /// The fix needs a real GPU, its driver or NVIDIA's runtime.
    NeedsGpu,
    /// The fix changes the user's program, image or request.
    OfUser,
    /// The fix names commands that show more, and refers to their output or to another entry.
    Shows,
}
use Fix::{NeedsGpu, OfHost, OfUser, Shows, Tested};

const FIXES: &[(&str, Fix)] = &[
    ("platform", OfHost),
    ("engine", OfHost),
    ("compose", OfHost),
    ("driver", OfHost),
    ("toolkit", OfHost),
    ("passthrough", OfHost),
    ("container-gpus", NeedsGpu),
    ("image-gpu-type", NeedsGpu),
    ("device-plugin", OfHost),
    ("host-clock", OfHost),
    ("no-gpu", NeedsGpu),
    // `--build-arg GPU_TYPE=nvidia` builds the image of that test.
    ("gpu-type", Tested("doctor.rs", "healthy_cluster_has_no_fault")),
    ("nvml-library", NeedsGpu),
    ("nvml-versions", OfHost),
    ("device-rules", NeedsGpu),
    ("driver-answers", OfHost),
    ("gpu-faults", Tested("gpu_faults.rs", "loses_and_regains_one_gpu_without_intervention")),
    ("amd-devices", NeedsGpu),
    ("left-out", NeedsGpu),
    ("mig", NeedsGpu),
    ("cuda-libraries", NeedsGpu),
    ("cuda-version", OfHost),
    ("visible-devices", OfUser),
    ("job-devices", OfUser),
    ("isolation", Shows),
    ("nvidia-require", NeedsGpu),
    ("nvidia-variables", NeedsGpu),
    ("virtual-gpu", NeedsGpu),
    ("gpu-share", OfUser),
    ("shared-memory", Tested("fixes.rs", "printed_options_of_docker_run_end_their_fault")),
    // A nested engine is not allowed to raise this limit.
    ("locked-memory", OfHost),
    ("container-images", OfHost),
    ("peer-memory", OfHost),
    ("stack-limit", Tested("fixes.rs", "printed_options_of_docker_run_end_their_fault")),
    ("gpu-memory", OfUser),
    ("gpu-processes", NeedsGpu),
    ("gpu-speed", NeedsGpu),
    ("idle-gpus", OfUser),
    ("persistence", OfHost),
    ("numa", OfHost),
    ("configuration", Shows),
    ("munge", Shows),
    ("munge-key", Tested("fixes.rs", "printed_commands_end_their_fault")),
    ("munge-peers", OfHost),
    ("clock", OfHost),
    ("ports", Tested("fixes.rs", "printed_commands_end_their_fault")),
    ("saved-state", Tested("doctor.rs", "reports_saved_state_of_other_cluster_name")),
    ("disk", Tested("fixes.rs", "printed_commands_end_their_fault")),
    ("address", Tested("fixes.rs", "printed_options_of_docker_run_end_their_fault")),
    // The counter starts at zero in a new container.
    ("memory-kills", OfUser),
    ("oom-group", OfHost),
    ("limits", Shows),
    ("proxy", OfUser),
    ("others", Shows),
    ("exposed-secrets", Tested("fixes.rs", "printed_commands_end_their_fault")),
    ("link-protection", OfHost),
    ("ssh-connections", OfHost),
    ("daemons", Shows),
    ("controller", Shows),
    ("node", Tested("fixes.rs", "printed_commands_end_their_fault")),
    ("drain", Tested("doctor.rs", "reports_stale_and_manual_drains")),
    ("gres", Tested("fixes.rs", "printed_commands_end_their_fault")),
    ("slurm-security", OfUser),
    ("real-memory", Tested("fixes.rs", "printed_commands_end_their_fault")),
    ("own-files", Shows),
    ("stale-files", Tested("fixes.rs", "printed_commands_end_their_fault")),
    ("waiting-jobs", Tested("user_files.rs", "configured_name_selects_node_in_slurm_conf")),
    ("lost-jobs", OfUser),
    ("called", OfHost),
    ("name-taken", OfUser),
];

/// Fails for a new entry until its fix has a test or a reason. A named test must exist and mention the entry.
pub(crate) fn check() {
    let entries: BTreeSet<&str> = PARTS.iter().flat_map(|part| part.entries).map(|entry| entry.id).collect();
    let listed: BTreeSet<&str> = FIXES.iter().map(|(entry, _)| *entry).collect();
    assert_eq!((&listed, FIXES.len()), (&entries, entries.len()), "entries without a row, and rows without an entry");
    for (entry, fix) in FIXES {
        let Tested(file, test) = fix else { continue };
        let text = fs::read_to_string(harness::root().join("tests/image").join(file)).expect("a file of tests");
        let body = text.split_once(&format!("fn {test}(")).map(|(_, rest)| rest.split("\nfn ").next().unwrap_or(rest));
        let body = body.unwrap_or_else(|| panic!("{file} has no {test}"));
        let is_named = body.contains(&format!("\"{entry}\"")) || ["gpu-type", "gpu-faults"].contains(entry);
        assert!(is_named, "{test} does not mention {entry}");
    }
}
