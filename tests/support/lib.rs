//! What the scenarios stand on: a control plane of their own, what a person would apply to it, and the history of it all.

// Each of the programs that include this uses a part of it.
#![allow(dead_code, unreachable_pub, unused_imports)]

pub mod dashboards;
pub mod env;
pub mod gateways;
pub mod history;
pub mod http;
pub mod invariants;
pub mod kuberay;
pub mod load;
pub mod objects;
pub mod process_node;
pub mod quotas;
pub mod real_kuberay;
pub mod timeline;
pub mod traefik;

pub use env::{Manager, TestEnv, eventually, eventually_or_tell, within};
