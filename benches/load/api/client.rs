//! A client that counts its requests and doesn't decode answers that no one reads.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use http::Request;
use kube::Client;
use kube::config::{Config, KubeConfigOptions, Kubeconfig, KubeconfigError};
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::objects::{NewObject, Resource};

/// Number of attempts of a write that the API server rejects for the load on it.
const ATTEMPTS: u32 = 8;
/// Time before the second attempt; it doubles with each.
const FIRST_PAUSE: Duration = Duration::from_millis(50);

/// Error of a request.
#[derive(Debug, thiserror::Error)]
pub enum ApiError {
    /// The kubeconfig can't be read or used.
    #[error("failed to use the kubeconfig {}: {source}", path.display())]
    Kubeconfig {
        /// Path of the file.
        path: PathBuf,
        /// Its error.
        source: KubeconfigError,
    },
    /// No client can be made for the API server.
    #[error("failed to create a client: {}", reason(source))]
    Client {
        /// Error of the client library.
        source: Box<kube::Error>,
    },
    /// A request can't be built.
    #[error("failed to build {what}: {source}")]
    Build {
        /// The request, for display.
        what: String,
        /// Error of the HTTP types.
        source: http::Error,
    },
    /// The API server can't be reached, or it rejects a request.
    #[error("failed to {what}: {}", reason(source))]
    Request {
        /// The request, for display.
        what: String,
        /// Answer of the API server.
        source: Box<kube::Error>,
    },
    /// A watch has missed changes, so that nothing can be concluded from it.
    #[error("the watch of {plural} fell behind at version {version}: {reason}")]
    WatchLost {
        /// Plural name of the kind.
        plural: &'static str,
        /// Version of the last change that was seen.
        version: String,
        /// Message of the API server.
        reason: String,
    },
}

impl ApiError {
    fn request(what: String, source: kube::Error) -> Self {
        Self::Request { what, source: Box::new(source) }
    }

    /// Returns whether an object exists already, or is of another version than the patch.
    pub fn is_conflict(&self) -> bool {
        self.code() == Some(409)
    }

    /// Returns whether a patch can't be applied to the object.
    pub fn is_invalid(&self) -> bool {
        self.code() == Some(422)
    }

    fn code(&self) -> Option<u16> {
        match self {
            Self::Request { source, .. } => match source.as_ref() {
                kube::Error::Api(status) => Some(status.code),
                _ => None,
            },
            _ => None,
        }
    }
}

/// Returns the message of the API server, or else that of the client.
fn reason(error: &kube::Error) -> String {
    match error {
        kube::Error::Api(status) => status.message.clone(),
        other => other.to_string(),
    }
}

/// A client. Copies share the connections and the count of requests.
#[derive(Clone)]
pub struct ApiClient {
    client: Client,
    sent: Arc<Mutex<BTreeMap<String, u64>>>,
}

/// A patch of one object.
#[derive(Debug, Clone, PartialEq)]
pub struct Write {
    /// Kind of the object.
    pub resource: Resource,
    /// Namespace of the object.
    pub namespace: String,
    /// Name of the object.
    pub name: String,
    /// True for a patch of the status.
    pub is_status: bool,
    /// A JSON patch if it is a list, and a merge patch otherwise.
    pub patch: Value,
}

impl ApiClient {
    /// Creates a client from a kubeconfig.
    ///
    /// # Errors
    /// If the file can't be used.
    pub async fn connect(kubeconfig: &Path) -> Result<Self, ApiError> {
        let failed = |source| ApiError::Kubeconfig { path: kubeconfig.to_owned(), source };
        let read = Kubeconfig::read_from(kubeconfig).map_err(failed)?;
        let config = Config::from_custom_kubeconfig(read, &KubeConfigOptions::default()).await.map_err(failed)?;
        Ok(Self::new(Client::try_from(config).map_err(|source| ApiError::Client { source: Box::new(source) })?))
    }

    /// Creates a client that counts from zero.
    pub fn new(client: Client) -> Self {
        Self { client, sent: Arc::default() }
    }

    /// Counts the requests of this client with those of another one.
    pub fn counted_with(mut self, other: &Self) -> Self {
        self.sent = other.sent.clone();
        self
    }

