//! PID 1 stays for as long as the container; what only its start needed does not have to.
//!
//! EDGE.

use std::cell::OnceCell;
use std::rc::Rc;
use std::time::Duration;

use nix::libc;
use tokio::sync::Notify;
use tokio::time::Instant;

use super::alarm::Alarm;

/// How long it must have been quiet.
const QUIET: Duration = Duration::from_millis(200);

/// Says that something happens, and gives back what it needed.
#[derive(Clone, Debug, Default)]
pub(super) struct Activity(Rc<Inner>);

#[derive(Debug, Default)]
struct Inner {
    noted: Notify,
    own: OnceCell<Own>,
}

/// Where this process's memory is. It stays so once the program runs.
#[derive(Debug, PartialEq, Eq)]
struct Own {
    unchanged: Vec<Mapping>,
    stack: Option<usize>,
}

impl Activity {
    /// Something happens that may not be the last for now.
    pub(super) fn note(&self) {
        self.0.noted.notify_one();
    }

    /// Gives back the memory that was used and idling does not need: freed heap, the part of the stack that only a start
    /// needs, and pages of this program's files: after a start that reads TOML and JSON nearly the whole program is
    /// resident.
    pub(super) fn release(&self) {
        trim_heap();
        let own = self.0.own.get_or_init(|| {
            let own = Own::parse(&std::fs::read_to_string("/proc/self/smaps").unwrap_or_default());
            own.unchanged.iter().filter(|mapping| is_own_code(mapping)).for_each(map_in_pieces);
            own
        });
        own.unchanged.iter().for_each(unmap);
        if let Some(start) = own.stack {
            release_unused_stack(start);
        }
    }

    /// Does it whenever it is quiet again. Runs beside the loop; wakes only after activity.
    pub(super) async fn release_when_quiet(self) {
        let alarm = Alarm::new();
        loop {
            self.0.noted.notified().await;
            loop {
                tokio::select! {
                    biased;
                    () = self.0.noted.notified() => {}
                    () = alarm.wait_until(Instant::now() + QUIET) => break,
                }
            }
            self.release();
        }
    }
}

/// Addresses from the first to before the last.
type Mapping = std::ops::Range<usize>;

impl Own {
    /// `smaps` is in the format of proc(5).
    fn parse(smaps: &str) -> Self {
        Self { unchanged: unchanged_mappings(smaps), stack: start_of_stack(smaps) }
    }
}

fn start_of_stack(smaps: &str) -> Option<usize> {
    let line = smaps.lines().find(|line| line.ends_with(" [stack]"))?;
    usize::from_str_radix(line.split_once('-')?.0, 16).ok()
}

/// The mappings of files that are read-only and of which no page was ever changed: the code and constants of the program
/// and its libraries, but not what the loader has relocated.
fn unchanged_mappings(smaps: &str) -> Vec<Mapping> {
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
fn file_mapping(line: &str) -> Option<Option<Mapping>> {
    let mut fields = line.split_ascii_whitespace();
    let (start, end) = fields.next()?.split_once('-')?;
    let range = usize::from_str_radix(start, 16).ok()?..usize::from_str_radix(end, 16).ok()?;
    let is_read_only = matches!(fields.next()?, "r-xp" | "r--p");
    let is_file = fields.nth(3).is_some_and(|path| path.starts_with('/'));
    Some((is_read_only && is_file).then_some(range))
}

#[expect(unsafe_code, reason = "glibc's own call; nothing safe wraps it")]
fn trim_heap() {
    // SAFETY: it takes no pointer and only returns free memory to the kernel.
    unsafe { libc::malloc_trim(0) };
}

fn is_own_code(mapping: &Mapping) -> bool {
    mapping.contains(&(is_own_code as *const () as usize))
}

/// How much of this program's code the kernel maps around a page that is touched. By itself it takes 64 KiB (its
/// fault_around_bytes), and what idling needs lies all over the program.
const PIECE: usize = 16 * 1024;

/// The kernel does not map around a page beyond what it was told of it, so every other piece is told what changes nothing:
/// to stay out of core dumps, in which a program's code is not anyway (core(5)).
fn map_in_pieces(mapping: &Mapping) {
    for start in mapping.clone().step_by(2 * PIECE) {
        advise(&(start..mapping.end.min(start + PIECE)), libc::MADV_DONTDUMP);
    }
}

fn unmap(mapping: &Mapping) {
    advise(mapping, libc::MADV_DONTNEED);
}

#[expect(unsafe_code, reason = "madvise of this program's own files")]
fn advise(mapping: &Mapping, advice: libc::c_int) {
    // SAFETY: the range is in a mapping of the kernel's list: of a file, read-only, and without a changed page. Programs
    // and libraries are replaced by renaming, never written in place. Each page is mapped again from the file when it is next needed.
    unsafe { libc::madvise(mapping.start as *mut libc::c_void, mapping.len(), advice) };
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
        let stack = mapping("7f0000-7f8000", "rw-p", "[stack]", 8);
        let own = Own::parse(&(smaps.concat() + &stack));
        assert_eq!(own, Own { unchanged: vec![0x1000..0x2000, 0x5000..0x6000], stack: Some(0x7f_0000) });
        assert_eq!(Own::parse("nonsense\nAnonymous: 0 kB\n"), Own { unchanged: Vec::new(), stack: None });
    }
}
