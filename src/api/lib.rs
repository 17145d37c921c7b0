//! The kinds that Sluice serves and reads, one file a kind, and what they share.

pub mod condition;
pub mod crds;
pub mod duration;
pub mod fingerprint;
pub mod gateway;
pub mod kueue;
pub mod quantity;
pub mod ray;
pub mod selector;
pub mod shared;
pub mod sluice;

/// The annotation in which `kubectl apply` keeps a whole copy of what it applied last.
pub const LAST_APPLIED_ANNOTATION: &str = "kubectl.kubernetes.io/last-applied-configuration";
