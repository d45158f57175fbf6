//! Looks at the host.

use super::{Args, ask};
use crate::commands::configure;
use crate::configure::look::{self as configure_look, Tools};
use crate::doctor::facts::HostFacts;
use crate::doctor::look;
use crate::inventory::Inventory;

pub(super) fn facts(args: &Args, inventory: &Inventory) -> HostFacts {
    let tools = Tools { deadline: args.timeout };
    let ask = ask(args);
    let situation = configure_look::look(&args.root, tools, inventory);
    let trials = configure::trials(&args.image, args.no_trial, tools, &situation);
    HostFacts {
        trials,
        image: look::image(&ask, &args.image),
        containers: look::containers(&ask),
        kubernetes: look::kubernetes(&ask),
        clock: look::clock(&ask),
        situation,
    }
}
