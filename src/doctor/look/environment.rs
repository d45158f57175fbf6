//! Reads the environment variables that doctor's entries refer to.

use crate::facts::Environment;

const PROXY_VARIABLES: [&str; 6] = ["http_proxy", "https_proxy", "all_proxy", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"];

const MIG_VARIABLES: [&str; 2] = ["NVIDIA_MIG_CONFIG_DEVICES", "NVIDIA_MIG_MONITOR_DEVICES"];
/// Variables of HAMi-core (its README), gpushare (AliyunContainerService/gpushare-device-plugin) and MPS (NVIDIA's MPS
/// documentation).
const GPU_SHARE_VARIABLES: [&str; 6] = [
    "CUDA_DEVICE_MEMORY_LIMIT",
    "CUDA_DEVICE_MEMORY_LIMIT_0",
    "CUDA_DEVICE_SM_LIMIT",
    "ALIYUN_COM_GPU_MEM_CONTAINER",
    "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT",
    "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE",
];

/// The environment of this process. At a start and in `docker exec`, it contains the variables that the container was created with.
pub fn environment() -> Environment {
    let variable = |name: &str| {
        let value = std::env::var_os(name)?.to_string_lossy().into_owned();
        (!value.is_empty()).then_some(value)
    };
    Environment {
        cuda_visible_devices: variable("CUDA_VISIBLE_DEVICES"),
        cuda_version: variable("CUDA_VERSION"),
        driver_capabilities: variable("NVIDIA_DRIVER_CAPABILITIES"),
        require_cuda: variable("NVIDIA_REQUIRE_CUDA"),
        mig_variables: MIG_VARIABLES.into_iter().filter(|name| variable(name).is_some()).collect(),
        gpu_share: GPU_SHARE_VARIABLES.into_iter().find(|name| variable(name).is_some()),
        proxy: PROXY_VARIABLES.into_iter().find(|name| variable(name).is_some()),
        no_proxy: variable("no_proxy").or_else(|| variable("NO_PROXY")),
        is_in_kubernetes: variable("KUBERNETES_SERVICE_HOST").is_some(),
        is_demo: variable("SLURMINIT_DEMO").is_some(),
    }
}
