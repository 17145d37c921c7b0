//! Leader election with the Lease `sluice-leader`.
//!
//! A replica that isn't the leader watches nothing. A new leader lists every kind after it acquires
//! the Lease, so it can't decide on state older than the writes of the previous leader. A process
//! that loses the Lease exits.

use kube::Client;
use kube_lease_manager::LeaseManagerBuilder;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tracing::info;

use super::Error;

const LEASE_NAME: &str = "sluice-leader";
/// Time in seconds after the last renewal during which no other replica acquires the Lease.
const LEASE_DURATION_SECONDS: u64 = 15;
/// Time in seconds before that expiry at which the holder renews. A renewal is thus due 5 s after
/// the last one.
const RENEW_BEFORE_EXPIRY_SECONDS: u64 = 10;

/// Proof that this process is the leader.
pub(super) struct Leadership {
    is_leader: watch::Receiver<bool>,
}

impl Leadership {
    /// Waits until this process is no longer the leader, and returns the error for that.
    pub(super) async fn lost(mut self) -> Error {
        while *self.is_leader.borrow_and_update() {
            if self.is_leader.changed().await.is_err() {
                break;
            }
        }
        Error::LostLease(LEASE_NAME.to_owned())
    }
}

/// Waits until this process is the leader; None if `stop` is canceled first.
///
/// # Errors
/// If the Lease can't be set up.
pub(super) async fn acquire(
    client: Client,
    namespace: Option<String>,
    stop: &CancellationToken,
) -> Result<Option<Leadership>, Error> {
    let namespace = namespace.unwrap_or_else(|| client.default_namespace().to_owned());
    let manager = LeaseManagerBuilder::new(client, LEASE_NAME)
        .with_namespace(&namespace)
        .with_duration(LEASE_DURATION_SECONDS)
        .with_grace(RENEW_BEFORE_EXPIRY_SECONDS)
        .build()
        .await
        .map_err(|source| Error::Lease { lease: format!("{namespace}/{LEASE_NAME}"), source })?;
    info!(lease = LEASE_NAME, namespace, "waiting to become the leader");
    let (mut leads, _task) = manager.watch().await;
    loop {
        if *leads.borrow_and_update() {
            info!(lease = LEASE_NAME, namespace, "became the leader");
            return Ok(Some(Leadership { is_leader: leads }));
        }
        tokio::select! {
            () = stop.cancelled() => return Ok(None),
            changed = leads.changed() => changed.map_err(|_| Error::LostLease(format!("{namespace}/{LEASE_NAME}")))?,
        }
    }
}
