//! Bodies of watches that end.

use std::time::Duration;

use bytes::Bytes;
use futures::stream;
use http_body_util::{BodyExt, StreamBody};
use hyper::body::Frame;
use kube::client::Body;
use tokio::time::{Instant, sleep_until};

use super::faults::Fault;
use super::{BoxError, ProxyBody, status};

/// Forwards a watch for this time, and then ends it with a fault. `count` is called with the fault,
/// unless the watch ends by itself before.
pub(super) fn end_after(
    duration: Duration,
    fault: Fault,
    body: Body,
    count: impl Fn(Fault) + Send + 'static,
) -> ProxyBody {
    let watch = Watch { body, end: Instant::now() + duration, fault, is_between_events: true, count };
    let frames = stream::unfold(Some(watch), |watch| async { watch?.next().await });
    StreamBody::new(frames).boxed_unsync()
}

struct Watch<C> {
    body: Body,
    end: Instant,
    fault: Fault,
    /// The forwarded bytes end with a whole event.
    is_between_events: bool,
    count: C,
}

/// The next frame, and the watch unless it ends with this frame.
type Next<C> = Option<(Result<Frame<Bytes>, BoxError>, Option<Watch<C>>)>;

impl<C: Fn(Fault)> Watch<C> {
    async fn next(mut self) -> Next<C> {
        let can_end = self.is_between_events || self.fault == Fault::DroppedWatch;
        tokio::select! {
            () = sleep_until(self.end), if can_end => self.ended(),
            frame = self.body.frame() => match frame? {
                Ok(frame) => {
                    self.is_between_events = frame.data_ref().is_none_or(|data| data.ends_with(b"\n"));
                    Some((Ok(frame), Some(self)))
                }
                Err(error) => Some((Err(error.into()), None)),
            },
        }
    }

    fn ended(self) -> Next<C> {
        (self.count)(self.fault);
        match self.fault {
            Fault::DroppedWatch => Some((Err("injected fault: the watch is dropped".into()), None)),
            Fault::ExpiredWatch => {
                let gone = status(410, "Expired", "too old resource version");
                let event = format!("{{\"type\":\"ERROR\",\"object\":{gone}}}\n");
                Some((Ok(Frame::data(Bytes::from(event))), None))
            }
            _ => None,
        }
    }
}
