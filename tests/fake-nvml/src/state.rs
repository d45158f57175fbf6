//! The machine, from `nvmlInit` to `nvmlShutdown`.

use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::SystemTime;

use nvml_wrapper_sys::bindings::{self as sys, nvmlReturn_t as Code};

use crate::fault::{Answer, At};
use crate::machine::Machine;

#[derive(Default)]
struct State {
    /// Number of inits without a shutdown: as in the real library, each init needs its own shutdown.
    inits: u32,
    machine: Option<Arc<Machine>>,
    /// Modification time of the file that `machine` was read from.
    modified: Option<SystemTime>,
}

static STATE: Mutex<State> = Mutex::new(State { inits: 0, machine: None, modified: None });

/// Reads the machine file and triggers a fault at `init`.
pub(crate) fn init() -> Result<(), Code> {
    let (path, modified) = (path(), modified());
    let machine = Machine::read(&path).map_err(|error| {
        eprintln!("fake-nvml: {error}");
        sys::nvmlReturn_enum_NVML_ERROR_UNKNOWN
    })?;
    machine.meet(At::Init, None)?;
    let mut state = STATE.lock().unwrap_or_else(PoisonError::into_inner);
    state.inits += 1;
    (state.machine, state.modified) = (Some(Arc::new(machine)), modified);
    Ok(())
}

fn path() -> PathBuf {
    std::env::var_os("FAKE_NVML").map_or_else(|| PathBuf::from("/etc/fake-nvml.toml"), PathBuf::from)
}

fn modified() -> Option<SystemTime> {
    std::fs::metadata(path()).and_then(|file| file.modified()).ok()
}

/// Drops the machine at the last shutdown.
pub(crate) fn shutdown() -> Result<(), Code> {
    machine()?.meet(At::Shutdown, None)?;
    let mut state = STATE.lock().unwrap_or_else(PoisonError::into_inner);
    state.inits = state.inits.saturating_sub(1);
    if state.inits == 0 {
        state.machine = None;
        crate::opened::close_all();
    }
    Ok(())
}

/// The machine, read again if the file has changed: this simulates GPUs that fail at run time. A missing or incomplete
/// file is ignored.
pub(crate) fn machine() -> Result<Arc<Machine>, Code> {
    let mut state = STATE.lock().unwrap_or_else(PoisonError::into_inner);
    let modified = modified();
    if state.machine.is_some() && modified.is_some() && modified != state.modified {
        if let Ok(machine) = Machine::read(&path()) {
            (state.machine, state.modified) = (Some(Arc::new(machine)), modified);
        }
    }
    state.machine.clone().ok_or(sys::nvmlReturn_enum_NVML_ERROR_UNINITIALIZED)
}

impl Machine {
    /// Triggers the first fault that matches this call.
    pub(crate) fn meet(&self, at: At, gpu: Option<u32>) -> Result<Answer, Code> {
        let matches = |on: Option<u32>| on.is_none() || on == gpu;
        match self.fault.iter().find(|fault| (fault.at == at || fault.at == at.group()) && matches(fault.gpu)) {
            Some(fault) => fault.happen(),
            None => Ok(Answer::Honest),
        }
    }
}
