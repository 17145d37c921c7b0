//! Next step of a certificate rotation: issue, publish the CA bundle, activate, in this order, so
//! that the API server always trusts the certificate of every replica. A pure function of the
//! observed state; several replicas may perform the same step.

use std::collections::BTreeSet;

use jiff::Timestamp;
use k8s_openapi::ByteString;
use k8s_openapi::api::admissionregistration::v1::{MutatingWebhookConfiguration, WebhookClientConfig};
use k8s_openapi::api::core::v1::Secret;
use serde_json::{Value, json};

use super::certificates::{CertBundle, CertInvalid};

/// Name of the MutatingWebhookConfiguration.
pub const CONFIGURATION_NAME: &str = "sluice-defaults";
/// Name of the Secret with the certificate.
pub const SECRET_NAME: &str = "sluice-webhook";

const CA_BUNDLE_KEY: &str = "ca.crt";
const CERTIFICATE_KEY: &str = "tls.crt";
const PRIVATE_KEY_KEY: &str = "tls.key";

/// State that a replica observes.
#[derive(Debug, Clone, Copy)]
pub struct RotationState<'a> {
    /// MutatingWebhookConfiguration; None if it doesn't exist.
    pub configuration: Option<&'a MutatingWebhookConfiguration>,
    /// Secret; None if it doesn't exist.
    pub secret: Option<&'a Secret>,
    /// Bundle that this replica serves; None before the first.
    pub active: Option<&'a CertBundle>,
    /// Current time.
    pub now: Timestamp,
}

/// Step of a certificate rotation.
#[derive(Debug, Clone, PartialEq)]
pub enum RotationStep {
    /// Issue a certificate and write it into the Secret.
    Issue {
        /// DNS names and IP addresses by which the API server calls the webhook.
        names: BTreeSet<String>,
        /// Bundle that the new one replaces, and whose CA stays trusted.
        former: Option<CertBundle>,
        /// Reason for which the certificate in the Secret can't be used.
        because: CertInvalid,
    },
    /// Apply this JSON patch, which sets the CA bundle of the MutatingWebhookConfiguration.
    PublishCaBundle(Value),
    /// Serve the certificate of the Secret.
    Activate(CertBundle),
}

/// Returns the next step; None if the rotation is complete, or there is no
/// MutatingWebhookConfiguration.
pub fn next_step(seen: RotationState<'_>) -> Option<RotationStep> {
    let configuration = seen.configuration?;
    let names = server_names(configuration);
    let kept = seen.secret.and_then(bundle_of);
    let checked = kept.as_ref().map_or_else(
        || Err(CertInvalid::Unusable(format!("not in Secret {SECRET_NAME}"))),
        |bundle| bundle.check(&names, seen.now),
    );
    if let Err(because) = checked {
        // The served certificate has to stay trusted until the new one is served.
        return Some(RotationStep::Issue { names, former: seen.active.cloned().or(kept), because });
    }
    let kept = kept?;
    let trust = ca_bundle_patch(configuration, &kept);
    match (trust, seen.active) {
        // Nothing is served yet, so there is no trusted certificate to keep.
        (_, None) => Some(RotationStep::Activate(kept)),
        (Some(patch), Some(_)) => Some(RotationStep::PublishCaBundle(patch)),
        (None, Some(served)) => (*served != kept).then_some(RotationStep::Activate(kept)),
    }
}

/// Returns the bundle in a Secret; None if a part is missing.
pub fn bundle_of(secret: &Secret) -> Option<CertBundle> {
    let data = secret.data.as_ref()?;
    let text = |key: &str| String::from_utf8(data.get(key)?.0.clone()).ok().filter(|text| !text.is_empty());
    Some(CertBundle {
        ca_bundle: text(CA_BUNDLE_KEY)?,
        certificate: text(CERTIFICATE_KEY)?,
        key: text(PRIVATE_KEY_KEY)?,
    })
}

