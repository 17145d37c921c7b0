//! HTTP endpoints: `/healthz`, `/readyz` and `/metrics`.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use axum::Router;
use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use tokio::net::TcpListener;

use super::Error;
use sluice_metrics::Metrics;

/// Readiness of the manager: set once the initial list of every watch is complete.
#[derive(Debug, Clone, Default)]
pub struct Readiness(Arc<AtomicBool>);

impl Readiness {
    /// Marks the manager as ready.
    pub fn set(&self) {
        self.0.store(true, Ordering::Relaxed);
    }

    fn is_set(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

/// Returns the routes of the health probes.
pub fn health_routes(readiness: Readiness) -> Router {
    Router::new().route("/healthz", get(|| async { "ok\n" })).route("/readyz", get(ready)).with_state(readiness)
}

/// Returns the route of the metrics.
pub fn metrics_routes(metrics: Metrics) -> Router {
    Router::new().route("/metrics", get(exposition)).with_state(metrics)
}

/// Serves `routes` at `address` in the background.
///
/// # Errors
/// If the address can't be bound.
pub async fn serve(address: SocketAddr, routes: Router) -> Result<(), Error> {
    let listener = TcpListener::bind(address).await.map_err(|source| Error::Listen { address, source })?;
    tokio::spawn(async move { axum::serve(listener, routes).await });
    Ok(())
}

async fn ready(State(readiness): State<Readiness>) -> Response {
    if readiness.is_set() {
        "ok\n".into_response()
    } else {
        (StatusCode::SERVICE_UNAVAILABLE, "initial lists are not complete, or another replica is the leader\n")
            .into_response()
    }
}

async fn exposition(State(metrics): State<Metrics>) -> Response {
    let content_type = "application/openmetrics-text; version=1.0.0; charset=utf-8";
    ([(header::CONTENT_TYPE, content_type)], metrics.encode_text()).into_response()
}
