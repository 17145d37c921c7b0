//! Sluice gates Ray workloads on GPU quota in Kubernetes.
//!
//! `ARCHITECTURE.md` describes the house; the short form is: everything that decides is a pure function of values
//! (`queue`, `jobframework`, `raycluster`, `rayservice`), and `engine` holds the state that they decide on.

pub mod api;
pub mod cli;
pub mod clock;
pub mod config;
pub mod dashboard;
pub mod engine;
pub mod inspect;
pub mod jobframework;
pub mod manager;
pub mod metrics;
pub mod plan;
pub mod queue;
pub mod raycluster;
pub mod rayservice;
pub mod webhook;
