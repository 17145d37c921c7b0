//! Errors that keep the manager from starting, or end it.

use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;

use thiserror::Error;

use sluice_webhook as webhook;

/// Reason for which the manager can't start or stops by itself.
#[derive(Debug, Error)]
pub enum Error {
    /// Neither the environment nor the cluster says where the API server is.
    #[error("finding the API server: {0}")]
    InferConfig(#[from] kube::config::InferConfigError),
    /// The client can't be built from that configuration.
    #[error("setting up the client: {0}")]
    BuildClient(#[source] kube::Error),
    /// The API server doesn't report its version.
    #[error("asking the API server for its version: {0}")]
    ServerVersion(#[source] kube::Error),
    /// No key for the tokens of Ray clusters can be generated.
    #[error("generating a key for Ray tokens: the machine provides no randomness")]
    TokenKey,
    /// A signal handler can't be installed.
    #[error("installing the handler of SIGTERM: {0}")]
    Signal(#[source] io::Error),
    /// An address can't be bound.
    #[error("listening on {address}: {source}")]
    Listen {
        /// The address.
        address: SocketAddr,
        /// Cause.
        source: io::Error,
    },
    /// The webhook can't be served.
    #[error(transparent)]
    Webhook(#[from] webhook::ServeError),
    /// The leader lease can't be set up.
    #[error("setting up the lease {lease}: {source}")]
    Lease {
        /// Namespace and name of the lease.
        lease: String,
        /// Cause.
        source: kube_lease_manager::LeaseManagerError,
    },
    /// Another replica took the lease, or it could not be renewed in time.
    #[error("lost the lease {0}")]
    LostLease(String),
    /// The thread that writes the decision log can't be started.
    #[error("starting the decision log {}: {source}", path.display())]
    DecisionLog {
        /// The file.
        path: PathBuf,
        /// Cause.
        source: io::Error,
    },
}
