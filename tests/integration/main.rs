//! Scenarios on a real control plane. `make test` builds what they need first.

mod bad_input;
mod batch_jobs;
mod configuration;
mod deletion;
mod evictions;
mod explain;
mod flavors;
mod guard;
mod halves;
mod kinds;
mod limits;
mod many;
mod many_jobs;
mod planned;
mod preemption;
mod process;
mod quota;
mod ray_jobs;
mod rayclusters;
mod restarts;
mod shapes;
mod stage;
mod support;
mod unfitting;
mod upgrades;
mod validation;
