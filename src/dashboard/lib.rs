//! The Serve REST API of a Ray head's dashboard: what is said over it, and a client.
//!
//! Nothing here decides: the RayService operator says which call is to be made ([`sluice_plan::ServeCall`]), and
//! gets the answer as a [`ServeReply`].

pub mod client;
pub mod request;
mod tokens;

pub use client::{Dashboards, Reach};
