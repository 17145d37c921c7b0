//! Test support: a control plane for each test, fixtures, recorded histories, and the invariants
//! that every change is checked against.

#![allow(clippy::disallowed_methods, reason = "scenarios run in real time")]

pub mod env;
mod env_control;
pub mod fake_dashboards;
pub mod fake_gateway;
pub mod fake_kuberay;
pub mod fault_proxy;
pub mod history;
pub mod http;
pub mod invariants;
pub mod load;
pub mod objects;
pub mod pod_corpus;
pub mod process_node;
pub mod quotas;
pub mod real_kuberay;
pub mod real_kueue;
pub mod recorded_responses;
pub mod timeline;
pub mod traefik;

pub use env::{Manager, TestEnv, TestEnvOptions, eventually, eventually_or_err, next_second, poll_until};
