//! The tokens that dashboards ask for, from the Secrets that they are kept in.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use http::HeaderValue;
use k8s_openapi::api::core::v1::Secret;
use kube::Api;

use sluice_plan::{ServeCall, ServeRequest};
use sluice_raycluster::auth::TOKEN_KEY;

/// The header that Ray reads a token from; `Authorization` is the API server's, where calls go through that
/// (KubeRay 1.7 `ray-operator/controllers/ray/utils/dashboardclient/dashboard_httpclient.go`).
pub(super) const HEADER: &str = "x-ray-authorization";
/// So many are remembered. One that is forgotten is read again.
const REMEMBERED: usize = 4096;

/// Tokens by the uid of their cluster.
#[derive(Clone)]
pub(super) struct Tokens {
    kube: kube::Client,
    known: Arc<Mutex<BTreeMap<String, HeaderValue>>>,
}

impl Tokens {
    /// Those that `kube` may read.
    pub(super) fn of(kube: kube::Client) -> Self {
        Self { kube, known: Arc::default() }
    }

    /// What goes into the header for a call; `None` if nothing does.
    ///
    /// # Errors
    /// When the Secret can't be read, or holds no token; in a sentence.
    pub(super) async fn header(&self, call: &ServeCall) -> Result<Option<HeaderValue>, String> {
        let of_dashboard = !matches!(call.request, ServeRequest::Healthz { .. });
        let Some(name) = call.token_secret.as_ref().filter(|_| of_dashboard) else { return Ok(None) };
        if let Some(known) = self.lock().get(&call.uid) {
            return Ok(Some(known.clone()));
        }
        let what = format!("Secret {}/{name}", call.namespace);
        let secrets: Api<Secret> = Api::namespaced(self.kube.clone(), &call.namespace);
        let secret = secrets.get(name).await.map_err(|error| format!("reading {what}: {error}"))?;
        let token = secret.data.and_then(|mut data| data.remove(TOKEN_KEY));
        let token = token.ok_or_else(|| format!("{what} has no entry {TOKEN_KEY}, which holds the token"))?;
        let bearer = [b"Bearer ", token.0.as_slice()].concat();
        let mut header = HeaderValue::from_bytes(&bearer)
            .map_err(|_| format!("{what}: the token in {TOKEN_KEY} has characters that no HTTP header may have"))?;
        header.set_sensitive(true);
        let mut known = self.lock();
        if known.len() >= REMEMBERED {
            known.clear();
        }
        known.insert(call.uid.clone(), header.clone());
        Ok(Some(header))
    }

    /// Reads the token of a cluster again when it is next needed: it was refused.
    pub(super) fn forget(&self, call: &ServeCall) {
        self.lock().remove(&call.uid);
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, BTreeMap<String, HeaderValue>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
