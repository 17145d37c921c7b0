//! Scripts of user actions: the quota of a few teams and the changes made over time, as plain data
//! that can be stored in a file. The same script runs on the simulated and on a real control plane.

pub(crate) mod cluster_actions;
pub(crate) mod cluster_step;
pub(crate) mod clusters;
pub(crate) mod desired_state;
pub(crate) mod executor;
pub(crate) mod expected_state;
pub(crate) mod generate;
pub(crate) mod incremental;
pub(crate) mod job_actions;
pub(crate) mod job_step;
pub(crate) mod jobs;
pub(crate) mod manifests;
pub(crate) mod repeated_upgrades;
pub(crate) mod scenarios;
pub(crate) mod setup;
pub(crate) mod step;
