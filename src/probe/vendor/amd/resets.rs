//! The resets that the AMD driver reports.
//!
//! KFD provides a file descriptor for each GPU, from which lines are read. Any process with access to `/dev/kfd` gets reset events.

use std::fs::File;
use std::io::{self, ErrorKind, Read as _, Write as _};
use std::os::fd::AsFd as _;
use std::path::Path;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use super::smi_ioctl::open_event_descriptor;
use super::{gpu_ids, smi_line};
use crate::live::SendLine;
use crate::vendor::Events;
use faults::sample::{Identity, Key, Line, Phase};
use model::log::Level;
use model::message;
use sys::report;

/// The sources of reset events.
#[derive(Debug, Default)]
pub(super) struct Resets {
    files: Vec<EventFile>,
    /// The GPUs with a completed subscription attempt.
    attempted: Vec<Key>,
    has_logged_error: bool,
}

/// A GPU's file descriptor.
#[derive(Debug)]
struct EventFile {
    gpu: Key,
    gpu_id: u32,
    events: File,
    /// The line that is not complete yet.
    partial: Vec<u8>,
}

impl Events for Resets {
    fn follow(&mut self, root: &Path, gpus: &[Identity]) {
        let keys: Vec<Key> = gpus.iter().map(Identity::key).collect();
        if keys == self.attempted {
            return;
        }
        let ids = gpu_ids(root);
        let id_of = |gpu: &Identity| ids.get(usize::try_from(gpu.index).ok()?).copied().flatten();
        let subscriptions: Vec<(Key, u32)> = gpus.iter().filter_map(|gpu| Some((gpu.key(), id_of(gpu)?))).collect();
        self.files.retain(|file| subscriptions.iter().any(|(_, id)| *id == file.gpu_id));
        self.attempted = keys;
        for (gpu, gpu_id) in subscriptions {
            if self.files.iter().any(|file| file.gpu_id == gpu_id) {
                continue;
            }
            match subscribe(&root.join("dev/kfd"), gpu_id) {
                Ok(events) => self.files.push(EventFile { gpu, gpu_id, events, partial: Vec::new() }),
                // KFD rejects every open while it resets a GPU.
                Err(error) if error.kind() == ErrorKind::WouldBlock => self.attempted.clear(),
                Err(error) => self.log_error(&error),
            }
        }
    }

    fn receive(&mut self, until: Instant, send: SendLine<'_>) -> io::Result<()> {
        loop {
            let left = until.saturating_duration_since(Instant::now());
            let timeout = PollTimeout::try_from(left + Duration::from_millis(1)).unwrap_or(PollTimeout::MAX);
            let mut fds: Vec<PollFd<'_>> =
                self.files.iter().map(|file| PollFd::new(file.events.as_fd(), PollFlags::POLLIN)).collect();
            match poll(&mut fds, timeout) {
                Ok(0) => return Ok(()),
                Ok(_) | Err(Errno::EINTR) => {}
                Err(error) => return Err(error.into()),
            }
            let readable: Vec<bool> = fds.iter().map(|fd| fd.any().unwrap_or(true)).collect();
            let mut ended = Vec::new();
            for (file, _) in self.files.iter_mut().zip(readable).filter(|(_, is_readable)| *is_readable) {
                match file.read() {
                    Some(phases) => {
                        for phase in phases {
                            send(&Line::Reset { gpu: file.gpu.clone(), phase })?;
                        }
                    }
                    None => ended.push(file.gpu_id),
                }
            }
            if !ended.is_empty() {
                self.files.retain(|file| !ended.contains(&file.gpu_id));
                self.attempted.clear();
            }
            if left.is_zero() {
                return Ok(());
            }
        }
    }
}

impl Resets {
    /// Logs the first error only, at debug level: a kernel without these events, or missing access, is not a fault.
    fn log_error(&mut self, error: &io::Error) {
        if !std::mem::replace(&mut self.has_logged_error, true) {
            let message = message!(
                "no-reset-events",
                "cannot subscribe to reset events of the AMD driver: /dev/kfd: {error}",
                error
            );
            report::write(Level::Debug, message);
        }
    }
}

impl EventFile {
    /// Reads the available lines, and returns the phases of resets in them; `None` at the end of the file or after an error. The kernel's
    /// read never blocks, and may return 8 bytes at a time.
    fn read(&mut self) -> Option<Vec<Phase>> {
        let mut chunk = [0; 1024];
        let count = match self.events.read(&mut chunk) {
            Ok(0) => return None,
            Ok(count) => count,
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => 0,
            Err(_) => return None,
        };
        let mut phases = Vec::new();
        for byte in chunk.iter().take(count) {
            match byte {
                b'\n' => phases.extend(smi_line::parse(&std::mem::take(&mut self.partial))),
                byte => self.partial.push(*byte),
            }
        }
        Some(phases)
    }
}

