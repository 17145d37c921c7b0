//! Errors that prevent the manager from starting or terminate it.

use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;

use thiserror::Error;

use crate::list_watch::HistoryLost;
use sluice_webhook as webhook;

/// Error that prevents the manager from starting or terminates it.
#[derive(Debug, Error)]
pub enum Error {
    /// There is neither a kubeconfig nor an in-cluster configuration.
    #[error("finding the API server: {0}")]
    InferConfig(#[from] kube::config::InferConfigError),
    /// The client can't be built from that configuration.
    #[error("creating the client: {0}")]
    BuildClient(#[source] kube::Error),
    /// The API server doesn't report its version.
    #[error("reading the version of the API server: {0}")]
    ServerVersion(#[source] kube::Error),
    /// The key for the auth tokens of RayClusters can't be generated.
    #[error("generating the key for Ray auth tokens: no system randomness available")]
    TokenKey,
    /// A signal handler can't be installed.
    #[error("installing the SIGTERM handler: {0}")]
    Signal(#[source] io::Error),
    /// An address can't be bound.
    #[error("listening on {address}: {source}")]
    Listen {
        /// Address.
        address: SocketAddr,
        /// Cause.
        source: io::Error,
    },
    /// The webhook can't be served.
    #[error(transparent)]
    Webhook(#[from] webhook::ServeError),
    /// The leader Lease can't be set up.
    #[error("setting up Lease {lease}: {source}")]
    Lease {
        /// Namespace and name of the Lease.
        lease: String,
        /// Cause.
        source: kube_lease_manager::LeaseManagerError,
    },
    /// Another replica acquired the Lease, or it couldn't be renewed in time.
    #[error("lost Lease {0}")]
    LostLease(String),
    /// The thread that writes the decision log can't be started.
    #[error("starting the decision log {}: {source}", path.display())]
    DecisionLog {
        /// Path of the file.
        path: PathBuf,
        /// Cause.
        source: io::Error,
    },
    /// The API server is at an older version than before, so what was observed may no longer be true. A
    /// restarted process observes everything again.
    #[error("watching {kind}: {source}; starting again from what it has now")]
    HistoryLost {
        /// Kind of the watched objects.
        kind: String,
        /// Versions before and after.
        source: HistoryLost,
    },
    /// The task of a watch panicked.
    #[error("watching: {0}")]
    WatchPanicked(#[source] tokio::task::JoinError),
}
