//! Admission policies and webhook: protection of gates and of the labels that quota is accounted
//! by, and gating of new objects.

mod certificates;
pub(crate) mod objects;
mod others;
mod policies;
mod tampering;
pub(crate) mod webhook;
