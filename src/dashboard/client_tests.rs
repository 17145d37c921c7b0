use std::sync::{Arc, Mutex};

use axum::Router;
use axum::extract::Request;
use axum::response::IntoResponse;
use tokio::net::TcpListener;

use super::*;
use sluice_plan::ServeConfig;

/// What a server was asked: method, URI and body.
type Heard = Arc<Mutex<Vec<String>>>;

/// A server on a free port that gives the same answer to everything.
async fn server(code: u16, body: &'static str) -> (u16, Heard) {
    let heard = Heard::default();
    let hearing = heard.clone();
    let router = Router::new().fallback(move |request: Request| {
        let hearing = hearing.clone();
        async move {
            let (parts, sent) = request.into_parts();
            let sent = sent.collect().await.expect("a body").to_bytes();
            let line = format!("{} {} {}", parts.method, parts.uri, String::from_utf8_lossy(&sent));
            hearing.lock().expect("not poisoned").push(line);
            (StatusCode::from_u16(code).expect("a status"), body).into_response()
        }
    });
    let listener = TcpListener::bind(("127.0.0.1", 0)).await.expect("a free port");
    let port = listener.local_addr().expect("bound").port();
    tokio::spawn(axum::serve(listener, router).into_future());
    (port, heard)
}

fn through_api_server(port: u16) -> Dashboards {
    let uri = format!("http://127.0.0.1:{port}").parse().expect("a URI");
    Dashboards::new(
        kube::Client::try_from(kube::Config::new(uri)).expect("a client"),
        Clock::system(),
        Reach::ApiServer,
    )
}

fn over_network() -> Dashboards {
    Dashboards { reach: Reach::Network { cluster_domain: "cluster.local".into() }, ..through_api_server(1) }
}

