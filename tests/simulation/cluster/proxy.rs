//! Targets of the API server's Service and pod proxy, with the responses of testenv/internal/proxy.

use bytes::Bytes;
use http::{Method, Response};
use jiff::Timestamp;
use serde_json::{Value, json};

use super::endpoint_slices::EndpointSliceController;
use super::kubelet::Kubelet;
use super::object_view::{condition_status, items, text, uid};
use super::ray_dashboard::{DashboardError, HeadRun, RayDashboards};
use super::{Latencies, PodFaultInjector};
use crate::api::{ApiServer, ProxyRequest, ProxyTarget};

/// Path of the Ray dashboard for Serve configurations and application status.
const APPLICATIONS_PATH: &str = "/api/serve/applications/";
/// Health check path of the Serve proxy on a pod.
const HEALTH_PATH: &str = "/-/healthz";

/// Responds to proxied requests, with access to all components involved.
pub(super) struct Proxy<'a> {
    pub(super) now: Timestamp,
    pub(super) api: &'a ApiServer,
    pub(super) latencies: &'a Latencies,
    pub(super) faults: &'a mut PodFaultInjector,
    pub(super) endpoints: &'a EndpointSliceController,
    pub(super) kubelet: &'a Kubelet,
    pub(super) dashboards: &'a mut RayDashboards,
}

/// Error of the API server when it cannot forward a request.
struct ProxyError {
    code: u16,
    reason: &'static str,
    message: String,
}

impl ProxyError {
    fn not_found(plural: &str, name: &str) -> Self {
        Self { code: 404, reason: "NotFound", message: format!("{plural} {name:?} not found") }
    }

    fn unavailable(message: String) -> Self {
        Self { code: 503, reason: "ServiceUnavailable", message }
    }

    fn connection_refused(pod: &Value, port: &str) -> Self {
        let ip = text(pod, "/status/podIP");
        Self::unavailable(format!("error trying to reach service: dial tcp {ip}:{port}: connect: connection refused"))
    }
}

