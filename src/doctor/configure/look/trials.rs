//! Runs a trial container with the GPUs.

use std::time::Duration;

use super::has_image;
use crate::configure::assess::Trials;
use crate::configure::host_gpus::HostGpus;
use crate::configure::passthrough::{self, Trial};
use crate::configure::situation::Situation;
use sys::tool;
use sys::tool::answer::Answer;

/// The timeout of the trial container. The driver's initialization of many GPUs is slow.
const TRIAL_TIMEOUT: Duration = Duration::from_secs(60);

/// Runs a trial for each vendor whose driver works, unless `no_trial` is set, the engine is not reachable, or the image does not exist.
pub fn trials(image: &str, no_trial: bool, deadline: Duration, situation: &Situation) -> Trials {
    let precondition = if no_trial {
        Err("--no-trial")
    } else if situation.engine.info().is_none() {
        Err("the engine is not reachable")
    } else if !has_image(deadline, image) {
        Err("the image is not built yet; build it and run this again")
    } else {
        Ok(())
    };
    let trial = |gpus: &dyn HostGpus| match precondition {
        Err(why) => Trial::Skipped(why),
        Ok(()) if !gpus.is_ready(situation) => Trial::Skipped("a check above failed"),
        Ok(()) => run_trial(gpus, image, situation),
    };
    Trials(situation.gpus.iter().map(|gpus| (gpus.vendor(), trial(gpus.as_ref()))).collect())
}

fn run_trial(gpus: &dyn HostGpus, image: &str, situation: &Situation) -> Trial {
    let name = format!("slurminit-trial-{}", std::process::id());
    let arguments = passthrough::arguments(&gpus.pass_method(situation), image, &name);
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let answer = tool::ask("docker", &arguments, TRIAL_TIMEOUT);
    if answer == Answer::Silent {
        // The timeout kills only the client.
        tool::ask("docker", &["rm", "--force", &name], TRIAL_TIMEOUT);
    }
    passthrough::interpret(gpus.vendor(), &answer)
}
