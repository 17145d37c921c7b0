//! The webhook's certificate: shared by all replicas, rotated before expiry, and trusted before it
//! is served.

use std::net::TcpStream;
use std::sync::Arc;
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::admissionregistration::v1::MutatingWebhookConfiguration;
use k8s_openapi::api::core::v1::Secret;
use kube::Api;
use kube::api::{Patch, PatchParams, PostParams};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, ClientConnection, RootCertStore};
use serde_json::json;
use sluice_webhook::certificates::{CertBundle, RENEW_BEFORE_EXPIRY, VALIDITY};
use sluice_webhook::rotation;

use super::webhook::{creates_suspended, start_manager_with_webhook};
use sluice_testkit::env::free_port;
use sluice_testkit::{TestEnv, eventually};

fn secrets(env: &TestEnv) -> Api<Secret> {
    Api::namespaced(env.client.clone(), "sluice-system")
}

async fn stored_bundle(env: &TestEnv) -> Option<CertBundle> {
    secrets(env).get_opt(rotation::SECRET_NAME).await.expect("an answer").as_ref().and_then(rotation::bundle_of)
}

/// Returns the CA bundle of the webhook configuration, as PEM.
async fn trusted_ca(env: &TestEnv) -> String {
    let configurations: Api<MutatingWebhookConfiguration> = Api::all(env.client.clone());
    let configuration = configurations.get(rotation::CONFIGURATION_NAME).await.expect("the configuration");
    let trusted = configuration.webhooks.into_iter().flatten().find_map(|webhook| webhook.client_config.ca_bundle);
    String::from_utf8(trusted.map(|trusted| trusted.0).unwrap_or_default()).expect("PEM")
}

/// Returns the certificate that a TLS client with this CA bundle receives at a port.
fn served_certificate(port: u16, trusted: &str) -> Result<CertificateDer<'static>, String> {
    let mut roots = RootCertStore::empty();
    for authority in CertificateDer::pem_slice_iter(trusted.as_bytes()) {
        roots.add(authority.map_err(|error| error.to_string())?).map_err(|error| error.to_string())?;
    }
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|error| error.to_string())?
        .with_root_certificates(roots)
        .with_no_client_auth();
    let name = ServerName::try_from("127.0.0.1").expect("an address");
    let mut connection = ClientConnection::new(Arc::new(config), name).map_err(|error| error.to_string())?;
    let mut stream = TcpStream::connect(("127.0.0.1", port)).map_err(|error| error.to_string())?;
    stream.set_read_timeout(Some(Duration::from_secs(10))).map_err(|error| error.to_string())?;
    while connection.is_handshaking() {
        connection.complete_io(&mut stream).map_err(|error| error.to_string())?;
    }
    let chain = connection.peer_certificates().unwrap_or_default();
    chain.first().map(|own| own.clone().into_owned()).ok_or_else(|| "no certificate".to_owned())
}

fn certificate_of(bundle: &CertBundle) -> CertificateDer<'static> {
    CertificateDer::from_pem_slice(bundle.certificate.as_bytes()).expect("a certificate")
}

#[tokio::test]
async fn replicas_started_simultaneously_converge_on_one_certificate_that_survives_restarts() {
    let env = TestEnv::start().await;
    let ports = [free_port(), env.configure_webhook().await];
    let flags = ["--leader-elect", "--leader-election-namespace=sluice-system"];
    let first = start_manager_with_webhook(&env, ports[0], &flags).await;
    let second = start_manager_with_webhook(&env, ports[1], &flags).await;

    // Both replicas serve the certificate in the Secret, regardless of leadership, and the API
    // server trusts it.
    eventually("the webhook is called", async || creates_suspended(&env.client).await.then_some(())).await;
    let bundle = stored_bundle(&env).await.expect("a certificate");
    for port in ports {
        eventually("the replica serves the certificate in the Secret", async || {
            let trusted = trusted_ca(&env).await;
            let served = tokio::task::spawn_blocking(move || served_certificate(port, &trusted)).await.expect("a task");
            (served.ok()? == certificate_of(&bundle)).then_some(())
        })
        .await;
    }
    assert_eq!(trusted_ca(&env).await, bundle.ca_bundle);

    first.kill().await;
    second.kill().await;
    let _third = start_manager_with_webhook(&env, ports[1], &flags).await;
    eventually("the webhook is called", async || creates_suspended(&env.client).await.then_some(())).await;
    assert_eq!(stored_bundle(&env).await, Some(bundle));
}

