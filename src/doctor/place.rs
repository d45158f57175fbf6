//! Adapts the commands of a fix to the place where its reader runs them. The entries contain the commands for a
//! container that Docker runs.

use crate::facts::{Facts, Side};

/// Where the reader runs commands, if not on the host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Place {
    /// A container of an engine on the host. `docker` does not exist in the container.
    Container,
    /// A pod of Kubernetes.
    Pod,
}

/// Docker's commands and options, and the equivalents for a pod. If one command begins with another, the longer one comes first.
const IN_POD: &[(&str, &str)] = &[
    ("`slurminit configure && docker compose up -d --force-recreate`; Kubernetes: ", ""),
    ("`slurminit configure && docker compose up -d --force-recreate`, or ", ""),
    (
        "slurminit configure --gpus all && docker compose up -d --force-recreate",
        "request all GPUs in the limits of the pod",
    ),
    ("docker compose up -d --force-recreate", "kubectl delete pod POD"),
    (
        "docker compose build --build-arg GPU_TYPE=nvidia && docker compose up -d",
        "push an image built with GPU_TYPE=nvidia, then kubectl delete pod POD",
    ),
    ("docker compose build && docker compose up -d", "rebuild and push the image, then kubectl delete pod POD"),
    ("docker compose up --force-recreate", "kubectl delete pod POD"),
    ("docker compose restart slurm", "kubectl delete pod POD"),
    ("docker logs", "kubectl logs POD"),
    ("docker restart", "kubectl delete pod POD"),
    ("docker build --pull --no-cache ...", "rebuild the image with --pull --no-cache and push it"),
    ("docker system df", "kubectl exec POD -- du -h -d 1 DIRECTORY"),
    ("`docker run --memory` (compose: `deploy.resources.limits.memory`)", "`resources.limits.memory` of the pod"),
    ("`docker run --memory` or `--pids-limit`", "`resources.limits.memory` of the pod or the kubelet's `podPidsLimit`"),
    ("docker run --memory", "resources.limits.memory of the pod"),
    ("`docker run --cpus`, `--cpuset-cpus` or `--memory`", "`resources.limits` of the pod"),
    ("docker run --cpus or --cpuset-cpus, limits.cpu of a pod", "resources.limits.cpu of the pod"),
    ("`docker run --shm-size=1g ...`; compose: `shm_size: 1gb`; Kubernetes: ", ""),
    (
        "`docker run --ulimit memlock=-1 ...`; compose: `ulimits: {memlock: -1}`",
        "`LimitMEMLOCK=infinity` of containerd on the node",
    ),
    (
        "`docker run --ulimit stack=67108864 ...`; compose: `ulimits: {stack: 67108864}`",
        "`LimitSTACK=67108864` of containerd on the node",
    ),
    ("docker run --add-host NAME:ADDRESS", "hostAliases of the pod"),
    ("docker run --security-opt seccomp=docker/seccomp-userns.json ...", "securityContext.seccompProfile of the pod"),
    (
        "docker run --gpus all -e NVIDIA_DRIVER_CAPABILITIES=compute,utility ...",
        "limits: {nvidia.com/gpu: 1} and NVIDIA_DRIVER_CAPABILITIES=compute,utility in the pod",
    ),
    (
        "docker run -e NVIDIA_DRIVER_CAPABILITIES=compute,utility ...",
        "NVIDIA_DRIVER_CAPABILITIES=compute,utility in the environment of the pod",
    ),
    ("docker run --gpus all", "limits: {nvidia.com/gpu: 1} in the pod"),
    ("docker run --device /dev/kfd --device /dev/dri ...", "limits: {amd.com/gpu: 1} in the pod"),
    ("docker run --device /dev/kfd --device /dev/dri", "limits: {amd.com/gpu: 1} in the pod"),
    ("docker run ", "a pod with the equivalent of "),
];

impl Place {
    /// Where the reader runs commands; `None` for the host.
    pub(super) fn of(facts: &Facts) -> Option<Self> {
        match facts.side {
            Side::Host(_) => None,
            Side::Container(_) if facts.environment.is_in_kubernetes => Some(Self::Pod),
            Side::Container(_) => Some(Self::Container),
        }
    }

    /// Adapts a fix to this place: for a pod, replaces Docker's commands; for a container, notes that `docker` exists only on the host.
    pub(super) fn fix(self, fix: &str) -> String {
        match self {
            Self::Pod => IN_POD.iter().fold(fix.to_owned(), |text, (docker, pod)| text.replace(docker, pod)),
            Self::Container if fix.contains("docker ") && !fix.contains("on the host") => {
                format!("{fix} (docker: on the host)")
            }
            Self::Container => fix.to_owned(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Check, PARTS};

    /// The sources of the checks that run in a container: their fixes are in string literals.
    const SOURCES: [&str; 6] = [
        include_str!("entries/cuda.rs"),
        include_str!("entries/given.rs"),
        include_str!("entries/gpus.rs"),
        include_str!("entries/joining.rs"),
        include_str!("entries/node.rs"),
        include_str!("entries/start.rs"),
    ];

    #[test]
    fn fixes_in_a_pod_and_in_a_container_name_commands_that_exist_there() {
        let in_container = |check: &Check| !matches!(check, Check::Host(_) | Check::Anywhere(_));
        let entries = PARTS.iter().flat_map(|part| part.entries).filter(|entry| in_container(&entry.check));
        let lines = SOURCES.iter().flat_map(|source| source.lines()).filter(|line| line.contains('"'));
        let fixes: Vec<&str> = entries.map(|entry| entry.fix).chain(lines).collect();
        assert!(fixes.iter().any(|fix| fix.contains("docker ")));
        for fix in fixes {
            let in_pod = Place::Pod.fix(fix);
            assert!(!in_pod.contains("docker compose ") && !in_pod.contains("docker run "), "{in_pod}");
            assert!(!fix.contains("scontrol update") && !fix.contains("docker compose logs"), "{fix}");
        }
        assert_eq!(
            Place::Container.fix("docker compose restart slurm"),
            "docker compose restart slurm (docker: on the host)"
        );
        assert_eq!(Place::Container.fix("slurminit resume c1"), "slurminit resume c1");
        assert_eq!(Place::Pod.fix("`docker compose restart slurm`; wait"), "`kubectl delete pod POD`; wait");
    }
}