fn subscribe(kfd: &Path, gpu_id: u32) -> io::Result<File> {
    // `kfd` is closed on return; the event descriptor stays valid.
    let kfd = File::options().read(true).write(true).open(kfd)?;
    let mut events = File::from(open_event_descriptor(&kfd, gpu_id)?);
    events.write_all(&smi_line::MASK.to_ne_bytes())?;
    Ok(events)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    fn identity(index: u32) -> Identity {
        Identity { index, uuid: Some(format!("GPU-{index}")), ..Identity::default() }
    }

    /// Two GPUs, each with a pipe in place of the kernel's event descriptor.
    fn two_gpus() -> (Resets, Vec<File>) {
        let (mut resets, mut writers) = (Resets::default(), Vec::new());
        for index in 0..2 {
            let (events, writer) = nix::unistd::pipe2(nix::fcntl::OFlag::O_CLOEXEC).unwrap();
            let (events, writer) = (File::from(events), File::from(writer));
            let gpu = identity(index).key();
            resets.files.push(EventFile { gpu, gpu_id: 100 + index, events, partial: Vec::new() });
            writers.push(writer);
        }
        resets.attempted = (0..2).map(|index| identity(index).key()).collect();
        (resets, writers)
    }

    fn received(resets: &mut Resets) -> Vec<(String, Phase)> {
        let mut received = Vec::new();
        let until = Instant::now() + Duration::from_millis(100);
        let mut send = |line: &Line| match line {
            Line::Reset { gpu, phase } => {
                received.push((gpu.to_string(), phase.clone()));
                Ok(())
            }
            other => panic!("{other:?}"),
        };
        resets.receive(until, &mut send).unwrap();
        assert!(Instant::now() >= until, "returned before the next sample is due");
        received
    }

    #[test]
    fn reads_events_of_each_gpu_even_in_partial_lines() {
        let (mut resets, mut writers) = two_gpus();
        writers[1].write_all(b"3 1 HWS hang\n").unwrap();
        writers[0].write_all(b"2 8:1a\ngarb\xffage\n3 1 RAS").unwrap();
        let begins = |cause: &str| Phase::Begins { cause: Some(cause.to_owned()) };
        assert_eq!(received(&mut resets), [("GPU-1".to_owned(), begins("HWS hang"))]);
        writers[0].write_all(b" error\n4 1 \n").unwrap();
        let want = [("GPU-0".to_owned(), begins("RAS error")), ("GPU-0".to_owned(), Phase::Ends)];
        assert_eq!(received(&mut resets), want);
        assert_eq!(received(&mut resets), []);
    }

    #[test]
    fn closed_descriptor_is_dropped_and_retried() {
        let (mut resets, mut writers) = two_gpus();
        writers[0].write_all(b"4 1\n").unwrap();
        drop(writers.remove(0));
        assert_eq!(received(&mut resets), [("GPU-0".to_owned(), Phase::Ends)]);
        assert_eq!((resets.files.len(), resets.attempted.len()), (1, 0));
    }

    #[test]
    fn descriptor_without_events_is_kept_and_one_that_fails_is_dropped() {
        use nix::fcntl::{FcntlArg, OFlag, fcntl};
        let (mut resets, _writers) = two_gpus();
        fcntl(&resets.files[0].events, FcntlArg::F_SETFL(OFlag::O_NONBLOCK)).unwrap();
        assert_eq!(resets.files[0].read(), Some(Vec::new()));
        // A directory cannot be read.
        resets.files[1].events = File::open("/").unwrap();
        assert_eq!(resets.files[1].read(), None);
    }

    #[test]
    fn returns_error_when_reader_is_gone() {
        let (mut resets, mut writers) = two_gpus();
        writers[0].write_all(b"4 1\n").unwrap();
        let until = Instant::now() + Duration::from_secs(60);
        assert!(resets.receive(until, &mut |_| Err(ErrorKind::BrokenPipe.into())).is_err());
    }

    #[test]
    fn kernel_without_smi_events_is_logged_and_not_retried() {
        let root = tempfile::tempdir().unwrap();
        let node = root.path().join(super::super::NODES).join("1");
        std::fs::create_dir_all(&node).unwrap();
        std::fs::create_dir_all(root.path().join("dev")).unwrap();
        std::fs::write(
            node.join("properties"),
            "simd_count 1216\nvendor_id 4098\ndevice_id 29857\nlocation_id 256\ndomain 0\ndrm_render_minor 128\n\
             gfx_target_version 90402\n",
        )
        .unwrap();
        std::fs::write(node.join("gpu_id"), "51110\n").unwrap();
        assert_eq!(gpu_ids(root.path()), [Some(51110)]);
        let kfd = root.path().join("dev/kfd");
        assert_eq!(subscribe(&kfd, 51110).unwrap_err().kind(), ErrorKind::NotFound);
        // /dev/null rejects ioctls like a kernel without this one.
        symlink("/dev/null", &kfd).unwrap();
        assert_eq!(subscribe(&kfd, 51110).unwrap_err().raw_os_error(), Some(libc::ENOTTY));
        let mut resets = Resets::default();
        resets.follow(root.path(), &[identity(0)]);
        assert_eq!((resets.files.len(), resets.attempted.len(), resets.has_logged_error), (0, 1, true));
        assert_eq!(received(&mut resets), []);
    }

    #[test]
    fn event_mask_selects_begin_and_end_of_reset() {
        assert_eq!(smi_line::MASK, 0b1100);
    }
}
