//! Integration tests on a real control plane. `make test` builds its programs first.

#![allow(clippy::disallowed_methods, reason = "scenarios run in real time")]

mod admission_policies;
mod bad_input;
mod batch_jobs;
mod cluster_resources;
mod component_subsets;
mod configuration;
mod contention;
mod crds;
mod deletion;
mod evictions;
mod exceeds_quota;
mod explain;
mod faulty_api_server;
mod flavors;
mod gateway_traffic;
mod incremental_upgrade;
mod job_controller;
mod kuberay_adoption;
mod limits;
mod many_jobs;
mod next_to_kueue;
mod ownership;
mod plan_command;
mod pod_shape_changes;
mod pods;
mod preemption;
mod process;
mod quota;
mod ray_jobs;
mod rayclusters;
mod real_ray;
mod recreate;
mod redis;
mod resource_change_fixture;
mod restarts;
mod tokens;
mod upgrades;
mod validation;
