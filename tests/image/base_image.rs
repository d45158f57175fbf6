//! Images whose base is not Debian's image (docs/your-software.md): stand-ins for NVIDIA's CUDA and AMD's ROCm images.

use crate::docker::{Image, directory};

/// The image that is built on tests/image/cuda-base.
const CUDA: &str = "slurminit:test-cuda";

/// The image that is built on tests/image/rocm-base.
const ROCM: &str = "slurminit:test-rocm";

/// The base image's own entry point would print a text and start no cluster.
#[test]
#[ignore = "needs Docker and the images: run docker/test"]
fn slurminit_is_entry_point_and_base_tools_are_kept() {
    let image = Image::new(CUDA).with(["--device", "/dev/null:/dev/nvidia0"]);
    let job = "command -v nvcc; nvcc; echo $LD_LIBRARY_PATH $CUDA_VERSION $CUDA_VISIBLE_DEVICES";
    let outcome = image.run(&["srun", "--gres=gpu:nvidia:1", "sh", "-c", job]);
    let expected = "/usr/local/cuda/bin/nvcc\nstand-in for nvcc, of CUDA 12.9\n/usr/local/nvidia/lib:/usr/local/nvidia/lib64 12.9.1 0\n";
    assert_eq!(outcome.stdout, expected, "{}", outcome.stderr);
}

/// A batch job gets the image's environment variables; with `--export=NONE` it gets the variables in /etc/environment.
#[test]
#[ignore = "needs Docker and the images: run docker/test"]
fn batch_job_finds_compiler() {
    let login = directory(&[("environment", "PATH=/usr/local/cuda/bin:/usr/bin:/bin\n")]);
    let unchanged = Image::new(CUDA);
    let with_login = Image::new(CUDA).mount(&login.path().join("environment"), "/etc/environment");
    let nvcc = "/usr/local/cuda/bin/nvcc";
    for (image, export, found) in [(&unchanged, "ALL", nvcc), (&unchanged, "NONE", ""), (&with_login, "NONE", nvcc)] {
        let submit = format!(
            "cd /data; sbatch --wait --export={export} --output out --wrap 'command -v nvcc' >/dev/null; cat out"
        );
        let outcome = image.run(&["sh", "-c", &submit]);
        assert_eq!(outcome.stdout.trim_end(), found, "--export={export}: {}", outcome.stderr);
    }
}

/// Ubuntu's images have a user `ubuntu` with UID 1000, the UID of the first user on most hosts.
#[test]
#[ignore = "needs Docker and the images: run docker/test"]
fn names_user_of_base_image_with_conflicting_uid() {
    let config = directory(&[("slurminit.toml", "[[user]]\nname = \"alice\"\nuid = 1000\n")]);
    let outcome = Image::new(CUDA).mount(config.path(), "/config").run(&["true"]);
    assert_eq!(outcome.code, 78, "{outcome:?}");
    assert!(outcome.stderr.contains("`ubuntu`"), "{}", outcome.stderr);
}

/// The distribution also packages rocm-smi and rocminfo, which must not replace those of the base image.
#[test]
#[ignore = "needs Docker and the images: run docker/test"]
fn rocm_tools_are_those_of_base_image() {
    let image = Image::new(ROCM).with(["--env", "SLURMINIT_ON_MISMATCH=warn"]);
    let job = "for tool in hipcc rocm-smi rocminfo; do command -v $tool; $tool; done; getent group render | cut -d: -f3; cat /opt/rocm/.info/version";
    let outcome = image.run(&["srun", "sh", "-c", job]);
    let tool = |name: &str| format!("/usr/bin/{name}\nstand-in for {name}, of ROCm 6.4\n");
    let expected = format!("{}{}{}109\n6.4.0\n", tool("hipcc"), tool("rocm-smi"), tool("rocminfo"));
    assert_eq!(outcome.stdout, expected, "{}", outcome.stderr);
    let bits = Image::new(ROCM).with(["--entrypoint", "sh"]).run(&["-c", "find / -xdev -type f -perm /6000"]).ok();
    assert_eq!(bits, "", "setuid or setgid files, such as the base image's sudo");
    let plugin = Image::new(ROCM).with(["--entrypoint", "sh"]).run(&["-c", "find /usr/lib -name gpu_rsmi.so"]).ok();
    assert!(plugin.contains("gpu_rsmi.so"), "{plugin}");
}
