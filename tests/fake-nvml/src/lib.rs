//! A fake `libnvidia-ml.so.1` that simulates the GPUs described in a TOML file.
//!
//! Built as `libfake_nvml.so`; install it as `libnvidia-ml.so.1`, or give its path to `Nvml::builder().lib_path(..)`.
//! It serves [nvml-wrapper](https://docs.rs/nvml-wrapper) and Slurm's `gpu_nvml.so` (every symbol that 24.11
//! links). `FAKE_NVML` is the path of the file, by default `/etc/fake-nvml.toml`. Each `nvmlInit` reads it; a changed
//! file is read again, because GPUs fail while a driver is in use. Without a file, the driver has no GPU.
//!
//! # The file
//!
//! ```toml
//! driver = "590.48.01"          # driver version
//! cuda = "13.1"
//! gpus = 2                      # two GPUs with default values; or one table per GPU:
//!
//! [[gpu]]                       # every key is optional; the defaults of GPU number i are:
//! name = "NVIDIA H200"
//! uuid = "GPU-fa4e0000-0000-0000-0000-00000000000i"
//! minor = 0                     # i; N of /dev/nvidiaN
//! pci = "00000000:10:00.0"      # bus 0x10 + i
//! memory_mib = 143771
//! compute = [9, 0]
//! cpus = "0-15,32-47"           # every CPU of this machine
//! numa = 0                      # absent: the call is not supported
//! links = { "1" = 18 }          # active NVLinks by peer index; absent: no NVLink
//! switch_links = 0              # active NVLinks to an NVSwitch
//! mig = "disabled"              # or "unsupported", "enabled" (without instances); or [[gpu.mig]] instead
//! persistence = false
//! condition = {}                # see `condition::Condition`
//! denied = false                # true: counted, but opening it returns NO_PERMISSION
//! init_ms = 0                   # delay of the first handle in each process without persistence mode
//! reserved_mib = 0              # memory reserved by the driver
//! unsupported = ["fan"]         # calls that return NOT_SUPPORTED: see `fault::At`
//! lacks_fields = [230]          # field IDs that nvmlDeviceGetFieldValues does not support
//!
//! [[gpu.mig]]                   # a MIG instance of the GPU above; the defaults of instance number i are:
//! profile = "1g.18gb"           # also "1c.3g.71gb", "1g.18gb+me"
//! gi = 0                        # GPU instance and compute instance
//! ci = 0
//! slot = 0                      # i; NVML's index of the instance; slots may be empty
//! uuid = "MIG-fa4e0000-0000-0000-000i-00000000000g"
//! memory_mib = 16384
//! used_mib = 0
//! busy = [50.0, 20.0]           # multiprocessors and tensor cores, in percent; absent: no GPM
//!
//! [[fault]]                     # any number; the first match applies
//! at = "init"                   # a call: see `fault::At`
//! gpu = 1                       # only for this GPU; absent: for all
//! kind = "hang"                 # see `fault::Kind`; or an NVML error: "unknown", "lib-rm-version-mismatch", ...
//!
//! [[xid]]                       # an error event of the driver; tables added at run time are new events
//! gpu = 3
//! code = 79
//! ```
//!
//! Host operations on a GPU (reset, MIG mode change) fail while another process has the device file open: [`repair`].
//!
//! To simulate a driver without a call, copy the library and change the name of the call: [`profile::without`]. Real
//! driver branches and cards are in [`profile`].
//!
//! Names that are not valid TOML strings are given as bytes: `name = [78, 10, 255]`.

mod answer;
mod condition;
mod device;
mod event;
mod fault;
mod field;
mod gpm;
mod machine;
mod mig;
mod nvlink;
mod opened;
pub mod profile;
pub mod repair;
mod state;
mod system;
