//! The machines on which both detections are compared.

/// A machine: its processors, the GPUs of its driver, and the expected differences.
pub(crate) struct Machine {
    pub(crate) name: &'static str,
    pub(crate) sockets: u32,
    pub(crate) cores_per_socket: u32,
    pub(crate) threads_per_core: u32,
    /// The cpuset of the container; empty for the whole machine.
    pub(crate) allowed_cpus: &'static str,
    /// The GPUs, in the file format of the fake NVML library (see the documentation of its crate).
    pub(crate) gpus: &'static str,
    /// N of each `/dev/nvidiaN` in the container.
    pub(crate) device_files: &'static [u32],
    /// Lines of `/proc/driver/nvidia-caps/mig-minors`, such as `gpu0/gi9/access 219`. Each capability file that they name exists.
    pub(crate) mig_minors: &'static str,
    pub(crate) expected: Expected,
}

/// The expected result of the comparison.
pub(crate) enum Expected {
    /// AutoDetect and slurminit's lines give the same listing.
    Same,
    /// The listings differ; tests/differential/differences.md gives the reason under this title.
    Differs {
        title: &'static str,
        /// The listing with AutoDetect=nvml; `Err` holds a part of slurmd's fatal error message.
        autodetect: Result<&'static [Line], &'static str>,
        ours: &'static [Line],
    },
}

/// File, Type, Cores, Links, as `slurmd -G` prints them.
pub(crate) type Line = (&'static str, &'static str, &'static str, &'static str);

impl Machine {
    /// The number of a CPU: the first threads of all cores come first, then the second threads.
    pub(crate) fn cpu(&self, core: u32, thread: u32) -> u32 {
        thread * self.cores() + core
    }

    /// N of every `/dev/nvidia-caps/nvidia-capN`.
    pub(crate) fn capability_files(&self) -> impl Iterator<Item = &'static str> {
        self.mig_minors.split_whitespace().filter(|word| word.bytes().all(|byte| byte.is_ascii_digit()))
    }

    /// The text of mig-minors as the driver writes it.
    pub(crate) fn mig_minors(&self) -> String {
        self.mig_minors.lines().map(str::trim).filter(|line| !line.is_empty()).map(|line| format!("{line}\n")).collect()
    }

    /// The number of whole GPUs and of MIG instances that jobs can use.
    pub(crate) fn devices(&self) -> usize {
        let in_mig_mode = |minor: &&u32| self.mig_minors.contains(&format!("gpu{minor}/"));
        let whole = self.device_files.iter().filter(|minor| !in_mig_mode(minor)).count();
        whole + self.mig_minors.matches("/ci").count()
    }

    pub(crate) fn cores(&self) -> u32 {
        self.sockets * self.cores_per_socket
    }

    pub(crate) fn cpus(&self) -> u32 {
        self.cores() * self.threads_per_core
    }

    /// The processors as an hwloc synthetic topology (https://www.open-mpi.org/projects/hwloc), for slurmd.
    pub(crate) fn hwloc_synthetic(&self) -> String {
        let threads = |core| (0..self.threads_per_core).map(move |thread| self.cpu(core, thread).to_string());
        let order: Vec<_> = (0..self.cores()).flat_map(threads).collect();
        let Self { sockets, cores_per_socket, threads_per_core, .. } = self;
        format!("pack:{sockets} numa:1 core:{cores_per_socket} pu:{threads_per_core}(indexes={})", order.join(","))
    }
}

