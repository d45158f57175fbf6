//! The machines, from the plain to the strange.

use super::kfd::{Chip, MI210, MI300X};
use super::machine::Machine;

/// All of them.
pub(crate) fn machines() -> Vec<Machine> {
    [nvidia(), nvidia_in_part(), mig(), amd(), amd_in_part(), mixed(), elsewhere(), limits()]
        .into_iter()
        .flatten()
        .collect()
}

/// The variable of a job on NVIDIA's GPU number N of the stand-in library.
fn gpu(number: u32) -> String {
    format!("CUDA_VISIBLE_DEVICES=GPU-fa4e0000-0000-0000-0000-{number:012}")
}

/// The same of a MIG instance.
fn instance(gpu: u32, number: u32) -> String {
    format!("CUDA_VISIBLE_DEVICES=MIG-fa4e0000-0000-0000-{number:04}-{gpu:012}")
}

fn cuda(number: u32) -> String {
    format!("CUDA_VISIBLE_DEVICES={number}")
}

fn rocr(number: u32) -> String {
    format!("ROCR_VISIBLE_DEVICES={number}")
}

/// As many tables as GPUs, with these keys in each.
fn same(count: usize, keys: &str) -> String {
    format!("[[gpu]]\n{keys}\n").repeat(count)
}

fn nvidia() -> Vec<Machine> {
    let pair = "[[gpu]]\nname = 'NVIDIA A100-SXM4-40GB'\ncpus = '0'\nlinks = { 1 = 12 }\n\
                [[gpu]]\nname = 'NVIDIA A100-SXM4-40GB'\ncpus = '1'\nlinks = { 0 = 12 }\n";
    let minors = "[[gpu]]\nminor = 3\n[[gpu]]\nminor = 0\n[[gpu]]\nminor = 1\n[[gpu]]\nminor = 2\n";
    let mesh: String = (0..4)
        .map(|own| {
            let peers: Vec<String> = (0..4).filter(|peer| *peer != own).map(|peer| format!("{peer} = 4")).collect();
            format!("[[gpu]]\nname = 'NVIDIA A100-SXM4-80GB'\nlinks = {{ {} }}\n", peers.join(", "))
        })
        .collect();
    let switch = same(8, "name = 'NVIDIA H100 80GB HBM3'\nswitch_links = 18");
    let models = "[[gpu]]\nname = 'NVIDIA H200'\n[[gpu]]\nname = 'NVIDIA L40S'\n";
    let in_turn = "[[gpu]]\n[[gpu]]\nname = 'NVIDIA L40S'\n[[gpu]]\n";
    let virtual_machine = "[[gpu]]\n[[gpu]]\n[[fault]]\nat = 'affinity'\nkind = 'not-supported'\n";
    let l40s = same(2, "name = 'NVIDIA L40S'\nmig = 'unsupported'").replacen("mig", "cpus = '0'\nmig", 1);
    let l40s = l40s.replace("L40S'\nmig", "L40S'\ncpus = '1'\nmig");
    vec![
        Machine::nvidia("1 H200, one socket", "gpus = 1").gpus(1).sockets(1).offers(
            "gpu:nvidia:1",
            "/dev/nvidia0",
            &cuda(0),
            &cuda(0),
        ),
        Machine::nvidia("2 L40S, two sockets, no NVLink", &l40s).gpus(2).sockets(2).offers(
            "gpu:nvidia:2",
            "/dev/nvidia1",
            &cuda(0),
            &cuda(1),
        ),
        Machine::nvidia("2 A100, an NVLink pair, two sockets", pair).gpus(2).sockets(2).offers(
            "gpu:nvidia:2",
            "/dev/nvidia1",
            &cuda(0),
            &cuda(1),
        ),
        Machine::nvidia("4 A100, each NVLinked to all others", &mesh).gpus(4).offers(
            "gpu:nvidia:4",
            "/dev/nvidia3",
            &cuda(0),
            &cuda(3),
        ),
        Machine::nvidia("4 H200, minor other than index", minors).gpus(4).offers(
            "gpu:nvidia:4",
            "/dev/nvidia2",
            &gpu(0),
            &gpu(3),
        ),
        Machine::nvidia("8 H100 behind NVSwitch", &switch).gpus(8).offers(
            "gpu:nvidia:8",
            "/dev/nvidia7",
            &cuda(0),
            &cuda(7),
        ),
        Machine::nvidia("16 H200", "gpus = 16").gpus(16).offers("gpu:nvidia:16", "/dev/nvidia15", &cuda(0), &cuda(15)),
        Machine::nvidia("4 H200, `type_name = \"index\"`", "gpus = 4")
            .gpus(4)
            .config("[gpu]\ntype_name = \"index\"")
            .offers("gpu:gpu0:1,gpu:gpu1:1,gpu:gpu2:1,gpu:gpu3:1", "/dev/nvidia3", &cuda(0), &cuda(3)),
        Machine::nvidia("H200 and L40S", models).gpus(2).offers("gpu:nvidia:2", "/dev/nvidia1", &gpu(0), &gpu(1)),
        Machine::nvidia("H200, L40S, H200, `type_name = \"model\"`", in_turn)
            .gpus(3)
            .config("[gpu]\ntype_name = \"model\"")
            .offers("gpu:nvidia_h200:2,gpu:nvidia_l40s:1", "/dev/nvidia1", &gpu(0), &gpu(1)),
        Machine::nvidia("2 H200 in a virtual machine that hides where they are", virtual_machine)
            .gpus(2)
            .sockets(2)
            .offers("gpu:nvidia:2", "/dev/nvidia1", &cuda(0), &cuda(1)),
        Machine::nvidia("2 H200, Debian 12 (Slurm 22.05)", "gpus = 2").gpus(2).on_debian_12().offers(
            "gpu:nvidia:2",
            "/dev/nvidia1",
            &cuda(0),
            &cuda(1),
        ),
    ]
}

