//! The mutating webhook: what a new queued object gets before anybody can see it. It only makes sure earlier what the planners
//! make sure of in any case, so nothing depends on it: with nobody there, objects are created as they are. One thing nobody else
//! can do: where another operator makes the pods, it has them born behind their scheduling gates.
//!
//! Every replica serves it, whoever leads. Certificates are made here too: [`certificates`] judges and makes them, [`steps`]
//! decides what comes next, and [`keeper`] does it.

pub mod certificates;
pub mod defaults;
mod keeper;
mod places;
mod review;
mod server;
pub mod steps;

use std::net::SocketAddr;
use std::sync::Arc;

use kube::Client;

use places::Places;
pub use server::ServeError;
use server::Served;
use sluice_clock::Clock;
use sluice_jobframework::managed::Rules;

/// Serves the webhook at `address` in the background, with a certificate that is kept in the Secret
/// [`SECRET`](steps::SECRET) of `namespace`. With `others_make_pods`,
/// pods of queued clusters are born gated. `rules`
/// say which jobs are managed.
///
/// # Errors
/// When the address can't be bound, or TLS can't be set up.
pub fn start(
    client: Client,
    clock: Clock,
    address: SocketAddr,
    namespace: &str,
    rules: Rules,
    others_make_pods: bool,
) -> Result<(), ServeError> {
    let served = Arc::new(Served::default());
    server::start(
        address,
        served.clone(),
        review::routes(Places::watch(&client, rules, others_make_pods), others_make_pods),
    )?;
    tokio::spawn(keeper::keep(client, clock, namespace.to_owned(), served));
    Ok(())
}
