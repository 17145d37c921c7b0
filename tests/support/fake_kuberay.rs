//! A fake of KubeRay 1.7: emulates the behavior that matters to the gate, without code of our own
//! operator.
//!
//! - Creates a child RayCluster from `rayClusterConfig`, including `suspend`, with the labels of the
//!   RayService and those that link the two. A later change of `suspend` in the RayService does not reach an
//!   existing child and starts no upgrade.
//! - Creates a second child when the configuration changes otherwise, unless one is already pending.
//! - Promotes a pending child once all of its pods are ready, and deletes the previous one after a delay.
//! - Creates the missing pods of an unsuspended cluster from its current templates; workers get the init
//!   container that waits for the head. Existing pods are never changed or recreated.
//! - Deletes the pods of a suspended cluster.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;
use kube::api::{DeleteParams, ListParams, PostParams};
use kube::{Api, Client, ResourceExt};
use serde_json::{Value, json};
use sluice_api::ray::{RayCluster, RayService};
use tokio::task::JoinHandle;

use super::TestEnv;
use super::objects::NAMESPACE;

/// The service account of KubeRay's own manifests.
const SERVICE_ACCOUNT: &str = "default:kuberay-operator";
/// Annotation with the configuration of the RayService that a child was created from.
const HASH_ANNOTATION: &str = "ray.io/hash-without-replicas-and-workers-to-delete";
/// Delay before a cluster that is no longer active is deleted.
const DELETION_DELAY: Duration = Duration::from_secs(2);

/// A running fake operator. Dropping the value stops it.
pub struct FakeKubeRay(JoinHandle<()>);

impl FakeKubeRay {
    /// Starts the operator.
    pub async fn start(env: &TestEnv) -> Self {
        let client = env.impersonate(SERVICE_ACCOUNT).await;
        let mut operator = Operator { client, retired_at: BTreeMap::new(), last_suffix: 0 };
        Self(tokio::spawn(async move {
            loop {
                // Conflicts are resolved by the next iteration.
                let _ = operator.reconcile_all().await;
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        }))
    }
}

impl Drop for FakeKubeRay {
    fn drop(&mut self) {
        self.0.abort();
    }
}

struct Operator {
    client: Client,
    /// Time at which each cluster stopped being active or pending.
    retired_at: BTreeMap<String, tokio::time::Instant>,
    /// Number of the last created object, used as name suffix.
    last_suffix: u32,
}

impl Operator {
    async fn reconcile_all(&mut self) -> Result<(), kube::Error> {
        for cluster in self.clusters().list(&ListParams::default()).await? {
            self.reconcile_cluster(&cluster).await?;
        }
        let services: Api<RayService> = self.api();
        for service in services.list(&ListParams::default()).await? {
            if service.metadata.deletion_timestamp.is_none() {
                self.reconcile_service(&services, service).await?;
            }
        }
        Ok(())
    }

    fn api<K: kube::Resource<Scope = kube::core::NamespaceResourceScope, DynamicType = ()>>(&self) -> Api<K> {
        Api::namespaced(self.client.clone(), NAMESPACE)
    }

    fn clusters(&self) -> Api<RayCluster> {
        self.api()
    }