/// Returns the Secret with this bundle.
pub fn secret_of(bundle: &CertBundle) -> Secret {
    let texts =
        [(CA_BUNDLE_KEY, &bundle.ca_bundle), (CERTIFICATE_KEY, &bundle.certificate), (PRIVATE_KEY_KEY, &bundle.key)];
    let data = texts.map(|(key, text)| (key.to_owned(), ByteString(text.clone().into_bytes())));
    let mut secret = Secret { data: Some(data.into()), type_: Some("kubernetes.io/tls".into()), ..Secret::default() };
    secret.metadata.name = Some(SECRET_NAME.to_owned());
    secret
}

/// Returns the names by which the API server calls the webhook: the cluster-internal name of a
/// Service, or the host of a URL.
fn server_names(configuration: &MutatingWebhookConfiguration) -> BTreeSet<String> {
    let webhooks = configuration.webhooks.iter().flatten();
    webhooks.filter_map(|webhook| server_name(&webhook.client_config)).collect()
}

fn server_name(client: &WebhookClientConfig) -> Option<String> {
    match (&client.service, &client.url) {
        (Some(service), _) => Some(format!("{}.{}.svc", service.name, service.namespace)),
        (None, Some(url)) => {
            let url: http::Uri = url.parse().ok()?;
            Some(url.host()?.trim_matches(['[', ']']).to_owned())
        }
        (None, None) => None,
    }
}

/// Returns the JSON patch that sets the CA bundle of all webhooks; None if it is set. The patch
/// fails if the configuration has changed in the meantime.
fn ca_bundle_patch(configuration: &MutatingWebhookConfiguration, bundle: &CertBundle) -> Option<Value> {
    let authorities = ByteString(bundle.ca_bundle.clone().into_bytes());
    let webhooks = configuration.webhooks.iter().flatten().enumerate();
    let outdated = webhooks.filter(|(_, webhook)| webhook.client_config.ca_bundle.as_ref() != Some(&authorities));
    let mut changes: Vec<Value> = outdated
        .map(|(index, _)| {
            json!({"op": "add", "path": format!("/webhooks/{index}/clientConfig/caBundle"), "value": authorities})
        })
        .collect();
    let version = &configuration.metadata.resource_version;
    (!changes.is_empty()).then(|| {
        changes.insert(0, json!({"op": "test", "path": "/metadata/resourceVersion", "value": version}));
        Value::Array(changes)
    })
}

#[cfg(test)]
mod tests {
    use jiff::SignedDuration;
    use rstest::rstest;

    use super::*;

    const NAME: &str = "sluice-webhook.sluice-system.svc";

    fn at(days: i64) -> Timestamp {
        Timestamp::UNIX_EPOCH + SignedDuration::from_hours(24 * (20_000 + days))
    }

    fn configuration(client: Value) -> MutatingWebhookConfiguration {
        let webhook = json!({
            "name": "w", "admissionReviewVersions": ["v1"], "sideEffects": "None", "clientConfig": client,
        });
        let metadata = json!({"name": CONFIGURATION_NAME, "resourceVersion": "7"});
        serde_json::from_value(json!({"metadata": metadata, "webhooks": [webhook]})).expect("a configuration")
    }

    fn trusting(bundle: Option<&CertBundle>) -> MutatingWebhookConfiguration {
        let service = json!({"name": "sluice-webhook", "namespace": "sluice-system", "path": "/mutate"});
        let authorities = bundle.map(|bundle| ByteString(bundle.ca_bundle.clone().into_bytes()));
        configuration(json!({"service": service, "caBundle": authorities}))
    }

    fn issued(day: i64, former: Option<&CertBundle>) -> CertBundle {
        CertBundle::issue(&[NAME.to_owned()].into(), former, at(day)).expect("a certificate")
    }

