//! What people do: the quota of a few teams, and a history of what is asked of it, as plain data that a person can read and
//! keep in a file. The same steps are carried out on the simulated control plane and on a real one.

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
