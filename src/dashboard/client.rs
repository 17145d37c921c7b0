//! Makes the calls: straight to Ray from within the cluster, or through the API server's proxy from anywhere.

use std::time::Duration;

use bytes::Bytes;
use http::{HeaderName, Request, Response, StatusCode};
use http_body_util::{BodyExt, Full, Limited};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;

use super::request::{self, Through};
use super::tokens::{self, Tokens};
use sluice_clock::Clock;
use sluice_plan::{ServeAnswer, ServeError, ServeReply};
use sluice_plan::{ServeCall, ServeRequest};

/// The longest answer that is read, in bytes; a status of a thousand deployments takes about one of them.
const LONGEST_ANSWER: usize = 8 << 20;
/// As much of the body of a refusal is shown, in bytes.
const SHOWN: usize = 512;

/// How Ray is reached.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Reach {
    /// Over the network of the cluster that this process runs in.
    Network {
        /// The domain that names of Services end in, like `cluster.local`.
        cluster_domain: String,
    },
    /// Through the API server's proxies for Services and pods, for a process outside the cluster.
    ApiServer,
}

impl Reach {
    /// For how long an answer is waited for. These are KubeRay's times (KubeRay 1.7
    /// `ray-operator/controllers/ray/utils/util.go`).
    fn timeout(&self) -> Duration {
        match self {
            Self::Network { .. } => Duration::from_secs(2),
            Self::ApiServer => Duration::from_secs(10),
        }
    }
}

/// Calls the dashboards of Ray clusters.
#[derive(Clone)]
pub struct Dashboards {
    reach: Reach,
    clock: Clock,
    kube: kube::Client,
    tokens: Tokens,
    network: Client<HttpConnector, Full<Bytes>>,
}

impl Dashboards {
    /// A client that reaches Ray in this way; `kube` is asked to pass calls on if they go through the API server. `clock` says
    /// when calls were made.
    pub fn new(kube: kube::Client, clock: Clock, reach: Reach) -> Self {
        // No connection outlives its call for long: a pod that has gone must not be talked to over one that is left of it.
        let network = Client::builder(TokioExecutor::new()).pool_max_idle_per_host(0).build_http();
        Self { reach, clock, tokens: Tokens::of(kube.clone()), kube, network }
    }

    /// Makes a call. Whatever happens is in the reply.
    pub async fn call(&self, call: &ServeCall) -> ServeReply {
        let called_at = self.clock.now();
        let outcome = self.exchange(call).await;
        ServeReply {
            namespace: call.namespace.clone(),
            cluster: call.cluster.clone(),
            uid: call.uid.clone(),
            head: call.head.clone(),
            called_at,
            at: self.clock.now(),
            answer: answer(call, outcome),
        }
    }

    /// The body of the answer, if that is no refusal.
    async fn exchange(&self, call: &ServeCall) -> Result<Bytes, ServeError> {
        let timeout = self.reach.timeout();
        let answered = tokio::time::timeout(timeout, self.send(call)).await;
        let silent = |_| ServeError::Silent { doing: request::describe(call), seconds: timeout.as_secs() };
        let (status, body) = answered.map_err(silent)??;
        if matches!(status, StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN) {
            self.tokens.forget(call);
        }
        match status.is_success() {
            true => Ok(body),
            false => Err(ServeError::Refused {
                doing: request::describe(call),
                code: status.as_u16(),
                body: String::from_utf8_lossy(&body[..body.len().min(SHOWN)]).trim().to_owned(),
            }),
        }
    }

    async fn send(&self, call: &ServeCall) -> Result<(StatusCode, Bytes), ServeError> {
        let unreachable = |error: &dyn std::error::Error| ServeError::Unreachable {
            doing: request::describe(call),
            cause: chain(error),
        };
        let withheld = |cause| ServeError::Unreachable { doing: request::describe(call), cause };
        let token = self.tokens.header(call).await.map_err(withheld)?;
        let bearing = |mut request: Request<Vec<u8>>| {
            request.headers_mut().extend(token.map(|token| (HeaderName::from_static(tokens::HEADER), token)));
            request
        };
        match &self.reach {
            Reach::Network { cluster_domain } => {
                let request = request::build(call, Through::Network { cluster_domain }).map_err(|e| unreachable(&e))?;
                let request = bearing(request);
                let request = request.map(|body| Full::new(Bytes::from(body)));
                let response = self.network.request(request).await.map_err(|e| unreachable(&e))?;
                read(response).await.map_err(|e| unreachable(e.as_ref()))
            }
            Reach::ApiServer => {
                let request = bearing(request::build(call, Through::ApiServer).map_err(|e| unreachable(&e))?);
                let response =
                    self.kube.send(request.map(kube::client::Body::from)).await.map_err(|e| unreachable(&e))?;
                read(response).await.map_err(|e| unreachable(e.as_ref()))
            }
        }
    }
}

async fn read<B>(response: Response<B>) -> Result<(StatusCode, Bytes), Box<dyn std::error::Error + Send + Sync>>
where
    B: http_body::Body<Data = Bytes>,
    B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    let status = response.status();
    Ok((status, Limited::new(response.into_body(), LONGEST_ANSWER).collect().await?.to_bytes()))
}

fn answer(call: &ServeCall, outcome: Result<Bytes, ServeError>) -> ServeAnswer {
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

/// An error and what caused it, in a sentence: what failed at the bottom is seldom said at the top.
fn chain(error: &dyn std::error::Error) -> String {
    let causes = std::iter::successors(error.source(), |cause| cause.source());
    causes.fold(error.to_string(), |said, cause| {
        let cause = cause.to_string();
        if said.contains(&cause) { said } else { format!("{said}: {cause}") }
    })
}

#[cfg(test)]
#[path = "client_tests.rs"]
mod tests;
