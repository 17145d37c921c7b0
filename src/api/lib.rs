//! Kubernetes API types that Sluice serves and reads, one file per kind, and what they share.

pub mod canonical_hash;
pub mod condition;
pub mod crds;
mod decode_error;
pub mod duration;
pub mod gateway_api;
pub mod job_conditions;
pub mod kueue;
pub mod pod;
pub mod quantity;
pub mod raw_json;
pub mod ray;
pub mod selector;
pub mod toleration;

pub use decode_error::DecodeError;

/// Annotation in which `kubectl apply` stores a full copy of the last applied manifest.
pub const LAST_APPLIED_ANNOTATION: &str = "kubectl.kubernetes.io/last-applied-configuration";
