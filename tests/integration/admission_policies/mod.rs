//! Admission policies and webhook: protection of gates and of the labels that quota is accounted
//! by, and gating of new objects.

mod certificates;
mod exemptions;
pub(crate) mod fixtures;
mod policies;
mod tampering;
mod type_checks;
pub(crate) mod webhook;
