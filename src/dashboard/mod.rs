//! The Serve REST API of a Ray head's dashboard: what is said over it, and a client.
//!
//! Nothing here decides: the RayService operator says which call is to be made ([`crate::engine::plan::ServeCall`]), and
//! gets the answer as a [`ServeReply`].

pub mod client;
pub mod config;
pub mod request;
pub mod serve;
mod tokens;

pub use client::{Dashboards, Reach};
pub use config::ServeConfig;
pub use serve::{Deployment, Replica, ServeAnswer, ServeError, ServeReply, ServeStatus};
