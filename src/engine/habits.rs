//! What is done where a spec leaves it open, as the switches of the process say
//! (KubeRay 1.7 `ray-operator/controllers/ray/utils/constant.go`: the environment variables of the operator).

/// What is done where a spec leaves it open.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Habits {
    /// Whether a RayService that names no upgrade strategy gets another cluster when its spec asks for one; if not, it keeps the
    /// one that it has.
    pub upgrades: bool,
    /// Whether workers beyond what is wanted are deleted also where Ray's autoscaler has to say which of them go.
    pub trims_autoscaled: bool,
}

impl Default for Habits {
    fn default() -> Self {
        Self { upgrades: true, trims_autoscaled: false }
    }
}
