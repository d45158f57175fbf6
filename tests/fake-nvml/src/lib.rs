//! Stands in for `libnvidia-ml.so.1`: answers for GPUs that a TOML file describes.
//!
//! Built as `libfake_nvml.so`; install it as `libnvidia-ml.so.1`, or give its path to `Nvml::builder().lib_path(..)`.
//! Both [nvml-wrapper](https://docs.rs/nvml-wrapper) and Slurm's own `gpu_nvml.so` (every symbol that 22.05 and 24.11 link)
//! are served. Each `nvmlInit` reads the file, and a file that changes is read again, because GPUs fail while a driver is in use:
//! `FAKE_NVML` names it, else it is `/etc/fake-nvml.toml`. No file means a driver with no GPU.
//!
//! # The file
//!
//! ```toml
//! driver = "590.48.01"          # what the driver calls itself
//! cuda = "13.1"
//! gpus = 2                      # two GPUs with every default; or, instead, one table for each GPU:
//!
//! [[gpu]]                       # every key may be left out; the defaults of GPU number i are:
//! name = "NVIDIA H200"
//! uuid = "GPU-fa4e0000-0000-0000-0000-00000000000i"
//! minor = 0                     # i; N of /dev/nvidiaN
//! pci = "00000000:10:00.0"      # bus 0x10 + i
//! memory_mib = 143771
//! compute = [9, 0]
//! cpus = "0-15,32-47"           # every CPU of this machine
//! numa = 0                      # absent: the call is not supported
//! links = { "1" = 18 }          # active NVLinks, by the peer's index; absent: the GPU has no NVLink at all
//! switch_links = 0              # active NVLinks that end at an NVSwitch instead
//! mig = "disabled"              # or "unsupported", "enabled" (with no instance); or, in its place, [[gpu.mig]] below
//! persistence = false
//! condition = {}                # how it fares: see `condition::Condition`
//! denied = false                # true: counted, but its handle answers NO_PERMISSION
//! init_ms = 0                   # how long its first handle takes in each process, without persistence
//! reserved_mib = 0              # what the driver keeps of the memory for itself
//! unsupported = ["fan"]         # calls that answer NOT_SUPPORTED: see `fault::At`
//! lacks_fields = [230]          # the same for nvmlDeviceGetFieldValues, by number
//!
//! [[gpu.mig]]                   # a MIG instance of the GPU above; the defaults of instance number i are:
//! profile = "1g.18gb"           # also "1c.3g.71gb", "1g.18gb+me"
//! gi = 0                        # GPU instance and compute instance
//! ci = 0
//! slot = 0                      # i; the index by which NVML hands it out; slots may be left empty
//! uuid = "MIG-fa4e0000-0000-0000-000i-00000000000g"
//! memory_mib = 16384
//! used_mib = 0
//! busy = [50.0, 20.0]           # multiprocessors and tensor cores, in percent; absent: GPM does not know
//!
//! [[fault]]                     # any number of them; the first that fits is met
//! at = "init"                   # a call: see `fault::At`
//! gpu = 1                       # only at this GPU; absent: at every one
//! kind = "hang"                 # see `fault::Kind`; or an NVML error: "unknown", "lib-rm-version-mismatch", ...
//!
//! [[xid]]                       # an error that the driver reports to those who wait for events: tables that are added later are new ones
//! gpu = 3
//! code = 79
//! ```
//!
//! What a host does to a GPU (a reset, a change of the MIG mode) is refused while another process has the device file open: [`repair`].
//!
//! A driver that lacks a call is a copy of the library with the call's name changed in it: [`profile::without`]. Driver branches
//! and cards as they are in the field are in [`profile`].
//!
//! A name that TOML's text cannot hold is given as bytes: `name = [78, 10, 255]`.

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