impl Proxy<'_> {
    /// Responds to a request.
    pub(super) fn answer(&mut self, call: &ProxyRequest) -> Response<Bytes> {
        let response = match &call.target {
            ProxyTarget::Service { name, port } => self.call_service(call, name, port.as_deref()),
            ProxyTarget::Pod { name, port } => self.call_pod(call, name, port.as_deref()),
        };
        response.unwrap_or_else(|failure| {
            let body = json!({
                "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
                "message": failure.message, "reason": failure.reason, "code": failure.code,
            });
            json_response(failure.code, &body)
        })
    }

    /// Responds as the Serve proxy of a Ray pod.
    fn call_pod(&mut self, call: &ProxyRequest, name: &str, port: Option<&str>) -> Result<Response<Bytes>, ProxyError> {
        let pod = self.api.get("Pod", &call.namespace, name).ok_or_else(|| ProxyError::not_found("pods", name))?;
        if condition_status(pod, "Ready") != "True" {
            return Err(ProxyError::unavailable(format!("error trying to reach service: pod {name:?} is not ready")));
        }
        if self.kubelet.is_unreachable(self.now, self.faults, uid(pod)) {
            return Err(ProxyError::connection_refused(pod, port.unwrap_or_default()));
        }
        if request_path(call) == HEALTH_PATH && call.method == Method::GET {
            Ok(text_response(200, "success"))
        } else {
            Ok(text_response(404, "404 page not found\n"))
        }
    }

    /// Responds as the dashboard of a Ray head.
    fn call_service(
        &mut self,
        call: &ProxyRequest,
        name: &str,
        port: Option<&str>,
    ) -> Result<Response<Bytes>, ProxyError> {
        let head = self.find_head(call, name, port)?;
        if request_path(call) != APPLICATIONS_PATH {
            return Ok(text_response(404, "404 page not found\n"));
        }
        let service = (call.namespace.clone(), name.to_owned());
        let result = match call.method {
            Method::GET => {
                let pod = self.endpoints.pod_by_uid(&call.namespace, &head.uid);
                let cluster = pod.map(|pod| text(pod, "/metadata/labels/ray.io~1cluster").to_owned());
                let workers = self.endpoints.ready_worker_ips(&call.namespace, &cluster.unwrap_or_default());
                let details = self.dashboards.get_applications(self.now, self.faults, &service, head, &workers);
                details.map(|details| json_response(200, &details))
            }
            Method::PUT => {
                let context = (&mut *self.faults, self.latencies);
                self.dashboards
                    .put_config(self.now, context, &service, head, &call.body)
                    .map(|()| text_response(200, ""))
            }
            _ => Err(DashboardError::Http { code: 405, message: "only GET and PUT".to_owned() }),
        };
        Ok(result.unwrap_or_else(|refused| match refused {
            DashboardError::Http { code, message } => text_response(code, &format!("{message}\n")),
            DashboardError::NoResponse => no_response(),
        }))
    }

    /// Returns the Ray head behind a Service port.
    ///
    /// # Errors
    /// Returns an error if the port, an endpoint or a running head container is missing.
    fn find_head(&self, call: &ProxyRequest, name: &str, asked: Option<&str>) -> Result<HeadRun, ProxyError> {
        let asked = asked.unwrap_or_default();
        let service =
            self.api.get("Service", &call.namespace, name).ok_or_else(|| ProxyError::not_found("services", name))?;
        let port = service_port(service, asked)
            .ok_or_else(|| ProxyError::unavailable(format!("no service port {asked:?} found for service {name:?}")))?;
        let pod = self.endpoints.ready_pod_uid(&call.namespace, name, text(port, "/name"));
        let Some(pod) = pod.and_then(|uid| self.endpoints.pod_by_uid(&call.namespace, uid)) else {
            let segment = if asked.is_empty() { name.to_owned() } else { format!("{name}:{asked}") };
            return Err(ProxyError::unavailable(format!("no endpoints available for service {segment:?}")));
        };
        // Ray runs in the first container. It may not run yet if the Service publishes unready
        // pods.
        match items(pod, "/status/containerStatuses").next().filter(|ray| ray.pointer("/state/running").is_some()) {
            Some(ray) => {
                Ok(HeadRun { uid: uid(pod).to_owned(), restarts: ray["restartCount"].as_u64().unwrap_or_default() })
            }
            None => Err(ProxyError::connection_refused(pod, &port["port"].to_string())),
        }
    }
}

/// Returns a Service port by name or number; an empty string selects the only port.
fn service_port<'a>(service: &'a Value, asked: &str) -> Option<&'a Value> {
    let only = items(service, "/spec/ports").count() == 1;
    let number: Option<u64> = asked.parse().ok();
    items(service, "/spec/ports").find(|port| {
        asked == text(port, "/name") || number.is_some() && port["port"].as_u64() == number || asked.is_empty() && only
    })
}

fn request_path(call: &ProxyRequest) -> &str {
    call.path_and_query.split('?').next().unwrap_or_default()
}

/// Response extension that marks a response that never arrives.
#[derive(Debug, Clone, Copy)]
pub struct NoResponse;

fn no_response() -> Response<Bytes> {
    let mut response = text_response(504, "");
    response.extensions_mut().insert(NoResponse);
    response
}

fn json_response(code: u16, body: &Value) -> Response<Bytes> {
    response(code, "application/json", format!("{body}\n"))
}

fn text_response(code: u16, body: &str) -> Response<Bytes> {
    response(code, "text/plain; charset=utf-8", body.to_owned())
}

fn response(code: u16, content: &str, body: String) -> Response<Bytes> {
    let response = Response::builder().status(code).header(http::header::CONTENT_TYPE, content);
    response.body(Bytes::from(body)).expect("a valid status and header")
}
