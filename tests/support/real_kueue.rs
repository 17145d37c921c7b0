//! Runs the real Kueue, which `make kueue` builds, with its webhooks and its own certificates.

use std::path::{Path, PathBuf};
use std::process::Stdio;

use k8s_openapi::api::admissionregistration::v1::{MutatingWebhookConfiguration, ValidatingWebhookConfiguration};
use k8s_openapi::api::core::v1::Secret;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::Api;
use kube::api::{DeleteParams, Patch, PatchParams, PostParams};
use serde::Deserialize;
use serde_json::{Value, json};
use sluice_api::kueue::ResourceFlavor;
use tokio::process::{Child, Command};

use super::env::{cache_dir, free_port, repository_root};
use super::{TestEnv, TestEnvOptions, eventually};

/// Namespace of Kueue.
const NAMESPACE: &str = "kueue-system";
/// Secret in which Kueue stores its serving certificate.
const CERTIFICATE: &str = "kueue-webhook-server-cert";
/// Service that Kueue's webhook configurations name.
const SERVICE: &str = "kueue-webhook-service";
/// Policies that accept Kueue's writes; see docs/guides/adopt-from-kuberay.md.
const POLICIES_NEXT_TO_KUEUE: [&str; 5] =
    ["quotas.yaml", "flavors.yaml", "workloads.yaml", "upgrade_strategy.yaml", "incremental_upgrade.yaml"];

/// A running Kueue. Dropping the value kills it.
pub struct RealKueue {
    process: Child,
    /// Path of its log file.
    pub log: PathBuf,
}

/// Starts a control plane with Kueue's CRDs and Sluice's CRDs for Ray, and with only the policies
/// that accept Kueue's writes.
pub async fn start_control_plane() -> TestEnv {
    let definitions = cache_dir().join("kueue-crds");
    let flags = ["--crds", definitions.to_str().expect("a path in UTF-8")];
    let env = TestEnv::start_with(TestEnvOptions { flags: &flags, ..TestEnvOptions::default() }).await;
    for file in std::fs::read_dir(repository_root().join("config/policy")).expect("the policies") {
        let file = file.expect("a file").path();
        let name = file.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        if name != "kustomization.yaml" && !POLICIES_NEXT_TO_KUEUE.contains(&name) {
            delete_bindings(&env, &file).await;
        }
    }
    env
}

async fn delete_bindings(env: &TestEnv, file: &Path) {
    for document in documents(file) {
        if document["kind"] == "ValidatingAdmissionPolicyBinding" {
            env.delete_policy(document["metadata"]["name"].as_str().expect("a name")).await;
        }
    }
}

fn documents(file: &Path) -> Vec<Value> {
    let text = std::fs::read_to_string(file).unwrap_or_else(|error| panic!("{}: {error}", file.display()));
    serde_saphyr::from_multiple(&text).unwrap_or_else(|error| panic!("{}: {error}", file.display()))
}

impl RealKueue {
    /// Installs Kueue's manifests, starts it with administrator rights, and waits until the API
    /// server can call its webhooks.
    pub async fn start(env: &TestEnv) -> Self {
        let port = free_port();
        install(env, port).await;
        let certificates = env.dir.join("kueue-certificates");
        std::fs::create_dir_all(&certificates).expect("a directory for the certificate");
        let configuration = env.dir.join("kueue.yaml");
        std::fs::write(&configuration, manager_configuration(port, &certificates).to_string()).expect("a file");
        let log = env.dir.join("kueue.log");
        let program = cache_dir().join("bin/kueue");
        let process = Command::new(&program)
            .arg("--config")
            .arg(&configuration)
            .arg("--feature-gates=VisibilityOnDemand=false")
            .env("KUBECONFIG", &env.kubeconfig)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(std::fs::File::create(&log).expect("a log file"))
            .kill_on_drop(true)
            .spawn()
            .unwrap_or_else(|error| panic!("starting {} (make kueue builds it): {error}", program.display()));
        mount_certificate(env, &certificates).await;
        wait_for_webhooks(env).await;
        Self { process, log }
    }