    /// Returns the number of requests by verb, kind and subresource, like `PATCH workloads/status`.
    pub fn sent(&self) -> BTreeMap<String, u64> {
        self.sent.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Creates an object.
    ///
    /// # Errors
    /// If the API server rejects it.
    pub async fn create(&self, object: &NewObject) -> Result<(), ApiError> {
        let (resource, body) = (object.resource, object.body.to_string());
        let name = object.body["metadata"]["name"].as_str().unwrap_or_default();
        let what = format!("create {} {name}", resource.plural);
        let path = collection(resource, object.namespace.as_deref());
        let sent = format!("POST {}", resource.plural);
        self.retry(&what, &sent, || Request::post(&path).header("content-type", "application/json"), &body).await
    }

    /// Patches an object or its status.
    ///
    /// # Errors
    /// If the API server rejects the patch.
    pub async fn patch(&self, write: &Write) -> Result<(), ApiError> {
        let (resource, body) = (write.resource, write.patch.to_string());
        let subresource = if write.is_status { "/status" } else { "" };
        let what = format!("patch {}{subresource} {}/{}", resource.plural, write.namespace, write.name);
        let path = format!("{}/{}{subresource}", collection(resource, Some(&write.namespace)), write.name);
        let kind = if write.patch.is_array() { "application/json-patch+json" } else { "application/merge-patch+json" };
        let sent = format!("PATCH {}{subresource}", resource.plural);
        self.retry(&what, &sent, || Request::patch(&path).header("content-type", kind), &body).await
    }

    /// Deletes an object.
    ///
    /// # Errors
    /// If the API server rejects it.
    pub async fn delete(&self, resource: Resource, namespace: &str, name: &str) -> Result<(), ApiError> {
        let what = format!("delete {} {namespace}/{name}", resource.plural);
        let path = format!("{}/{name}", collection(resource, Some(namespace)));
        self.retry(&what, &format!("DELETE {}", resource.plural), || Request::delete(&path), "").await
    }

    /// Lists the objects of a kind, at most `limit` of them if one is given.
    ///
    /// # Errors
    /// If the API server doesn't answer, or the answer is not such a list.
    pub async fn list<T: DeserializeOwned>(&self, resource: Resource, limit: Option<u32>) -> Result<T, ApiError> {
        let what = format!("list {}", resource.plural);
        self.count(format!("LIST {}", resource.plural));
        let query = limit.map_or_else(String::new, |limit| format!("?limit={limit}"));
        let request = build(&what, Request::get(collection(resource, None) + &query), "")?;
        self.client.request(request).await.map_err(|source| ApiError::request(what, source))
    }

    /// Reads the metrics of the API server as text.
    ///
    /// # Errors
    /// If the API server doesn't answer.
    pub async fn metrics(&self) -> Result<String, ApiError> {
        let what = "read the metrics of the API server".to_owned();
        let request = build(&what, Request::get("/metrics"), "")?;
        self.client.request_text(request).await.map_err(|source| ApiError::request(what, source))
    }

    /// Returns the client without a count, for watches.
    pub(super) fn uncounted(&self) -> &Client {
        &self.client
    }

    fn count(&self, request: String) {
        let mut sent = self.sent.lock().unwrap_or_else(PoisonError::into_inner);
        *sent.entry(request).or_default() += 1;
    }

    async fn retry(
        &self,
        what: &str,
        sent: &str,
        request: impl Fn() -> http::request::Builder,
        body: &str,
    ) -> Result<(), ApiError> {
        let mut pause = FIRST_PAUSE;
        for attempt in 1.. {
            self.count(sent.to_owned());
            let built = build(what, request(), body)?;
            let Err(source) = self.client.request_text(built).await else { return Ok(()) };
            let error = ApiError::request(what.to_owned(), source);
            // Too many requests: the API server has not begun it.
            if attempt == ATTEMPTS || error.code() != Some(429) {
                return Err(error);
            }
            tokio::time::sleep(pause).await;
            pause *= 2;
        }
        Ok(())
    }
}

fn build(what: &str, request: http::request::Builder, body: &str) -> Result<Request<Vec<u8>>, ApiError> {
    let failed = |source| ApiError::Build { what: what.to_owned(), source };
    request.body(body.as_bytes().to_vec()).map_err(failed)
}

/// Returns the path of the objects of a kind, in all namespaces if none is given.
pub(super) fn collection(resource: Resource, namespace: Option<&str>) -> String {
    let Resource { group, plural } = resource;
    namespace
        .map_or_else(|| format!("{group}/{plural}"), |namespace| format!("{group}/namespaces/{namespace}/{plural}"))
}
