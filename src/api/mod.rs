//! The kinds that Sluice serves and reads, one file a kind, and what they share.

pub mod condition;
pub mod crds;
pub mod duration;
pub mod fingerprint;
pub mod kueue;
pub mod quantity;
pub mod ray;
pub mod selector;
pub mod shared;