    /// Stops Kueue and removes what calls it, so that its CRDs can be replaced; see "Replacing
    /// Kueue" in docs/guides/adopt-from-kuberay.md.
    pub async fn uninstall(mut self, env: &TestEnv) {
        self.process.kill().await.expect("Kueue is stopped");
        let params = DeleteParams::default();
        let mutating: Api<MutatingWebhookConfiguration> = Api::all(env.client.clone());
        mutating.delete("kueue-mutating-webhook-configuration", &params).await.expect("its webhooks are deleted");
        let validating: Api<ValidatingWebhookConfiguration> = Api::all(env.client.clone());
        validating.delete("kueue-validating-webhook-configuration", &params).await.expect("its webhooks are deleted");
        let definitions: Api<CustomResourceDefinition> = Api::all(env.client.clone());
        let patch = Patch::Merge(json!({"spec": {"conversion": {"strategy": "None", "webhook": null}}}));
        for kind in ["clusterqueues", "cohorts", "localqueues", "workloads"] {
            let name = format!("{kind}.kueue.x-k8s.io");
            definitions.patch(&name, &PatchParams::default(), &patch).await.expect("the CRD converts by itself");
        }
    }
}

/// Applies Kueue's manifests, without what runs it in the cluster.
async fn install(env: &TestEnv, port: u16) {
    for mut document in documents(&cache_dir().join("kueue.yaml")) {
        match document["kind"].as_str() {
            Some("Deployment" | "APIService") => continue,
            Some("Service") if document["metadata"]["name"] != SERVICE => continue,
            // Kueue listens on this machine, and its certificate is for the name of the Service.
            Some("Service") => document["spec"] = json!({"type": "ExternalName", "externalName": "localhost"}),
            _ => set_webhook_port(&mut document, port),
        }
        let manifest = document.to_string();
        env.apply(&manifest).await.unwrap_or_else(|error| panic!("{error}: {manifest}"));
    }
}

/// Sets the port of all webhooks in a manifest: those of configurations, and the conversion of CRDs.
fn set_webhook_port(manifest: &mut Value, port: u16) {
    if let Some(service) = manifest.pointer_mut("/clientConfig/service") {
        service["port"] = port.into();
    }
    let children: Vec<&mut Value> = match manifest {
        Value::Object(fields) => fields.values_mut().collect(),
        Value::Array(items) => items.iter_mut().collect(),
        _ => Vec::new(),
    };
    children.into_iter().for_each(|child| set_webhook_port(child, port));
}

fn manager_configuration(port: u16, certificates: &Path) -> Value {
    json!({
        "apiVersion": "config.kueue.x-k8s.io/v1beta2",
        "kind": "Configuration",
        "namespace": NAMESPACE,
        "health": {"healthProbeBindAddress": "0"},
        "metrics": {"bindAddress": "0"},
        "webhook": {"host": "127.0.0.1", "port": port, "certDir": certificates},
        "leaderElection": {"leaderElect": false},
        "internalCertManagement": {"enable": true, "webhookServiceName": SERVICE, "webhookSecretName": CERTIFICATE},
        "integrations": {"frameworks": ["batch/job", "ray.io/raycluster", "ray.io/rayservice"]},
    })
}

/// Copies Kueue's certificate from its Secret to a directory, as the kubelet mounts it.
async fn mount_certificate(env: &TestEnv, directory: &Path) {
    #[derive(Deserialize)]
    struct Certificate {
        #[serde(rename = "ca.crt")]
        ca: k8s_openapi::ByteString,
        #[serde(rename = "tls.crt")]
        certificate: k8s_openapi::ByteString,
        #[serde(rename = "tls.key")]
        key: k8s_openapi::ByteString,
    }
    let secrets: Api<Secret> = Api::namespaced(env.client.clone(), NAMESPACE);
    let files = eventually("Kueue stores its certificate", async || {
        let secret = secrets.get(CERTIFICATE).await.expect("the Secret");
        serde_json::from_value::<Certificate>(json!(secret.data)).ok()
    })
    .await;
    for (name, content) in [("ca.crt", files.ca), ("tls.crt", files.certificate), ("tls.key", files.key)] {
        std::fs::write(directory.join(name), content.0).expect("the certificate is written");
    }
}

async fn wait_for_webhooks(env: &TestEnv) {
    let flavors: Api<ResourceFlavor> = Api::all(env.client.clone());
    let probe: ResourceFlavor =
        serde_json::from_value(json!({"metadata": {"name": "probe"}, "spec": {}})).expect("a flavor");
    eventually("Kueue's webhooks answer", async || flavors.create(&PostParams::default(), &probe).await.ok()).await;
    flavors.delete("probe", &DeleteParams::default()).await.expect("the probe is deleted");
}
