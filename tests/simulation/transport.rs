//! The connection between a client and the API server, with latency and faults.

use std::collections::BTreeSet;
use std::pin::pin;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use http::header::RETRY_AFTER;
use http::{HeaderValue, Method, Request, Response, StatusCode};
use http_body::Frame;
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Full, StreamBody};
use kube::client::Body;
use serde_json::json;
use tokio::sync::{mpsc, oneshot};
use tokio::time::sleep_until;
use tokio_util::sync::CancellationToken;
use tower::BoxError;

use crate::api::kinds::GATEWAY_GROUP;
use crate::api::{UserName, Watch};
use crate::cluster::NoResponse;
use crate::faults::{Fault, FaultInjector, RequestKind};
use crate::rng::SeededRandom;
use crate::wire_log::{LogEntry, WireLog, is_dry_run};
use crate::world::{RequestOutcome, SharedWorld};

/// Interval of bookmarks in watches that request them, as in the API server.
const BOOKMARK_INTERVAL: Duration = Duration::from_secs(60);

type StreamingResponse = Response<UnsyncBoxBody<Bytes, BoxError>>;

/// Returns a client without latency and faults.
pub fn reliable_client(world: &SharedWorld) -> kube::Client {
    let world = world.clone();
    let carry_out = move |request: Request<Body>| {
        let world = world.clone();
        async move {
            let mut request = collect_body(request).await?;
            request.extensions_mut().insert(UserName::ADMINISTRATOR);
            match world.handle_request(request) {
                RequestOutcome::Response(response) => Ok::<_, BoxError>(full_response(response)),
                RequestOutcome::Watch(_) => Err("users do not watch".into()),
            }
        }
    };
    kube::Client::new(tower::service_fn(carry_out), "default")
}

/// The connection of one process.
#[derive(Clone)]
pub struct FaultyConnection {
    /// The simulated environment.
    pub world: SharedWorld,
    /// Faults of the requests.
    pub faults: Arc<Mutex<FaultInjector>>,
    /// Log of requests and responses.
    pub wire_log: Arc<Mutex<WireLog>>,
    /// Random source of latencies.
    pub random: SeededRandom,
    /// Kills the process.
    pub killed: CancellationToken,
    /// Lists that the process has received, by URI.
    pub received_lists: Arc<Mutex<BTreeSet<String>>>,
}

impl FaultyConnection {
    /// Returns the client of the process.
    pub fn client(self) -> kube::Client {
        let send = move |request: Request<Body>| self.clone().send(request);
        kube::Client::new(tower::service_fn(send), "sluice-system")
    }

    async fn send(self, request: Request<Body>) -> Result<StreamingResponse, BoxError> {
        if self.killed.is_cancelled() {
            return Err("the process was killed".into());
        }
        let mut request = collect_body(request).await?;
        request.extensions_mut().insert(UserName::SLUICE);
        let (answer, answered) = oneshot::channel();
        // A request in flight arrives even if the sender ends, unless it is delayed until after
        // that.
        tokio::spawn(self.deliver(request, answer));
        match answered.await {
            Ok(answer) => answer,
            Err(_) => std::future::pending().await,
        }
    }

    /// Kills the process.
    fn kill(&self) {
        self.world.with(|world| world.observer.record_crash());
        self.killed.cancel();
    }

