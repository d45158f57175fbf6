//! The faults of real drivers, each met at one call.

use nvml_wrapper_sys::bindings as sys;
use serde::Deserialize;
use sys::nvmlReturn_t as Code;

/// One `[[fault]]` table.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Fault {
    pub(crate) at: At,
    pub(crate) gpu: Option<u32>,
    kind: Kind,
    /// How long `slow` takes.
    #[serde(default = "one_second")]
    milliseconds: u64,
}

fn one_second() -> u64 {
    1000
}

/// A call, or a group of calls that fail together. In the file: `init`, `link-state`, ...
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum At {
    Init,
    Shutdown,
    ErrorString,
    DriverVersion,
    CudaVersion,
    NvmlVersion,
    Count,
    Handle,
    Index,
    Minor,
    Uuid,
    Name,
    Pci,
    Memory,
    Compute,
    Affinity,
    Numa,
    Persistence,
    LinkState,
    LinkRemote,
    MigMode,
    MigDevice,
    MigInstance,
    Processes,
    Utilization,
    Fan,
    Link,
    Temperature,
    Energy,
    Clocks,
    Ecc,
    Events,
    Fabric,
    Fields,
    Gpm,
    Power,
}

impl At {
    /// The larger group that fails together with it.
    pub(crate) const fn group(self) -> Self {
        match self {
            Self::Utilization | Self::Fan | Self::Temperature => Self::Clocks,
            Self::Link => Self::Pci,
            Self::Energy => Self::Power,
            alone => alone,
        }
    }
}

/// What happens there. In the file also each NVML error by its name: `unknown`, `driver-not-loaded`, ...
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum Kind {
    /// The call never returns.
    Hang,
    /// The call never returns and burns a CPU.
    Spin,
    /// The call takes `milliseconds`, then answers.
    Slow,
    /// The process dies of SIGSEGV.
    Crash,
    /// The process dies of SIGABRT, as a failed assertion would do.
    Abort,
    /// The process exits with 0, as if all were well.
    Exit,
    /// The call succeeds, every byte of the answer is 0xff, and a text still ends.
    Nonsense,
    /// The call succeeds and fills a text to the brim: no NUL. Elsewhere the same as `nonsense`.
    Unterminated,
    /// The call succeeds and does not touch the answer.
    Untouched,
    /// The call writes to standard output and standard error first, then answers.
    Noise,
    // What nvmlReturn_t names.
    Uninitialized,
    InvalidArgument,
    NotSupported,
    NoPermission,
    NotFound,
    InsufficientSize,
    InsufficientPower,
    DriverNotLoaded,
    Timeout,
    IrqIssue,
    LibraryNotFound,
    FunctionNotFound,
    CorruptedInforom,
    GpuIsLost,
    ResetRequired,
    OperatingSystem,
    /// The library in the container is of another release than the kernel's driver.
    LibRmVersionMismatch,
    InUse,
    Memory,
    NoData,
    Unknown,
    /// A code that no header names.
    UnheardOf,
}

/// How a call that returns and succeeds is to answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Answer {
    Honest,
    Nonsense,
    Unterminated,
    Untouched,
}

impl Fault {
    /// Lets it happen: `Ok` where the call goes on, `Err` where it is to return this code, or nothing at all.
    pub(crate) fn happen(&self) -> Result<Answer, Code> {
        match self.kind {
            Kind::Hang => loop {
                std::thread::park();
            },
            Kind::Spin => loop {
                std::hint::spin_loop();
            },
            Kind::Slow => {
                #[expect(clippy::disallowed_methods, reason = "a slow driver is what is wanted")]
                std::thread::sleep(std::time::Duration::from_millis(self.milliseconds));
                Ok(Answer::Honest)
            }
            Kind::Crash => {
                // SAFETY: restores the default action and raises the signal in this thread; both take plain numbers.
                unsafe {
                    libc::signal(libc::SIGSEGV, libc::SIG_DFL);
                    libc::raise(libc::SIGSEGV);
                }
                Err(sys::nvmlReturn_enum_NVML_ERROR_UNKNOWN)
            }
            Kind::Abort => std::process::abort(),
            Kind::Exit => std::process::exit(0),
            Kind::Nonsense => Ok(Answer::Nonsense),
            Kind::Unterminated => Ok(Answer::Unterminated),
            Kind::Untouched => Ok(Answer::Untouched),
            Kind::Noise => {
                println!("NVRM: this line does not belong on standard output {{\"gpus\":[]}}");
                eprintln!("NVRM: nor does this one belong here");
                Ok(Answer::Honest)
            }
            error => Err(error.code()),
        }
    }
}

impl Kind {
    fn code(self) -> Code {
        match self {
            Self::Uninitialized => sys::nvmlReturn_enum_NVML_ERROR_UNINITIALIZED,
            Self::InvalidArgument => sys::nvmlReturn_enum_NVML_ERROR_INVALID_ARGUMENT,
            Self::NotSupported => sys::nvmlReturn_enum_NVML_ERROR_NOT_SUPPORTED,
            Self::NoPermission => sys::nvmlReturn_enum_NVML_ERROR_NO_PERMISSION,
            Self::NotFound => sys::nvmlReturn_enum_NVML_ERROR_NOT_FOUND,
            Self::InsufficientSize => sys::nvmlReturn_enum_NVML_ERROR_INSUFFICIENT_SIZE,
            Self::InsufficientPower => sys::nvmlReturn_enum_NVML_ERROR_INSUFFICIENT_POWER,
            Self::DriverNotLoaded => sys::nvmlReturn_enum_NVML_ERROR_DRIVER_NOT_LOADED,
            Self::Timeout => sys::nvmlReturn_enum_NVML_ERROR_TIMEOUT,
            Self::IrqIssue => sys::nvmlReturn_enum_NVML_ERROR_IRQ_ISSUE,
            Self::LibraryNotFound => sys::nvmlReturn_enum_NVML_ERROR_LIBRARY_NOT_FOUND,
            Self::FunctionNotFound => sys::nvmlReturn_enum_NVML_ERROR_FUNCTION_NOT_FOUND,
            Self::CorruptedInforom => sys::nvmlReturn_enum_NVML_ERROR_CORRUPTED_INFOROM,
            Self::GpuIsLost => sys::nvmlReturn_enum_NVML_ERROR_GPU_IS_LOST,
            Self::ResetRequired => sys::nvmlReturn_enum_NVML_ERROR_RESET_REQUIRED,
            Self::OperatingSystem => sys::nvmlReturn_enum_NVML_ERROR_OPERATING_SYSTEM,
            Self::LibRmVersionMismatch => sys::nvmlReturn_enum_NVML_ERROR_LIB_RM_VERSION_MISMATCH,
            Self::InUse => sys::nvmlReturn_enum_NVML_ERROR_IN_USE,
            Self::Memory => sys::nvmlReturn_enum_NVML_ERROR_MEMORY,
            Self::NoData => sys::nvmlReturn_enum_NVML_ERROR_NO_DATA,
            Self::UnheardOf => 4242,
            _ => sys::nvmlReturn_enum_NVML_ERROR_UNKNOWN,
        }
    }
}
