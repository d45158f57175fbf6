//! Several jobs on one GPU: Slurm's gres/shard and gres/mps.
//!
//! Each is a separate GRES besides `gpu`, with a count per device file. While a GPU is allocated as `gpu`, Slurm does not allocate it as
//! a shared GRES, and vice versa. MIG instances have no shard or mps lines, so Slurm assumes a count of 0.

use config::{Config, Sharing};
use model::inventory::{Finding, Kind};
use model::printable;

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
    let how = if auto_detect == AutoDetect::Off { "" } else { ", as Slurm distributes the total evenly" };
    reasons.decide(format!("{name} of {}, {each} per GPU{how}", printable::count(shared, "GPU")), key);
    Some(sharing)
}

/// Whether a device can be shared: MIG instances are not divided again, and only NVIDIA's GPUs support MPS.
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
            "no action; request such a device by its type: --gres=gpu:TYPE",
        )
    })
}
