//! Operator defaults for settings that a spec leaves unset (KubeRay 1.7
//! `ray-operator/controllers/ray/utils/constant.go`: the environment variables of the operator).

/// Operator defaults for settings that a RayService or RayCluster leaves unset.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OperatorConfig {
    /// Upgrade a RayService without an upgrade strategy to a new cluster when its spec requires
    /// one; otherwise it keeps its active cluster. Default: true.
    pub default_zero_downtime: bool,
    /// Delete surplus workers even when the Ray autoscaler is enabled, which otherwise names the
    /// workers to delete. Default: false.
    pub random_pod_delete: bool,
}

impl Default for OperatorConfig {
    fn default() -> Self {
        Self { default_zero_downtime: true, random_pod_delete: false }
    }
}
