//! Mutating admission webhook: suspends and gates queued objects when they are created. The
//! planners do the same after creation, so nothing depends on the webhook, and objects are created
//! unchanged while it is down; with one exception: if an external operator creates the pods, only
//! the webhook can create them behind the scheduling gate.
//!
//! Every replica serves the webhook, leader or not, and rotates its certificate: [`certificates`]
//! checks and issues certificates, [`rotation`] decides the next step, and `cert_rotator` performs it.

mod cert_rotator;
pub mod certificates;
mod finalizer;
pub mod mutate;
mod namespace_cache;
mod review;
pub mod rotation;
mod server;

use std::net::SocketAddr;
use std::sync::Arc;

use kube::Client;

use namespace_cache::NamespaceCache;
use server::CertResolver;
pub use server::ServeError;
use sluice_clock::Clock;
use sluice_jobframework::managed::ManagedJobsPolicy;

/// Serves the webhook at `address` in the background, with the certificate in the Secret
/// [`SECRET_NAME`](rotation::SECRET_NAME) of `namespace`. With `external_ray_operator`, an external operator creates
/// the pods of queued clusters, and their templates get the scheduling gate. `rules` selects the
/// managed jobs.
///
/// # Errors
/// If the address can't be bound, or TLS can't be set up.
pub fn start(
    client: Client,
    clock: Clock,
    address: SocketAddr,
    namespace: &str,
    rules: ManagedJobsPolicy,
    external_ray_operator: bool,
) -> Result<(), ServeError> {
    let served = Arc::new(CertResolver::default());
    server::start(
        address,
        served.clone(),
        review::routes(NamespaceCache::start(&client, rules, external_ray_operator), external_ray_operator),
    )?;
    tokio::spawn(cert_rotator::rotate(client, clock, namespace.to_owned(), served));
    Ok(())
}
