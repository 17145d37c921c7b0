//! Cache of the auth tokens of Ray clusters, read from their Secrets.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use http::HeaderValue;
use http::header::InvalidHeaderValue;
use k8s_openapi::api::core::v1::Secret;
use kube::Api;

use sluice_plan::{ServeCall, ServeRequest};
use sluice_raycluster::auth::TOKEN_KEY;

/// HTTP header with the token for Ray. `Authorization` is not used, since a call through the API
/// server needs it
/// (KubeRay 1.7 `ray-operator/controllers/ray/utils/dashboardclient/dashboard_httpclient.go`).
pub(super) const HEADER: &str = "x-ray-authorization";
/// Maximum number of cached tokens. The cache is cleared when it is full, and tokens are read
/// again.
const MAX_CACHED_TOKENS: usize = 4096;

/// Reason for which the token of a cluster is not available.
#[derive(Debug, thiserror::Error)]
pub(super) enum TokenError {
    /// The Secret cannot be read.
    #[error("reading {secret}")]
    Unreadable {
        /// The Secret, as `Secret NAMESPACE/NAME`.
        secret: String,
        /// The error of the API server.
        source: kube::Error,
    },
    /// The Secret has no token.
    #[error("{secret} has no key {TOKEN_KEY} with the token")]
    NoToken {
        /// The Secret, as `Secret NAMESPACE/NAME`.
        secret: String,
    },
    /// The token contains bytes that no HTTP header may contain.
    #[error("{secret}: the token in {TOKEN_KEY} is not a valid HTTP header value")]
    InvalidToken {
        /// The Secret, as `Secret NAMESPACE/NAME`.
        secret: String,
        /// The rule that the value breaks.
        source: InvalidHeaderValue,
    },
}

/// Token headers by the uid of the RayCluster.
#[derive(Clone)]
pub(super) struct TokenCache {
    kube: kube::Client,
    headers: Arc<Mutex<BTreeMap<String, HeaderValue>>>,
}

impl TokenCache {
    /// Returns an empty cache that reads Secrets through `kube`.
    pub(super) fn new(kube: kube::Client) -> Self {
        Self { kube, headers: Arc::default() }
    }

    /// Returns the token header for a call; `None` if the call needs no token.
    ///
    /// # Errors
    /// Returns an error if the Secret cannot be read, or has no valid token.
    pub(super) async fn header(&self, call: &ServeCall) -> Result<Option<HeaderValue>, TokenError> {
        // Serve proxies need no token.
        if matches!(call.request, ServeRequest::Healthz { .. }) {
            return Ok(None);
        }
        let Some(name) = &call.token_secret else { return Ok(None) };
        if let Some(known) = self.lock().get(&call.uid) {
            return Ok(Some(known.clone()));
        }
        let secret = format!("Secret {}/{name}", call.namespace);
        let secrets: Api<Secret> = Api::namespaced(self.kube.clone(), &call.namespace);
        let read = match secrets.get(name).await {
            Ok(read) => read,
            Err(source) => return Err(TokenError::Unreadable { secret, source }),
        };
        let Some(token) = read.data.and_then(|mut data| data.remove(TOKEN_KEY)) else {
            return Err(TokenError::NoToken { secret });
        };
        let bearer = [b"Bearer ", token.0.as_slice()].concat();
        let mut header =
            HeaderValue::from_bytes(&bearer).map_err(|source| TokenError::InvalidToken { secret, source })?;
        header.set_sensitive(true);
        let mut known = self.lock();
        if known.len() >= MAX_CACHED_TOKENS {
            known.clear();
        }
        known.insert(call.uid.clone(), header.clone());
        Ok(Some(header))
    }

    /// Removes the token of a cluster after Ray rejected it, so that the next call reads the Secret
    /// again.
    pub(super) fn invalidate(&self, call: &ServeCall) {
        self.lock().remove(&call.uid);
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, BTreeMap<String, HeaderValue>> {
        self.headers.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
