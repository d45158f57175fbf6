//! Limits the machine load of parallel tests. A test takes its whole share at once and holds it until it ends, which
//! prevents deadlocks between tests.

use std::cell::RefCell;
use std::sync::{Condvar, LazyLock, Mutex, PoisonError};

/// Assumed memory of a container, in KiB.
const CONTAINER_KIB: usize = 512 << 10;
/// Containers per core. Containers are idle most of the time.
const PER_CORE: usize = 5;

/// Grants shares in the order of the requests, so that a test with several containers does not starve. A test that
/// needs the whole machine waits until no other test runs or waits; an earlier turn would leave cores idle.
struct Pool {
    size: usize,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    used: usize,
    requests: u64,
    granted: u64,
}

/// The share of a test that runs alone.
const WHOLE: usize = usize::MAX;

/// A share of the pool, returned on drop.
struct Share(usize);

static POOL: LazyLock<Pool> = LazyLock::new(|| Pool {
    size: size(
        std::thread::available_parallelism().map_or(1, usize::from),
        &std::fs::read_to_string("/proc/meminfo").unwrap_or_default(),
    ),
    state: Mutex::default(),
    changed: Condvar::new(),
});

thread_local! {
    static HELD: RefCell<Option<Share>> = const { RefCell::new(None) };
}

/// Maximum number of containers that run at the same time.
fn size(cores: usize, meminfo: &str) -> usize {
    let available = meminfo.lines().find_map(|line| line.strip_prefix("MemAvailable:")?.trim().strip_suffix(" kB"));
    let fitting =
        available.and_then(|kib| kib.trim().parse::<usize>().ok()).map_or(usize::MAX, |kib| kib / CONTAINER_KIB);
    (cores * PER_CORE).min(fitting).max(1)
}

impl Share {
    fn take(containers: usize) -> Self {
        let share = containers.clamp(1, POOL.size);
        let mut state = POOL.state.lock().unwrap_or_else(PoisonError::into_inner);
        if containers == WHOLE {
            while state.used > 0 || state.granted < state.requests {
                state = POOL.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
            }
        } else {
            let request = state.requests;
            state.requests += 1;
            while state.granted != request || state.used + share > POOL.size {
                state = POOL.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
            }
            state.granted += 1;
        }
        state.used += share;
        POOL.changed.notify_all();
        Self(share)
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        POOL.state.lock().unwrap_or_else(PoisonError::into_inner).used -= self.0;
        POOL.changed.notify_all();
    }
}

/// Reserves a share of this number of containers for the calling test. A test with several containers or high load
/// calls it first; the default share is one. An unnamed thread was started by a test and uses that test's share: to
/// wait for another one would be a deadlock.
pub(crate) fn hold(containers: usize) {
    if std::thread::current().name().is_none() {
        return;
    }
    HELD.with_borrow_mut(|held| {
        if held.is_none() {
            *held = Some(Share::take(containers));
        }
    });
}

/// Runs the calling test alone.
pub(crate) fn hold_all() {
    hold(WHOLE);
}

/// Reserves the default share, unless the test already holds one.
pub(crate) fn hold_one() {
    hold(1);
}

#[test]
fn threads_of_test_use_its_share() {
    hold_all();
    std::thread::scope(|scope| {
        scope.spawn(hold_all);
        scope.spawn(hold_one);
    });
}

#[test]
fn pool_size_is_limited_by_cores_and_memory() {
    let meminfo = |kib: usize| format!("MemTotal: 99 kB\nMemAvailable:   {kib} kB\n");
    assert_eq!(size(2, &meminfo(64 << 20)), 10);
    assert_eq!(size(64, &meminfo(4 << 20)), 8);
    assert_eq!(size(2, &meminfo(1000)), 1);
    assert_eq!(size(3, ""), 15);
}
