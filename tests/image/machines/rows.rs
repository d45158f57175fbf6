//! The rows of the table of simulated machines.

use super::kfd::{Chip, MI210, MI300X, RYZEN};
use super::machine::Machine;
use super::nvidia_rows::{mig, nvidia, nvidia_in_part};

/// All machines.
pub(crate) fn machines() -> Vec<Machine> {
    [nvidia(), nvidia_in_part(), mig(), amd(), amd_in_part(), mixed(), elsewhere(), limits()]
        .into_iter()
        .flatten()
        .collect()
}

/// The variable of a job on GPU N of the simulated NVML, by UUID.
pub(crate) fn gpu(number: u32) -> String {
    format!("CUDA_VISIBLE_DEVICES=GPU-fa4e0000-0000-0000-0000-{number:012}")
}

pub(crate) fn cuda(number: u32) -> String {
    format!("CUDA_VISIBLE_DEVICES={number}")
}

fn rocr(number: u32) -> String {
    format!("ROCR_VISIBLE_DEVICES={number}")
}

/// TOML of `count` GPUs that all have these keys.
pub(crate) fn same(count: usize, keys: &str) -> String {
    format!("[[gpu]]\n{keys}\n").repeat(count)
}

/// N chips on two sockets. The render node numbers leave room for 8 partitions of each chip.
fn chips<const N: u32>(chip: Chip) -> Vec<Chip> {
    let place =
        |number| Chip { bus: 0x0a + 0x10 * number, minor: 128 + 8 * number, socket: number / N.div_ceil(2), ..chip };
    (0..N).map(place).collect()
}

fn amd() -> Vec<Machine> {
    let mi308x = Chip { device: 0x74a2, partitions: 4, ..MI300X };
    // As on a real machine, the order of the render nodes differs from that of KFD's nodes, and there are two PCI domains.
    let mut scattered = chips::<8>(mi308x);
    for (place, chip) in (0..).zip(&mut scattered) {
        chip.minor = 128 + [0, 8, 16, 24, 32, 40, 48, 56][(place * 3 % 8) as usize];
        chip.domain = place / 4;
    }
    let last_scattered = format!("/dev/dri/renderD{}", scattered[7].minor + 3);
    let domains = [Chip { domain: 0, bus: 1, ..MI210 }, Chip { domain: 1, bus: 1, minor: 129, ..MI210 }];
    let apu = Chip { device: 0x74a0, cpu_cores: 24, ..MI300X };
    vec![
        Machine::amd("1 MI210", &[MI210]).offers("gpu:amd:1", "/dev/dri/renderD128", &rocr(0), &rocr(0)),
        Machine::amd("8 MI210, two sockets", &chips::<8>(MI210)).sockets(2).offers(
            "gpu:amd:8",
            "/dev/dri/renderD184",
            &rocr(0),
            &rocr(7),
        ),
        Machine::amd("8 MI300X whole (SPX)", &chips::<8>(MI300X)).offers(
            "gpu:amd:8",
            "/dev/dri/renderD184",
            &rocr(0),
            &rocr(7),
        ),
        Machine::amd("2 MI300X in 2 partitions each (DPX)", &chips::<2>(Chip { partitions: 2, ..MI300X })).offers(
            "gpu:amd:4",
            "/dev/dri/renderD137",
            &rocr(0),
            &rocr(3),
        ),
        Machine::amd("8 MI308X in 4 partitions each, two PCI domains, render nodes in another order", &scattered)
            .sockets(2)
            .offers("gpu:amd:32", &last_scattered, &rocr(0), &rocr(31)),
        Machine::amd("8 MI300X in 8 partitions each (CPX)", &chips::<8>(Chip { partitions: 8, ..MI300X })).offers(
            "gpu:amd:64",
            "/dev/dri/renderD191",
            &rocr(0),
            &rocr(63),
        ),
        Machine::amd("2 MI210 at the same place of two PCI domains", &domains).offers(
            "gpu:amd:2",
            "/dev/dri/renderD129",
            &rocr(0),
            &rocr(1),
        ),
        Machine::amd("APU, whose node has CPU cores too", &[apu]).offers(
            "gpu:amd:1",
            "/dev/dri/renderD128",
            &rocr(0),
            &rocr(0),
        ),
    ]
}