    async fn reconcile_service(&mut self, services: &Api<RayService>, service: RayService) -> Result<(), kube::Error> {
        let uid = service.uid().unwrap_or_default();
        let mut config = serde_json::to_value(&service.spec.ray_cluster_config).expect("JSON");
        let suspend = config.as_object_mut().expect("a spec").remove("suspend");
        let goal = config.to_string();
        let mut children = self.clusters().list(&ListParams::default()).await?.items;
        children.retain(|child| child.owner_references().iter().any(|owner| owner.uid == uid));
        let status = service.status.clone().unwrap_or_default();
        let find = |name: &String| children.iter().find(|child| child.name_any() == *name);
        let named = |status: &Option<sluice_api::ray::RayServiceStatus>| {
            let name = status.as_ref().and_then(|status| status.ray_cluster_name.clone());
            name.filter(|name| !name.is_empty())
        };
        let mut active = named(&status.active_service_status).filter(|name| find(name).is_some());
        let mut pending = named(&status.pending_service_status);
        let hash = |name: &String| find(name).and_then(|child| child.annotations().get(HASH_ANNOTATION).cloned());
        match pending.as_ref().map(|name| (name.clone(), find(name))) {
            // Name the child in the status before creating it: the other way around, a conflict
            // would leave an extra child.
            None if active.as_ref().and_then(hash).as_ref() != Some(&goal) => {
                pending = Some(self.next_name(&service.name_any()));
            }
            Some((name, None)) => {
                config["suspend"] = suspend.unwrap_or(Value::Bool(false));
                self.create_child(&service, &name, config, goal).await?;
            }
            Some((_, Some(child))) if self.is_ready(child).await? => active = pending.take(),
            _ => {}
        }
        for child in children.iter().map(ResourceExt::name_any) {
            if Some(&child) == active.as_ref() || Some(&child) == pending.as_ref() {
                continue;
            }
            let since = *self.retired_at.entry(child.clone()).or_insert_with(tokio::time::Instant::now);
            if since.elapsed() >= DELETION_DELAY {
                self.clusters().delete(&child, &DeleteParams::default()).await?;
            }
        }
        self.update_status(services, service, active, pending).await
    }

    /// Writes the active and the pending cluster into the status of a RayService.
    async fn update_status(
        &self,
        services: &Api<RayService>,
        mut service: RayService,
        active: Option<String>,
        pending: Option<String>,
    ) -> Result<(), kube::Error> {
        let before = service.status.clone();
        let status = service.status.get_or_insert_default();
        let conditions = [("Ready", active.is_some()), ("UpgradeInProgress", active.is_some() && pending.is_some())];
        for (kind, is) in conditions {
            let update = sluice_api::condition::ConditionUpdate {
                type_: kind,
                status: is,
                reason: kind.to_owned(),
                message: String::new(),
                observed_generation: None,
            };
            sluice_api::condition::set(&mut status.conditions, Timestamp::now(), update);
        }
        status.active_service_status.get_or_insert_default().ray_cluster_name = active;
        status.pending_service_status.get_or_insert_default().ray_cluster_name = pending;
        if before.as_ref() != service.status.as_ref() {
            services.replace_status(&service.name_any(), &PostParams::default(), &service).await?;
        }
        Ok(())
    }

    /// Creates a child RayCluster.
    async fn create_child(
        &self,
        service: &RayService,
        name: &str,
        config: Value,
        goal: String,
    ) -> Result<(), kube::Error> {
        let mut labels = json!({
            "ray.io/originated-from-cr-name": service.name_any(), "ray.io/originated-from-crd": "RayService",
        });
        labels
            .as_object_mut()
            .expect("labels")
            .extend(service.labels().iter().map(|(key, value)| (key.clone(), Value::String(value.clone()))));
        let owner = json!({
            "apiVersion": "ray.io/v1", "kind": "RayService", "name": service.name_any(), "uid": service.uid(),
            "controller": true, "blockOwnerDeletion": true,
        });
        let child = json!({
            "apiVersion": "ray.io/v1", "kind": "RayCluster",
            "metadata": {"name": name, "labels": labels, "annotations": {HASH_ANNOTATION: goal}, "ownerReferences": [owner]},
            "spec": config,
        });
        let child: RayCluster = serde_json::from_value(child).expect("a RayCluster");
        self.clusters().create(&PostParams::default(), &child).await.map(drop)
    }

    fn next_name(&mut self, of: &str) -> String {
        self.last_suffix += 1;
        format!("{of}-{:05}", self.last_suffix)
    }

