//! Scripts of user actions: the quota of a few teams and the changes made over time, as plain data
//! that can be stored in a file. The same script runs on the simulated and on a real control plane.

pub(crate) mod again;
pub(crate) mod expect;
pub(crate) mod generate;
pub(crate) mod manifests;
pub(crate) mod perform;
pub(crate) mod scene;
pub(crate) mod step;
pub(crate) mod stepwise;
pub(crate) mod stories;
pub(crate) mod wishes;
