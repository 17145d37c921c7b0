//! Requests to the API server.

mod client;
mod metrics;
mod watch;

pub use client::{ApiClient, ApiError, Write};
pub use metrics::{MetricsError, ServerMetrics, requests_since};
pub use watch::{Change, present_version, watch};
