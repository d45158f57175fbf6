//! The role of a container.

use serde::{Deserialize, Serialize};

/// The daemons that this container runs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Role {
    /// munged, slurmctld and slurmd: a whole cluster in one container, or its first one.
    #[default]
    All,
    /// No daemon: a plain init for CMD.
    None,
    /// munged and slurmctld: the controller of a cluster of several containers.
    Controller,
    /// munged and slurmd: a node of such a cluster, which registers its hardware with the controller.
    Compute,
    /// munged only: a login node.
    Login,
}

shown_as_serialized!(Role);
