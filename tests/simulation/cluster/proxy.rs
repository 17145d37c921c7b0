//! Targets of the API server's Service and pod proxy, with the responses of testenv/internal/proxy.

use bytes::Bytes;
use http::{Method, Response};
use jiff::Timestamp;
use serde_json::{Value, json};

use super::dashboards::{Dashboards, Head, Refused};
use super::endpoints::Endpoints;
use super::kubelet::Kubelet;
use super::read::{condition, items, text, uid};
use super::{Fates, Pace};
use crate::api::{Api, Proxied, ProxyTarget};

/// Path of the Ray dashboard for Serve configurations and application status.
const APPLICATIONS: &str = "/api/serve/applications/";
/// Health check path of the Serve proxy on a pod.
const HEALTH: &str = "/-/healthz";

/// Responds to proxied requests, with access to all components involved.
pub(super) struct Proxy<'a> {
    pub(super) now: Timestamp,
    pub(super) api: &'a Api,
    pub(super) latencies: &'a Pace,
    pub(super) faults: &'a mut Fates,
    pub(super) endpoints: &'a Endpoints,
    pub(super) kubelet: &'a Kubelet,
    pub(super) dashboards: &'a mut Dashboards,
}

/// Error of the API server when it cannot forward a request.
struct Failure {
    code: u16,
    reason: &'static str,
    message: String,
}

impl Failure {
    fn not_found(plural: &str, name: &str) -> Self {
        Self { code: 404, reason: "NotFound", message: format!("{plural} {name:?} not found") }
    }

    fn unavailable(message: String) -> Self {
        Self { code: 503, reason: "ServiceUnavailable", message }
    }

    fn refused(pod: &Value, port: &str) -> Self {
        let ip = text(pod, "/status/podIP");
        Self::unavailable(format!("error trying to reach service: dial tcp {ip}:{port}: connect: connection refused"))
    }
}

impl Proxy<'_> {
    /// Responds to a request.
    pub(super) fn answer(&mut self, call: &Proxied) -> Response<Bytes> {
        let response = match &call.target {
            ProxyTarget::Service { name, port } => self.of_service(call, name, port.as_deref()),
            ProxyTarget::Pod { name, port } => self.of_pod(call, name, port.as_deref()),
        };
        response.unwrap_or_else(|failure| {
            let body = json!({
                "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
                "message": failure.message, "reason": failure.reason, "code": failure.code,
            });
            as_json(failure.code, &body)
        })
    }

    /// Responds as the Serve proxy of a Ray pod.
    fn of_pod(&mut self, call: &Proxied, name: &str, port: Option<&str>) -> Result<Response<Bytes>, Failure> {
        let pod = self.api.get("Pod", &call.namespace, name).ok_or_else(|| Failure::not_found("pods", name))?;
        if condition(pod, "Ready") != "True" {
            return Err(Failure::unavailable(format!("error trying to reach service: pod {name:?} is not ready")));
        }
        if self.kubelet.is_deaf(self.now, self.faults, uid(pod)) {
            return Err(Failure::refused(pod, port.unwrap_or_default()));
        }
        if path(call) == HEALTH && call.method == Method::GET {
            Ok(as_text(200, "success"))
        } else {
            Ok(as_text(404, "404 page not found\n"))
        }
    }

    /// Responds as the dashboard of a Ray head.
    fn of_service(&mut self, call: &Proxied, name: &str, port: Option<&str>) -> Result<Response<Bytes>, Failure> {
        let head = self.head(call, name, port)?;
        if path(call) != APPLICATIONS {
            return Ok(as_text(404, "404 page not found\n"));
        }
        let service = (call.namespace.clone(), name.to_owned());
        let result = match call.method {
            Method::GET => {
                let pod = self.endpoints.pod(&call.namespace, &head.uid);
                let cluster = pod.map(|pod| text(pod, "/metadata/labels/ray.io~1cluster").to_owned());
                let workers = self.endpoints.ready_workers(&call.namespace, &cluster.unwrap_or_default());
                let details = self.dashboards.get(self.now, self.faults, &service, head, &workers);
                details.map(|details| as_json(200, &details))
            }
            Method::PUT => {
                let context = (&mut *self.faults, self.latencies);
                self.dashboards.put(self.now, context, &service, head, &call.body).map(|()| as_text(200, ""))
            }
            _ => Err(Refused::With { code: 405, message: "only GET and PUT".to_owned() }),
        };
        Ok(result.unwrap_or_else(|refused| match refused {
            Refused::With { code, message } => as_text(code, &format!("{message}\n")),
            Refused::Silence => silence(),
        }))
    }

    /// Returns the Ray head behind a Service port.
    ///
    /// # Errors
    /// Returns an error if the port, an endpoint or a running head container is missing.
    fn head(&self, call: &Proxied, name: &str, asked: Option<&str>) -> Result<Head, Failure> {
        let asked = asked.unwrap_or_default();
        let service =
            self.api.get("Service", &call.namespace, name).ok_or_else(|| Failure::not_found("services", name))?;
        let port = port(service, asked)
            .ok_or_else(|| Failure::unavailable(format!("no service port {asked:?} found for service {name:?}")))?;
        let pod = self.endpoints.ready_pod(&call.namespace, name, text(port, "/name"));
        let Some(pod) = pod.and_then(|uid| self.endpoints.pod(&call.namespace, uid)) else {
            let segment = if asked.is_empty() { name.to_owned() } else { format!("{name}:{asked}") };
            return Err(Failure::unavailable(format!("no endpoints available for service {segment:?}")));
        };
        // Ray runs in the first container. It may not run yet if the Service publishes unready
        // pods.
        match items(pod, "/status/containerStatuses").next().filter(|ray| ray.pointer("/state/running").is_some()) {
            Some(ray) => {
                Ok(Head { uid: uid(pod).to_owned(), restarts: ray["restartCount"].as_u64().unwrap_or_default() })
            }
            None => Err(Failure::refused(pod, &port["port"].to_string())),
        }
    }
}

/// Returns a Service port by name or number; an empty string selects the only port.
fn port<'a>(service: &'a Value, asked: &str) -> Option<&'a Value> {
    let only = items(service, "/spec/ports").count() == 1;
    let number: Option<u64> = asked.parse().ok();
    items(service, "/spec/ports").find(|port| {
        asked == text(port, "/name") || number.is_some() && port["port"].as_u64() == number || asked.is_empty() && only
    })
}

fn path(call: &Proxied) -> &str {
    call.path_and_query.split('?').next().unwrap_or_default()
}

/// Response extension that marks a response that never arrives.
#[derive(Debug, Clone, Copy)]
pub struct Silence;

fn silence() -> Response<Bytes> {
    let mut response = as_text(504, "");
    response.extensions_mut().insert(Silence);
    response
}

fn as_json(code: u16, body: &Value) -> Response<Bytes> {
    response(code, "application/json", format!("{body}\n"))
}

fn as_text(code: u16, body: &str) -> Response<Bytes> {
    response(code, "text/plain; charset=utf-8", body.to_owned())
}

fn response(code: u16, content: &str, body: String) -> Response<Bytes> {
    let response = Response::builder().status(code).header(http::header::CONTENT_TYPE, content);
    response.body(Bytes::from(body)).expect("a valid status and header")
}
