//! What comes next in keeping the certificate: made, trusted, served, in this order, so that the API server always trusts what any
//! replica serves. A function of what is there; every replica asks it, and it does no harm if several do the same.

use std::collections::BTreeSet;

use jiff::Timestamp;
use k8s_openapi::ByteString;
use k8s_openapi::api::admissionregistration::v1::{MutatingWebhookConfiguration, WebhookClientConfig};
use k8s_openapi::api::core::v1::Secret;
use serde_json::{Value, json};

use super::certificates::{Bundle, Unfit};

/// The MutatingWebhookConfiguration that tells the API server of us.
pub const CONFIGURATION: &str = "sluice-defaults";
/// The Secret that the certificate is kept in.
pub const SECRET: &str = "sluice-webhook";

const AUTHORITIES: &str = "ca.crt";
const CERTIFICATE: &str = "tls.crt";
const KEY: &str = "tls.key";

/// What a replica sees.
#[derive(Debug, Clone, Copy)]
pub struct Seen<'a> {
    /// The configuration, if there is one.
    pub configuration: Option<&'a MutatingWebhookConfiguration>,
    /// The Secret, if there is one.
    pub secret: Option<&'a Secret>,
    /// What this replica serves.
    pub served: Option<&'a Bundle>,
    /// The present.
    pub now: Timestamp,
}

/// What a replica does next.
#[derive(Debug, Clone, PartialEq)]
pub enum Step {
    /// Makes a certificate for these names, and puts it into the Secret.
    Make {
        /// How the API server calls us.
        names: BTreeSet<String>,
        /// What it takes the place of.
        former: Option<Bundle>,
        /// What is wrong with what the Secret holds.
        because: Unfit,
    },
    /// Changes the configuration by this JSON patch, so that it trusts the certificate.
    Trust(Value),
    /// Serves what is in the Secret.
    Serve(Bundle),
}

/// What comes next; `None` when all is as it should be, or nobody would call us.
pub fn next(seen: Seen<'_>) -> Option<Step> {
    let configuration = seen.configuration?;
    let names = names(configuration);
    let kept = seen.secret.and_then(bundle);
    let checked = kept.as_ref().map_or_else(
        || Err(Unfit::Broken(format!("Secret {SECRET} has none"))),
        |bundle| bundle.check(&names, seen.now),
    );
    if let Err(because) = checked {
        // Until the new one is served, the one that is has to stay trusted.
        return Some(Step::Make { names, former: seen.served.cloned().or(kept), because });
    }
    let kept = kept?;
    let trust = trust(configuration, &kept);
    match (trust, seen.served) {
        // There is nothing that the API server could trust meanwhile.
        (_, None) => Some(Step::Serve(kept)),
        (Some(patch), Some(_)) => Some(Step::Trust(patch)),
        (None, Some(served)) => (*served != kept).then_some(Step::Serve(kept)),
    }
}

/// What a Secret holds; `None` when something is missing.
pub fn bundle(secret: &Secret) -> Option<Bundle> {
    let data = secret.data.as_ref()?;
    let text = |key: &str| String::from_utf8(data.get(key)?.0.clone()).ok().filter(|text| !text.is_empty());
    Some(Bundle { authorities: text(AUTHORITIES)?, certificate: text(CERTIFICATE)?, key: text(KEY)? })
}

/// The Secret, or what is to become of it.
pub fn secret(bundle: &Bundle) -> Secret {
    let texts = [(AUTHORITIES, &bundle.authorities), (CERTIFICATE, &bundle.certificate), (KEY, &bundle.key)];
    let data = texts.map(|(key, text)| (key.to_owned(), ByteString(text.clone().into_bytes())));
    let mut secret = Secret { data: Some(data.into()), type_: Some("kubernetes.io/tls".into()), ..Secret::default() };
    secret.metadata.name = Some(SECRET.to_owned());
    secret
}

/// The names by which the configuration calls us. A Service is called by its name within the cluster, and a URL by its host.
fn names(configuration: &MutatingWebhookConfiguration) -> BTreeSet<String> {
    let webhooks = configuration.webhooks.iter().flatten();
    webhooks.filter_map(|webhook| name(&webhook.client_config)).collect()
}

fn name(client: &WebhookClientConfig) -> Option<String> {
    match (&client.service, &client.url) {
        (Some(service), _) => Some(format!("{}.{}.svc", service.name, service.namespace)),
        (None, Some(url)) => {
            let url: http::Uri = url.parse().ok()?;
            Some(url.host()?.trim_matches(['[', ']']).to_owned())
        }
        (None, None) => None,
    }
}

