//! Several jobs on one GPU: Slurm's gres/shard and gres/mps.
//!
//! Each is a GRES of its own beside `gpu`, with a count per device file. A GPU used as one kind is not given to jobs of
//! the other. MIG instances have no lines, which Slurm takes as a count of 0.

use config::{Config, Sharing};
use model::inventory::{Finding, Kind};

use super::{AutoDetect, GresLine};
use crate::Reasons;

/// Plans the sharing; `None` if it is not configured, or no device can be shared.
pub(super) fn plan(
    config: &Config,
    lines: &[GresLine],
    auto_detect: AutoDetect,
    reasons: &mut Reasons,
) -> Option<Sharing> {
    let sharing = config.gpu.sharing()?;
    let shared = lines.iter().filter(|line| is_shared(sharing, line)).count();
    reasons.findings.extend(left_out(sharing, lines, shared));
    if shared == 0 {
        return None;
    }
    let (name, each) = (sharing.gres(), sharing.count_per_gpu());
    let key = match sharing {
        Sharing::Shards(_) => "set by `[gpu] shards`; jobs with --gres=shard:1 can share a GPU",
        Sharing::Mps => {
            "set by `[gpu] mps`; a job with --gres=mps:50 gets half of a GPU's multiprocessors if NVIDIA's MPS runs"
        }
    };
    let how = if auto_detect == AutoDetect::Off { "" } else { ", which Slurm spreads evenly" };
    reasons.decide(format!("{name} of {shared} GPUs, {each} per GPU{how}"), key);
    Some(sharing)
}

/// Whether a device can be shared: MIG partitions are not divided again, and MPS is NVIDIA's.
pub(super) fn is_shared(sharing: Sharing, line: &GresLine) -> bool {
    line.is_whole() && (sharing != Sharing::Mps || line.vendor.traits().has_cuda)
}

fn left_out(sharing: Sharing, lines: &[GresLine], shared: usize) -> Option<Finding> {
    // A machine without GPUs is reported elsewhere.
    let unshared = lines.len() - shared;
    (unshared > 0).then(|| {
        Finding::info(
            Kind::Settings,
            format!("{unshared} of {} devices cannot be shared as gres/{}", lines.len(), sharing.gres()),
            match sharing {
                Sharing::Shards(_) => "MIG instances cannot be shared",
                Sharing::Mps => "MPS supports only whole NVIDIA GPUs",
            }
            .to_owned(),
            "no action; request such a device with --gres=gpu",
        )
    })
}
