//! Executes user actions through any client. Complete objects are applied with server-side apply,
//! as GitOps does; single changes are patches, as those of `kubectl patch` and `kubectl scale`.

use std::time::Duration;

use kube::api::{DeleteParams, DynamicObject, ListParams, Patch, PatchParams, PropagationPolicy};
use kube::core::discovery::ApiResource;
use kube::{Api, Client, ResourceExt};
use serde_json::{Map, Value, json};
use sluice_api::ray::admission_annotations::{ADMISSION_TIMEOUT_ANNOTATION, TIMED_OUT_ANNOTATION};
use sluice_api::ray::incremental_annotations::UPGRADE_FAILED_ANNOTATION;

use super::manifests::{self, ScriptNamespace};
use super::setup::{ResourceAmounts, Setup};
use super::step::{Cluster, UserAction};

/// Field manager of the users.
const FIELD_MANAGER: &str = "people";
/// Name of the ResourceQuota and the LimitRange.
const LIMITS: &str = "limits";
/// Poll interval while an object of the same name is terminating.
const POLL_INTERVAL: Duration = Duration::from_millis(200);

/// Message of the API server for a JSON patch with a path that does not exist.
const PATCH_DOES_NOT_APPLY: &str = "the server rejected our request due to an error in our request";

/// Executes actions in a namespace.
pub(crate) struct Executor<'a> {
    client: &'a Client,
    pub(super) place: &'a ScriptNamespace,
}

/// Returns the API resource of a kind.
pub(crate) fn api_resource(kind: &str) -> ApiResource {
    let (group, version) = match kind {
        "LimitRange" | "Namespace" | "Pod" | "ResourceQuota" | "Service" => ("", "v1"),
        "ControllerRevision" => ("apps", "v1"),
        "Job" => ("batch", "v1"),
        "EndpointSlice" => ("discovery.k8s.io", "v1"),
        "Event" => ("events.k8s.io", "v1"),
        "RayService" | "RayCluster" => ("ray.io", "v1"),
        "Gateway" | "GatewayClass" | "HTTPRoute" => ("gateway.networking.k8s.io", "v1"),
        _ => ("kueue.x-k8s.io", "v1beta2"),
    };
    let lower = kind.to_lowercase();
    let plural = if lower.ends_with("ss") { format!("{lower}es") } else { format!("{lower}s") };
    let api_version = if group.is_empty() { version.to_owned() } else { format!("{group}/{version}") };
    ApiResource { group: group.into(), version: version.into(), api_version, kind: kind.into(), plural }
}

impl<'a> Executor<'a> {
    /// Returns an executor for this client and namespace.
    pub(crate) fn new(client: &'a Client, place: &'a ScriptNamespace) -> Self {
        Self { client, place }
    }

    /// Creates the objects of a setup.
    ///
    /// # Errors
    /// When the API server rejects an object.
    pub(crate) async fn set_up(&self, scene: &Setup) -> Result<(), kube::Error> {
        self.apply(self.place.namespace()).await?;
        for flavor in &scene.flavors {
            self.apply(self.place.flavor(flavor)).await?;
        }
        for priority in &scene.priorities {
            self.apply(self.place.priority(priority)).await?;
        }
        if scene.gateways {
            self.apply(self.place.gateway_class()).await?;
        }
        for cohort in &scene.cohorts {
            self.apply(self.place.cohort(cohort)).await?;
        }
        for queue in &scene.queues {
            self.apply(self.place.cluster_queue(queue)).await?;
            self.apply(self.place.local_queue(queue)).await?;
        }
        Ok(())
    }

