//! The whole of Sluice in virtual time, with faults, from a seed.
//!
//! What runs is what `sluice manager` runs, with its real client. Behind the client are an API server, nodes and Ray
//! dashboards that are plain data and do one thing at a time, so that a seed is a history, the same one on any machine.
// In a program of its own, `pub` says what other rooms may use.
#![allow(unreachable_pub)]

mod api;
mod chance;
mod cluster;
mod fidelity;
mod script;
#[path = "../integration/support/mod.rs"]
mod support;
