//! What `nvmlInit` read, until `nvmlShutdown`.

use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::SystemTime;

use nvml_wrapper_sys::bindings::{self as sys, nvmlReturn_t as Code};

use crate::fault::{Answer, At};
use crate::machine::Machine;

#[derive(Default)]
struct State {
    /// As in the real library: every init wants its own shutdown.
    inits: u32,
    machine: Option<Arc<Machine>>,
    /// When the file was written that this machine is of.
    written: Option<SystemTime>,
}

static STATE: Mutex<State> = Mutex::new(State { inits: 0, machine: None, written: None });

/// Reads the machine file; a fault at `init` happens here.
pub(crate) fn init() -> Result<(), Code> {
    let (path, written) = (path(), written());
    let machine = Machine::read(&path).map_err(|error| {
        eprintln!("fake-nvml: {error}");
        sys::nvmlReturn_enum_NVML_ERROR_UNKNOWN
    })?;
    machine.meet(At::Init, None)?;
    let mut state = STATE.lock().unwrap_or_else(PoisonError::into_inner);
    state.inits += 1;
    (state.machine, state.written) = (Some(Arc::new(machine)), written);
    Ok(())
}

fn path() -> PathBuf {
    std::env::var_os("FAKE_NVML").map_or_else(|| PathBuf::from("/etc/fake-nvml.toml"), PathBuf::from)
}

fn written() -> Option<SystemTime> {
    std::fs::metadata(path()).and_then(|file| file.modified()).ok()
}

/// Forgets the machine at the last shutdown.
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

/// The machine of the last init, as the file describes it by now: GPUs fail while a driver is in use. A file that is gone or half
/// written changes nothing.
pub(crate) fn machine() -> Result<Arc<Machine>, Code> {
    let mut state = STATE.lock().unwrap_or_else(PoisonError::into_inner);
    let written = written();
    if state.machine.is_some() && written.is_some() && written != state.written {
        if let Ok(machine) = Machine::read(&path()) {
            (state.machine, state.written) = (Some(Arc::new(machine)), written);
        }
    }
    state.machine.clone().ok_or(sys::nvmlReturn_enum_NVML_ERROR_UNINITIALIZED)
}

impl Machine {
    /// Lets the first fault that fits this call happen.
    pub(crate) fn meet(&self, at: At, gpu: Option<u32>) -> Result<Answer, Code> {
        let fits = |on: Option<u32>| on.is_none() || on == gpu;
        match self.fault.iter().find(|fault| (fault.at == at || fault.at == at.group()) && fits(fault.gpu)) {
            Some(fault) => fault.happen(),
            None => Ok(Answer::Honest),
        }
    }
}
