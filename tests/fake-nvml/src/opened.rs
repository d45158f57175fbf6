//! The GPUs that this process has opened. As with the real library, a handle opens the GPU's device file, which stays open until
//! `nvmlShutdown`; and the first use of a GPU without persistence mode initialises it.

use std::collections::BTreeMap;
use std::fs::File;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use crate::machine::Gpu;

static OPENED: Mutex<BTreeMap<u32, Option<File>>> = Mutex::new(BTreeMap::new());

/// Opens the GPU unless it is open. A container without its device file costs only the file.
pub(crate) fn open(gpu: &Gpu) {
    let mut opened = OPENED.lock().unwrap_or_else(PoisonError::into_inner);
    if opened.contains_key(&gpu.index) {
        return;
    }
    if gpu.is_cold() {
        #[expect(clippy::disallowed_methods, reason = "a slow driver is what is wanted")]
        std::thread::sleep(Duration::from_millis(gpu.init_ms));
    }
    let file = File::options().read(true).open(format!("/dev/nvidia{}", gpu.minor())).ok();
    opened.insert(gpu.index, file);
}

pub(crate) fn close_all() {
    OPENED.lock().unwrap_or_else(PoisonError::into_inner).clear();
}