/// Machines whose container gets only some of the AMD GPUs, and machines with render nodes of other vendors.
fn amd_in_part() -> Vec<Machine> {
    let next = Chip { bus: 0x83, minor: 129, ..MI210 };
    let third = Chip { bus: 0xa3, minor: 130, ..MI210 };
    let twins = [MI210, Chip { bus: 0x83, ..MI210 }, next];
    vec![
        Machine::amd("3 MI210, the first render node not in the container", &[MI210, next, third])
            .without("dri/renderD128")
            .offers("gpu:amd:2", "/dev/dri/renderD130", &rocr(0), &rocr(1)),
        Machine::amd("3 MI210, the second render node denied", &[MI210, next, third]).denied("dri/renderD129").offers(
            "gpu:amd:2",
            "/dev/dri/renderD130",
            &rocr(0),
            &rocr(1),
        ),
        Machine::amd("MI210 behind an Intel GPU that is renderD128", &[next]).devices(["dri/renderD128"]).offers(
            "gpu:amd:1",
            "/dev/dri/renderD129",
            &rocr(0),
            &rocr(0),
        ),
        Machine::amd("MI210 behind the small GPU of a Ryzen", &[RYZEN, next]).offers(
            "gpu:amd:1",
            "/dev/dri/renderD129",
            &rocr(1),
            &rocr(1),
        ),
        Machine::amd("the same, `only = [\"amd\"]`", &[RYZEN, next]).config("[gpu]\nonly = [\"amd\"]").offers(
            "gpu:amd:2",
            "/dev/dri/renderD129",
            &rocr(0),
            &rocr(1),
        ),
        Machine::amd("a Ryzen's small GPU alone", &[RYZEN]).offers(
            "gpu:amd:1",
            "/dev/dri/renderD128",
            &rocr(0),
            &rocr(0),
        ),
        Machine::amd("3 of KFD's nodes, two with the same render node", &twins).offers(
            "gpu:amd:2",
            "/dev/dri/renderD129",
            &rocr(0),
            &rocr(2),
        ),
        Machine::amd(
            "MI210 and MI300X in turn, `type_name = \"model\"`",
            &[MI210, Chip { minor: 129, ..MI300X }, third],
        )
        .config("[gpu]\ntype_name = \"model\"")
        .offers(
            "gpu:amd_instinct_mi210:2,gpu:amd_instinct_mi300x:1",
            "/dev/dri/renderD129",
            &rocr(0),
            &rocr(1),
        ),
    ]
}

fn mixed() -> Vec<Machine> {
    let amd = [MI210, Chip { bus: 0x83, minor: 129, ..MI210 }];
    let partitions = chips::<1>(Chip { partitions: 4, ..MI300X });
    vec![
        Machine::nvidia("2 H200 and 2 MI210", "gpus = 2").gpus(2).with_amd(&amd).offers(
            "gpu:nvidia:2,gpu:amd:2",
            "/dev/dri/renderD129",
            &cuda(0),
            &rocr(1),
        ),
        Machine::nvidia("H200 and MI300X in 4 partitions, `type_name = \"model\"`", "gpus = 1")
            .gpus(1)
            .with_amd(&partitions)
            .config("[gpu]\ntype_name = \"model\"")
            .offers("gpu:nvidia_h200:1,gpu:amd_instinct_mi300x:4", "/dev/dri/renderD131", &cuda(0), &rocr(3)),
    ]
}

/// Machines without `/dev/nvidiaN` and KFD.
fn elsewhere() -> Vec<Machine> {
    let gres_conf =
        "# USER_CUSTOMIZED=true\nAutoDetect=off\nName=gpu Type=intel File=/dev/dri/renderD128 Flags=intel_gpu_env";
    let wsl = |name, gpus: usize| Machine::wsl(name, &same(gpus, "name = 'NVIDIA GeForce RTX 4090'"));
    vec![
        wsl("WSL2, 1 RTX 4090", 1).offers("gpu:nvidia:1", "/dev/dxg", &cuda(0), &cuda(0)),
        wsl("WSL2, 2 RTX 4090", 2).offers("gpu:nvidia:2", "/dev/./dxg", &cuda(0), &cuda(1)),
        Machine::plain("Intel, by a gres.conf of one's own")
            .devices(["dri/renderD128"])
            .file("sys/class/drm/renderD128/device/vendor", "0x8086")
            .file("config/gres.conf", gres_conf)
            .offers("gpu:intel:1", "/dev/dri/renderD128", "ZE_AFFINITY_MASK=0", "ZE_AFFINITY_MASK=0"),
        Machine::plain("Jetson Orin").devices(["nvgpu/igpu0/ctrl"]).offers(
            "gpu:nvidia:1",
            "/dev/nvgpu/igpu0/ctrl",
            &cuda(0),
            &cuda(0),
        ),
        Machine::plain("Jetson Xavier").devices(["nvhost-ctrl-gpu"]).offers(
            "gpu:nvidia:1",
            "/dev/nvhost-ctrl-gpu",
            &cuda(0),
            &cuda(0),
        ),
    ]
}

/// Containers with limits on CPUs or memory.
fn limits() -> Vec<Machine> {
    vec![
        Machine::nvidia("1 H200, `--cpus 1.5`", "gpus = 1").gpus(1).option(["--cpus", "1.5"]).offers(
            "gpu:nvidia:1",
            "/dev/nvidia0",
            &cuda(0),
            &cuda(0),
        ),
        Machine::nvidia("1 H200, `--cpuset-cpus 1`", "gpus = 1").gpus(1).option(["--cpuset-cpus", "1"]).offers(
            "gpu:nvidia:1",
            "/dev/nvidia0",
            &cuda(0),
            &cuda(0),
        ),
        Machine::nvidia("2 H200, `--memory 2g`", "gpus = 2").gpus(2).option(["--memory", "2g"]).offers(
            "gpu:nvidia:2",
            "/dev/nvidia1",
            &cuda(0),
            &cuda(1),
        ),
        Machine::amd("1 MI210, `--cpus 1 --memory 1g`", &[MI210]).option(["--cpus", "1", "--memory", "1g"]).offers(
            "gpu:amd:1",
            "/dev/dri/renderD128",
            &rocr(0),
            &rocr(0),
        ),
    ]
}
