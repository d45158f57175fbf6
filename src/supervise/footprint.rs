//! PID 1 stays for as long as the container; what only its start needed does not have to.
//!
//! EDGE.

use nix::libc;

/// Gives back the memory that the start used and idling does not: freed heap, and code pages. The kernel maps code 64 KiB
/// at a time around each page that runs, so after a start that reads TOML and JSON nearly the whole program is resident.
pub(super) fn release() {
    trim_heap();
    let own = std::fs::read_link("/proc/self/exe").unwrap_or_default();
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap_or_default();
    for line in maps.lines() {
        let mut fields = line.split_ascii_whitespace();
        let (Some(range), Some("r-xp")) = (fields.next(), fields.next()) else { continue };
        let is_own = fields.nth(3).is_some_and(|path| std::path::Path::new(path) == own);
        let bounds = range.split_once('-').and_then(|(start, end)| {
            Some((usize::from_str_radix(start, 16).ok()?, usize::from_str_radix(end, 16).ok()?))
        });
        if let (true, Some((start, end))) = (is_own, bounds) {
            unmap_code(start, end);
        }
    }
}

#[expect(unsafe_code, reason = "glibc's own call; nothing safe wraps it")]
fn trim_heap() {
    // SAFETY: it takes no pointer and only returns free memory to the kernel.
    unsafe { libc::malloc_trim(0) };
}

#[expect(unsafe_code, reason = "madvise of this program's own code")]
fn unmap_code(start: usize, end: usize) {
    // SAFETY: the range is a whole mapping of the kernel's list, read-only and of a file that cannot be written while it
    // runs (ETXTBSY). Its pages are unchanged, as a position-independent program has no relocations in its code; each is
    // mapped again from the file when it is next needed.
    unsafe { libc::madvise(start as *mut libc::c_void, end - start, libc::MADV_DONTNEED) };
}
