//! Leader election, by the Lease `sluice-leader`.
//!
//! Whoever doesn't lead watches nothing: a leader starts from lists that it read after it became one, so it can't decide on
//! a view that is older than what the leader before it wrote. Whoever loses the lease stops its process.

use kube::Client;
use kube_lease_manager::LeaseManagerBuilder;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tracing::info;

use super::Error;

const LEASE: &str = "sluice-leader";
/// For this many seconds nobody else takes the lease after its holder's last sign of life.
const DURATION_SECONDS: u64 = 15;
/// The holder renews this many seconds before that.
const GRACE_SECONDS: u64 = 10;

/// That this process leads.
pub(super) struct Leadership {
    leads: watch::Receiver<bool>,
}

impl Leadership {
    /// Returns when this process no longer leads.
    pub(super) async fn lost(mut self) -> Error {
        while *self.leads.borrow_and_update() {
            if self.leads.changed().await.is_err() {
                break;
            }
        }
        Error::LostLease(LEASE.to_owned())
    }
}

/// Waits until this process leads; `None` when it is told to stop before that.
///
/// # Errors
/// When the lease can't be set up.
pub(super) async fn acquire(
    client: Client,
    namespace: Option<String>,
    stop: &CancellationToken,
) -> Result<Option<Leadership>, Error> {
    let namespace = namespace.unwrap_or_else(|| client.default_namespace().to_owned());
    let manager = LeaseManagerBuilder::new(client, LEASE)
        .with_namespace(&namespace)
        .with_duration(DURATION_SECONDS)
        .with_grace(GRACE_SECONDS)
        .build()
        .await
        .map_err(|source| Error::Lease { lease: format!("{namespace}/{LEASE}"), source })?;
    info!(lease = LEASE, namespace, "waiting to lead");
    let (mut leads, _task) = manager.watch().await;
    loop {
        if *leads.borrow_and_update() {
            info!(lease = LEASE, namespace, "leading");
            return Ok(Some(Leadership { leads }));
        }
        tokio::select! {
            () = stop.cancelled() => return Ok(None),
            changed = leads.changed() => changed.map_err(|_| Error::LostLease(format!("{namespace}/{LEASE}")))?,
        }
    }
}