#[tokio::test]
async fn certificate_is_rotated_before_expiry_without_failed_calls() {
    let env = TestEnv::start().await;
    let port = env.configure_webhook().await;
    // Given a certificate due for rotation in 30 seconds,
    let soon = Timestamp::now() + SignedDuration::from_secs(30);
    let made_at = soon - (VALIDITY - RENEW_BEFORE_EXPIRY);
    let old = CertBundle::issue(&["127.0.0.1".to_owned()].into(), None, made_at).expect("a certificate");
    secrets(&env).create(&PostParams::default(), &rotation::secret_of(&old)).await.expect("the Secret");
    let _manager = start_manager_with_webhook(&env, port, &[]).await;
    eventually("the webhook is called", async || creates_suspended(&env.client).await.then_some(())).await;
    assert_eq!((stored_bundle(&env).await, trusted_ca(&env).await), (Some(old.clone()), old.ca_bundle.clone()));

    // when it is due (the Secret is touched to trigger the check),
    while Timestamp::now() < soon + SignedDuration::from_secs(2) {
        assert!(creates_suspended(&env.client).await, "the old certificate serves");
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
    let touched = Patch::Merge(json!({"metadata": {"annotations": {"test.sluice.dev/touched": "yes"}}}));
    secrets(&env).patch(rotation::SECRET_NAME, &PatchParams::default(), &touched).await.expect("the Secret is touched");

    // then it is replaced, and the API server trusts both at all times.
    let new = eventually("another certificate is served", async || {
        assert!(creates_suspended(&env.client).await, "every call is answered");
        let new = stored_bundle(&env).await.filter(|kept| *kept != old)?;
        let trusted = trusted_ca(&env).await;
        let served = tokio::task::spawn_blocking(move || served_certificate(port, &trusted)).await.expect("a task");
        (served.ok()? == certificate_of(&new)).then_some(new)
    })
    .await;
    assert_eq!(trusted_ca(&env).await, new.ca_bundle);
    assert!(new.ca_bundle.ends_with(&old.ca_bundle), "replicas that still serve the old certificate are trusted");
    assert!(creates_suspended(&env.client).await);
}

#[tokio::test]
async fn certificate_is_issued_for_the_service_of_the_manifests() {
    let env = TestEnv::start().await;
    env.apply_kustomization("webhook").await;
    let _manager = start_manager_with_webhook(&env, free_port(), &[]).await;

    let bundle = eventually("the API server trusts the certificate", async || {
        let kept = stored_bundle(&env).await?;
        (trusted_ca(&env).await == kept.ca_bundle).then_some(kept)
    })
    .await;
    let names = ["sluice-webhook.sluice-system.svc".to_owned()].into();
    assert_eq!(bundle.check(&names, Timestamp::now()), Ok(()));
    // The Service has no endpoints here, as if all replicas were down, and creation still works.
    assert!(!creates_suspended(&env.client).await);
}

#[tokio::test]
async fn ca_bundle_and_secret_are_repaired_after_manual_changes() {
    let env = TestEnv::start().await;
    let port = env.configure_webhook().await;
    let _manager = start_manager_with_webhook(&env, port, &[]).await;
    let works = async || {
        eventually("the webhook is called", async || creates_suspended(&env.client).await.then_some(())).await;
    };
    works().await;

    // Given that the CA bundle is removed, as by applying the manifest again,
    let configurations: Api<MutatingWebhookConfiguration> = Api::all(env.client.clone());
    let removed = json!([{"op": "remove", "path": "/webhooks/0/clientConfig/caBundle"}]);
    let removed = Patch::Json::<()>(serde_json::from_value(removed).expect("a JSON patch"));
    configurations
        .patch(rotation::CONFIGURATION_NAME, &PatchParams::default(), &removed)
        .await
        .expect("the CA bundle is removed");
    works().await;

    // or that the Secret is deleted or invalid,
    let before = stored_bundle(&env).await;
    secrets(&env).delete(rotation::SECRET_NAME, &kube::api::DeleteParams::default()).await.expect("no Secret");
    let after = eventually("another certificate is issued", async || {
        stored_bundle(&env).await.filter(|kept| Some(kept) != before.as_ref())
    })
    .await;
    works().await;
    let broken = Patch::Merge(json!({"stringData": {"tls.key": "none"}}));
    secrets(&env).patch(rotation::SECRET_NAME, &PatchParams::default(), &broken).await.expect("no key");
    // then it is recreated.
    eventually("another certificate is issued", async || {
        stored_bundle(&env).await.filter(|kept| kept.key.contains("PRIVATE KEY") && *kept != after)
    })
    .await;
    works().await;
}
