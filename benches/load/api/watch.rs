//! One watch of all objects of a kind, without gaps.

use std::pin::pin;

use futures::TryStreamExt;
use kube::core::{Request, WatchEvent, params::WatchParams};
use serde::Deserialize;
use tokio::sync::mpsc::Sender;

use super::client::{ApiClient, ApiError, collection};
use crate::observed::Watched;

/// Timeout of one request of the watch, in seconds; the next one continues where it ended.
const TIMEOUT_SECONDS: u32 = 290;
/// Answer to a watch from a version that is no longer stored.
const GONE: u16 = 410;

/// A change of an object.
#[derive(Debug, Clone)]
pub enum Change<K> {
    /// It was created or changed.
    Applied(K),
    /// It was deleted.
    Deleted(K),
}

#[derive(Deserialize)]
struct List {
    metadata: ListMeta,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct ListMeta {
    resource_version: String,
}

/// Watches all objects of a kind from a version on, and sends what `observation` makes of each
/// change, until the receiver is dropped.
///
/// # Errors
/// If the API server doesn't answer, or the watch misses a change.
pub async fn watch<K: Watched, T: Send, E: Send>(
    client: ApiClient,
    version: String,
    mut observation: impl FnMut(Change<K>) -> T + Send,
    receiver: &Sender<Result<T, E>>,
) -> Result<(), ApiError> {
    let plural = K::RESOURCE.plural;
    let lost = |version: &str, reason: String| ApiError::WatchLost { plural, version: version.to_owned(), reason };
    let mut version = version;
    loop {
        let failed = |source| ApiError::Request { what: format!("watch {plural}"), source: Box::new(source) };
        let params = WatchParams { timeout: Some(TIMEOUT_SECONDS), ..WatchParams::default() };
        let request = Request::new(collection(K::RESOURCE, None)).watch(&params, &version);
        let request = request.map_err(|error| lost(&version, error.to_string()))?;
        let mut events = pin!(client.uncounted().request_events::<K>(request).await.map_err(failed)?);
        while let Some(event) = events.try_next().await.map_err(failed)? {
            let change = match event {
                WatchEvent::Added(object) | WatchEvent::Modified(object) => Change::Applied(object),
                WatchEvent::Deleted(object) => Change::Deleted(object),
                WatchEvent::Bookmark(bookmark) => {
                    version = bookmark.metadata.resource_version;
                    continue;
                }
                WatchEvent::Error(status) if status.code == GONE => return Err(lost(&version, status.message.clone())),
                WatchEvent::Error(status) => return Err(failed(kube::Error::Api(status))),
            };
            let (Change::Applied(object) | Change::Deleted(object)) = &change;
            version.clone_from(&object.metadata().resource_version);
            if receiver.send(Ok(observation(change))).await.is_err() {
                return Ok(());
            }
        }
    }
}

/// Returns the version from which a watch of a kind sees all later changes.
///
/// # Errors
/// If the API server doesn't answer.
pub async fn present_version<K: Watched>(client: &ApiClient) -> Result<String, ApiError> {
    Ok(client.list::<List>(K::RESOURCE, Some(1)).await?.metadata.resource_version)
}
