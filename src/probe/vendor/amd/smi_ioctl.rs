//! KFD's ioctl for event descriptors (`AMDKFD_IOC_SMI_EVENTS`, with reset events since Linux 5.10).

#![expect(unsafe_code, reason = "no crate wraps KFD's ioctls")]

use std::fs::File;
use std::io::{self, ErrorKind};
use std::os::fd::{AsRawFd as _, FromRawFd as _, OwnedFd};

use nix::errno::Errno;

/// `AMDKFD_IOC_SMI_EVENTS` of `linux/kfd_ioctl.h`: `_IOWR('K', 0x1f, struct kfd_ioctl_smi_events_args)`.
const SMI_EVENTS: libc::Ioctl = 0xC008_4B1F;

/// `struct kfd_ioctl_smi_events_args`.
#[repr(C)]
struct SmiEventsArgs {
    gpu_id: u32,
    /// Set by the kernel: a new file descriptor.
    descriptor: u32,
}

/// A new descriptor for events of the GPU with this KFD ID. It stays valid after `kfd` is closed.
///
/// # Errors
/// The kernel's error, or `InvalidData` if its answer cannot be a new descriptor.
pub(super) fn open_event_descriptor(kfd: &File, gpu_id: u32) -> io::Result<OwnedFd> {
    let mut args = SmiEventsArgs { gpu_id, descriptor: 0 };
    // SAFETY: the kernel reads and writes 8 bytes, the size in the request's number, which is the size of `args`.
    let outcome = unsafe { libc::ioctl(kfd.as_raw_fd(), SMI_EVENTS, &raw mut args) };
    Errno::result(outcome)?;
    let descriptor = i32::try_from(args.descriptor).map_err(|_| io::Error::from(ErrorKind::InvalidData))?;
    if descriptor <= libc::STDERR_FILENO {
        return Err(ErrorKind::InvalidData.into());
    }
    // SAFETY: the kernel has just created the descriptor for this process, and nothing else owns it.
    Ok(unsafe { OwnedFd::from_raw_fd(descriptor) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ioctl_number_matches_kernel_header() {
        // _IOC(_IOC_READ | _IOC_WRITE, 'K', 0x1f, 8), as in asm-generic/ioctl.h.
        let want = 3_u64 << 30 | (size_of::<SmiEventsArgs>() as u64) << 16 | u64::from(b'K') << 8 | 0x1f;
        assert_eq!(SMI_EVENTS, want);
    }
}
