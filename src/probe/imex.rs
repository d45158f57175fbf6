//! IMEX channels: device files through which CUDA shares GPU memory between machines in one NVLink domain.
//!
//! NVIDIA_IMEX_CHANNELS, CDI or `--device` select the channels of a container (NVIDIA's IMEX guide, "IMEX Channels").

use std::fs;
use std::path::Path;

use super::device;
use model::inventory::Access;

const DIRECTORY: &str = "dev/nvidia-caps-imex-channels";

/// The numbers of the channels that can be opened, ascending.
pub(super) fn channels(root: &Path) -> Vec<u32> {
    let entries = fs::read_dir(root.join(DIRECTORY)).into_iter().flatten().flatten();
    let number = |name: &str| name.strip_prefix("channel")?.parse().ok();
    let usable = entries.filter(|entry| device::access_without_open(&entry.path()) == Access::Usable);
    let mut channels: Vec<u32> = usable.filter_map(|entry| number(entry.file_name().to_str()?)).collect();
    channels.sort_unstable();
    channels
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_channels_that_are_devices() {
        let root = crate::tests::tree(&[("dev/nvidia-caps-imex-channels/channel3", "not a device")]);
        let directory = root.path().join(DIRECTORY);
        for name in ["channel10", "channel2", "channelx", "other"] {
            std::os::unix::fs::symlink("/dev/null", directory.join(name)).unwrap();
        }
        assert_eq!(channels(root.path()), [2, 10]);
        assert_eq!(channels(&directory), [0; 0]);
    }
}
