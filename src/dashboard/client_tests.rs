use std::sync::{Arc, Mutex};

use axum::Router;
use axum::extract::Request;
use axum::response::IntoResponse;
use tokio::net::TcpListener;

use super::*;
use sluice_plan::ServeConfig;

/// Requests that a server has received: method, URI and body.
type ReceivedRequests = Arc<Mutex<Vec<String>>>;

/// Starts a server on a free port that gives the same response to every request.
async fn server(code: u16, body: &'static str) -> (u16, ReceivedRequests) {
    let received = ReceivedRequests::default();
    let recorder = received.clone();
    let router = Router::new().fallback(move |request: Request| {
        let recorder = recorder.clone();
        async move {
            let (parts, body_sent) = request.into_parts();
            let body_sent = body_sent.collect().await.expect("a body").to_bytes();
            let line = format!("{} {} {}", parts.method, parts.uri, String::from_utf8_lossy(&body_sent));
            recorder.lock().expect("not poisoned").push(line);
            (StatusCode::from_u16(code).expect("a status"), body).into_response()
        }
    });
    let listener = TcpListener::bind(("127.0.0.1", 0)).await.expect("a free port");
    let port = listener.local_addr().expect("bound").port();
    tokio::spawn(axum::serve(listener, router).into_future());
    (port, received)
}

fn through_api_server(port: u16) -> DashboardClient {
    let uri = format!("http://127.0.0.1:{port}").parse().expect("a URI");
    DashboardClient::new(
        kube::Client::try_from(kube::Config::new(uri)).expect("a client"),
        Clock::system(),
        DashboardAccess::ApiServer,
    )
}

