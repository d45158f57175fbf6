//! A supervisor for tests.

use std::path::Path;
use std::time::Duration;

use super::Supervisor;
use crate::logs::Logs;
use config::{Config, StartOnlyTables};
use machine::{Event, UnitId};
use model::log::{Level, LogFormat};
use model::prepared::{PrepareEvent, Prepared};
use plan::target::Target;

/// The supervisor of a container whose run directory cannot be created.
pub(super) fn supervisor(toml: &str) -> Supervisor {
    let paths = "[paths]\nrun = '/dev/null/run'\nstate = '/state'\nslurm = '/slurm'\n";
    let config = Config::parse(&format!("{toml}\n{paths}"), Path::new("slurminit.toml")).unwrap();
    let task = plan::task::task(&config, &StartOnlyTables::of(&config), Target::of(&config), false, 0);
    let (events, _) = tokio::sync::mpsc::unbounded_channel();
    let logs = Logs::without_output(LogFormat::Text, Level::Info);
    let inherited = serde_json::from_str(r#"{"mask":0,"ignored":[],"umask":18}"#).unwrap();
    Supervisor::new(task, Vec::new(), inherited, logs, events)
}

impl Supervisor {
    /// The supervisor after this preparation.
    pub(super) fn prepared(mut self, prepared: Prepared) -> Self {
        for event in [Event::Tick, Event::Prepare(PrepareEvent::Done(prepared))] {
            self.machine.step(Duration::ZERO, event);
        }
        self
    }

    pub(super) fn unit(&self, name: &str) -> UnitId {
        self.machine.units().ids().find(|id| self.machine.units()[*id].spec.name == name).unwrap()
    }
}
