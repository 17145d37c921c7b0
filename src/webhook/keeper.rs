//! Keeps the certificate: watches the Secret and the configuration, and does what [`steps::next`] says until there is nothing
//! left to do. Every replica does; what two of them do at once is settled by the API server, which takes the first and refuses the
//! other, who then reads what there is.

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

/// How often it is looked whether the certificate is still good, though nothing has changed.
const LOOK_AGAIN: Duration = Duration::from_secs(600);
/// How long the API server is given to hear of a change of trust before another certificate is served.
const UNTIL_TRUSTED: Duration = Duration::from_secs(2);
/// How long a step that failed is left alone.
const PAUSE: Duration = Duration::from_secs(5);

struct Keeper {
    secrets: Api<Secret>,
    configurations: Api<MutatingWebhookConfiguration>,
    clock: Clock,
    served: Arc<Served>,
    /// What is served.
    serves: Option<Bundle>,
    secret: Option<Secret>,
    configuration: Option<MutatingWebhookConfiguration>,
}

/// How a step went.
enum Outcome {
    Done,
    /// Somebody else was first: what they did will be heard of.
    Outrun,
    Failed(String),
}

/// Keeps the certificate in `namespace` for as long as the process runs.
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
    // Nothing is made before it is known what is there.
    let (first_secret, first_configuration) = tokio::join!(secrets.next(), configurations.next());
    (keeper.secret, keeper.configuration) = (first_secret.flatten(), first_configuration.flatten());
    if keeper.configuration.is_none() {
        info!(
            configuration = CONFIGURATION,
            "there is no such MutatingWebhookConfiguration, so nobody calls the webhook"
        );
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

/// What a watch of one object sees; what goes wrong is logged, and tried again.
fn heard<K: Send + 'static>(
    watch: impl Stream<Item = watcher::Result<Option<K>>> + Send,
    kind: &'static str,
    name: &'static str,
) -> impl Stream<Item = Option<K>> + Send {
    watch.default_backoff().filter_map(move |seen| async move {
        seen.inspect_err(|error| warn!(kind, name, %error, "watching for the webhook")).ok()
    })
}

impl Keeper {
    /// Does one step after the other; an error when one failed and is to be tried again.
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
                    warn!(problem, "keeping the certificate of the webhook");
                    return Err(());
                }
            }
        }
    }

    async fn carry_out(&mut self, step: Step) -> Outcome {
        match step {
            Step::Make { names, former, because } => match Bundle::make(&names, former.as_ref(), self.clock.now()) {
                Ok(bundle) => {
                    info!(?names, %because, "made a certificate for the webhook");
                    self.put(&bundle).await
                }
                Err(error) => Outcome::Failed(error.to_string()),
            },
            Step::Trust(patch) => self.trust(patch).await,
            Step::Serve(bundle) => self.serve(bundle).await,
        }
    }

    /// Puts a certificate into the Secret, where there is none or the one that was seen.
    async fn put(&mut self, bundle: &Bundle) -> Outcome {
        let wanted = steps::secret(bundle);
        let answer = match &self.secret {
            None => self.secrets.create(&PostParams::default(), &wanted).await,
            Some(seen) => {
                let version = json!({"resourceVersion": seen.metadata.resource_version});
                let patch = Patch::Merge(json!({"metadata": version, "data": wanted.data}));
                self.secrets.patch(SECRET, &PatchParams::default(), &patch).await
            }
        };
        match answer {
            Ok(secret) => {
                self.secret = Some(secret);
                Outcome::Done
            }
            Err(kube::Error::Api(status)) if status.code == 409 => {
                // Another replica was first: what it has made is as good.
                debug!("another replica has written the Secret");
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
        let named = |error: &dyn std::fmt::Display| format!("MutatingWebhookConfiguration {CONFIGURATION}: {error}");
        let patch = match serde_json::from_value(patch) {
            Ok(patch) => Patch::Json::<()>(patch),
            Err(error) => return Outcome::Failed(named(&error)),
        };
        match self.configurations.patch(CONFIGURATION, &PatchParams::default(), &patch).await {
            Ok(configuration) => {
                info!("the API server trusts the certificate of the webhook");
                self.configuration = Some(configuration);
                Outcome::Done
            }
            // It was changed since it was seen, or is gone: that will be heard of.
            Err(kube::Error::Api(status)) if [404, 409, 422].contains(&status.code) => Outcome::Outrun,
            Err(error) => Outcome::Failed(named(&error)),
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
                info!("serving the webhook with the certificate in the Secret");
                Outcome::Done
            }
            Err(unfit) => Outcome::Failed(unfit.to_string()),
        }
    }
}