    fn step_name(step: Option<RotationStep>) -> &'static str {
        match step {
            None => "nothing",
            Some(RotationStep::Issue { .. }) => "make",
            Some(RotationStep::PublishCaBundle(_)) => "trust",
            Some(RotationStep::Activate(_)) => "serve",
        }
    }

    #[rstest]
    #[case::fresh(None, None, None, 0, "make")]
    #[case::issued(Some(1), None, None, 0, "serve")]
    #[case::issued_and_served(Some(1), None, Some(1), 0, "trust")]
    #[case::in_use(Some(1), Some(1), Some(1), 0, "nothing")]
    #[case::restarted(Some(1), Some(1), None, 0, "serve")]
    #[case::expiring(Some(1), Some(1), Some(1), 61, "make")]
    #[case::replaced(Some(2), Some(1), Some(1), 61, "trust")]
    #[case::replaced_and_trusted(Some(2), Some(2), Some(1), 61, "serve")]
    #[case::all_new(Some(2), Some(2), Some(2), 61, "nothing")]
    #[case::secret_deleted(None, Some(1), Some(1), 0, "make")]
    #[case::ca_bundle_removed(Some(1), None, Some(1), 0, "trust")]
    fn rotation_steps_follow_in_order(
        #[case] kept: Option<u8>,
        #[case] trusted: Option<u8>,
        #[case] served: Option<u8>,
        #[case] day: i64,
        #[case] expected: &str,
    ) {
        let first = issued(0, None);
        let second = issued(61, Some(&first));
        let pick = |number: Option<u8>| number.map(|number| if number == 1 { &first } else { &second });
        let (configuration, secret) = (trusting(pick(trusted)), pick(kept).map(secret_of));
        let seen = RotationState {
            configuration: Some(&configuration),
            secret: secret.as_ref(),
            active: pick(served),
            now: at(day),
        };
        assert_eq!(step_name(next_step(seen)), expected);
    }

    #[test]
    fn nothing_is_issued_without_a_configuration() {
        assert_eq!(next_step(RotationState { configuration: None, secret: None, active: None, now: at(0) }), None);
    }

    #[rstest]
    #[case::service(json!({"service": {"name": "n", "namespace": "s"}}), &["n.s.svc"])]
    #[case::host(json!({"url": "https://example.com:9443/mutate"}), &["example.com"])]
    #[case::address(json!({"url": "https://127.0.0.1:9443/mutate"}), &["127.0.0.1"])]
    #[case::ipv6(json!({"url": "https://[::1]:9443/mutate"}), &["::1"])]
    #[case::nothing(json!({}), &[])]
    fn certificate_names_come_from_the_configuration(#[case] client: Value, #[case] expected: &[&str]) {
        let made_for = server_names(&configuration(client));
        assert_eq!(made_for.iter().map(String::as_str).collect::<Vec<_>>(), expected);
    }

    #[test]
    fn patch_sets_only_the_ca_bundle_and_tests_the_resource_version() {
        let bundle = issued(0, None);
        let patch = ca_bundle_patch(&trusting(None), &bundle).expect("a patch");
        let paths: Vec<_> = patch.as_array().into_iter().flatten().map(|change| change["path"].clone()).collect();
        assert_eq!(paths, ["/metadata/resourceVersion", "/webhooks/0/clientConfig/caBundle"]);
        assert_eq!(patch[0]["value"], "7");
        assert_eq!(ca_bundle_patch(&trusting(Some(&bundle)), &bundle), None);
    }

    #[test]
    fn secret_round_trips_and_an_incomplete_one_has_no_bundle() {
        let made = issued(0, None);
        let kept = secret_of(&made);
        assert_eq!(bundle_of(&kept), Some(made));
        for key in [CA_BUNDLE_KEY, CERTIFICATE_KEY, PRIVATE_KEY_KEY] {
            let mut without = kept.clone();
            without.data.get_or_insert_default().remove(key);
            assert_eq!(bundle_of(&without), None);
        }
    }
}
