//! The engine: one owner of all observed state, which turns events into effects.
//!
//! Every decision of Sluice is made in [`Engine::step`], from values alone: no client, no clock, no randomness. The shell
//! (`manager`) feeds it what the watches see and carries out what it asks for; a simulator can do the same.

pub mod in_flight;
pub mod pace;
pub mod plan;
pub mod store;
pub mod world;
