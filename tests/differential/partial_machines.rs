//! Containers with only part of the machine's CPUs.

use super::machine::{Expected, Machine};

/// `/sys` shows the whole machine; the cpuset allows part of it.
pub(crate) const PARTIAL_MACHINES: &[Machine] = &[
    Machine {
        name: "a container with one thread of each core",
        sockets: 2,
        cores_per_socket: 4,
        threads_per_core: 2,
        allowed_cpus: "0-7",
        gpus: "
            [[gpu]]
            cpus = '0-3,8-11'
            [[gpu]]
            cpus = '4-7,12-15'
        ",
        device_files: &[0, 1],
        mig_minors: "",
        expected: Expected::Differs {
            title: "A container that has only a part of the machine's CPUs",
            autodetect: Ok(&[
                ("/dev/nvidia0", "nvidia_h200", "0,2", "-1,0"),
                ("/dev/nvidia1", "nvidia_h200", "4,6", "0,-1"),
            ]),
            ours: &[("/dev/nvidia0", "nvidia_h200", "", "-1,0"), ("/dev/nvidia1", "nvidia_h200", "", "0,-1")],
        },
    },
    Machine {
        name: "a container on one of two sockets",
        sockets: 2,
        cores_per_socket: 4,
        threads_per_core: 2,
        allowed_cpus: "0-3",
        gpus: "
            [[gpu]]
            cpus = '0-3,8-11'
            [[gpu]]
            cpus = '4-7,12-15'
        ",
        device_files: &[0, 1],
        mig_minors: "",
        expected: Expected::Differs {
            title: "A container that has only a part of the machine's CPUs",
            autodetect: Ok(&[
                ("/dev/nvidia0", "nvidia_h200", "0,2", "-1,0"),
                ("/dev/nvidia1", "nvidia_h200", "", "0,-1"),
            ]),
            ours: &[("/dev/nvidia0", "nvidia_h200", "", "-1,0"), ("/dev/nvidia1", "nvidia_h200", "", "0,-1")],
        },
    },
];
