//! RayClusters of `tests/integration/pods/clusters.yaml`, and the objects that an operator creates
//! for them. `golden/` has those of KubeRay 1.7.0: for the first cluster in full, for the others as
//! differences from it; `make golden` records them.

mod facts;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use kube::api::{ApiResource, DynamicObject, ListParams};
use kube::{Api, ResourceExt};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use crate::env::repository_root;
use crate::real_kuberay::{RealKubeRay, start_control_plane_with_crds};
use crate::{TestEnv, eventually_or_err};
pub use facts::{Facts, diff};

const NAMESPACE: &str = "pods-of-the-corpus";
/// Labels of a worker: index of its replica in the group, index of the host in the replica, and
/// name of the replica.
const INDEX: &str = "ray.io/worker-group-replica-index";
const HOST: &str = "ray.io/replica-host-index";
const REPLICA: &str = "ray.io/worker-group-replica-name";
/// Kinds of the objects created for a cluster.
const KINDS: [(&str, &str, &str); 7] = [
    ("", "Pod", "pods"),
    ("", "Service", "services"),
    ("", "ServiceAccount", "serviceaccounts"),
    ("", "Secret", "secrets"),
    ("rbac.authorization.k8s.io", "Role", "roles"),
    ("rbac.authorization.k8s.io", "RoleBinding", "rolebindings"),
    ("networking.k8s.io", "Ingress", "ingresses"),
];

/// A cluster of the corpus. The file has each as the difference from the first.
#[derive(Deserialize)]
pub struct Case {
    /// Name of the cluster, and of its file in `golden/`.
    pub name: String,
    #[serde(default)]
    metadata: Value,
    #[serde(default)]
    spec: Value,
    /// Objects that must exist before the cluster.
    #[serde(default)]
    prerequisites: Vec<Value>,
}

impl Case {
    /// Returns the manifest of the cluster.
    fn cluster(&self) -> Value {
        let mut cluster =
            json!({"apiVersion": "ray.io/v1", "kind": "RayCluster", "metadata": self.metadata, "spec": self.spec});
        cluster["metadata"]["name"] = json!(self.name);
        cluster["metadata"]["namespace"] = json!(NAMESPACE);
        cluster
    }

    /// Returns the expected number of pods.
    fn pods(&self) -> usize {
        if self.spec["suspend"] == true {
            return 0;
        }
        let number = |group: &Value, field: &str, otherwise: u64| group[field].as_u64().unwrap_or(otherwise);
        let groups = self.spec["workerGroupSpecs"].as_array().into_iter().flatten();
        let workers = groups.map(|group| {
            let bounds = (number(group, "minReplicas", 0), number(group, "maxReplicas", u64::MAX));
            number(group, "replicas", 0).clamp(bounds.0, bounds.1) * number(group, "numOfHosts", 1)
        });
        1 + usize::try_from(workers.sum::<u64>()).expect("a few")
    }
}

fn folder() -> PathBuf {
    repository_root().join("tests/integration/pods")
}

/// Reads a YAML file of `tests/integration/pods`.
///
/// # Panics
/// Panics if it cannot be read as `T`.
pub fn read<T: DeserializeOwned>(file: &str) -> T {
    let text = std::fs::read_to_string(folder().join(file)).unwrap_or_else(|error| panic!("{file}: {error}"));
    serde_saphyr::from_str(&text).unwrap_or_else(|error| panic!("{file}: {error}"))
}

/// Returns the clusters, each complete.
fn corpus() -> Vec<Case> {
    let mut cases: Vec<Case> = read("clusters.yaml");
    let (metadata, spec) = (cases[0].metadata.clone(), cases[0].spec.clone());
    for case in cases.iter_mut().skip(1) {
        case.metadata = merged(&metadata, &case.metadata);
        case.spec = merged(&spec, &case.spec);
    }
    cases
}

/// Applies a merge patch (RFC 7396).
fn merged(base: &Value, patch: &Value) -> Value {
    let Value::Object(fields) = patch else { return if patch.is_null() { base.clone() } else { patch.clone() } };
    let mut whole = base.as_object().cloned().unwrap_or_default();
    for (field, value) in fields {
        match value {
            Value::Null => whole.remove(field),
            value => whole.insert(field.clone(), merged(&whole.get(field).cloned().unwrap_or_default(), value)),
        };
    }
    Value::Object(whole)
}

/// A control plane with the corpus applied.
pub struct PodCorpus {
    /// The control plane.
    pub env: TestEnv,
    /// The clusters.
    pub cases: Vec<Case>,
}

