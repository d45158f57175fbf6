//! NVIDIA GPUs: whole machines, parts of a machine, MIG.

use super::machine::Machine;
use super::rows::{cuda, gpu, same};

/// The variable of a job on a MIG instance.
fn instance(gpu: u32, number: u32) -> String {
    format!("CUDA_VISIBLE_DEVICES=MIG-fa4e0000-0000-0000-{number:04}-{gpu:012}")
}

pub(crate) fn nvidia() -> Vec<Machine> {
    let pair = "[[gpu]]\nname = 'NVIDIA A100-SXM4-40GB'\ncpus = '0'\nlinks = { 1 = 12 }\n\
                [[gpu]]\nname = 'NVIDIA A100-SXM4-40GB'\ncpus = '1'\nlinks = { 0 = 12 }\n";
    let minors = "[[gpu]]\nminor = 3\n[[gpu]]\nminor = 0\n[[gpu]]\nminor = 1\n[[gpu]]\nminor = 2\n";
    let mesh: String = (0..4)
        .map(|gpu| {
            let peers: Vec<String> = (0..4).filter(|peer| *peer != gpu).map(|peer| format!("{peer} = 4")).collect();
            format!("[[gpu]]\nname = 'NVIDIA A100-SXM4-80GB'\nlinks = {{ {} }}\n", peers.join(", "))
        })
        .collect();
    let switch = same(8, "name = 'NVIDIA H100 80GB HBM3'\nswitch_links = 18");
    let models = "[[gpu]]\nname = 'NVIDIA H200'\n[[gpu]]\nname = 'NVIDIA L40S'\n";
    let interleaved = "[[gpu]]\n[[gpu]]\nname = 'NVIDIA L40S'\n[[gpu]]\n";
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
            &cuda(0),
            &cuda(3),
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
        Machine::nvidia("H200 and L40S", models).gpus(2).offers("gpu:nvidia:2", "/dev/nvidia1", &cuda(0), &cuda(1)),
        Machine::nvidia("H200, L40S, H200, `type_name = \"model\"`", interleaved)
            .gpus(3)
            .config("[gpu]\ntype_name = \"model\"")
            .offers("gpu:nvidia_h200:2,gpu:nvidia_l40s:1", "/dev/nvidia1", &cuda(0), &cuda(1)),
        Machine::nvidia("2 H200, `cuda_devices = \"uuid\"`", "gpus = 2")
            .gpus(2)
            .config("[gpu]\ncuda_devices = \"uuid\"")
            .offers("gpu:nvidia:2", "/dev/nvidia1", &gpu(0), &gpu(1)),
        Machine::nvidia("2 H200, each for its job's user", "gpus = 2").gpus(2).config("[gpu]\nisolate = true").offers(
            "gpu:nvidia:2",
            "/dev/nvidia1",
            &gpu(0),
            &gpu(1),
        ),
        Machine::nvidia("2 H200 in a virtual machine that hides where they are", virtual_machine)
            .gpus(2)
            .sockets(2)
            .offers("gpu:nvidia:2", "/dev/nvidia1", &cuda(0), &cuda(1)),
    ]
}

/// Machines whose container gets only some of the GPUs.
pub(crate) fn nvidia_in_part() -> Vec<Machine> {
    let denied = "[[gpu]]\n[[gpu]]\ndenied = true\n[[gpu]]\n";
    let in_proc = |machine: Machine| {
        (0..8).fold(machine, |machine, gpu| {
            let information = format!("Model: NVIDIA H200\nGPU UUID: GPU-0{gpu}\nDevice Minor: {gpu}");
            machine.file(&format!("proc/driver/nvidia/gpus/0000:1{gpu}:00.0/information"), &information)
        })
    };
    let pod = "[[gpu]]\nminor = 5\npci = '00000000:15:00.0'\nuuid = 'GPU-05'\n";
    vec![
        Machine::nvidia("3 H200, the second denied by the driver", denied).gpus(3).without("nvidia1").offers(
            "gpu:nvidia:2",
            "/dev/nvidia2",
            &cuda(0),
            &cuda(1),
        ),
        Machine::nvidia("3 H200, `except = [\"10:00.0\"]`", "gpus = 3")
            .gpus(3)
            .config("[gpu]\nexcept = [\"10:00.0\"]")
            .offers("gpu:nvidia:2", "/dev/nvidia2", &cuda(1), &cuda(2)),
        Machine::nvidia("2 H200, the first not in the container", "gpus = 2").gpus(2).without("nvidia0").offers(
            "gpu:nvidia:1",
            "/dev/nvidia1",
            &cuda(0),
            &cuda(0),
        ),
        Machine::nvidia("3 H200, the first denied by the device rules", "gpus = 3").gpus(3).denied("nvidia0").offers(
            "gpu:nvidia:2",
            "/dev/nvidia2",
            &cuda(0),
            &cuda(1),
        ),
        in_proc(Machine::nvidia("pod with one of 8 H200 (CDI: /proc shows all)", pod)).devices(["nvidia5"]).offers(
            "gpu:nvidia:1",
            "/dev/nvidia5",
            &cuda(0),
            &cuda(0),
        ),
        in_proc(Machine::nvidia("pod with one of 8 H200, and NVML counts all", "gpus = 8"))
            .devices(["nvidia5"])
            .offers("gpu:nvidia:1", "/dev/nvidia5", &cuda(0), &cuda(0)),
        in_proc(Machine::plain("pod with one of 8 H200, without the library (no `utility`)"))
            .devices(["nvidia5"])
            .offers("gpu:nvidia:1", "/dev/nvidia5", &cuda(0), &cuda(0)),
        Machine::plain("2 device files and nothing else").gpus(2).offers(
            "gpu:nvidia:2",
            "/dev/nvidia1",
            &cuda(0),
            &cuda(1),
        ),
    ]
}

pub(crate) fn mig() -> Vec<Machine> {
    let mixed = "[[gpu]]\nminor = 1\n[[gpu]]\nminor = 0\n[[gpu.mig]]\ngi = 9\n[[gpu.mig]]\nprofile = '3g.71gb'\ngi = 2\n\
                 [[gpu.mig]]\ngi = 10\nslot = 4\n";
    let mixed_minors = "gpu0/gi2/access 156\ngpu0/gi2/ci0/access 157\ngpu0/gi9/access 219\ngpu0/gi9/ci0/access 220\n\
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
        Machine::nvidia("H200 whole, and one in 3 MIG instances", mixed).gpus(2).mig(mixed_minors).offers(
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