/// The JSON patch that makes all webhooks of the configuration trust the certificate; none if they do. It is refused if the
/// configuration has been changed meanwhile.
fn trust(configuration: &MutatingWebhookConfiguration, bundle: &Bundle) -> Option<Value> {
    let authorities = ByteString(bundle.authorities.clone().into_bytes());
    let webhooks = configuration.webhooks.iter().flatten().enumerate();
    let others = webhooks.filter(|(_, webhook)| webhook.client_config.ca_bundle.as_ref() != Some(&authorities));
    let mut changes: Vec<Value> = others
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
        let metadata = json!({"name": CONFIGURATION, "resourceVersion": "7"});
        serde_json::from_value(json!({"metadata": metadata, "webhooks": [webhook]})).expect("a configuration")
    }

    fn trusting(bundle: Option<&Bundle>) -> MutatingWebhookConfiguration {
        let service = json!({"name": "sluice-webhook", "namespace": "sluice-system", "path": "/mutate"});
        let authorities = bundle.map(|bundle| ByteString(bundle.authorities.clone().into_bytes()));
        configuration(json!({"service": service, "caBundle": authorities}))
    }

    fn made(day: i64, former: Option<&Bundle>) -> Bundle {
        Bundle::make(&[NAME.to_owned()].into(), former, at(day)).expect("a certificate")
    }

    fn word(step: Option<Step>) -> &'static str {
        match step {
            None => "nothing",
            Some(Step::Make { .. }) => "make",
            Some(Step::Trust(_)) => "trust",
            Some(Step::Serve(_)) => "serve",
        }
    }

    #[rstest]
    #[case::fresh(None, None, None, 0, "make")]
    #[case::made(Some(1), None, None, 0, "serve")]
    #[case::made_and_served(Some(1), None, Some(1), 0, "trust")]
    #[case::in_use(Some(1), Some(1), Some(1), 0, "nothing")]
    #[case::restarted(Some(1), Some(1), None, 0, "serve")]
    #[case::old(Some(1), Some(1), Some(1), 61, "make")]
    #[case::replaced(Some(2), Some(1), Some(1), 61, "trust")]
    #[case::replaced_and_trusted(Some(2), Some(2), Some(1), 61, "serve")]
    #[case::all_new(Some(2), Some(2), Some(2), 61, "nothing")]
    #[case::secret_deleted(None, Some(1), Some(1), 0, "make")]
    #[case::trust_taken_away(Some(1), None, Some(1), 0, "trust")]
    fn it_is_made_then_trusted_then_served(
        #[case] kept: Option<u8>,
        #[case] trusted: Option<u8>,
        #[case] served: Option<u8>,
        #[case] day: i64,
        #[case] expected: &str,
    ) {
        let first = made(0, None);
        let second = made(61, Some(&first));
        let pick = |which: Option<u8>| which.map(|which| if which == 1 { &first } else { &second });
        let (configuration, secret) = (trusting(pick(trusted)), pick(kept).map(secret));
        let seen =
            Seen { configuration: Some(&configuration), secret: secret.as_ref(), served: pick(served), now: at(day) };
        assert_eq!(word(next(seen)), expected);
    }

    #[test]
    fn without_a_configuration_nobody_calls_and_nothing_is_made() {
        assert_eq!(next(Seen { configuration: None, secret: None, served: None, now: at(0) }), None);
    }

    #[rstest]
    #[case::service(json!({"service": {"name": "n", "namespace": "s"}}), &["n.s.svc"])]
    #[case::host(json!({"url": "https://example.com:9443/mutate"}), &["example.com"])]
    #[case::address(json!({"url": "https://127.0.0.1:9443/mutate"}), &["127.0.0.1"])]
    #[case::six(json!({"url": "https://[::1]:9443/mutate"}), &["::1"])]
    #[case::nothing(json!({}), &[])]
    fn the_certificate_is_for_the_names_in_the_configuration(#[case] client: Value, #[case] expected: &[&str]) {
        let made_for = names(&configuration(client));
        assert_eq!(made_for.iter().map(String::as_str).collect::<Vec<_>>(), expected);
    }

    #[test]
    fn the_configuration_is_changed_only_as_it_was_seen_and_only_in_its_trust() {
        let bundle = made(0, None);
        let patch = trust(&trusting(None), &bundle).expect("a patch");
        let paths: Vec<_> = patch.as_array().into_iter().flatten().map(|change| change["path"].clone()).collect();
        assert_eq!(paths, ["/metadata/resourceVersion", "/webhooks/0/clientConfig/caBundle"]);
        assert_eq!(patch[0]["value"], "7");
        assert_eq!(trust(&trusting(Some(&bundle)), &bundle), None);
    }

    #[test]
    fn a_secret_holds_what_was_put_into_it_and_one_without_all_of_it_holds_nothing() {
        let made = made(0, None);
        let kept = secret(&made);
        assert_eq!(bundle(&kept), Some(made));
        for key in [AUTHORITIES, CERTIFICATE, KEY] {
            let mut without = kept.clone();
            without.data.get_or_insert_default().remove(key);
            assert_eq!(bundle(&without), None);
        }
    }
}
