//! Client of the Ray dashboard: calls it directly from within the cluster, or through the API
//! server's proxy from anywhere.

use std::time::Duration;

use bytes::Bytes;
use http::{HeaderName, Request, Response, StatusCode};
use http_body_util::{BodyExt, Full, Limited};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;

use super::request::{self, Transport};
use super::token_cache::{self, TokenCache};
use sluice_clock::Clock;
use sluice_plan::{ServeAnswer, ServeError, ServeReply};
use sluice_plan::{ServeCall, ServeRequest};

/// Maximum size of a response, in bytes. The status of a thousand deployments takes about 1 MiB.
const MAX_RESPONSE_BYTES: usize = 8 << 20;
/// Maximum size of a rejection's body in an error message, in bytes.
const MAX_ERROR_BODY_BYTES: usize = 512;

/// Network path to the Ray dashboard and Serve proxies.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum DashboardAccess {
    /// Direct connections, for a process inside the Kubernetes cluster.
    Network {
        /// DNS domain of Services, like `cluster.local`.
        cluster_domain: String,
    },
    /// The API server's Service and pod proxies, for a process outside the Kubernetes cluster.
    ApiServer,
}

impl DashboardAccess {
    /// Returns the timeout of a call, the same as KubeRay's (KubeRay 1.7
    /// `ray-operator/controllers/ray/utils/util.go`).
    fn timeout(&self) -> Duration {
        match self {
            Self::Network { .. } => Duration::from_secs(2),
            Self::ApiServer => Duration::from_secs(10),
        }
    }
}

/// Client of the Ray dashboards and Serve proxies of all RayClusters.
#[derive(Clone)]
pub struct DashboardClient {
    access: DashboardAccess,
    clock: Clock,
    kube: kube::Client,
    tokens: TokenCache,
    network: Client<HttpConnector, Full<Bytes>>,
}

impl DashboardClient {
    /// Returns a client with this access to Ray. `kube` reads token Secrets, and sends the calls
    /// that go through the API server. `clock` provides the timestamps of replies.
    pub fn new(kube: kube::Client, clock: Clock, access: DashboardAccess) -> Self {
        // Connections are not pooled: a pooled one could still lead to a deleted pod.
        let network = Client::builder(TokioExecutor::new()).pool_max_idle_per_host(0).build_http();
        Self { access, clock, tokens: TokenCache::new(kube.clone()), kube, network }
    }

    /// Makes a call. The reply contains the result or the error.
    pub async fn call(&self, call: &ServeCall) -> ServeReply {
        let called_at = self.clock.now();
        let outcome = self.response_body(call).await;
        ServeReply {
            namespace: call.namespace.clone(),
            cluster: call.cluster.clone(),
            uid: call.uid.clone(),
            head_uid: call.head_uid.clone(),
            called_at,
            answered_at: self.clock.now(),
            answer: parse_response(call, outcome),
        }
    }

    /// Returns the body of a successful response. Fails on a timeout, a connection error or an HTTP
    /// error status; 401 and 403 also invalidate the cached token.
    async fn response_body(&self, call: &ServeCall) -> Result<Bytes, ServeError> {
        let timeout = self.access.timeout();
        let result = tokio::time::timeout(timeout, self.send(call)).await;
        let timed_out = |_| ServeError::Timeout { doing: request::describe(call), seconds: timeout.as_secs() };
        let (status, body) = result.map_err(timed_out)??;
        if matches!(status, StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN) {
            self.tokens.invalidate(call);
        }
        if status.is_success() {
            return Ok(body);
        }
        Err(ServeError::Rejected {
            doing: request::describe(call),
            code: status.as_u16(),
            body: String::from_utf8_lossy(&body[..body.len().min(MAX_ERROR_BODY_BYTES)]).trim().to_owned(),
        })
    }

    async fn send(&self, call: &ServeCall) -> Result<(StatusCode, Bytes), ServeError> {
        let unreachable = |error: &dyn std::error::Error| ServeError::Unreachable {
            doing: request::describe(call),
            cause: error_chain(error),
        };
        let token = self.tokens.header(call).await.map_err(|e| unreachable(&e))?;
        let with_token = |mut request: Request<Vec<u8>>| {
            request.headers_mut().extend(token.map(|token| (HeaderName::from_static(token_cache::HEADER), token)));
            request
        };
        match &self.access {
            DashboardAccess::Network { cluster_domain } => {
                let request =
                    request::build(call, Transport::Network { cluster_domain }).map_err(|e| unreachable(&e))?;
                let request = with_token(request);
                let request = request.map(|body| Full::new(Bytes::from(body)));
                let response = self.network.request(request).await.map_err(|e| unreachable(&e))?;
                read_response(response).await.map_err(|e| unreachable(e.as_ref()))
            }
            DashboardAccess::ApiServer => {
                let request = with_token(request::build(call, Transport::ApiServer).map_err(|e| unreachable(&e))?);
                let response =
                    self.kube.send(request.map(kube::client::Body::from)).await.map_err(|e| unreachable(&e))?;
                read_response(response).await.map_err(|e| unreachable(e.as_ref()))
            }
        }
    }
}

/// Reads status and body of a response. Fails when the body exceeds [`MAX_RESPONSE_BYTES`].
async fn read_response<B>(
    response: Response<B>,
) -> Result<(StatusCode, Bytes), Box<dyn std::error::Error + Send + Sync>>
where
    B: http_body::Body<Data = Bytes>,
    B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    let status = response.status();
    Ok((status, Limited::new(response.into_body(), MAX_RESPONSE_BYTES).collect().await?.to_bytes()))
}

/// Converts the result of a call to the answer of its request.
fn parse_response(call: &ServeCall, outcome: Result<Bytes, ServeError>) -> ServeAnswer {
    match &call.request {
        ServeRequest::Get => ServeAnswer::Status(outcome.and_then(|body| {
            let unreadable = |error: serde_json::Error| ServeError::Unreadable {
                doing: request::describe(call),
                cause: error.to_string(),
            };
            serde_json::from_slice(&body).map_err(unreadable)
        })),
        ServeRequest::Put(config) => {
            ServeAnswer::Applied { config_hash: config.hash().to_owned(), result: outcome.map(drop) }
        }
        ServeRequest::Healthz { pod, .. } => ServeAnswer::Health { pod: pod.clone(), result: outcome.map(drop) },
    }
}

/// Joins an error and its causes into one message, since the top-level error rarely names the root
/// cause.
fn error_chain(error: &dyn std::error::Error) -> String {
    let causes = std::iter::successors(error.source(), |cause| cause.source());
    causes.fold(error.to_string(), |message, cause| {
        let cause = cause.to_string();
        if message.contains(&cause) { message } else { format!("{message}: {cause}") }
    })
}

#[cfg(test)]
#[path = "client_tests.rs"]
mod tests;
