//! Renders the plan as text.
//!
//! The text contains no date or other changing value. So the same plan always gives the same bytes, and an unchanged
//! file is not rewritten.

mod cgroup_conf;
mod checksum;
mod cli_filter;
mod epilog;
mod explain;
mod gres_conf;
mod job_hooks;
mod mail;
mod oci_conf;
mod power;
mod prolog;
mod slurm_conf;
mod slurmdbd_conf;
mod task_prolog;

pub use explain::explain;
pub use slurmdbd_conf::slurmdbd_conf;

use crate::{FileName, HEADER, Plan, Text};

/// Renders slurm.conf, gres.conf, cgroup.conf and the epilog, and the other scripts and oci.conf if needed.
pub fn render(plan: &Plan) -> Vec<Text> {
    let mut files = vec![
        Text { name: FileName::SlurmConf, text: slurm_conf::text(plan) },
        Text { name: FileName::GresConf, text: gres_conf::text(plan) },
        Text { name: FileName::CgroupConf, text: cgroup_conf::text(plan) },
    ];
    let script = |prolog| Text { name: FileName::TaskProlog, text: task_prolog::text(prolog) };
    files.extend(plan.task_prolog.as_ref().map(script));
    files.extend(plan.prolog.as_ref().map(|prolog| Text { name: FileName::Prolog, text: prolog::text(prolog) }));
    files.push(Text { name: FileName::Epilog, text: epilog::text(&plan.epilog) });
    files.extend(plan.images.as_ref().map(|images| Text { name: FileName::OciConf, text: oci_conf::text(images) }));
    let filter = |filter| Text { name: FileName::CliFilter, text: cli_filter::text(filter) };
    files.extend(plan.cli_filter.map(filter));
    files.extend(plan.mail.as_ref().map(|script| Text { name: FileName::Mail, text: mail::text(script) }));
    let scripts = plan.autoscale.iter().flat_map(|autoscale| &autoscale.scripts);
    files.extend(scripts.map(|script| Text { name: script.name, text: power::text(script) }));
    files
}

/// The parameters with which a node that is not in slurm.conf registers with the controller (`slurmd -Z --conf`).
pub fn dynamic_node(plan: &Plan) -> String {
    slurm_conf::dynamic_node(&plan.nodes.node)
}

/// Quotes for sh, so that no character is special.
fn quoted(text: &str) -> String {
    format!("'{}'", text.replace('\'', "'\\''"))
}

fn header(name: FileName) -> String {
    format!(
        "{HEADER}\n\
         # To change it: [slurm.conf], [node], [gpu] and [[partition]] in /config/slurminit.toml. To replace it whole: put your\n\
         # own {name} with the line \"# USER_CUSTOMIZED=true\" into the configuration directory (/config).\n\n"
    )
}
