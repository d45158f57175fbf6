//! The role of a container.

use serde::{Deserialize, Serialize};

/// Which of munged, slurmctld and slurmd this container runs. Other daemons, such as slurmdbd and sshd, are enabled by other settings.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Role {
    /// munged, slurmctld and slurmd: a whole cluster in one container, or the controller and a node of a cluster of several containers.
    #[default]
    All,
    /// No daemon: a plain init for CMD.
    None,
    /// munged and slurmctld: the controller of a cluster of several containers, without a node.
    Controller,
    /// munged and slurmd: a node of such a cluster, which registers its hardware with the controller.
    Compute,
    /// munged only: a login node.
    Login,
}

shown_as_serialized!(Role);
