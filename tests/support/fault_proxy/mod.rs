//! A proxy in front of the API server that injects faults: some writes fail, and all watches end
//! after a while. Everything else is forwarded.

mod faults;
mod watch;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use http::header::{CONNECTION, CONTENT_LENGTH, CONTENT_TYPE, HOST, HeaderValue, RETRY_AFTER, TRANSFER_ENCODING};
use http::{Request, Response, StatusCode};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use kube::Client;
use kube::client::Body;
use serde_json::{Value, json};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;

use super::TestEnv;
use super::env::next_id;
pub use faults::{Fault, FaultOptions};
use faults::{FaultSource, Treatment};

/// Body of the responses to requests that API priority and fairness rejects (Kubernetes v1.36.3
/// `staging/src/k8s.io/apiserver/pkg/server/filters/priority-and-fairness.go`, `tooManyRequests`).
const TOO_MANY_REQUESTS: &str = "Too many requests, please try again later.\n";

type BoxError = Box<dyn std::error::Error + Send + Sync>;
/// Body of a response to the client.
type ProxyBody = UnsyncBoxBody<Bytes, BoxError>;

/// A proxy that forwards requests with the manager's credentials. Dropping the value stops it.
pub struct FaultProxy {
    /// Kubeconfig of clients that connect through the proxy.
    pub kubeconfig: PathBuf,
    upstream: Arc<Upstream>,
    _task: JoinSet<()>,
}

impl FaultProxy {
    /// Starts a proxy at a free port of the loopback address.
    pub async fn start(env: &TestEnv, options: FaultOptions) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let url = format!("http://{}", listener.local_addr().expect("its address"));
        let kubeconfig = env.dir.join(format!("fault-proxy-{}.kubeconfig", next_id()));
        std::fs::write(&kubeconfig, kubeconfig_of(&url).to_string()).expect("a kubeconfig for the proxy");
        let upstream = Arc::new(Upstream {
            client: env.manager_client_without_retries().await,
            faults: Mutex::new(FaultSource::new(options)),
            injected: Mutex::default(),
        });
        let mut task = JoinSet::new();
        task.spawn(accept(listener, upstream.clone()));
        Self { kubeconfig, upstream, _task: task }
    }

    /// Returns how often each fault was injected so far.
    pub fn injected(&self) -> BTreeMap<Fault, usize> {
        self.upstream.injected.lock().expect("the counts").clone()
    }
}

/// Returns a kubeconfig without credentials.
fn kubeconfig_of(url: &str) -> Value {
    json!({
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "proxy",
        "clusters": [{"name": "proxy", "cluster": {"server": url}}],
        "contexts": [{"name": "proxy", "context": {"cluster": "proxy"}}],
    })
}

async fn accept(listener: TcpListener, upstream: Arc<Upstream>) {
    let mut connections = JoinSet::new();
    loop {
        let (stream, _) = listener.accept().await.expect("a connection");
        connections.spawn(serve(stream, upstream.clone()));
        while connections.try_join_next().is_some() {}
    }
}

/// Serves one connection until either side closes it.
async fn serve(stream: TcpStream, upstream: Arc<Upstream>) {
    let service = service_fn(|request| upstream.clone().answer(request));
    // The error is that of a fault, or of a client that was killed.
    let _ = http1::Builder::new().serve_connection(TokioIo::new(stream), service).await;
}

/// The API server behind a proxy.
struct Upstream {
    client: Client,
    faults: Mutex<FaultSource>,
    injected: Mutex<BTreeMap<Fault, usize>>,
}

impl Upstream {
    /// Answers a request. If it fails, the connection is closed without a response.
    async fn answer(self: Arc<Self>, request: Request<Incoming>) -> Result<Response<ProxyBody>, BoxError> {
        let treatment = self.faults.lock().expect("the faults").treatment(request.method(), request.uri());
        match treatment {
            Treatment::Forward => Ok(self.forward(request).await?.map(|body| body.map_err(Into::into).boxed_unsync())),
            Treatment::FailWrite(fault) => self.fail(request, fault).await,
            Treatment::EndWatch(fault, after) => {
                let response = self.forward(request).await?;
                Ok(response.map(|body| watch::end_after(after, fault, body, move |fault| self.count(fault))))
            }
        }
    }

    async fn fail(&self, request: Request<Incoming>, fault: Fault) -> Result<Response<ProxyBody>, BoxError> {
        let response = rejection(fault);
        if fault == Fault::LostResponse {
            self.forward(request).await?.into_body().collect().await?;
        } else {
            request.into_body().collect().await?;
        }
        self.count(fault);
        response.ok_or_else(|| format!("injected fault: {fault:?}").into())
    }

    async fn forward(&self, request: Request<Incoming>) -> Result<Response<Body>, BoxError> {
        let (mut parts, body) = request.into_parts();
        // Those belong to the connection of the client.
        for header in [HOST, CONNECTION, CONTENT_LENGTH, TRANSFER_ENCODING] {
            parts.headers.remove(header);
        }
        let body = Body::from(body.collect().await?.to_bytes());
        let mut response = self.client.send(Request::from_parts(parts, body)).await?;
        for header in [CONNECTION, TRANSFER_ENCODING] {
            response.headers_mut().remove(header);
        }
        Ok(response)
    }

    fn count(&self, fault: Fault) {
        *self.injected.lock().expect("the counts").entry(fault).or_default() += 1;
    }
}

/// Returns the response that rejects a write; `None` if the fault closes the connection.
fn rejection(fault: Fault) -> Option<Response<ProxyBody>> {
    let conflict = "the object has been modified; please apply your changes to the latest version and try again";
    let response = match fault {
        Fault::Conflict => respond(409, "application/json", status(409, "Conflict", conflict)),
        Fault::InternalError => {
            respond(500, "application/json", status(500, "InternalError", "etcdserver: request timed out"))
        }
        Fault::TooManyRequests => {
            let mut response = respond(429, "text/plain; charset=utf-8", TOO_MANY_REQUESTS.to_owned());
            response.headers_mut().insert(RETRY_AFTER, HeaderValue::from_static("1"));
            response
        }
        _ => return None,
    };
    Some(response)
}

fn respond(code: u16, content_type: &'static str, body: String) -> Response<ProxyBody> {
    let body = Full::new(Bytes::from(body)).map_err(|never| match never {}).boxed_unsync();
    let mut response = Response::new(body);
    *response.status_mut() = StatusCode::from_u16(code).expect("a status code");
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
    response
}

/// Returns a failure as the API server reports it.
fn status(code: u16, reason: &str, message: &str) -> String {
    let status = json!({
        "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
        "code": code, "reason": reason, "message": message,
    });
    status.to_string()
}
