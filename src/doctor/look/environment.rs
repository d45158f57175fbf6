//! The environment.

use crate::doctor::facts::Environment;

const PROXIES: [&str; 6] = ["http_proxy", "https_proxy", "all_proxy", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"];

/// This process's environment, which in a container is the one that the container was created with.
pub fn environment() -> Environment {
    let variable = |name: &str| {
        let value = std::env::var_os(name)?.to_string_lossy().into_owned();
        (!value.is_empty()).then_some(value)
    };
    Environment {
        cuda_visible_devices: variable("CUDA_VISIBLE_DEVICES"),
        cuda_version: variable("CUDA_VERSION"),
        driver_capabilities: variable("NVIDIA_DRIVER_CAPABILITIES"),
        proxy: PROXIES.into_iter().find(|name| variable(name).is_some()),
        no_proxy: variable("no_proxy").or_else(|| variable("NO_PROXY")),
        is_in_kubernetes: variable("KUBERNETES_SERVICE_HOST").is_some(),
        is_demo: variable("SLURMINIT_DEMO").is_some(),
    }
}
