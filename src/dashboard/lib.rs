//! Client of the Serve REST API, which is part of the Ray dashboard on the head.
//!
//! The RayService operator decides which calls to make ([`sluice_plan::ServeCall`]), and receives
//! each result as a [`sluice_plan::ServeReply`].

pub mod client;
pub mod request;
mod token_cache;

pub use client::{DashboardAccess, DashboardClient};
