//! Explanations and dry runs on a copy of the cluster state. Nothing is written to the cluster.

mod display;
pub mod dry_run;
pub mod explain;
mod kubectl_apply;
pub mod remediation;
mod schema_defaults;
pub mod snapshot;
pub mod upgrade;
