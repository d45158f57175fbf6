//! Faults of real drivers, each injected at one call.

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
    /// Delay of a `slow` fault.
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
    /// The group of calls that fail together with this one, or the call itself if it is in no group.
    pub(crate) const fn group(self) -> Self {
        match self {
            Self::Utilization | Self::Fan | Self::Temperature => Self::Clocks,
            Self::Link => Self::Pci,
            Self::Energy => Self::Power,
            ungrouped => ungrouped,
        }
    }
}

/// Kind of fault. In the file: `hang`, ..., or the name of an NVML error: `unknown`, `driver-not-loaded`, ...
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum Kind {
    /// The call never returns.
    Hang,
    /// The call never returns and burns a CPU.
    Spin,
    /// The call succeeds after `milliseconds`.
    Slow,
    /// The process dies of SIGSEGV.
    Crash,
    /// The process dies of SIGABRT, as with a failed assertion.
    Abort,
    /// The process exits with 0.
    Exit,
    /// The call succeeds; every byte of the result is 0xff. A text is NUL-terminated.
    Nonsense,
    /// The call succeeds and fills a text buffer without NUL. Other results are as with `nonsense`.
    Unterminated,
    /// The call succeeds without writing a result.
    Untouched,
    /// The call writes to standard output and standard error, then succeeds.
    Noise,
    // The following faults return this code of nvmlReturn_t.
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
    /// The library in the container and the kernel driver are of different releases.
    LibRmVersionMismatch,
    InUse,
    Memory,
    NoData,
    Unknown,
    /// A code that nvml.h does not define.
    UnheardOf,
}

/// The values that a successful call writes to its out-parameters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Answer {
    Honest,
    Nonsense,
    Unterminated,
    Untouched,
}

impl Fault {
    /// Triggers the fault. Returns `Ok` if the call continues and `Err` with the code to return; may never return.
    pub(crate) fn happen(&self) -> Result<Answer, Code> {
        match self.kind {
            Kind::Hang => loop {
                std::thread::park();
            },
            Kind::Spin => loop {
                std::hint::spin_loop();
            },
            Kind::Slow => {
                #[expect(clippy::disallowed_methods, reason = "it simulates a slow driver")]
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
