//! Gives the GPUs to a container for a moment, and looks what comes of it.

use std::time::Duration;

use super::has_image;
use crate::configure::assess::Trials;
use crate::configure::passthrough::{self, Trial, way};
use crate::configure::situation::{FileGpus, Situation};
use model::inventory::Vendor;
use sys::tool;
use sys::tool::answer::Answer;

/// How long the trial's container may take: a first start of many GPUs is slow.
const TRIAL: Duration = Duration::from_secs(60);

/// Tries it for each vendor, where there is an image to do it with.
pub fn trials(image: &str, no_trial: bool, deadline: Duration, seen: &Situation) -> Trials {
    let can_try = if no_trial {
        Err("--no-trial")
    } else if seen.engine.info().is_none() {
        Err("the engine cannot be asked")
    } else if !has_image(deadline, image) {
        Err("the image is not built yet; run this again when it is")
    } else {
        Ok(())
    };
    let trial = |vendor: Vendor, is_worth_it: bool| match can_try {
        Err(why) => Trial::NotTried(why),
        Ok(()) if !is_worth_it => Trial::NotTried("something else is missing"),
        Ok(()) => try_with(vendor, image, seen),
    };
    let is_worth_it =
        |vendor| seen.by_files(vendor).map_or_else(|| !seen.nvidia.gpus.is_empty(), FileGpus::is_complete);
    Trials(Vendor::ALL.into_iter().map(|vendor| (vendor, trial(vendor, is_worth_it(vendor)))).collect())
}

fn try_with(vendor: Vendor, image: &str, seen: &Situation) -> Trial {
    let name = format!("slurminit-trial-{}", std::process::id());
    let arguments = passthrough::arguments(way(seen), seen.by_files(vendor), image, &name);
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let answer = tool::ask("docker", &arguments, TRIAL);
    if answer == Answer::Silent {
        // Only its client was killed.
        tool::ask("docker", &["rm", "--force", &name], TRIAL);
    }
    passthrough::judge(vendor, &answer)
}