impl PodCorpus {
    /// Applies the clusters and their prerequisites.
    ///
    /// # Panics
    /// Panics if the API server rejects one.
    pub async fn apply(env: TestEnv) -> Self {
        let cases = corpus();
        let made = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}});
        env.apply(&made.to_string()).await.expect("a namespace");
        for case in &cases {
            for object in &case.prerequisites {
                let mut object = object.clone();
                object["metadata"]["namespace"] = json!(NAMESPACE);
                env.apply(&object.to_string()).await.expect("a prerequisite");
            }
            let applied = env.apply(&case.cluster().to_string()).await;
            applied.unwrap_or_else(|error| panic!("{}: {error}", case.name));
        }
        Self { env, cases }
    }

    /// Returns the number of pods and the facts of each cluster, by name.
    pub async fn facts_by_cluster(&self) -> BTreeMap<String, (usize, Facts)> {
        let mut made: BTreeMap<String, (usize, Facts)> =
            self.cases.iter().map(|case| (case.name.clone(), Default::default())).collect();
        for (group, kind, plural) in KINDS {
            let mut per_group: BTreeMap<(String, String), usize> = BTreeMap::new();
            let mut objects = self.list(group, kind, plural).await;
            objects.sort_by_key(|object| [label(object, INDEX), label(object, HOST), object.name_any()]);
            for object in objects {
                let Some(owner) = object.owner_references().first() else { continue };
                let (cluster, uid) = (owner.name.clone(), owner.uid.clone());
                let Some((pods, facts)) = made.get_mut(&cluster) else { continue };
                let what = if kind == "Pod" {
                    *pods += 1;
                    let group = label(&object, "ray.io/group");
                    let number = per_group.entry((cluster.clone(), group.clone())).or_insert(0);
                    *number += 1;
                    format!("Pod {group} {number}")
                } else {
                    format!("{kind} {}", object.name_any())
                };
                let value = serde_json::to_value(&object).expect("JSON");
                let replica = label(&object, REPLICA);
                let mut texts = vec![(NAMESPACE, "NAMESPACE"), (cluster.as_str(), "CLUSTER"), (uid.as_str(), "UID")];
                texts.extend((!replica.is_empty()).then_some((replica.as_str(), "REPLICA")));
                facts::add_facts(facts, &what, &value, &texts);
                if kind == "Pod" {
                    let name = object.name_any();
                    let (named, _) = name.rsplit_once('-').expect("an ending");
                    facts::add_facts(facts, &what, &json!({"name": format!("{named}-SUFFIX")}), &texts);
                }
            }
        }
        made
    }

    async fn list(&self, group: &str, kind: &str, plural: &str) -> Vec<DynamicObject> {
        let api_version = if group.is_empty() { "v1".to_owned() } else { format!("{group}/v1") };
        let resource = ApiResource {
            group: group.to_owned(),
            version: "v1".to_owned(),
            api_version,
            kind: kind.to_owned(),
            plural: plural.to_owned(),
        };
        let api: Api<DynamicObject> = Api::namespaced_with(self.env.client.clone(), NAMESPACE, &resource);
        api.list(&ListParams::default()).await.expect("a list").items
    }

    /// Waits until all pods exist. Returns the facts of each cluster.
    async fn wait_for_all(&self) -> BTreeMap<String, Facts> {
        let made = eventually_or_err("all pods are created", async || {
            let made = self.facts_by_cluster().await;
            let few = self.cases.iter().filter(|case| made[&case.name].0 != case.pods());
            let few: Vec<String> =
                few.map(|case| format!("{}: {} of {}", case.name, made[&case.name].0, case.pods())).collect();
            if few.is_empty() { Ok(made) } else { Err(few.join(", ")) }
        });
        made.await.into_iter().map(|(name, (_, facts))| (name, facts)).collect()
    }
}

fn label(object: &DynamicObject, label: &str) -> String {
    object.labels().get(label).cloned().unwrap_or_default()
}

fn golden_path(case: &str) -> PathBuf {
    folder().join("golden").join(format!("{case}.txt"))
}

/// Returns the facts recorded from KubeRay for a cluster, given those of the first cluster.
///
/// # Panics
/// Panics if none are recorded.
pub fn kuberay_facts(case: &str, plain: &Facts) -> Facts {
    let path = golden_path(case);
    let text =
        std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{} (make golden): {error}", path.display()));
    facts::apply_diff(plain, &text)
}

/// Records the objects that KubeRay creates for the clusters in `golden/`. `source` is a checkout of
/// KubeRay whose operator is built as `ray-operator/bin/kuberay`.
///
/// # Panics
/// Panics if the operator cannot be started, does not create all pods within two minutes, or a file
/// cannot be written.
pub async fn record(source: &Path) {
    let env = start_control_plane_with_crds(&source.join("ray-operator/config/crd/bases")).await;
    let _kuberay = RealKubeRay::start_program(&env, &source.join("ray-operator/bin/kuberay"));
    let corpus = PodCorpus::apply(env).await;
    let facts = corpus.wait_for_all().await;
    let first = &facts[&corpus.cases[0].name];
    for case in &corpus.cases {
        let base = if case.name == corpus.cases[0].name { &Facts::new() } else { first };
        let text = diff(base, &facts[&case.name]).join("\n");
        std::fs::write(golden_path(&case.name), text + "\n").expect("a file");
    }
}
