//! Explanations and dry runs on a copy of the cluster state. Nothing is written to the cluster.

mod apply;
mod defaults;
pub mod explain;
pub mod rehearsal;
pub mod remedies;
pub mod snapshot;
mod text;
pub mod upgrade;
