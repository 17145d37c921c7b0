//! Integration tests on a real control plane. `make test` builds its programs first.

#![allow(clippy::disallowed_methods, reason = "scenarios run in real time")]

mod bad_input;
mod batch_jobs;
mod configuration;
mod deletion;
mod evictions;
mod explain;
mod flavors;
mod guard;
mod halves;
mod in_steps;
mod kinds;
mod limits;
mod many;
mod many_jobs;
mod on_the_wire;
mod planned;
mod pods;
mod preemption;
mod process;
mod quota;
mod ray_jobs;
mod rayclusters;
mod real_ray;
mod recreate;
mod redis;
mod restarts;
mod shapes;
mod stage;
mod surroundings;
mod takeover;
mod tokens;
mod unfitting;
mod upgrades;
mod validation;