    async fn deliver(self, request: Request<Bytes>, mut answer: oneshot::Sender<Result<StreamingResponse, BoxError>>) {
        if is_dry_run(request.uri()) {
            return self.answer_dry_run(request, answer);
        }
        let is_separate = is_gateway_request(&request) || is_history_check(&request);
        let (number, fault) = self.faults.lock().expect("one thread").next(request_kind(&request), is_separate);
        let mut line = LogEntry::new(&request, fault);
        let mut draw = self.random.rng_for("latency", number);
        let (there, back) = (draw.u64(1..12), draw.u64(0..8));
        let restores = self.restores();
        sleep_millis(there).await;
        match fault {
            // An API server does not start a queued request whose client has closed the connection
            // (kubernetes 1.36
            // `staging/src/k8s.io/apiserver/pkg/util/flowcontrol/fairqueuing/queueset/queueset.go`).
            Some(Fault::Delayed(millis)) => tokio::select! {
                biased;
                () = self.killed.cancelled() => return self.log(line),
                () = answer.closed() => return self.log(line),
                () = sleep_millis(millis.into()) => {}
            },
            Some(Fault::KilledBefore) => {
                self.log(line);
                return self.kill();
            }
            Some(Fault::RequestLost) => {
                self.log(line);
                return drop(answer.send(Err("connection reset by peer".into())));
            }
            Some(Fault::Rejected(code)) => {
                line.set_response(code, &[]);
                self.log(line);
                sleep_millis(back).await;
                return drop(answer.send(Ok(full_response(error_response(code)))));
            }
            Some(Fault::HistoryCompacted) => self.world.with(|world| world.api.compact()),
            _ => {}
        }
        let reset = || Err("connection reset by peer".into());
        if self.restores() != restores {
            self.log(line);
            return drop(answer.send(reset()));
        }
        let is_repeated = request_kind(&request) == RequestKind::Read
            && !self.received_lists.lock().expect("one thread").insert(request.uri().to_string());
        let request = match fault {
            Some(Fault::StaleList(millis)) if is_repeated => self.as_of(request, millis),
            _ => request,
        };
        let outcome = self.world.handle_request(request);
        match &outcome {
            RequestOutcome::Response(response) => line.set_response(response.status().as_u16(), response.body()),
            RequestOutcome::Watch(_) => line.set_response(200, &[]),
        }
        self.record_lost_response(&line, fault);
        self.log(line);
        if matches!(&outcome, RequestOutcome::Response(response) if response.extensions().get::<NoResponse>().is_some())
        {
            // The client closes the connection after its timeout.
            return answer.closed().await;
        }
        match fault {
            Some(Fault::KilledAfter) => return self.kill(),
            Some(Fault::NoResponse) => return,
            Some(Fault::ResponseLost) => return drop(answer.send(Err("connection reset by peer".into()))),
            Some(Fault::ResponseDelayed(millis)) => sleep_millis(millis.into()).await,
            _ => {}
        }
        sleep_millis(back).await;
        if self.restores() != restores {
            return drop(answer.send(reset()));
        }
        let answered = match outcome {
            RequestOutcome::Response(response) => full_response(response),
            RequestOutcome::Watch(watch) => self.watch_response(watch, number, fault),
        };
        drop(answer.send(Ok(answered)));
    }

    /// Changes a list to show the state as it was some time ago, or as far back as the history goes.
    fn as_of(&self, mut request: Request<Bytes>, millis: u32) -> Request<Bytes> {
        let at = self.world.time.now() - Duration::from_millis(millis.into());
        let version = self.world.with(|world| world.api.version_at(at));
        let uri = format!("{}&resourceVersionMatch=Exact&resourceVersion={version}", request.uri());
        *request.uri_mut() = uri.parse().expect("a URI");
        request
    }

    /// Returns the number of restored backups. Each breaks all connections.
    fn restores(&self) -> u64 {
        self.world.with(|world| world.api.restores())
    }

    /// Answers a dry run at once: it stores nothing, so no fault of it leaves anything behind.
    fn answer_dry_run(&self, request: Request<Bytes>, answer: oneshot::Sender<Result<StreamingResponse, BoxError>>) {
        let mut line = LogEntry::new(&request, None);
        if let RequestOutcome::Response(response) = self.world.handle_request(request) {
            line.set_response(response.status().as_u16(), response.body());
            drop(answer.send(Ok(full_response(response))));
        }
        self.log(line);
    }

    fn log(&self, line: LogEntry) {
        self.wire_log.lock().expect("one thread").append(self.world.time.elapsed(), line);
    }

    fn record_lost_response(&self, line: &LogEntry, fault: Option<Fault>) {
        if let (Some(Fault::ResponseLost | Fault::NoResponse | Fault::KilledAfter), Some(write)) =
            (fault, line.write_kind())
        {
            self.world.with(|world| world.observer.coverage.record_lost_response(write));
        }
    }

    /// Returns the response of a watch: a streaming body.
    fn watch_response(&self, watch: Watch, number: u64, fault: Option<Fault>) -> StreamingResponse {
        let (lines, mut received) = mpsc::unbounded_channel();
        tokio::spawn(self.clone().stream_events(watch, number, fault, lines));
        let frames = futures::stream::poll_fn(move |context| received.poll_recv(context));
        Response::new(UnsyncBoxBody::new(StreamBody::new(frames)))
    }