/// GPUs of the machine that are not this container's.
fn nvidia_in_part() -> Vec<Machine> {
    let denied = "[[gpu]]\n[[gpu]]\ndenied = true\n[[gpu]]\n";
    let in_proc = |machine: Machine| {
        (0..8).fold(machine, |machine, gpu| {
            let information = format!("Model: NVIDIA H200\nGPU UUID: GPU-0{gpu}\nDevice Minor: {gpu}");
            machine.file(&format!("proc/driver/nvidia/gpus/0000:1{gpu}:00.0/information"), &information)
        })
    };
    let pod = "[[gpu]]\nminor = 5\npci = '00000000:15:00.0'\nuuid = 'GPU-05'\n";
    let uuid_5 = "CUDA_VISIBLE_DEVICES=GPU-05";
    vec![
        Machine::nvidia("3 H200, the second denied by the driver", denied).gpus(3).without("nvidia1").offers(
            "gpu:nvidia:2",
            "/dev/nvidia2",
            &gpu(0),
            &gpu(2),
        ),
        Machine::nvidia("2 H200, the first not in the container", "gpus = 2").gpus(2).without("nvidia0").offers(
            "gpu:nvidia:1",
            "/dev/nvidia1",
            &gpu(1),
            &gpu(1),
        ),
        Machine::nvidia("3 H200, the first denied by the device rules", "gpus = 3").gpus(3).denied("nvidia0").offers(
            "gpu:nvidia:2",
            "/dev/nvidia2",
            &gpu(1),
            &gpu(2),
        ),
        in_proc(Machine::nvidia("pod with one of 8 H200 (CDI: /proc shows all)", pod)).devices(["nvidia5"]).offers(
            "gpu:nvidia:1",
            "/dev/nvidia5",
            uuid_5,
            uuid_5,
        ),
        in_proc(Machine::nvidia("pod with one of 8 H200, and NVML counts all", "gpus = 8"))
            .devices(["nvidia5"])
            .offers("gpu:nvidia:1", "/dev/nvidia5", &gpu(5), &gpu(5)),
        in_proc(Machine::plain("pod with one of 8 H200, without the library (no `utility`)"))
            .devices(["nvidia5"])
            .offers("gpu:nvidia:1", "/dev/nvidia5", uuid_5, uuid_5),
        Machine::plain("2 device files and nothing else").gpus(2).offers(
            "gpu:nvidia:2",
            "/dev/nvidia1",
            &cuda(0),
            &cuda(1),
        ),
    ]
}