    /// Executes an action.
    ///
    /// # Errors
    /// If the API server rejects a request, except if the object does not exist.
    pub(crate) async fn execute(&self, act: &UserAction) -> Result<(), kube::Error> {
        match act {
            // These are no requests: the run carries them out.
            UserAction::BackUp | UserAction::Restore => Ok(()),
            UserAction::LimitPods { pods, cpu } => {
                self.set_limit("ResourceQuota", pods.map(|pods| json!({"hard": {"pods": pods.to_string()}}))).await?;
                let limit = |cpu: u32| json!({"limits": [{"type": "Container", "max": {"cpu": format!("{cpu}m")}}]});
                self.set_limit("LimitRange", cpu.map(limit)).await
            }
            UserAction::PutService(service) => {
                for way in self.place.gateway_objects(service) {
                    self.apply_until_live(way).await?;
                }
                self.apply_until_live(self.place.service(service)).await
            }
            UserAction::PutCluster(cluster) => self.put_cluster(cluster).await,
            UserAction::SetVersion { service, version } => self.set_version(service, *version).await,
            UserAction::Resize { service, group, size } => self.resize(service, *group, *size).await,
            UserAction::Scale { service, group, replicas } => self.scale(service, *group, *replicas).await,
            UserAction::EditServeConfig { service, edition } => {
                let change = json!({"spec": {"serveConfigV2": manifests::serve_config(*edition)}});
                self.merge("RayService", service, change).await
            }
            UserAction::Suspend { service, suspend } => {
                self.merge("RayService", service, json!({"spec": {"suspend": suspend}})).await
            }
            UserAction::SetPriority { service, priority } => {
                let class = priority.as_ref().map(|class| self.place.cluster_scoped_name(class));
                let labels = json!({"kueue.x-k8s.io/priority-class": class});
                self.merge("RayService", service, json!({"metadata": {"labels": labels}})).await
            }
            UserAction::RetryUpgrade { service } => {
                let notes = [ADMISSION_TIMEOUT_ANNOTATION, TIMED_OUT_ANNOTATION, UPGRADE_FAILED_ANNOTATION];
                let annotations: Map<String, Value> =
                    notes.map(|note| (note.to_owned(), Value::Null)).into_iter().collect();
                self.merge("RayService", service, json!({"metadata": {"annotations": annotations}})).await
            }
            UserAction::DeleteService { service, foreground } => {
                let policy = if *foreground { PropagationPolicy::Foreground } else { PropagationPolicy::Background };
                self.delete("RayService", service, policy).await
            }
            UserAction::ScaleCluster { cluster, group, replicas } => {
                self.scale_cluster(cluster, *group, *replicas).await
            }
            UserAction::DeleteCluster { cluster, orphan, foreground } => {
                let policy = match (orphan, foreground) {
                    (true, _) => PropagationPolicy::Orphan,
                    (false, true) => PropagationPolicy::Foreground,
                    (false, false) => PropagationPolicy::Background,
                };
                self.delete("RayCluster", cluster, policy).await
            }
            UserAction::DeleteOrphans { cluster } => self.delete_orphans(cluster).await,
            UserAction::Job(act) => self.execute_on_job(act).await,
            UserAction::Ray(act) => self.execute_on_ray(act).await,
            UserAction::DeleteWorkloads { job } => self.delete_workloads(job).await,
            UserAction::SetQuota { queue, quotas } => {
                let change = json!({"spec": {"resourceGroups": self.place.resource_groups(quotas)}});
                self.merge("ClusterQueue", &self.place.cluster_scoped_name(queue), change).await
            }
            UserAction::StopQueue { queue, policy } => {
                let change = json!({"spec": {"stopPolicy": policy}});
                self.merge("ClusterQueue", &self.place.cluster_scoped_name(queue), change).await
            }
            UserAction::StopLocalQueue { queue, policy } => {
                self.merge("LocalQueue", queue, json!({"spec": {"stopPolicy": policy}})).await
            }
        }
    }

    pub(super) fn api(&self, kind: &str) -> Api<DynamicObject> {
        let resource = api_resource(kind);
        match kind {
            "Namespace" | "ResourceFlavor" | "WorkloadPriorityClass" | "Cohort" | "ClusterQueue" | "GatewayClass" => {
                Api::all_with(self.client.clone(), &resource)
            }
            _ => Api::namespaced_with(self.client.clone(), &self.place.name, &resource),
        }
    }

    async fn apply(&self, object: Value) -> Result<DynamicObject, kube::Error> {
        let text = |pointer: &str| object.pointer(pointer).and_then(Value::as_str).unwrap_or_default();
        let (kind, name) = (text("/kind"), text("/metadata/name"));
        self.api(kind).patch(name, &PatchParams::apply(FIELD_MANAGER).force(), &Patch::Apply(&object)).await
    }

    /// Applies an object, again while an object of this name is terminating.
    pub(super) async fn apply_until_live(&self, object: Value) -> Result<(), kube::Error> {
        while self.apply(object.clone()).await?.metadata.deletion_timestamp.is_some() {
            Self::wait_for_deletion().await;
        }
        Ok(())
    }

    /// Waits before it is checked again whether a terminating object is gone.
    pub(super) async fn wait_for_deletion() {
        tokio::time::sleep(POLL_INTERVAL).await;
    }

    pub(super) async fn merge(&self, kind: &str, name: &str, change: Value) -> Result<(), kube::Error> {
        let params = PatchParams { field_manager: Some(FIELD_MANAGER.into()), ..PatchParams::default() };
        ignore_not_found(self.api(kind).patch(name, &params, &Patch::Merge(change)).await)
    }

