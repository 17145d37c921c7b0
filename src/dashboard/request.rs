//! HTTP requests for calls to Serve.

use http::{Method, Request, Uri};

use sluice_plan::{ServeCall, ServeRequest};

/// Name of the head Service's port for the dashboard.
pub const DASHBOARD_PORT_NAME: &str = "dashboard";

/// Recipient of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Transport<'a> {
    /// Ray itself, from within the Kubernetes cluster.
    Network {
        /// DNS domain of Services, like `cluster.local`.
        cluster_domain: &'a str,
    },
    /// The API server, which proxies the request.
    ApiServer,
}

/// Builds the HTTP request for `call`.
///
/// # Errors
/// Fails when the names in the call do not form a valid URI.
pub fn build(call: &ServeCall, through: Transport<'_>) -> Result<Request<Vec<u8>>, http::Error> {
    let (method, path, body) = match &call.request {
        ServeRequest::Get => (Method::GET, "/api/serve/applications/?api_type=declarative", Vec::new()),
        ServeRequest::Put(config) => (Method::PUT, "/api/serve/applications/", config.body().to_string().into_bytes()),
        ServeRequest::Healthz { .. } => (Method::GET, "/-/healthz", Vec::new()),
    };
    let uri: Uri = match through {
        Transport::Network { cluster_domain } => format!("http://{}{path}", authority(call, cluster_domain)),
        Transport::ApiServer => format!("/api/v1/namespaces/{}/{}/proxy{path}", call.namespace, proxied_resource(call)),
    }
    .parse()?;
    let mut request = Request::builder().method(&method).uri(uri).header(http::header::ACCEPT, "application/json");
    if method == Method::PUT {
        request = request.header(http::header::CONTENT_TYPE, "application/json");
    }
    request.body(body)
}

/// Describes `call` in an error message: the operation and its object.
pub fn describe(call: &ServeCall) -> String {
    let cluster = format!("RayCluster {}/{}", call.namespace, call.cluster);
    match &call.request {
        ServeRequest::Get => format!("getting the Serve applications of {cluster}"),
        ServeRequest::Put(_) => format!("applying the Serve configuration to {cluster}"),
        ServeRequest::Healthz { pod, .. } => {
            format!("checking the health of the Serve proxy on Pod {}/{pod}", call.namespace)
        }
    }
}

/// Returns host and port for a direct connection.
fn authority(call: &ServeCall, cluster_domain: &str) -> String {
    match &call.request {
        ServeRequest::Get | ServeRequest::Put(_) => {
            format!("{}.{}.svc.{cluster_domain}:{}", call.head_service, call.namespace, call.dashboard_port)
        }
        ServeRequest::Healthz { ip, port, .. } if ip.contains(':') => format!("[{ip}]:{port}"),
        ServeRequest::Healthz { ip, port, .. } => format!("{ip}:{port}"),
    }
}

/// Returns the API server's resource and port to proxy to, below the namespace.
fn proxied_resource(call: &ServeCall) -> String {
    match &call.request {
        ServeRequest::Get | ServeRequest::Put(_) => format!("services/{}:{DASHBOARD_PORT_NAME}", call.head_service),
        ServeRequest::Healthz { pod, port, .. } => format!("pods/{pod}:{port}"),
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;
    use sluice_plan::ServeConfig;

    const NETWORK: Transport<'static> = Transport::Network { cluster_domain: "cluster.local" };

    fn put() -> ServeRequest {
        ServeRequest::Put(ServeConfig::from_yaml("applications: []").expect("a configuration"))
    }

    fn healthz(ip: &str) -> ServeRequest {
        ServeRequest::Healthz { pod: "chat-x1-head-a".into(), ip: ip.into(), port: 8000 }
    }

    fn call(request: ServeRequest) -> ServeCall {
        ServeCall {
            namespace: "ml".into(),
            cluster: "chat-x1".into(),
            uid: "uid-1".into(),
            head_uid: None,
            head_service: "chat-x1-head-svc".into(),
            dashboard_port: 8265,
            token_secret: None,
            request,
        }
    }

    #[rstest]
    #[case(
        ServeRequest::Get,
        NETWORK,
        "GET http://chat-x1-head-svc.ml.svc.cluster.local:8265/api/serve/applications/?api_type=declarative "
    )]
    #[case(
        ServeRequest::Get,
        Transport::ApiServer,
        "GET /api/v1/namespaces/ml/services/chat-x1-head-svc:dashboard/proxy/api/serve/applications/?api_type=declarative "
    )]
    #[case(
        put(),
        NETWORK,
        r#"PUT http://chat-x1-head-svc.ml.svc.cluster.local:8265/api/serve/applications/ {"applications":[]}"#
    )]
    #[case(put(), Transport::ApiServer,
        r#"PUT /api/v1/namespaces/ml/services/chat-x1-head-svc:dashboard/proxy/api/serve/applications/ {"applications":[]}"#)]
    #[case(healthz("10.1.2.3"), NETWORK, "GET http://10.1.2.3:8000/-/healthz ")]
    #[case(healthz("fd00::3"), NETWORK, "GET http://[fd00::3]:8000/-/healthz ")]
    #[case(
        healthz("10.1.2.3"),
        Transport::ApiServer,
        "GET /api/v1/namespaces/ml/pods/chat-x1-head-a:8000/proxy/-/healthz "
    )]
    fn call_becomes_the_request_that_ray_expects(
        #[case] request: ServeRequest,
        #[case] through: Transport<'_>,
        #[case] expected: &str,
    ) {
        let request = build(&call(request), through).expect("a request");
        let body = String::from_utf8_lossy(request.body());
        assert_eq!(format!("{} {} {body}", request.method(), request.uri()), expected);
    }

    #[test]
    fn description_names_operation_and_object() {
        assert_eq!(describe(&call(put())), "applying the Serve configuration to RayCluster ml/chat-x1");
        assert_eq!(describe(&call(healthz(""))), "checking the health of the Serve proxy on Pod ml/chat-x1-head-a");
    }
}
