//! The connection between a client and the API server, with latency and faults.

use std::pin::pin;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use http::{Method, Request, Response, StatusCode};
use http_body::Frame;
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Full, StreamBody};
use kube::client::Body;
use serde_json::json;
use tokio::sync::{mpsc, oneshot};
use tokio::time::sleep_until;
use tokio_util::sync::CancellationToken;
use tower::BoxError;

use crate::api::Watch;
use crate::api::kinds::GATEWAY_GROUP;
use crate::chance::Chance;
use crate::cluster::Silence;
use crate::faults::{Class, Fault, Faults};
use crate::trace::{Line, Trace};
use crate::world::{Outcome, Shared};

/// Interval of bookmarks in watches that request them, as in the API server.
const BOOKMARKS: Duration = Duration::from_secs(60);

type Answer = Response<UnsyncBoxBody<Bytes, BoxError>>;

/// Returns a client without latency and faults.
pub fn reliable(world: &Shared) -> kube::Client {
    let world = world.clone();
    let carry_out = move |request: Request<Body>| {
        let world = world.clone();
        async move {
            match world.carry_out(whole(request).await?) {
                Outcome::Done(response) => Ok::<_, BoxError>(complete(response)),
                Outcome::Watch(_) => Err("users do not watch".into()),
            }
        }
    };
    kube::Client::new(tower::service_fn(carry_out), "default")
}

/// The connection of one process.
#[derive(Clone)]
pub struct Wire {
    /// The simulated environment.
    pub world: Shared,
    /// Faults of the requests.
    pub faults: Arc<Mutex<Faults>>,
    /// Log of requests and responses.
    pub trace: Arc<Mutex<Trace>>,
    /// Random source of latencies.
    pub chance: Chance,
    /// Kills the process.
    pub killed: CancellationToken,
}

impl Wire {
    /// Returns the client of the process.
    pub fn client(self) -> kube::Client {
        let send = move |request: Request<Body>| self.clone().send(request);
        kube::Client::new(tower::service_fn(send), "sluice-system")
    }

    async fn send(self, request: Request<Body>) -> Result<Answer, BoxError> {
        if self.killed.is_cancelled() {
            return Err("the process was killed".into());
        }
        let request = whole(request).await?;
        let (answer, answered) = oneshot::channel();
        // A request in flight arrives even if the sender ends, unless it is delayed until after
        // that.
        tokio::spawn(self.pass_on(request, answer));
        match answered.await {
            Ok(answer) => answer,
            Err(_) => std::future::pending().await,
        }
    }

    /// Kills the process.
    fn kill(&self) {
        self.world.with(|world| world.observer.crashed());
        self.killed.cancel();
    }

    async fn pass_on(self, request: Request<Bytes>, mut answer: oneshot::Sender<Result<Answer, BoxError>>) {
        let (number, fault) = self.faults.lock().expect("one thread").next(class(&request), is_apart(&request));
        let mut line = Line::of(&request, fault);
        let mut draw = self.chance.about("latency", number);
        let (there, back) = (draw.u64(1..12), draw.u64(0..8));
        pause(there).await;
        match fault {
            // An API server does not start a queued request whose client has closed the connection
            // (kubernetes 1.36
            // `staging/src/k8s.io/apiserver/pkg/util/flowcontrol/fairqueuing/queueset/queueset.go`).
            Some(Fault::Slow(millis)) => tokio::select! {
                biased;
                () = self.killed.cancelled() => return self.note(line),
                () = answer.closed() => return self.note(line),
                () = pause(millis.into()) => {}
            },
            Some(Fault::KilledBefore) => {
                self.note(line);
                return self.kill();
            }
            Some(Fault::RequestLost) => {
                self.note(line);
                return drop(answer.send(Err("connection reset by peer".into())));
            }
            Some(Fault::Refused(code)) => {
                line.answered(code, &[]);
                self.note(line);
                pause(back).await;
                return drop(answer.send(Ok(complete(refusal(code)))));
            }
            Some(Fault::Forgotten) => self.world.with(|world| world.api.compact()),
            _ => {}
        }
        let outcome = self.world.carry_out(request);
        match &outcome {
            Outcome::Done(response) => line.answered(response.status().as_u16(), response.body()),
            Outcome::Watch(_) => line.answered(200, &[]),
        }
        self.tell_of(&line, fault);
        self.note(line);
        if matches!(&outcome, Outcome::Done(response) if response.extensions().get::<Silence>().is_some()) {
            // The client closes the connection after its timeout.
            return answer.closed().await;
        }
        match fault {
            Some(Fault::KilledAfter) => return self.kill(),
            Some(Fault::Unanswered) => return,
            Some(Fault::AnswerLost) => return drop(answer.send(Err("connection reset by peer".into()))),
            _ => {}
        }
        pause(back).await;
        let answered = match outcome {
            Outcome::Done(response) => complete(response),
            Outcome::Watch(watch) => self.stream(watch, number, fault),
        };
        drop(answer.send(Ok(answered)));
    }

