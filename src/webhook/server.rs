//! TLS server whose certificate can be replaced at any time.

use std::net::{SocketAddr, TcpListener};
use std::sync::{Arc, PoisonError, RwLock};

use axum::Router;
use axum_server::tls_rustls::RustlsConfig;
use rustls::ServerConfig;
use rustls::server::{ClientHello, ResolvesServerCert};
use rustls::sign::CertifiedKey;
use thiserror::Error;
use tracing::error;

use super::certificates::crypto_provider;

/// Certificate that is served. TLS handshakes fail until it is set.
#[derive(Debug, Default)]
pub(super) struct CertResolver(RwLock<Option<Arc<CertifiedKey>>>);

impl CertResolver {
    /// Replaces the certificate for new connections; existing ones continue.
    pub(super) fn set(&self, key: Arc<CertifiedKey>) {
        *self.0.write().unwrap_or_else(PoisonError::into_inner) = Some(key);
    }
}

impl ResolvesServerCert for CertResolver {
    fn resolve(&self, _: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        self.0.read().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// Error of starting the webhook server.
#[derive(Debug, Error)]
pub enum ServeError {
    /// The address can't be bound.
    #[error("listening on {address}: {source}")]
    Listen {
        /// Address.
        address: SocketAddr,
        /// Cause.
        source: std::io::Error,
    },
    /// TLS can't be set up.
    #[error("setting up TLS for the webhook: {0}")]
    Tls(#[from] rustls::Error),
}

/// Serves `routes` at `address` in the background.
///
/// # Errors
/// If the address can't be bound, or TLS can't be set up.
pub(super) fn start(address: SocketAddr, served: Arc<CertResolver>, routes: Router) -> Result<(), ServeError> {
    let listen_error = |source| ServeError::Listen { address, source };
    let mut config = ServerConfig::builder_with_provider(crypto_provider())
        .with_safe_default_protocol_versions()?
        .with_no_client_auth()
        .with_cert_resolver(served);
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    let listener = TcpListener::bind(address).map_err(listen_error)?;
    listener.set_nonblocking(true).map_err(listen_error)?;
    let server = axum_server::from_tcp_rustls(listener, RustlsConfig::from_config(Arc::new(config)));
    let server = server.map_err(listen_error)?;
    tokio::spawn(async move {
        if let Err(error) = server.serve(routes.into_make_service()).await {
            error!(%address, %error, "the webhook server stopped");
        }
    });
    Ok(())
}
