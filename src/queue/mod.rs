//! The queue: who gets which quota, and why not yet.

pub mod requests;
