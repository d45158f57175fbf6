//! A line of KFD's SMI events.
//!
//! The kernel's `amdkfd/kfd_smi_events.c` writes the event's number in hexadecimal, a space, and the event's data in
//! the format `KFD_EVENT_FMT_...` of `linux/kfd_ioctl.h`. For a reset that is `%x %s`: the number of resets, and the
//! cause. Older kernels write no cause.

use faults::sample::Phase;

/// `KFD_SMI_EVENT_GPU_PRE_RESET` and `KFD_SMI_EVENT_GPU_POST_RESET`.
const PRE_RESET: u32 = 3;
const POST_RESET: u32 = 4;

/// The mask of requested events (`KFD_SMI_EVENT_MASK_FROM_INDEX`).
pub(super) const MASK: u64 = 1 << (PRE_RESET - 1) | 1 << (POST_RESET - 1);

/// Parses a line; `None` if it is not about a reset.
pub(super) fn parse(line: &[u8]) -> Option<Phase> {
    let line = std::str::from_utf8(line).ok()?;
    let mut parts = line.splitn(3, ' ');
    let mut number = || u32::from_str_radix(parts.next()?, 16).ok();
    let (event, _resets) = (number()?, number()?);
    let cause = parts.next().map(str::trim).filter(|cause| !cause.is_empty() && *cause != "unknown");
    match event {
        PRE_RESET => Some(Phase::Begins { cause: cause.map(str::to_owned) }),
        POST_RESET => Some(Phase::Ends),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn begins(cause: Option<&str>) -> Option<Phase> {
        Some(Phase::Begins { cause: cause.map(str::to_owned) })
    }

    #[test]
    fn parses_kernel_lines_with_and_without_cause() {
        // "%x %x\n" of Linux 5.10 and newer; "%x %x %s\n" of Linux 6.11 and newer, with the texts of amdgpu_reset_get_desc.
        assert_eq!(parse(b"3 1"), begins(None));
        assert_eq!(parse(b"4 1"), Some(Phase::Ends));
        assert_eq!(parse(b"3 a job hang on ring:comp_1.0.0"), begins(Some("job hang on ring:comp_1.0.0")));
        assert_eq!(parse(b"3 ffffffff RAS error"), begins(Some("RAS error")));
        assert_eq!(parse(b"3 2 HWS hang"), begins(Some("HWS hang")));
        assert_eq!(parse(b"3 2 unknown"), begins(None));
        // The end event has no cause but keeps the space.
        assert_eq!(parse(b"4 2 "), Some(Phase::Ends));
    }

    #[test]
    fn ignores_other_events_and_malformed_lines() {
        for line in [
            // VMFAULT, THERMAL_THROTTLE, QUEUE_EVICTION, and an undefined event.
            &b"1 1f40:python3"[..],
            b"2 8:1a",
            b"9 123456789 -4711 1a2b 0",
            b"7f 1",
            b"",
            b" ",
            b"3",
            b"3 ",
            b"3 x",
            b"-3 1",
            b"33333333333 1",
            b"3 1ffffffff",
            b"\x00\x00\x00",
            b"3 \xff",
            b"pre reset",
        ] {
            assert_eq!(parse(line), None, "{}", String::from_utf8_lossy(line));
        }
    }
}
