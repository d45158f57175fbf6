//! Machines with GPUs in MIG mode.

use super::machine::{Expected, Machine};

const CAP_157: &str = "/dev/nvidia0,/dev/nvidia-caps/nvidia-cap156,/dev/nvidia-caps/nvidia-cap157";
const CAP_220: &str = "/dev/nvidia0,/dev/nvidia-caps/nvidia-cap219,/dev/nvidia-caps/nvidia-cap220";

/// Instances of several sizes, whole GPUs beside them, and an empty slot.
pub(crate) const MIG_MACHINES: &[Machine] = &[
    Machine {
        name: "two GPUs in MIG mode, minor other than index",
        sockets: 2,
        cores_per_socket: 4,
        threads_per_core: 1,
        allowed_cpus: "",
        gpus: "
            [[gpu]]
            minor = 1
            cpus = '0-3'
            [[gpu.mig]]
            profile = '1c.3g.71gb'
            gi = 2
            memory_mib = 71424
            [[gpu.mig]]
            profile = '2c.3g.71gb'
            gi = 2
            ci = 1
            memory_mib = 71424
            [[gpu.mig]]
            profile = '1g.18gb+me'
            gi = 9
            [[gpu]]
            name = 'NVIDIA A100-SXM4-40GB'
            minor = 0
            cpus = '4-7'
            [[gpu.mig]]
            profile = '7g.40gb'
            gi = 0
            memory_mib = 40192
        ",
        device_files: &[0, 1],
        mig_minors: "
            config 1
            monitor 2
            gpu0/gi0/access 3
            gpu0/gi0/ci0/access 4
            gpu1/gi2/access 156
            gpu1/gi2/ci0/access 157
            gpu1/gi2/ci1/access 158
            gpu1/gi9/access 219
            gpu1/gi9/ci0/access 220
        ",
        expected: Expected::Same,
    },
    Machine {
        name: "a whole GPU and one in MIG mode",
        sockets: 2,
        cores_per_socket: 4,
        threads_per_core: 1,
        allowed_cpus: "",
        gpus: "
            [[gpu]]
            cpus = '0-3'
            [[gpu.mig]]
            profile = '3g.71gb'
            gi = 2
            memory_mib = 71424
            [[gpu.mig]]
            gi = 9
            [[gpu]]
            cpus = '4-7'
        ",
        device_files: &[0, 1],
        mig_minors: "
            gpu0/gi2/access 156
            gpu0/gi2/ci0/access 157
            gpu0/gi9/access 219
            gpu0/gi9/ci0/access 220
        ",
        expected: Expected::Differs {
            title: "Whole GPUs beside MIG instances",
            autodetect: Ok(&[
                ("/dev/nvidia1", "nvidia_h200", "4-7", "0,-1"),
                (CAP_157, "nvidia_h200_3g.71gb", "0-3", "(null)"),
                (CAP_220, "nvidia_h200_1g.18gb", "0-3", "(null)"),
            ]),
            ours: &[
                ("/dev/nvidia1", "nvidia_h200", "4-7", "-1"),
                (CAP_157, "nvidia_h200_3g.71gb", "0-3", "(null)"),
                (CAP_220, "nvidia_h200_1g.18gb", "0-3", "(null)"),
            ],
        },
    },
    Machine {
        name: "MIG instances with an empty slot between them",
        sockets: 2,
        cores_per_socket: 4,
        threads_per_core: 1,
        allowed_cpus: "",
        gpus: "
            [[gpu]]
            cpus = '0-3'
            [[gpu.mig]]
            profile = '3g.71gb'
            gi = 2
            memory_mib = 71424
            [[gpu.mig]]
            gi = 9
            slot = 3
        ",
        device_files: &[0],
        mig_minors: "
            gpu0/gi2/access 156
            gpu0/gi2/ci0/access 157
            gpu0/gi9/access 219
            gpu0/gi9/ci0/access 220
        ",
        expected: Expected::Differs {
            title: "An empty slot between MIG instances",
            autodetect: Ok(&[(CAP_157, "nvidia_h200_3g.71gb", "0-3", "(null)")]),
            ours: &[
                (CAP_157, "nvidia_h200_3g.71gb", "0-3", "(null)"),
                (CAP_220, "nvidia_h200_1g.18gb", "0-3", "(null)"),
            ],
        },
    },
];
