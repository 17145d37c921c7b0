//! Serves routes by TLS, with a certificate that can be exchanged at any time.

use std::net::{SocketAddr, TcpListener};
use std::sync::{Arc, PoisonError, RwLock};

use axum::Router;
use axum_server::tls_rustls::RustlsConfig;
use rustls::ServerConfig;
use rustls::server::{ClientHello, ResolvesServerCert};
use rustls::sign::CertifiedKey;
use tracing::error;

use super::certificates::provider;

/// The certificate that is served. Before there is one, nobody gets a connection.
#[derive(Debug, Default)]
pub(super) struct Served(RwLock<Option<Arc<CertifiedKey>>>);

impl Served {
    /// Serves this one from the next connection on. Those that are there go on.
    pub(super) fn set(&self, key: Arc<CertifiedKey>) {
        *self.0.write().unwrap_or_else(PoisonError::into_inner) = Some(key);
    }
}

impl ResolvesServerCert for Served {
    fn resolve(&self, _: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        self.0.read().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// Serves `routes` at `address` in the background.
///
/// # Errors
/// When the address can't be bound, or TLS can't be set up.
pub(super) fn start(address: SocketAddr, served: Arc<Served>, routes: Router) -> Result<(), String> {
    let named = |error: &dyn std::fmt::Display| format!("listening on {address}: {error}");
    let mut config = ServerConfig::builder_with_provider(provider())
        .with_safe_default_protocol_versions()
        .map_err(|error| named(&error))?
        .with_no_client_auth()
        .with_cert_resolver(served);
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    let listener = TcpListener::bind(address).map_err(|error| named(&error))?;
    listener.set_nonblocking(true).map_err(|error| named(&error))?;
    let server = axum_server::from_tcp_rustls(listener, RustlsConfig::from_config(Arc::new(config)));
    let server = server.map_err(|error| named(&error))?;
    tokio::spawn(async move {
        if let Err(error) = server.serve(routes.into_make_service()).await {
            error!(%address, %error, "the webhook is not served any more");
        }
    });
    Ok(())
}
