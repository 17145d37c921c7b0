//! Who may do what to a gate, and to what quota is counted by; and how new objects get a gate.

mod certificates;
pub(crate) mod objects;
mod others;
mod policies;
mod tampering;
pub(crate) mod webhook;