    async fn stream_events(self, mut watch: Watch, number: u64, fault: Option<Fault>, lines: FrameSender) {
        let mut draw = self.random.rng_for("watch", number);
        let now = tokio::time::Instant::now();
        let until = now + watch.timeout().unwrap_or(Duration::from_secs(300));
        let breaks = match fault {
            Some(Fault::WatchBroken(millis)) => now + Duration::from_millis(millis.into()),
            _ => until + Duration::from_secs(1),
        };
        let (mut killed, mut closed) = (pin!(self.killed.cancelled()), pin!(lines.closed()));
        let (mut until, mut breaks) = (pin!(sleep_until(until)), pin!(sleep_until(breaks)));
        let mut bookmark = pin!(sleep_until(now + BOOKMARK_INTERVAL));
        loop {
            let changed = self.world.next_change_of(watch.kind());
            if self.world.with(|world| world.api.is_broken(&watch)) {
                return drop(lines.send(Err("connection reset by peer".into())));
            }
            let seen = self.world.with(|world| world.api.events(&mut watch));
            if !seen.is_empty() {
                let lag = draw.u64(0..6)
                    + if let Some(Fault::WatchDelayed(millis)) = fault { draw.u64(0..millis.into()) } else { 0 };
                sleep_millis(lag).await;
                if self.world.with(|world| world.api.is_broken(&watch)) {
                    continue;
                }
                if seen.into_iter().any(|line| lines.send(Ok(Frame::data(line))).is_err()) {
                    return;
                }
            }
            tokio::select! {
                biased;
                () = &mut killed => return,
                () = &mut closed => return,
                () = &mut breaks => return drop(lines.send(Err("connection reset by peer".into()))),
                () = &mut until => return,
                () = &mut bookmark => {
                    let next = bookmark.deadline() + BOOKMARK_INTERVAL;
                    bookmark.as_mut().reset(next);
                    if watch.wants_bookmarks() {
                        let line = self.world.with(|world| world.api.bookmark(&mut watch));
                        drop(lines.send(Ok(Frame::data(line))));
                    }
                }
                () = changed => {}
            }
        }
    }
}

type FrameSender = mpsc::UnboundedSender<Result<Frame<Bytes>, BoxError>>;

fn request_kind(request: &Request<Bytes>) -> RequestKind {
    let (path, query) = (request.uri().path(), request.uri().query().unwrap_or_default());
    match *request.method() {
        _ if path.contains("/proxy/") => RequestKind::Proxy,
        Method::GET if query.contains("watch=true") => RequestKind::Watch,
        Method::GET => RequestKind::Read,
        _ => RequestKind::Write,
    }
}

/// True for requests of the Gateway API, which most histories do not use.
fn is_gateway_request(request: &Request<Bytes>) -> bool {
    request.uri().path().contains(GATEWAY_GROUP)
}

/// True for lists of one object, which only tell the version of the API server.
fn is_history_check(request: &Request<Bytes>) -> bool {
    request.method() == Method::GET
        && request.uri().query().unwrap_or_default().split('&').any(|part| part == "limit=1")
}

async fn collect_body(request: Request<Body>) -> Result<Request<Bytes>, BoxError> {
    let (parts, body) = request.into_parts();
    Ok(Request::from_parts(parts, body.collect().await?.to_bytes()))
}

fn full_response(response: Response<Bytes>) -> StreamingResponse {
    response.map(|body| UnsyncBoxBody::new(Full::new(body).map_err(|never| match never {})))
}

/// Returns an error response of the API server, with its message. Priority and fairness refuses a
/// request with text and a time to wait (kubernetes 1.36
/// `staging/src/k8s.io/apiserver/pkg/server/filters/priority-and-fairness.go`).
fn error_response(code: u16) -> Response<Bytes> {
    let (reason, message) = match code {
        409 => {
            ("Conflict", "the object has been modified; please apply your changes to the latest version and try again")
        }
        429 => {
            let mut response = Response::new(Bytes::from_static(b"Too many requests, please try again later.\n"));
            *response.status_mut() = StatusCode::TOO_MANY_REQUESTS;
            response.headers_mut().insert(RETRY_AFTER, HeaderValue::from_static("1"));
            return response;
        }
        503 => ("ServiceUnavailable", "the server is currently unable to handle the request"),
        _ => ("InternalError", "etcdserver: request timed out"),
    };
    let status = json!({
        "kind": "Status", "apiVersion": "v1", "metadata": {},
        "status": "Failure", "message": message, "reason": reason, "code": code,
    });
    let mut response = Response::new(Bytes::from(status.to_string()));
    *response.status_mut() = StatusCode::from_u16(code).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    response
}

async fn sleep_millis(millis: u64) {
    tokio::time::sleep(Duration::from_millis(millis)).await;
}