    /// Replaces fields of an object. Has no effect unless all of them exist.
    async fn replace(&self, kind: &str, name: &str, changes: Vec<(String, Value)>) -> Result<(), kube::Error> {
        let operations =
            changes.into_iter().map(|(path, value)| json!({"op": "replace", "path": path, "value": value}));
        let patch = serde_json::from_value(Value::Array(operations.collect())).map_err(kube::Error::SerdeError)?;
        let params = PatchParams { field_manager: Some(FIELD_MANAGER.into()), ..PatchParams::default() };
        let patched = self.api(kind).patch(name, &params, &Patch::Json::<()>(patch)).await;
        match patched {
            // The group does not exist: this is the response to a patch of a missing path.
            Err(kube::Error::Api(status)) if status.code == 422 && status.message == PATCH_DOES_NOT_APPLY => Ok(()),
            patched => ignore_not_found(patched),
        }
    }

    async fn set_version(&self, service: &str, version: u32) -> Result<(), kube::Error> {
        let config = "/spec/rayClusterConfig";
        let image = "template/spec/containers/0/image";
        let Some(found) = self.api("RayService").get_opt(service).await? else { return Ok(()) };
        let groups = found.data.pointer(&format!("{config}/workerGroupSpecs")).and_then(Value::as_array);
        let groups = groups.map_or(0, Vec::len);
        let mut changes = vec![
            (format!("{config}/rayVersion"), manifests::ray_version(version).into()),
            (format!("{config}/headGroupSpec/{image}"), manifests::image(version).into()),
        ];
        changes.extend(
            (0..groups)
                .map(|group| (format!("{config}/workerGroupSpecs/{group}/{image}"), manifests::image(version).into())),
        );
        self.replace("RayService", service, changes).await
    }

    async fn resize(&self, service: &str, group: usize, size: ResourceAmounts) -> Result<(), kube::Error> {
        let container = "template/spec/containers/0/resources";
        let path = format!("/spec/rayClusterConfig/workerGroupSpecs/{group}/{container}");
        self.replace("RayService", service, vec![(path, manifests::resources(size))]).await
    }

    async fn scale(&self, service: &str, group: usize, replicas: u32) -> Result<(), kube::Error> {
        let path = format!("/spec/rayClusterConfig/workerGroupSpecs/{group}/replicas");
        self.replace("RayService", service, vec![(path, replicas.into())]).await?;
        let of_service = ListParams::default().labels(&format!("ray.io/originated-from-cr-name={service}"));
        for cluster in self.api("RayCluster").list(&of_service).await? {
            self.scale_cluster(&cluster.name_any(), group, replicas).await?;
        }
        Ok(())
    }

    async fn scale_cluster(&self, cluster: &str, group: usize, replicas: u32) -> Result<(), kube::Error> {
        let path = format!("/spec/workerGroupSpecs/{group}/replicas");
        self.replace("RayCluster", cluster, vec![(path, replicas.into())]).await
    }

    async fn put_cluster(&self, cluster: &Cluster) -> Result<(), kube::Error> {
        let mut object = self.place.cluster(cluster);
        if cluster.owned {
            object["metadata"]["ownerReferences"] = self.unrelated_owner().await?;
        }
        self.apply_until_live(object).await
    }

    async fn delete_orphans(&self, cluster: &str) -> Result<(), kube::Error> {
        let of_cluster = ListParams::default().labels(&format!("ray.io/cluster={cluster}"));
        for kind in ["Pod", "Service", "ControllerRevision"] {
            for object in self.api(kind).list(&of_cluster).await? {
                if object.owner_references().is_empty() {
                    self.delete(kind, &object.name_any(), PropagationPolicy::Background).await?;
                }
            }
        }
        Ok(())
    }

    /// Applies a limit of the namespace, or deletes it.
    async fn set_limit(&self, kind: &str, spec: Option<Value>) -> Result<(), kube::Error> {
        match spec {
            Some(spec) => {
                let object = json!({"apiVersion": "v1", "kind": kind, "metadata": {"name": LIMITS}, "spec": spec});
                self.apply(object).await.map(drop)
            }
            None => self.delete(kind, LIMITS, PropagationPolicy::Background).await,
        }
    }

    pub(super) async fn delete(&self, kind: &str, name: &str, policy: PropagationPolicy) -> Result<(), kube::Error> {
        let params = DeleteParams { propagation_policy: Some(policy), ..DeleteParams::default() };
        ignore_not_found(self.api(kind).delete(name, &params).await)
    }
}