    /// Reconciles the pods of a RayCluster with its spec.
    async fn reconcile_cluster(&mut self, cluster: &RayCluster) -> Result<(), kube::Error> {
        if cluster.metadata.deletion_timestamp.is_some() {
            return Ok(());
        }
        let pods = self.pods_of(cluster).await?;
        if cluster.spec.suspend == Some(true) {
            for pod in pods.iter().filter(|pod| pod.metadata.deletion_timestamp.is_none()) {
                self.api::<Pod>().delete(&pod.name_any(), &DeleteParams::default()).await?;
            }
            return Ok(());
        }
        let of_group = |group: &str| -> Vec<&Pod> {
            pods.iter().filter(|pod| pod.labels().get("ray.io/group").is_some_and(|name| name == group)).collect()
        };
        if of_group("headgroup").is_empty() {
            self.create_pod(cluster, "headgroup", &cluster.spec.head_group_spec.template.0).await?;
        }
        let names: BTreeSet<&str> =
            cluster.spec.worker_group_specs.iter().map(|group| group.group_name.as_str()).collect();
        for group in &cluster.spec.worker_group_specs {
            let there = of_group(&group.group_name);
            let wanted = usize::try_from(group.replicas.unwrap_or(0)).unwrap_or(0);
            for _ in there.len()..wanted {
                self.create_pod(cluster, &group.group_name, &group.template.0).await?;
            }
            for pod in there.iter().skip(wanted).filter(|pod| pod.metadata.deletion_timestamp.is_none()) {
                self.api::<Pod>().delete(&pod.name_any(), &DeleteParams::default()).await?;
            }
        }
        let group = |pod: &&Pod| pod.labels().get("ray.io/group").cloned().unwrap_or_default();
        for pod in pods.iter().filter(|pod| group(pod) != "headgroup" && !names.contains(group(pod).as_str())) {
            self.api::<Pod>().delete(&pod.name_any(), &DeleteParams::default()).await?;
        }
        Ok(())
    }

    async fn create_pod(&mut self, cluster: &RayCluster, group: &str, template: &Value) -> Result<(), kube::Error> {
        let name = self.next_name(&format!("{}-{group}", cluster.name_any()));
        let head = group == "headgroup";
        let mut spec = template["spec"].clone();
        if !head {
            let needs = json!({"cpu": "200m", "memory": "256Mi"});
            let waits = json!({
                "name": "wait-gcs-ready", "image": spec["containers"][0]["image"],
                "resources": {"requests": needs, "limits": needs},
            });
            let before = spec["initContainers"].as_array().cloned().unwrap_or_default();
            spec["initContainers"] = before.into_iter().chain([waits]).collect();
        }
        let labels = json!({
            "ray.io/cluster": cluster.name_any(), "ray.io/group": group, "ray.io/is-ray-node": "yes",
            "ray.io/node-type": if head { "head" } else { "worker" },
        });
        let owner = json!({
            "apiVersion": "ray.io/v1", "kind": "RayCluster", "name": cluster.name_any(), "uid": cluster.uid(),
            "controller": true, "blockOwnerDeletion": true,
        });
        let pod = json!({
            "apiVersion": "v1", "kind": "Pod",
            "metadata": {"name": name, "labels": labels, "ownerReferences": [owner]}, "spec": spec,
        });
        let pod: Pod = serde_json::from_value(pod).expect("a pod");
        self.api::<Pod>().create(&PostParams::default(), &pod).await.map(drop)
    }

    async fn pods_of(&self, cluster: &RayCluster) -> Result<Vec<Pod>, kube::Error> {
        let of_cluster = ListParams::default().labels(&format!("ray.io/cluster={}", cluster.name_any()));
        Ok(self.api::<Pod>().list(&of_cluster).await?.items)
    }

    /// Reports whether a cluster is not suspended and all of its pods exist and are ready. (Ray
    /// Serve is not emulated.)
    async fn is_ready(&self, cluster: &RayCluster) -> Result<bool, kube::Error> {
        let workers = cluster.spec.worker_group_specs.iter().map(|group| group.replicas.unwrap_or(0));
        let wanted = 1 + usize::try_from(workers.sum::<i32>()).unwrap_or(0);
        let pods = self.pods_of(cluster).await?;
        let ready = pods.iter().filter(|pod| {
            let conditions = pod.status.iter().flat_map(|status| status.conditions.iter().flatten());
            conditions.into_iter().any(|condition| condition.type_ == "Ready" && condition.status == "True")
        });
        Ok(cluster.spec.suspend != Some(true) && ready.count() == wanted)
    }
}