fn call(request: ServeRequest) -> ServeCall {
    ServeCall {
        namespace: "ml".into(),
        cluster: "chat-x1".into(),
        uid: "uid-1".into(),
        head: None,
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
async fn the_state_of_the_applications_comes_through_the_api_server() {
    let (port, heard) = server(200, r#"{"applications": {"chat": {"status": "RUNNING"}}}"#).await;

    let reply = through_api_server(port).call(&call(ServeRequest::Get)).await;

    let ServeAnswer::Status(Ok(status)) = &reply.answer else { panic!("{reply:?}") };
    assert!(status.is_running());
    assert_eq!((reply.kind(), reply.cluster.as_str()), ("get", "chat-x1"));
    assert!(reply.called_at <= reply.at);
    let path = "/api/v1/namespaces/ml/services/chat-x1-head-svc:dashboard/proxy/api/serve/applications/";
    assert_eq!(*heard.lock().expect("not poisoned"), [format!("GET {path}?api_type=declarative ")]);
}

#[tokio::test]
async fn a_configuration_that_serve_takes_is_reported_by_its_hash() {
    let (port, heard) = server(200, "").await;
    let config = ServeConfig::from_yaml("applications: [{name: chat}]").expect("a configuration");

    let reply = through_api_server(port).call(&call(ServeRequest::Put(config.clone()))).await;

    assert_eq!(reply.answer, ServeAnswer::Applied { config_hash: config.hash().into(), result: Ok(()) });
    assert!(heard.lock().expect("not poisoned")[0].ends_with(r#" {"applications":[{"name":"chat"}]}"#));
}

#[tokio::test]
async fn a_refusal_is_told_with_what_serve_says_of_it() {
    let (port, _) = server(400, "import_path: no module named chat\n").await;
    let config = ServeConfig::from_yaml("applications: []").expect("a configuration");

    let reply = through_api_server(port).call(&call(ServeRequest::Put(config))).await;

    let ServeAnswer::Applied { result: Err(error), .. } = reply.answer else { panic!("{reply:?}") };
    assert!(error.is_final());
    assert_eq!(
        error.to_string(),
        "applying the Serve configuration to RayCluster ml/chat-x1: HTTP status 400: import_path: no module named chat"
    );
}

#[tokio::test]
async fn an_answer_that_is_no_json_is_told_as_such() {
    let (port, _) = server(200, "<html>").await;

    let reply = through_api_server(port).call(&call(ServeRequest::Get)).await;

    assert!(matches!(reply.answer, ServeAnswer::Status(Err(ServeError::Unreadable { .. }))), "{reply:?}");
}

#[tokio::test]
async fn a_serve_proxy_is_asked_on_its_pod() {
    let (port, heard) = server(200, "success").await;

    let reply = over_network().call(&healthz(port)).await;

    assert_eq!(reply.answer, ServeAnswer::Health { pod: "head".into(), result: Ok(()) });
    assert_eq!(*heard.lock().expect("not poisoned"), ["GET /-/healthz "]);
}

#[tokio::test]
async fn a_port_that_nobody_listens_on_is_unreachable() {
    let listener = TcpListener::bind(("127.0.0.1", 0)).await.expect("a free port");
    let port = listener.local_addr().expect("bound").port();
    drop(listener);

    let reply = over_network().call(&healthz(port)).await;

    let ServeAnswer::Health { result: Err(error), .. } = reply.answer else { panic!("{reply:?}") };
    let message = error.to_string();
    assert!(message.starts_with("asking the Serve proxy on Pod ml/head for its health: "), "{message}");
    assert!(message.contains("refused"), "{message}");
}

#[tokio::test]
async fn whoever_says_nothing_is_not_waited_for_longer_than_the_time_limit() {
    let listener = TcpListener::bind(("127.0.0.1", 0)).await.expect("a free port");
    let port = listener.local_addr().expect("bound").port();

    let reply = over_network().call(&healthz(port)).await;

    let ServeAnswer::Health { result: Err(error), .. } = reply.answer else { panic!("{reply:?}") };
    assert!(matches!(error, ServeError::Silent { seconds: 2, .. }), "{error}");
}

/// An API server that has a Secret with this token, and a dashboard behind it that takes no other than the first.
async fn guarded(tokens: [&'static str; 2]) -> (u16, Heard) {
    let heard = Heard::default();
    let hearing = heard.clone();
    let router = Router::new().fallback(move |request: Request| {
        let hearing = hearing.clone();
        async move {
            let mut hearing = hearing.lock().expect("not poisoned");
            let token =
                request.headers().get("x-ray-authorization").map(|token| token.to_str().expect("text").to_owned());
            let path = request.uri().path().to_owned();
            if path.ends_with("/secrets/mine") {
                let reads = hearing.iter().filter(|line| *line == "read").count();
                hearing.push("read".into());
                let held = k8s_openapi::ByteString(tokens[reads.min(1)].as_bytes().to_vec());
                let secret = serde_json::json!({"metadata": {"name": "mine"}, "data": {"auth_token": held}});
                return (StatusCode::OK, secret.to_string()).into_response();
            }
            let code = if token.as_deref() == Some("Bearer right") { StatusCode::OK } else { StatusCode::UNAUTHORIZED };
            hearing.push(format!("called with {token:?}"));
            (code, "{}").into_response()
        }
    });
    let listener = TcpListener::bind(("127.0.0.1", 0)).await.expect("a free port");
    let port = listener.local_addr().expect("bound").port();
    tokio::spawn(axum::serve(listener, router).into_future());
    (port, heard)
}

#[tokio::test]
async fn a_token_is_read_once_and_again_when_it_is_refused() {
    let (port, heard) = guarded(["wrong", "right"]).await;
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
    assert_eq!(*heard.lock().expect("not poisoned"), expected);
}

#[tokio::test]
async fn a_token_that_is_not_there_is_told() {
    let (port, _) = server(200, r#"{"metadata": {"name": "mine"}, "data": {}}"#).await;
    let call = ServeCall { token_secret: Some("mine".into()), ..call(ServeRequest::Get) };

    let ServeAnswer::Status(Err(error)) = through_api_server(port).call(&call).await.answer else {
        panic!("an answer")
    };

    let told = "asking RayCluster ml/chat-x1 for its Serve applications: Secret ml/mine has no entry auth_token";
    assert!(error.to_string().contains(told), "{error}");
}
