//! Rotates the certificate: watches the Secret and the MutatingWebhookConfiguration, and performs
//! the steps of [`rotation::next_step`] until none is left. Every replica does so; of two simultaneous
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

use super::certificates::CertBundle;
use super::rotation::{self, CONFIGURATION_NAME, RotationState, RotationStep, SECRET_NAME};
use super::server::CertResolver;
use sluice_clock::Clock;

/// Interval at which the certificate is checked without a change.
const CHECK_INTERVAL: Duration = Duration::from_secs(600);
/// Time for the API server to observe a new CA bundle before the new certificate is served.
const CA_PROPAGATION_DELAY: Duration = Duration::from_secs(2);
/// Delay before a failed step is retried.
const RETRY_DELAY: Duration = Duration::from_secs(5);

struct CertRotator {
    secrets: Api<Secret>,
    configurations: Api<MutatingWebhookConfiguration>,
    clock: Clock,
    resolver: Arc<CertResolver>,
    /// Bundle that is being served; None before the first.
    active_bundle: Option<CertBundle>,
    secret: Option<Secret>,
    configuration: Option<MutatingWebhookConfiguration>,
}

/// Outcome of a step.
enum StepResult {
    /// The step succeeded.
    Done,
    /// Another writer was first; its change arrives through the watch.
    Conflict,
    /// The step failed and is retried.
    Failed(String),
}

/// Rotates the certificate in `namespace` until the process exits.
pub(super) async fn rotate(client: Client, clock: Clock, namespace: String, served: Arc<CertResolver>) {
    let mut keeper = CertRotator {
        secrets: Api::namespaced(client.clone(), &namespace),
        configurations: Api::all(client),
        clock,
        resolver: served,
        active_bundle: None,
        secret: None,
        configuration: None,
    };
    let secrets = observe(watch_object(keeper.secrets.clone(), SECRET_NAME), "Secret", SECRET_NAME);
    let configurations = observe(
        watch_object(keeper.configurations.clone(), CONFIGURATION_NAME),
        "MutatingWebhookConfiguration",
        CONFIGURATION_NAME,
    );
    tokio::pin!(secrets, configurations);
    // Wait for both objects before the first step, so that an existing certificate isn't replaced.
    let (first_secret, first_configuration) = tokio::join!(secrets.next(), configurations.next());
    (keeper.secret, keeper.configuration) = (first_secret.flatten(), first_configuration.flatten());
    if keeper.configuration.is_none() {
        info!(configuration = CONFIGURATION_NAME, "MutatingWebhookConfiguration not found; the webhook is not called");
    }
    let mut look_again = interval(CHECK_INTERVAL);
    look_again.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            Some(secret) = secrets.next() => keeper.secret = secret,
            Some(configuration) = configurations.next() => keeper.configuration = configuration,
            _ = look_again.tick() => {}
        }
        if keeper.reconcile().await.is_err() {
            sleep(RETRY_DELAY).await;
            look_again.reset_immediately();
        }
    }
}

/// Returns the states of a watched object, None while it doesn't exist; errors are logged and
/// retried.
fn observe<K: Send + 'static>(
    watch: impl Stream<Item = watcher::Result<Option<K>>> + Send,
    kind: &'static str,
    name: &'static str,
) -> impl Stream<Item = Option<K>> + Send {
    watch.default_backoff().filter_map(move |result| async move {
        result.inspect_err(|error| warn!(kind, name, %error, "watch for the webhook failed; retrying")).ok()
    })
}

impl CertRotator {
    /// Performs steps until none is left. Fails if a step failed and has to be retried.
    async fn reconcile(&mut self) -> Result<(), ()> {
        loop {
            let seen = RotationState {
                configuration: self.configuration.as_ref(),
                secret: self.secret.as_ref(),
                active: self.active_bundle.as_ref(),
                now: self.clock.now(),
            };
            let Some(step) = rotation::next_step(seen) else { return Ok(()) };
            match self.perform(step).await {
                StepResult::Done => {}
                StepResult::Conflict => return Ok(()),
                StepResult::Failed(problem) => {
                    warn!(problem, "rotating the webhook certificate failed; retrying");
                    return Err(());
                }
            }
        }
    }

    async fn perform(&mut self, step: RotationStep) -> StepResult {
        match step {
            RotationStep::Issue { names, former, because } => {
                match CertBundle::issue(&names, former.as_ref(), self.clock.now()) {
                    Ok(bundle) => {
                        info!(?names, %because, "issued a webhook certificate");
                        self.write_secret(&bundle).await
                    }
                    Err(error) => StepResult::Failed(error.to_string()),
                }
            }
            RotationStep::PublishCaBundle(patch) => self.publish_ca_bundle(patch).await,
            RotationStep::Activate(bundle) => self.activate(bundle).await,
        }
    }

    /// Writes a certificate into the Secret, provided that it hasn't changed since it was observed.
    async fn write_secret(&mut self, bundle: &CertBundle) -> StepResult {
        let desired = rotation::secret_of(bundle);
        let result = match &self.secret {
            None => self.secrets.create(&PostParams::default(), &desired).await,
            Some(observed) => {
                let version = json!({"resourceVersion": observed.metadata.resource_version});
                let patch = Patch::Merge(json!({"metadata": version, "data": desired.data}));
                self.secrets.patch(SECRET_NAME, &PatchParams::default(), &patch).await
            }
        };
        match result {
            Ok(secret) => {
                self.secret = Some(secret);
                StepResult::Done
            }
            Err(kube::Error::Api(status)) if status.code == 409 => {
                // Another replica was first; its certificate serves as well.
                debug!("another replica wrote the Secret first");
                match self.secrets.get_opt(SECRET_NAME).await {
                    Ok(secret) => {
                        self.secret = secret;
                        StepResult::Done
                    }
                    Err(error) => StepResult::Failed(format!("reading Secret {SECRET_NAME}: {error}")),
                }
            }
            Err(error) => StepResult::Failed(format!("writing Secret {SECRET_NAME}: {error}")),
        }
    }

    async fn publish_ca_bundle(&mut self, patch: serde_json::Value) -> StepResult {
        let describe =
            |error: &dyn std::fmt::Display| format!("MutatingWebhookConfiguration {CONFIGURATION_NAME}: {error}");
        let patch = match serde_json::from_value(patch) {
            Ok(patch) => Patch::Json::<()>(patch),
            Err(error) => return StepResult::Failed(describe(&error)),
        };
        match self.configurations.patch(CONFIGURATION_NAME, &PatchParams::default(), &patch).await {
            Ok(configuration) => {
                info!("published the CA bundle of the webhook");
                self.configuration = Some(configuration);
                StepResult::Done
            }
            // It changed or was deleted since it was observed; the watch reports that.
            Err(kube::Error::Api(status)) if [404, 409, 422].contains(&status.code) => StepResult::Conflict,
            Err(error) => StepResult::Failed(describe(&error)),
        }
    }

    async fn activate(&mut self, bundle: CertBundle) -> StepResult {
        match bundle.certified_key() {
            Ok(key) => {
                if self.active_bundle.is_some() {
                    sleep(CA_PROPAGATION_DELAY).await;
                }
                self.resolver.set(key);
                self.active_bundle = Some(bundle);
                info!("serving the webhook with the certificate of the Secret");
                StepResult::Done
            }
            Err(unfit) => StepResult::Failed(unfit.to_string()),
        }
    }
}
