//! Publishes Kubernetes Events in the background, without delaying writes.

use std::time::Duration;

use futures::StreamExt;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::ObjectReference;
use k8s_openapi::api::events::v1::Event;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;
use kube::api::{ObjectMeta, PostParams};
use kube::{Api, Client};
use tokio::sync::mpsc;
use tracing::{info, warn};

use sluice_clock::Clock;
use sluice_plan::EventRecord;

/// Maximum number of Events waiting to be published; further ones are only logged.
const QUEUE_CAPACITY: usize = 1024;
/// Maximum length of an Event note in bytes, set by the API server.
const MAX_NOTE_BYTES: usize = 1024;
/// Maximum number of concurrent publish requests.
const MAX_CONCURRENT_REQUESTS: usize = 16;
/// Timeout of a publish request.
const TIMEOUT: Duration = Duration::from_secs(5);

/// Publishes Events.
#[derive(Clone)]
pub(super) struct EventRecorder {
    queue: mpsc::Sender<EventRecord>,
}

impl EventRecorder {
    /// Starts the background task. `clock` sets the event time, `instance` the `reportingInstance`.
    pub(super) fn start(client: Client, clock: Clock, instance: String) -> Self {
        let (queue, mut waiting) = mpsc::channel::<EventRecord>(QUEUE_CAPACITY);
        tokio::spawn(async move {
            let notes = futures::stream::poll_fn(|context| waiting.poll_recv(context));
            let events = notes.enumerate().map(|(count, note)| {
                let event = to_event(&note, &instance, clock.now(), count);
                (note, event)
            });
            events.for_each_concurrent(MAX_CONCURRENT_REQUESTS, |(note, event)| create(&client, note, event)).await;
        });
        Self { queue }
    }

    /// Logs an Event and queues it for publishing.
    pub(super) fn record(&self, note: EventRecord) {
        info!(object = %note.regarding, reason = note.reason, "{}", note.message);
        if let Err(error) = self.queue.try_send(note) {
            warn!(%error, "event queue is full; the event is only logged");
        }
    }
}

async fn create(client: &Client, note: EventRecord, event: Event) {
    let namespace = event.metadata.namespace.clone().unwrap_or_default();
    let events = Api::<Event>::namespaced(client.clone(), &namespace);
    match tokio::time::timeout(TIMEOUT, events.create(&PostParams::default(), &event)).await {
        Ok(Ok(_)) => {}
        Ok(Err(error)) => warn!(object = %note.regarding, %error, "publishing an Event failed"),
        Err(_) => warn!(object = %note.regarding, "publishing an Event timed out"),
    }
}

fn to_event(note: &EventRecord, instance: &str, now: Timestamp, count: usize) -> Event {
    let regarding = &note.regarding;
    // Events of cluster-scoped objects go to the default namespace, as in Kubernetes.
    let namespace = regarding.namespace.clone().unwrap_or_else(|| "default".into());
    Event {
        metadata: ObjectMeta {
            name: Some(format!("{}.{:x}.{count:x}", regarding.name, now.as_nanosecond())),
            namespace: Some(namespace),
            ..ObjectMeta::default()
        },
        action: Some(note.reason.clone()),
        event_time: Some(MicroTime(now)),
        note: Some(truncate(&note.message, MAX_NOTE_BYTES)),
        reason: Some(note.reason.clone()),
        regarding: Some(ObjectReference {
            api_version: Some(regarding.api_version.clone()),
            kind: Some(regarding.kind.clone()),
            name: Some(regarding.name.clone()),
            namespace: regarding.namespace.clone(),
            uid: Some(note.uid.clone()),
            ..ObjectReference::default()
        }),
        reporting_controller: Some("sluice.dev/manager".into()),
        reporting_instance: Some(truncate(instance, 128)),
        type_: Some(if note.warning { "Warning" } else { "Normal" }.into()),
        ..Event::default()
    }
}

/// Truncates `text` to at most `bytes` bytes at a character boundary.
fn truncate(text: &str, bytes: usize) -> String {
    let end = (0..=bytes.min(text.len())).rev().find(|end| text.is_char_boundary(*end)).unwrap_or(0);
    text[..end].to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_message_is_truncated_at_a_character_boundary() {
        assert_eq!(truncate("über", 1), "");
        assert_eq!(truncate("über", 2), "ü");
        assert_eq!(truncate("über", 99), "über");
    }
}