    fn note(&self, line: Line) {
        self.trace.lock().expect("one thread").put(self.world.time.elapsed(), line);
    }

    fn tell_of(&self, line: &Line, fault: Option<Fault>) {
        if let (Some(Fault::AnswerLost | Fault::Unanswered | Fault::KilledAfter), Some(write)) = (fault, line.write()) {
            self.world.with(|world| world.observer.coverage.lost(write));
        }
    }

    /// Returns the response of a watch: a streaming body.
    fn stream(&self, watch: Watch, number: u64, fault: Option<Fault>) -> Answer {
        let (lines, mut received) = mpsc::unbounded_channel();
        tokio::spawn(self.clone().pump(watch, number, fault, lines));
        let frames = futures::stream::poll_fn(move |context| received.poll_recv(context));
        Response::new(UnsyncBoxBody::new(StreamBody::new(frames)))
    }

    async fn pump(self, mut watch: Watch, number: u64, fault: Option<Fault>, lines: Lines) {
        let mut draw = self.chance.about("watch", number);
        let now = tokio::time::Instant::now();
        let until = now + watch.timeout().unwrap_or(Duration::from_secs(300));
        let breaks = match fault {
            Some(Fault::Breaks(millis)) => now + Duration::from_millis(millis.into()),
            _ => until + Duration::from_secs(1),
        };
        let (mut killed, mut closed) = (pin!(self.killed.cancelled()), pin!(lines.closed()));
        let (mut until, mut breaks) = (pin!(sleep_until(until)), pin!(sleep_until(breaks)));
        let mut bookmark = pin!(sleep_until(now + BOOKMARKS));
        loop {
            let changed = self.world.next_change_of(watch.kind());
            let seen = self.world.with(|world| world.api.events(&mut watch));
            if !seen.is_empty() {
                let lag =
                    draw.u64(0..6) + if let Some(Fault::Lags(millis)) = fault { draw.u64(0..millis.into()) } else { 0 };
                pause(lag).await;
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
                    let next = bookmark.deadline() + BOOKMARKS;
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

type Lines = mpsc::UnboundedSender<Result<Frame<Bytes>, BoxError>>;

fn class(request: &Request<Bytes>) -> Class {
    let (path, query) = (request.uri().path(), request.uri().query().unwrap_or_default());
    match *request.method() {
        _ if path.contains("/proxy/") => Class::Proxy,
        Method::GET if query.contains("watch=true") => Class::Watch,
        Method::GET => Class::Read,
        _ => Class::Write,
    }
}

/// True for requests of the Gateway API, which most histories do not use.
fn is_apart(request: &Request<Bytes>) -> bool {
    request.uri().path().contains(GATEWAY_GROUP)
}

async fn whole(request: Request<Body>) -> Result<Request<Bytes>, BoxError> {
    let (parts, body) = request.into_parts();
    Ok(Request::from_parts(parts, body.collect().await?.to_bytes()))
}

fn complete(response: Response<Bytes>) -> Answer {
    response.map(|body| UnsyncBoxBody::new(Full::new(body).map_err(|never| match never {})))
}

/// Returns an error response of the API server, with its message.
fn refusal(code: u16) -> Response<Bytes> {
    let (reason, message) = match code {
        409 => {
            ("Conflict", "the object has been modified; please apply your changes to the latest version and try again")
        }
        429 => ("TooManyRequests", "too many requests, please try again later"),
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

async fn pause(millis: u64) {
    tokio::time::sleep(Duration::from_millis(millis)).await;
}
