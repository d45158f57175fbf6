//! PID 1 stays for as long as the container; what only its start needed does not have to.
//!
//! EDGE.

use std::rc::Rc;
use std::time::Duration;

use nix::libc;
use tokio::sync::Notify;
use tokio::time::Instant;

use super::alarm::Alarm;

/// How long it must have been quiet.
const QUIET: Duration = Duration::from_millis(200);

/// Says that something happens, and is no longer idle.
#[derive(Clone, Debug, Default)]
pub(super) struct Activity(Rc<Notify>);

impl Activity {
    pub(super) fn note(&self) {
        self.0.notify_one();
    }

    /// Once it is quiet again, gives back the memory that was used and idling does not need: freed heap, the part of the
    /// stack that only a start needs, and pages of this program's files. The kernel maps such a file 64 KiB at a time around
    /// each page that is touched, so after a start that reads TOML and JSON nearly the whole program is resident. Runs
    /// beside the loop; wakes only after activity.
    pub(super) async fn release_when_quiet(self) {
        let mut mappings = None;
        let alarm = Alarm::new();
        loop {
            self.0.notified().await;
            loop {
                tokio::select! {
                    biased;
                    () = self.0.notified() => {}
                    () = alarm.wait_until(Instant::now() + QUIET) => break,
                }
            }
            trim_heap();
            let (unchanged, stack) = mappings.get_or_insert_with(own_mappings);
            for (start, end) in unchanged {
                unmap(*start, *end);
            }
            if let Some(start) = stack {
                release_unused_stack(*start);
            }
        }
    }
}

/// The unchanged ones of files, and where the stack begins. They stay as they are once the program runs.
fn own_mappings() -> (Vec<(usize, usize)>, Option<usize>) {
    let smaps = std::fs::read_to_string("/proc/self/smaps").unwrap_or_default();
    (unchanged_mappings(&smaps), start_of_stack(&smaps))
}

fn start_of_stack(smaps: &str) -> Option<usize> {
    let line = smaps.lines().find(|line| line.ends_with(" [stack]"))?;
    usize::from_str_radix(line.split_once('-')?.0, 16).ok()
}

/// The mappings of files that are read-only and of which no page was ever changed: the code and constants of the program
/// and its libraries, but not what the loader has relocated. `smaps` is in the format of proc(5).
fn unchanged_mappings(smaps: &str) -> Vec<(usize, usize)> {
    let mut found = Vec::new();
    let mut current = None;
    for line in smaps.lines() {
        if let Some(mapping) = file_mapping(line) {
            current = mapping;
        } else if line.strip_prefix("Anonymous:").is_some_and(|size| size.trim() == "0 kB") {
            // The last of a mapping's fields that matters. A changed page of a private mapping is an anonymous one.
            found.extend(current.take());
        }
    }
    found
}

/// `None` for a line that begins no mapping; `Some(None)` for one that begins another kind of mapping.
fn file_mapping(line: &str) -> Option<Option<(usize, usize)>> {
    let mut fields = line.split_ascii_whitespace();
    let (start, end) = fields.next()?.split_once('-')?;
    let range = (usize::from_str_radix(start, 16).ok()?, usize::from_str_radix(end, 16).ok()?);
    let is_read_only = matches!(fields.next()?, "r-xp" | "r--p");
    let is_file = fields.nth(3).is_some_and(|path| path.starts_with('/'));
    Some((is_read_only && is_file).then_some(range))
}

#[expect(unsafe_code, reason = "glibc's own call; nothing safe wraps it")]
fn trim_heap() {
    // SAFETY: it takes no pointer and only returns free memory to the kernel.
    unsafe { libc::malloc_trim(0) };
}

#[expect(unsafe_code, reason = "madvise of this program's own files")]
fn unmap(start: usize, end: usize) {
    // SAFETY: the range is a whole mapping of the kernel's list: of a file, read-only, and without a changed page.
    // Programs and libraries are replaced by renaming, never written in place. Each page is mapped again from the file when it is next needed.
    unsafe { libc::madvise(start as *mut libc::c_void, end - start, libc::MADV_DONTNEED) };
}

/// What is left alone below the present local variable: the rest of its frame, and that of the call to the kernel.
const STACK_IN_USE: usize = 4096;

#[expect(unsafe_code, reason = "madvise of this program's own stack")]
fn release_unused_stack(start: usize) {
    let Ok(Some(page)) = nix::unistd::sysconf(nix::unistd::SysconfVar::PAGE_SIZE) else { return };
    let Ok(page) = usize::try_from(page) else { return };
    let here = 0_u8;
    let end = (&raw const here as usize).saturating_sub(STACK_IN_USE) / page * page;
    if end > start {
        // SAFETY: the stack grows down, so what lies below the present frame belongs to calls that have returned. The kernel gives new ones when the stack grows there again.
        unsafe { libc::madvise(start as *mut libc::c_void, end - start, libc::MADV_DONTNEED) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_unchanged_read_only_mappings_of_files_are_given_back() {
        let mapping = |range: &str, mode: &str, path: &str, anonymous: u32| {
            format!("{range} {mode} 00000000 fe:00 42    {path}\nRss:  4 kB\nAnonymous:  {anonymous} kB\nVmFlags: rd\n")
        };
        let smaps = [
            mapping("1000-2000", "r-xp", "/init", 0),
            mapping("2000-3000", "r--p", "/init", 8),
            mapping("3000-4000", "rw-p", "/init", 0),
            mapping("4000-5000", "r-xp", "[vdso]", 0),
            mapping("5000-6000", "r--p", "/init", 0),
        ];
        assert_eq!(unchanged_mappings(&smaps.concat()), [(0x1000, 0x2000), (0x5000, 0x6000)]);
        assert_eq!(unchanged_mappings("nonsense\nAnonymous: 0 kB\n"), []);
        assert_eq!(start_of_stack(&mapping("7f0000-7f8000", "rw-p", "[stack]", 8)), Some(0x7f_0000));
        assert_eq!(start_of_stack(&smaps.concat()), None);
    }
}
