//! Compares the objects created for RayClusters with those that KubeRay creates for the same
//! RayClusters.
//!
//! `clusters.yaml` has the clusters. `golden/` has the objects that KubeRay 1.7.0 creates for each on a real
//! control plane: the first cluster in full, the others as differences from it; `make golden`
//! writes it.
//! `differences.yaml` has the intentional differences and their reasons.

mod facts;

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

use kube::api::{ApiResource, DynamicObject, ListParams};
use kube::{Api, ResourceExt};
use regex::Regex;
use serde::Deserialize;
use serde_json::{Value, json};

use facts::Facts;
use sluice_testkit::real_kuberay::{RealKubeRay, start_control_plane_with_crds};
use sluice_testkit::{TestEnv, eventually_or_err};

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

/// A cluster of the corpus, as the difference from the first.
#[derive(Deserialize)]
struct Case {
    name: String,
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

/// An intentional difference.
#[derive(Deserialize)]
struct IntendedDifference {
    /// Regular expression for the paths.
    at: String,
    /// The reason.
    #[serde(rename = "why")]
    _why: String,
}

fn folder() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/integration/pods")
}

fn read<T: serde::de::DeserializeOwned>(file: &str) -> T {
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
struct CorpusFixture {
    env: TestEnv,
    corpus: Vec<Case>,
}

impl CorpusFixture {
    async fn set(env: TestEnv) -> Self {
        let corpus = corpus();
        let made = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}});
        env.apply(&made.to_string()).await.expect("a namespace");
        for case in &corpus {
            for object in &case.prerequisites {
                let mut object = object.clone();
                object["metadata"]["namespace"] = json!(NAMESPACE);
                env.apply(&object.to_string()).await.expect("a prerequisite");
            }
            let applied = env.apply(&case.cluster().to_string()).await;
            applied.unwrap_or_else(|error| panic!("{}: {error}", case.name));
        }
        Self { env, corpus }
    }

    /// Returns the number of pods and the facts of each cluster, by name.
    async fn facts_by_cluster(&self) -> BTreeMap<String, (usize, Facts)> {
        let mut made: BTreeMap<String, (usize, Facts)> =
            self.corpus.iter().map(|case| (case.name.clone(), Default::default())).collect();
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
            let few = self.corpus.iter().filter(|case| made[&case.name].0 != case.pods());
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

/// Returns the facts recorded from KubeRay for a cluster.
fn kuberay_facts(case: &str, plain: &Facts) -> Facts {
    let path = golden_path(case);
    let text =
        std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{} (make golden): {error}", path.display()));
    facts::apply_diff(plain, &text)
}

#[tokio::test]
async fn clusters_get_the_same_objects_as_from_kuberay() {
    let stage = CorpusFixture::set(TestEnv::start().await).await;
    let _manager = stage.env.manager().await;
    let plain = kuberay_facts(&stage.corpus[0].name, &Facts::new());
    let differences: Vec<IntendedDifference> = read("differences.yaml");
    let places: Vec<Regex> = differences.iter().map(|known| Regex::new(&known.at).expect("an expression")).collect();

    let found = eventually_or_err("the objects are the same, except for intentional differences", async || {
        let ours = stage.facts_by_cluster().await;
        let (mut found, mut others) = (BTreeSet::new(), Vec::new());
        for (name, (_, ours)) in &ours {
            let base = if *name == stage.corpus[0].name { Facts::new() } else { plain.clone() };
            for change in facts::diff(&kuberay_facts(name, &base), ours).iter().map(|change| format!("{name} {change}"))
            {
                let known: Vec<usize> = (0..places.len()).filter(|known| places[*known].is_match(&change)).collect();
                if known.is_empty() {
                    others.push(change);
                }
                found.extend(known);
            }
        }
        if others.is_empty() { Ok(found) } else { Err(format!("\n{}", others.join("\n"))) }
    });
    let found = found.await;

    let stale = (0..places.len()).filter(|known| !found.contains(known)).map(|known| &differences[known].at);
    assert_eq!(stale.collect::<Vec<_>>(), Vec::<&String>::new(), "these differences no longer exist");
}

#[tokio::test]
#[ignore = "writes into the repository: make golden"]
async fn record_kuberay_golden_files() {
    let source = PathBuf::from(std::env::var_os("KUBERAY_SOURCE").expect("KUBERAY_SOURCE: a checkout of KubeRay"));
    let env = start_control_plane_with_crds(&source.join("ray-operator/config/crd/bases")).await;
    let _kuberay = RealKubeRay::start_program(&env, &source.join("ray-operator/bin/kuberay"));
    let stage = CorpusFixture::set(env).await;
    let made = stage.wait_for_all().await;
    let plain = &made[&stage.corpus[0].name];
    for case in &stage.corpus {
        let base = if case.name == stage.corpus[0].name { &Facts::new() } else { plain };
        let text = facts::diff(base, &made[&case.name]).join("\n");
        std::fs::write(golden_path(&case.name), text + "\n").expect("a file");
    }
}
