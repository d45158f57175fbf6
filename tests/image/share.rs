//! How much of the machine tests use at a time. A test holds its share until it ends, and takes it at once, so that two tests never wait
//! for each other.

use std::cell::RefCell;
use std::sync::{Condvar, LazyLock, Mutex, PoisonError};

/// Assumed memory of a container, in KiB.
const CONTAINER_KIB: usize = 512 << 10;
/// Containers for each core: they wait more than they compute.
const PER_CORE: usize = 5;

/// Grants shares in the order of the requests, so that a test of several containers is not passed over. Only a test that uses the whole
/// machine waits until no other runs or waits, which is at the end: before it, the cores would be idle until the last other test ends.
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

/// A share that is returned when it is dropped.
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

/// The number of containers that may run at a time.
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

/// Has this test use as much of the machine as so many containers do. A test of several containers, or of much load, calls it first; one
/// that does not has a share of one. A thread without a name was started by a test, whose share counts: it would wait for that for ever.
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

/// Has this test run alone.
pub(crate) fn hold_all() {
    hold(WHOLE);
}

/// The share of a test that has asked for none.
pub(crate) fn hold_one() {
    hold(1);
}

#[test]
fn threads_of_a_test_use_its_share() {
    hold_all();
    std::thread::scope(|scope| {
        scope.spawn(hold_all);
        scope.spawn(hold_one);
    });
}

#[test]
fn machine_runs_as_many_containers_as_its_cores_and_memory_allow() {
    let meminfo = |kib: usize| format!("MemTotal: 99 kB\nMemAvailable:   {kib} kB\n");
    assert_eq!(size(2, &meminfo(64 << 20)), 10);
    assert_eq!(size(64, &meminfo(4 << 20)), 8);
    assert_eq!(size(2, &meminfo(1000)), 1);
    assert_eq!(size(3, ""), 15);
}