/// Ordered from common to unusual.
pub(crate) const MACHINES: &[Machine] = &[
    Machine {
        name: "one GPU",
        sockets: 1,
        cores_per_socket: 4,
        threads_per_core: 1,
        allowed_cpus: "",
        gpus: "
            [[gpu]]
            cpus = '0-3'
        ",
        device_files: &[0],
        mig_minors: "",
        expected: Expected::Differs {
            title: "A machine with one socket",
            autodetect: Ok(&[("/dev/nvidia0", "nvidia_h200", "0-3", "-1")]),
            ours: &[("/dev/nvidia0", "nvidia_h200", "", "-1")],
        },
    },
    Machine {
        name: "two GPUs, two sockets, no NVLink",
        sockets: 2,
        cores_per_socket: 4,
        threads_per_core: 1,
        allowed_cpus: "",
        gpus: "
            [[gpu]]
            name = 'NVIDIA L40S'
            cpus = '0-3'
            mig = 'unsupported'
            [[gpu]]
            name = 'NVIDIA L40S'
            cpus = '4-7'
            mig = 'unsupported'
        ",
        device_files: &[0, 1],
        mig_minors: "",
        expected: Expected::Same,
    },
    Machine {
        name: "two GPUs, an NVLink pair, two threads per core",
        sockets: 2,
        cores_per_socket: 4,
        threads_per_core: 2,
        allowed_cpus: "",
        gpus: "
            [[gpu]]
            name = 'NVIDIA A100-SXM4-40GB'
            cpus = '0-3,8-11'
            links = { '1' = 12 }
            [[gpu]]
            name = 'NVIDIA A100-SXM4-40GB'
            cpus = '4-7,12-15'
            links = { '0' = 12 }
        ",
        device_files: &[0, 1],
        mig_minors: "",
        expected: Expected::Same,
    },
    Machine {
        name: "four GPUs in NVLink pairs, minor other than index",
        sockets: 2,
        cores_per_socket: 8,
        threads_per_core: 1,
        allowed_cpus: "",
        gpus: "
            [[gpu]]
            minor = 3
            cpus = '0-7'
            links = { '1' = 4 }
            [[gpu]]
            minor = 0
            cpus = '0-7'
            links = { '0' = 4 }
            [[gpu]]
            minor = 1
            cpus = '8-15'
            links = { '3' = 4 }
            [[gpu]]
            minor = 2
            cpus = '8-15'
            links = { '2' = 4 }
        ",
        device_files: &[0, 1, 2, 3],
        mig_minors: "",
        expected: Expected::Same,
    },
    Machine {
        name: "four GPUs in an NVLink ring",
        sockets: 2,
        cores_per_socket: 4,
        threads_per_core: 2,
        allowed_cpus: "",
        gpus: "
            [[gpu]]
            name = 'Tesla V100-SXM2-32GB'
            cpus = '0-3,8-11'
            mig = 'unsupported'
            links = { 1 = 2, 3 = 1 }
            [[gpu]]
            name = 'Tesla V100-SXM2-32GB'
            cpus = '0-3,8-11'
            mig = 'unsupported'
            links = { 0 = 2, 2 = 1 }
            [[gpu]]
            name = 'Tesla V100-SXM2-32GB'
            cpus = '4-7,12-15'
            mig = 'unsupported'
            links = { 1 = 1, 3 = 2 }
            [[gpu]]
            name = 'Tesla V100-SXM2-32GB'
            cpus = '4-7,12-15'
            mig = 'unsupported'
            links = { 2 = 2, 0 = 1 }
        ",
        device_files: &[0, 1, 2, 3],
        mig_minors: "",
        expected: Expected::Same,
    },
    Machine {
        name: "eight GPUs behind NVSwitch",
        sockets: 2,
        cores_per_socket: 32,
        threads_per_core: 2,
        allowed_cpus: "",
        gpus: "
            [[gpu]]
            name = 'NVIDIA H100 80GB HBM3'
            cpus = '0-31,64-95'
            switch_links = 18
            [[gpu]]
            name = 'NVIDIA H100 80GB HBM3'
            cpus = '0-31,64-95'
            switch_links = 18
            [[gpu]]
            name = 'NVIDIA H100 80GB HBM3'
            cpus = '0-31,64-95'
            switch_links = 18
            [[gpu]]
            name = 'NVIDIA H100 80GB HBM3'
            cpus = '0-31,64-95'
            switch_links = 18
            [[gpu]]
            name = 'NVIDIA H100 80GB HBM3'
            cpus = '32-63,96-127'
            switch_links = 18
            [[gpu]]
            name = 'NVIDIA H100 80GB HBM3'
            cpus = '32-63,96-127'
            switch_links = 18
            [[gpu]]
            name = 'NVIDIA H100 80GB HBM3'
            cpus = '32-63,96-127'
            switch_links = 18
            [[gpu]]
            name = 'NVIDIA H100 80GB HBM3'
            cpus = '32-63,96-127'
            switch_links = 18
        ",
        device_files: &[0, 1, 2, 3, 4, 5, 6, 7],
        mig_minors: "",
        expected: Expected::Same,
    },
    Machine {
        name: "eight GPUs, each NVLinked to all others",
        sockets: 2,
        cores_per_socket: 4,
        threads_per_core: 1,
        allowed_cpus: "",
        gpus: "
            [[gpu]]
            cpus = '0-3'
            links = { 1 = 2, 2 = 2, 3 = 2, 4 = 1, 5 = 1, 6 = 1, 7 = 1 }
            [[gpu]]
            cpus = '0-3'
            links = { 0 = 2, 2 = 2, 3 = 2, 4 = 1, 5 = 1, 6 = 1, 7 = 1 }
            [[gpu]]
            cpus = '0-3'
            links = { 0 = 2, 1 = 2, 3 = 2, 4 = 1, 5 = 1, 6 = 1, 7 = 1 }
            [[gpu]]
            cpus = '0-3'
            links = { 0 = 2, 1 = 2, 2 = 2, 4 = 1, 5 = 1, 6 = 1, 7 = 1 }
            [[gpu]]
            cpus = '4-7'
            links = { 0 = 1, 1 = 1, 2 = 1, 3 = 1, 5 = 2, 6 = 2, 7 = 2 }
            [[gpu]]
            cpus = '4-7'
            links = { 0 = 1, 1 = 1, 2 = 1, 3 = 1, 4 = 2, 6 = 2, 7 = 2 }
            [[gpu]]
            cpus = '4-7'
            links = { 0 = 1, 1 = 1, 2 = 1, 3 = 1, 4 = 2, 5 = 2, 7 = 2 }
            [[gpu]]
            cpus = '4-7'
            links = { 0 = 1, 1 = 1, 2 = 1, 3 = 1, 4 = 2, 5 = 2, 6 = 2 }
        ",
        device_files: &[0, 1, 2, 3, 4, 5, 6, 7],
        mig_minors: "",
        expected: Expected::Same,
    },
    Machine {
        name: "two models, affinity to the whole machine",
        sockets: 2,
        cores_per_socket: 4,
        threads_per_core: 1,
        allowed_cpus: "",
        gpus: "
            [[gpu]]
            name = 'NVIDIA H200'
            cpus = '0-7'
            [[gpu]]
            name = 'NVIDIA L40S'
            cpus = '0-7'
        ",
        device_files: &[0, 1],
        mig_minors: "",
        expected: Expected::Same,
    },
    Machine {
        name: "three GPUs, the second denied",
        sockets: 2,
        cores_per_socket: 4,
        threads_per_core: 1,
        allowed_cpus: "",
        gpus: "
            [[gpu]]
            cpus = '0-3'
            links = { '1' = 6, '2' = 6 }
            [[gpu]]
            cpus = '4-7'
            denied = true
            [[gpu]]
            cpus = '4-7'
            links = { '0' = 6, '1' = 6 }
        ",
        device_files: &[0, 2],
        mig_minors: "",
        expected: Expected::Differs {
            title: "A GPU that the container may not open",
            autodetect: Ok(&[
                ("/dev/nvidia0", "nvidia_h200", "0-3", "-1,0,6"),
                ("/dev/nvidia2", "nvidia_h200", "4-7", "6,0,-1"),
            ]),
            ours: &[("/dev/nvidia0", "nvidia_h200", "0-3", "-1,6"), ("/dev/nvidia2", "nvidia_h200", "4-7", "6,-1")],
        },
    },
    Machine {
        name: "two GPUs, the file of the first is missing",
        sockets: 2,
        cores_per_socket: 4,
        threads_per_core: 1,
        allowed_cpus: "",
        gpus: "
            [[gpu]]
            cpus = '0-3'
            [[gpu]]
            cpus = '4-7'
        ",
        device_files: &[1],
        mig_minors: "",
        expected: Expected::Differs {
            title: "A GPU without its device file",
            autodetect: Ok(&[("/dev/nvidia0", "nvidia_h200", "0-3", "-1,0")]),
            ours: &[("/dev/nvidia1", "nvidia_h200", "4-7", "-1")],
        },
    },
    Machine {
        name: "affinity to a part of a socket",
        sockets: 2,
        cores_per_socket: 8,
        threads_per_core: 1,
        allowed_cpus: "",
        gpus: "
            [[gpu]]
            cpus = '0-3'
            [[gpu]]
            cpus = '8-11'
        ",
        device_files: &[0, 1],
        mig_minors: "",
        expected: Expected::Differs {
            title: "GPUs near a part of a socket",
            autodetect: Ok(&[
                ("/dev/nvidia0", "nvidia_h200", "0-3", "-1,0"),
                ("/dev/nvidia1", "nvidia_h200", "8-11", "0,-1"),
            ]),
            ours: &[("/dev/nvidia0", "nvidia_h200", "0-7", "-1,0"), ("/dev/nvidia1", "nvidia_h200", "8-15", "0,-1")],
        },
    },
    Machine {
        name: "a virtual machine, whose driver knows no affinity",
        sockets: 2,
        cores_per_socket: 2,
        threads_per_core: 1,
        allowed_cpus: "",
        gpus: "
            [[gpu]]
            [[gpu]]
            [[fault]]
            at = 'affinity'
            kind = 'not-supported'
        ",
        device_files: &[0, 1],
        mig_minors: "",
        expected: Expected::Differs {
            title: "A machine that does not say where its GPUs are",
            autodetect: Err("No CPU affinity for device"),
            ours: &[("/dev/nvidia0", "nvidia_h200", "", "-1,0"), ("/dev/nvidia1", "nvidia_h200", "", "0,-1")],
        },
    },
];
