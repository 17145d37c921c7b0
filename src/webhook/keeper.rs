//! Rotates the certificate: watches the Secret and the MutatingWebhookConfiguration, and performs
//! the steps of [`steps::next`] until none is left. Every replica does so; of two simultaneous
//! writes the API server rejects one, and that replica continues with the result of the other.

use std::sync::Arc;
use std::time::Duration;

use futures::{Stream, StreamExt};
use k8s_openapi::api::admissionregistration::v1::MutatingWebhookConfiguration;
use k8s_openapi::api::core::v1::Secret;
use kube::api::{Patch, PatchParams, PostParams};
use kube::runtime::WatchStreamExt;
use kube::runtime::watcher::{self, watch_object};
use kube::{Api, Client};
use serde_json::json;
use tokio::time::{MissedTickBehavior, interval, sleep};
use tracing::{debug, info, warn};

use super::certificates::Bundle;
use super::server::Served;
use super::steps::{self, CONFIGURATION, SECRET, Seen, Step};
use sluice_clock::Clock;

/// Interval at which the certificate is checked without a change.
const LOOK_AGAIN: Duration = Duration::from_secs(600);
/// Time for the API server to observe a new CA bundle before the new certificate is served.
const UNTIL_TRUSTED: Duration = Duration::from_secs(2);
/// Delay before a failed step is retried.
const PAUSE: Duration = Duration::from_secs(5);

struct Keeper {
    secrets: Api<Secret>,
    configurations: Api<MutatingWebhookConfiguration>,
    clock: Clock,
    served: Arc<Served>,
    /// Bundle that is being served; None before the first.
    serves: Option<Bundle>,
    secret: Option<Secret>,
    configuration: Option<MutatingWebhookConfiguration>,
}

/// Outcome of a step.
enum Outcome {
    /// The step succeeded.
    Done,
    /// Another writer was first; its change arrives through the watch.
    Outrun,
    /// The step failed and is retried.
    Failed(String),
}

/// Rotates the certificate in `namespace` until the process exits.
pub(super) async fn keep(client: Client, clock: Clock, namespace: String, served: Arc<Served>) {
    let mut keeper = Keeper {
        secrets: Api::namespaced(client.clone(), &namespace),
        configurations: Api::all(client),
        clock,
        served,
        serves: None,
        secret: None,
        configuration: None,
    };
    let secrets = heard(watch_object(keeper.secrets.clone(), SECRET), "Secret", SECRET);
    let configurations = heard(
        watch_object(keeper.configurations.clone(), CONFIGURATION),
        "MutatingWebhookConfiguration",
        CONFIGURATION,
    );
    tokio::pin!(secrets, configurations);
    // Wait for both objects before the first step, so that an existing certificate isn't replaced.
    let (first_secret, first_configuration) = tokio::join!(secrets.next(), configurations.next());
    (keeper.secret, keeper.configuration) = (first_secret.flatten(), first_configuration.flatten());
    if keeper.configuration.is_none() {
        info!(configuration = CONFIGURATION, "MutatingWebhookConfiguration not found; the webhook is not called");
    }
    let mut look_again = interval(LOOK_AGAIN);
    look_again.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            Some(secret) = secrets.next() => keeper.secret = secret,
            Some(configuration) = configurations.next() => keeper.configuration = configuration,
            _ = look_again.tick() => {}
        }
        if keeper.settle().await.is_err() {
            sleep(PAUSE).await;
            look_again.reset_immediately();
        }
    }
}

/// Returns the states of a watched object, None while it doesn't exist; errors are logged and
/// retried.
fn heard<K: Send + 'static>(
    watch: impl Stream<Item = watcher::Result<Option<K>>> + Send,
    kind: &'static str,
    name: &'static str,
) -> impl Stream<Item = Option<K>> + Send {
    watch.default_backoff().filter_map(move |result| async move {
        result.inspect_err(|error| warn!(kind, name, %error, "watch for the webhook failed; retrying")).ok()
    })
}

impl Keeper {
    /// Performs steps until none is left. Fails if a step failed and has to be retried.
    async fn settle(&mut self) -> Result<(), ()> {
        loop {
            let seen = Seen {
                configuration: self.configuration.as_ref(),
                secret: self.secret.as_ref(),
                served: self.serves.as_ref(),
                now: self.clock.now(),
            };
            let Some(step) = steps::next(seen) else { return Ok(()) };
            match self.carry_out(step).await {
                Outcome::Done => {}
                Outcome::Outrun => return Ok(()),
                Outcome::Failed(problem) => {
                    warn!(problem, "rotating the webhook certificate failed; retrying");
                    return Err(());
                }
            }
        }
    }

    async fn carry_out(&mut self, step: Step) -> Outcome {
        match step {
            Step::Make { names, former, because } => match Bundle::make(&names, former.as_ref(), self.clock.now()) {
                Ok(bundle) => {
                    info!(?names, %because, "issued a webhook certificate");
                    self.put(&bundle).await
                }
                Err(error) => Outcome::Failed(error.to_string()),
            },
            Step::Trust(patch) => self.trust(patch).await,
            Step::Serve(bundle) => self.serve(bundle).await,
        }
    }

    /// Writes a certificate into the Secret, provided that it hasn't changed since it was observed.
    async fn put(&mut self, bundle: &Bundle) -> Outcome {
        let desired = steps::secret(bundle);
        let result = match &self.secret {
            None => self.secrets.create(&PostParams::default(), &desired).await,
            Some(observed) => {
                let version = json!({"resourceVersion": observed.metadata.resource_version});
                let patch = Patch::Merge(json!({"metadata": version, "data": desired.data}));
                self.secrets.patch(SECRET, &PatchParams::default(), &patch).await
            }
        };
        match result {
            Ok(secret) => {
                self.secret = Some(secret);
                Outcome::Done
            }
            Err(kube::Error::Api(status)) if status.code == 409 => {
                // Another replica was first; its certificate serves as well.
                debug!("another replica wrote the Secret first");
                match self.secrets.get_opt(SECRET).await {
                    Ok(secret) => {
                        self.secret = secret;
                        Outcome::Done
                    }
                    Err(error) => Outcome::Failed(format!("reading Secret {SECRET}: {error}")),
                }
            }
            Err(error) => Outcome::Failed(format!("writing Secret {SECRET}: {error}")),
        }
    }

    async fn trust(&mut self, patch: serde_json::Value) -> Outcome {
        let describe = |error: &dyn std::fmt::Display| format!("MutatingWebhookConfiguration {CONFIGURATION}: {error}");
        let patch = match serde_json::from_value(patch) {
            Ok(patch) => Patch::Json::<()>(patch),
            Err(error) => return Outcome::Failed(describe(&error)),
        };
        match self.configurations.patch(CONFIGURATION, &PatchParams::default(), &patch).await {
            Ok(configuration) => {
                info!("published the CA bundle of the webhook");
                self.configuration = Some(configuration);
                Outcome::Done
            }
            // It changed or was deleted since it was observed; the watch reports that.
            Err(kube::Error::Api(status)) if [404, 409, 422].contains(&status.code) => Outcome::Outrun,
            Err(error) => Outcome::Failed(describe(&error)),
        }
    }

    async fn serve(&mut self, bundle: Bundle) -> Outcome {
        match bundle.certified_key() {
            Ok(key) => {
                if self.serves.is_some() {
                    sleep(UNTIL_TRUSTED).await;
                }
                self.served.set(key);
                self.serves = Some(bundle);
                info!("serving the webhook with the certificate of the Secret");
                Outcome::Done
            }
            Err(unfit) => Outcome::Failed(unfit.to_string()),
        }
    }
}