fn over_network() -> DashboardClient {
    DashboardClient {
        access: DashboardAccess::Network { cluster_domain: "cluster.local".into() },
        ..through_api_server(1)
    }
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

fn healthz(port: u16) -> ServeCall {
    call(ServeRequest::Healthz { pod: "head".into(), ip: "127.0.0.1".into(), port })
}

#[tokio::test]
async fn application_status_is_read_through_the_api_server() {
    let (port, received) = server(200, r#"{"applications": {"chat": {"status": "RUNNING"}}}"#).await;

    let reply = through_api_server(port).call(&call(ServeRequest::Get)).await;

    let ServeAnswer::Status(Ok(status)) = &reply.answer else { panic!("{reply:?}") };
    assert!(status.is_running());
    assert_eq!((reply.kind(), reply.cluster.as_str()), ("get", "chat-x1"));
    assert!(reply.called_at <= reply.answered_at);
    let path = "/api/v1/namespaces/ml/services/chat-x1-head-svc:dashboard/proxy/api/serve/applications/";
    assert_eq!(*received.lock().expect("not poisoned"), [format!("GET {path}?api_type=declarative ")]);
}

#[tokio::test]
async fn accepted_configuration_is_reported_with_its_hash() {
    let (port, received) = server(200, "").await;
    let config = ServeConfig::from_yaml("applications: [{name: chat}]").expect("a configuration");

    let reply = through_api_server(port).call(&call(ServeRequest::Put(config.clone()))).await;

    assert_eq!(reply.answer, ServeAnswer::Applied { config_hash: config.hash().into(), result: Ok(()) });
    assert!(received.lock().expect("not poisoned")[0].ends_with(r#" {"applications":[{"name":"chat"}]}"#));
}

#[tokio::test]
async fn rejection_is_reported_with_the_body_of_the_response() {
    let (port, _) = server(400, "import_path: no module named chat\n").await;
    let config = ServeConfig::from_yaml("applications: []").expect("a configuration");

    let reply = through_api_server(port).call(&call(ServeRequest::Put(config))).await;

    let ServeAnswer::Applied { result: Err(error), .. } = reply.answer else { panic!("{reply:?}") };
    assert!(error.is_permanent());
    assert_eq!(
        error.to_string(),
        "applying the Serve configuration to RayCluster ml/chat-x1: HTTP status 400: import_path: no module named chat"
    );
}

#[tokio::test]
async fn response_without_json_is_reported_as_unreadable() {
    let (port, _) = server(200, "<html>").await;

    let reply = through_api_server(port).call(&call(ServeRequest::Get)).await;

    assert!(matches!(reply.answer, ServeAnswer::Status(Err(ServeError::Unreadable { .. }))), "{reply:?}");
}

#[tokio::test]
async fn serve_proxy_is_called_on_its_pod() {
    let (port, received) = server(200, "success").await;

    let reply = over_network().call(&healthz(port)).await;

    assert_eq!(reply.answer, ServeAnswer::Health { pod: "head".into(), result: Ok(()) });
    assert_eq!(*received.lock().expect("not poisoned"), ["GET /-/healthz "]);
}

#[tokio::test]
async fn closed_port_is_unreachable() {
    let listener = TcpListener::bind(("127.0.0.1", 0)).await.expect("a free port");
    let port = listener.local_addr().expect("bound").port();
    drop(listener);

    let reply = over_network().call(&healthz(port)).await;

    let ServeAnswer::Health { result: Err(error), .. } = reply.answer else { panic!("{reply:?}") };
    let message = error.to_string();
    assert!(message.starts_with("checking the health of the Serve proxy on Pod ml/head: "), "{message}");
    assert!(message.contains("refused"), "{message}");
}

#[tokio::test]
async fn call_without_response_times_out() {
    let listener = TcpListener::bind(("127.0.0.1", 0)).await.expect("a free port");
    let port = listener.local_addr().expect("bound").port();

    let reply = over_network().call(&healthz(port)).await;

    let ServeAnswer::Health { result: Err(error), .. } = reply.answer else { panic!("{reply:?}") };
    assert!(matches!(error, ServeError::Timeout { seconds: 2, .. }), "{error}");
}

/// Starts an API server whose Secret has the first of `tokens` on the first read and the second one
/// later, and that proxies to a dashboard which accepts only the token `right`.
async fn guarded(tokens: [&'static str; 2]) -> (u16, ReceivedRequests) {
    let received = ReceivedRequests::default();
    let recorder = received.clone();
    let router = Router::new().fallback(move |request: Request| {
        let recorder = recorder.clone();
        async move {
            let mut recorder = recorder.lock().expect("not poisoned");
            let token =
                request.headers().get("x-ray-authorization").map(|token| token.to_str().expect("text").to_owned());
            let path = request.uri().path().to_owned();
            if path.ends_with("/secrets/mine") {
                let reads = recorder.iter().filter(|line| *line == "read").count();
                recorder.push("read".into());
                let token = k8s_openapi::ByteString(tokens[reads.min(1)].as_bytes().to_vec());
                let secret = serde_json::json!({"metadata": {"name": "mine"}, "data": {"auth_token": token}});
                return (StatusCode::OK, secret.to_string()).into_response();
            }
            let code = if token.as_deref() == Some("Bearer right") { StatusCode::OK } else { StatusCode::UNAUTHORIZED };
            recorder.push(format!("called with {token:?}"));
            (code, "{}").into_response()
        }
    });
    let listener = TcpListener::bind(("127.0.0.1", 0)).await.expect("a free port");
    let port = listener.local_addr().expect("bound").port();
    tokio::spawn(axum::serve(listener, router).into_future());
    (port, received)
}

#[tokio::test]
async fn token_is_cached_until_it_is_rejected() {
    let (port, received) = guarded(["wrong", "right"]).await;
    let dashboards = through_api_server(port);
    let call = ServeCall { token_secret: Some("mine".into()), ..call(ServeRequest::Get) };

    let mut answers = Vec::new();
    for _ in 0..3 {
        let ServeAnswer::Status(answer) = dashboards.call(&call).await.answer else { panic!("no status") };
        answers.push(answer.is_ok());
    }

    assert_eq!(answers, [false, true, true]);
    let right = r#"called with Some("Bearer right")"#;
    let expected = ["read", r#"called with Some("Bearer wrong")"#, "read", right, right];
    assert_eq!(*received.lock().expect("not poisoned"), expected);
}

#[tokio::test]
async fn missing_token_is_reported() {
    let (port, _) = server(200, r#"{"metadata": {"name": "mine"}, "data": {}}"#).await;
    let call = ServeCall { token_secret: Some("mine".into()), ..call(ServeRequest::Get) };

    let ServeAnswer::Status(Err(error)) = through_api_server(port).call(&call).await.answer else {
        panic!("an answer")
    };

    let expected = "getting the Serve applications of RayCluster ml/chat-x1: Secret ml/mine has no key auth_token";
    assert!(error.to_string().contains(expected), "{error}");
}