fn ignore_not_found<T>(answer: Result<T, kube::Error>) -> Result<(), kube::Error> {
    match answer {
        Err(kube::Error::Api(status)) if status.code == 404 => Ok(()),
        answer => answer.map(drop),
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;
    use crate::api::ApiServer as Server;
    use crate::cluster::{Latencies, Nodes, PodFaultInjector, SimulatedCluster};
    use crate::observer::Observer;
    use crate::rng::SeededRandom;
    use crate::script::step::{Group, Pods, Service, StopPolicy};
    use crate::time::VirtualTime;
    use crate::transport::reliable_client;
    use crate::world::SharedWorld;

    /// Returns an API server with a service and no manager.
    async fn world() -> SharedWorld {
        let time = VirtualTime::start();
        let cluster =
            SimulatedCluster::new(Nodes::uniform(1), Latencies::fixed(SeededRandom::new(0)), PodFaultInjector::none());
        let world = SharedWorld::new(time, Server::new(time.now()), cluster, Observer::new());
        done(&world, &[UserAction::PutService(service())]).await;
        world
    }

    fn service() -> Service {
        let size = ResourceAmounts { cpu: 250, memory: 256, gpu: 0 };
        let group = Group { name: "small".into(), replicas: 1, hosts: 1, size };
        Service {
            name: "chat".into(),
            queue: None,
            priority: None,
            pods: Pods { version: 52, head: size, groups: vec![group] },
            edition: 0,
            deletion_delay: 0,
            suspend: false,
            recreate: false,
            admission_timeout: None,
            incremental: None,
        }
    }

    #[tokio::test(start_paused = true)]
    async fn limits_are_set_and_lifted() {
        let world = world().await;
        let limits = || {
            let count = |kind: &str| world.with(|world| world.api.list(kind).count());
            (count("ResourceQuota"), count("LimitRange"))
        };

        done(&world, &[UserAction::LimitPods { pods: Some(1), cpu: Some(200) }]).await;
        assert_eq!(limits(), (1, 1));
        done(&world, &[UserAction::LimitPods { pods: None, cpu: None }]).await;
        assert_eq!(limits(), (0, 0));
    }

    async fn done(world: &SharedWorld, acts: &[UserAction]) {
        let (client, place) = (reliable_client(world), ScriptNamespace::new("team"));
        let people = Executor::new(&client, &place);
        people.set_up(&Setup::default()).await.expect("the setup is accepted");
        for act in acts {
            people.execute(act).await.unwrap_or_else(|error| panic!("{act:?}: {error}"));
        }
    }

    fn spec(world: &SharedWorld) -> Value {
        world.with(|world| world.api.get("RayService", "team", "chat").expect("the service")["spec"].clone())
    }

    #[rstest]
    #[case::version(UserAction::SetVersion { service: "chat".into(), version: 53 })]
    #[case::size(UserAction::Resize { service: "chat".into(), group: 0, size: ResourceAmounts { cpu: 500, memory: 256, gpu: 1 } })]
    #[case::workers(UserAction::Scale { service: "chat".into(), group: 0, replicas: 3 })]
    #[case::serve_config(UserAction::EditServeConfig { service: "chat".into(), edition: 7 })]
    #[case::suspension(UserAction::Suspend { service: "chat".into(), suspend: true })]
    #[tokio::test(start_paused = true)]
    async fn a_patch_and_a_full_apply_yield_the_same_service(#[case] act: UserAction) {
        let (changed, applied) = (world().await, world().await);
        let mut wishes = crate::script::desired_state::DesiredState::default();
        wishes.apply(&UserAction::PutService(service()));
        wishes.apply(&act);

        done(&changed, &[act]).await;
        done(&applied, &[UserAction::PutService(wishes.services["chat"].clone())]).await;

        assert_eq!(spec(&changed), spec(&applied));
    }

    #[rstest]
    #[case::no_service(UserAction::SetVersion { service: "rank".into(), version: 53 })]
    #[case::no_service_to_delete(UserAction::DeleteService { service: "rank".into(), foreground: true })]
    #[case::no_group(UserAction::Resize { service: "chat".into(), group: 4, size: ResourceAmounts::default() })]
    #[case::no_group_to_scale(UserAction::Scale { service: "chat".into(), group: 4, replicas: 2 })]
    #[case::no_cluster(UserAction::ScaleCluster { cluster: "basket".into(), group: 0, replicas: 2 })]
    #[case::no_orphans(UserAction::DeleteOrphans { cluster: "basket".into() })]
    #[case::no_queue(UserAction::StopQueue { queue: "team-a".into(), policy: StopPolicy::Hold })]
    #[tokio::test(start_paused = true)]
    async fn an_action_on_a_missing_object_has_no_effect(#[case] act: UserAction) {
        let world = world().await;
        let before = spec(&world);

        done(&world, &[act]).await;

        assert_eq!(spec(&world), before);
    }
}