fn mig() -> Vec<Machine> {
    let beside = "[[gpu]]\nminor = 1\n[[gpu]]\nminor = 0\n[[gpu.mig]]\ngi = 9\n[[gpu.mig]]\nprofile = '3g.71gb'\ngi = 2\n\
                  [[gpu.mig]]\ngi = 10\nslot = 4\n";
    let beside_minors = "gpu0/gi2/access 156\ngpu0/gi2/ci0/access 157\ngpu0/gi9/access 219\ngpu0/gi9/ci0/access 220\n\
                         gpu0/gi10/access 228\ngpu0/gi10/ci0/access 229\n";
    let sevenths =
        |from, to| (from..=to).map(|gi| format!("[[gpu.mig]]\nprofile = '1g.5gb'\ngi = {gi}\n")).collect::<String>();
    let a100 = format!("[[gpu]]\nname = 'NVIDIA A100-SXM4-40GB'\n{}", sevenths(7, 13));
    let a100_minors: String = (7..=13)
        .map(|gi| format!("gpu0/gi{gi}/access {}\ngpu0/gi{gi}/ci0/access {}\n", gi * 9 + 3, gi * 9 + 4))
        .collect();
    let compute = "[[gpu]]\n[[gpu.mig]]\nprofile = '1c.3g.71gb'\ngi = 1\nci = 0\n\
                   [[gpu.mig]]\nprofile = '1c.3g.71gb'\ngi = 1\nci = 1\n";
    let media = "[[gpu]]\n[[gpu.mig]]\nprofile = '1g.18gb+me'\ngi = 7\n";
    let caps = |numbers: [u32; 2]| {
        let [gi, ci] = numbers;
        format!("/dev/nvidia0,/dev/nvidia-caps/nvidia-cap{gi},/dev/nvidia-caps/nvidia-cap{ci}")
    };
    let h200 = "gpu:nvidia:1,gpu:nvidia_h200_1g.18gb:2,gpu:nvidia_h200_3g.71gb:1";
    vec![
        Machine::nvidia("H200 whole, and one in 3 MIG instances", beside).gpus(2).mig(beside_minors).offers(
            h200,
            &caps([156, 157]),
            &gpu(0),
            &instance(1, 1),
        ),
        Machine::nvidia("the same, Debian 12 (Slurm 22.05)", beside).gpus(2).mig(beside_minors).on_debian_12().offers(
            h200,
            &caps([156, 157]),
            &gpu(0),
            &instance(1, 1),
        ),
        Machine::nvidia("A100 in 7 instances 1g.5gb", &a100).gpus(1).mig(&a100_minors).offers(
            "gpu:nvidia_a100_1g.5gb:7",
            &caps([120, 121]),
            &instance(0, 0),
            &instance(0, 6),
        ),
        Machine::nvidia("H200, two compute instances of one GPU instance", compute)
            .gpus(1)
            .mig("gpu0/gi1/access 12\ngpu0/gi1/ci0/access 13\ngpu0/gi1/ci1/access 14\n")
            .offers("gpu:nvidia_h200_1c.3g.71gb:2", &caps([12, 14]), &instance(0, 0), &instance(0, 1)),
        Machine::nvidia("H200, an instance with media engines (+me)", media)
            .gpus(1)
            .mig("gpu0/gi7/access 66\ngpu0/gi7/ci0/access 67\n")
            .offers("gpu:nvidia_h200_1g.18gb+me:1", &caps([66, 67]), &instance(0, 0), &instance(0, 0)),
    ]
}

/// As many chips on two sockets; each has room for 8 render nodes.
fn chips<const N: u32>(chip: Chip) -> Vec<Chip> {
    let place =
        |number| Chip { bus: 0x0a + 0x10 * number, minor: 128 + 8 * number, socket: number / N.div_ceil(2), ..chip };
    (0..N).map(place).collect()
}

fn amd() -> Vec<Machine> {
    let mi308x = Chip { device: 0x74a2, partitions: 4, ..MI300X };
    // As on the captured machine: render nodes that do not ascend with the nodes, and two PCI domains.
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

/// AMD GPUs of the machine that are not this container's, and render nodes that are not AMD's.
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
            &gpu(0),
            &rocr(1),
        ),
        Machine::nvidia("2 H200 and 2 MI210, Debian 12 (Slurm 22.05)", "gpus = 2")
            .gpus(2)
            .with_amd(&amd)
            .on_debian_12()
            .offers("gpu:nvidia:2,gpu:amd:2", "/dev/dri/renderD129", &gpu(0), &rocr(1)),
        Machine::nvidia("H200 and MI300X in 4 partitions, `type_name = \"model\"`", "gpus = 1")
            .gpus(1)
            .with_amd(&partitions)
            .config("[gpu]\ntype_name = \"model\"")
            .offers("gpu:nvidia_h200:1,gpu:amd_instinct_mi300x:4", "/dev/dri/renderD131", &gpu(0), &rocr(3)),
    ]
}

/// Where NVIDIA's GPUs have no device file of their own name.
fn elsewhere() -> Vec<Machine> {
    let wsl = |name, gpus: usize| Machine::wsl(name, &same(gpus, "name = 'NVIDIA GeForce RTX 4090'"));
    vec![
        wsl("WSL2, 1 RTX 4090", 1).offers("gpu:nvidia:1", "/dev/dxg", &cuda(0), &cuda(0)),
        wsl("WSL2, 2 RTX 4090", 2).offers("gpu:nvidia:2", "/dev/./dxg", &cuda(0), &cuda(1)),
        wsl("WSL2, 2 RTX 4090, Debian 12 (Slurm 22.05)", 2).on_debian_12().offers(
            "gpu:nvidia:2",
            "/dev/./dxg",
            &cuda(0),
            &cuda(1),
        ),
        Machine::plain("Jetson Orin").devices(["nvgpu/igpu0/ctrl"]).offers(
            "gpu:nvidia:1",
            "/dev/nvgpu/igpu0/ctrl",
            &cuda(0),
            &cuda(0),
        ),
        Machine::plain("Jetson Xavier, Debian 12 (Slurm 22.05)").devices(["nvhost-ctrl-gpu"]).on_debian_12().offers(
            "gpu:nvidia:1",
            "/dev/nvhost-ctrl-gpu",
            &cuda(0),
            &cuda(0),
        ),
    ]
}

/// Containers that may use a part of the machine.
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
