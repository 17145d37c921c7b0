//! Kubernetes API types that Sluice serves and reads, one file per kind, and what they share.

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

/// Annotation in which `kubectl apply` stores a full copy of the last applied manifest.
pub const LAST_APPLIED_ANNOTATION: &str = "kubectl.kubernetes.io/last-applied-configuration";
