//! Executes user actions through any client. Complete objects are applied with server-side apply,
//! as GitOps does; single changes are patches, as those of `kubectl patch` and `kubectl scale`.

use std::time::Duration;

use kube::api::{DeleteParams, DynamicObject, ListParams, Patch, PatchParams, PropagationPolicy};
use kube::core::discovery::ApiResource;
use kube::{Api, Client, ResourceExt};
use serde_json::{Map, Value, json};
use sluice_api::ray::admission_annotations::{ADMISSION_TIMEOUT_ANNOTATION, TIMED_OUT_ANNOTATION};
use sluice_api::ray::incremental_annotations::UPGRADE_FAILED_ANNOTATION;

use super::manifests::{self, Place};
use super::scene::{Scene, Size};
use super::step::Act;

/// Field manager of the users.
const PEOPLE: &str = "people";
/// Poll interval while an object of the same name is terminating.
const PATIENCE: Duration = Duration::from_millis(200);

/// Message of the API server for a JSON patch with a path that does not exist.
const PATCH_DOES_NOT_APPLY: &str = "the server rejected our request due to an error in our request";

/// Executes actions in a namespace.
pub(crate) struct Performer<'a> {
    client: &'a Client,
    place: &'a Place,
}

/// Returns the API resource of a kind.
pub(crate) fn resource(kind: &str) -> ApiResource {
    let (group, version) = match kind {
        "Namespace" | "Pod" | "Service" => ("", "v1"),
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

impl<'a> Performer<'a> {
    /// Returns an executor for this client and namespace.
    pub(crate) fn new(client: &'a Client, place: &'a Place) -> Self {
        Self { client, place }
    }

    /// Creates the objects of a setup.
    ///
    /// # Errors
    /// When the API server rejects an object.
    pub(crate) async fn set_up(&self, scene: &Scene) -> Result<(), kube::Error> {
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
    /// When the API server rejects a request, except if the object does not exist.
    pub(crate) async fn perform(&self, act: &Act) -> Result<(), kube::Error> {
        match act {
            Act::PutService(service) => {
                for way in self.place.ways(service) {
                    self.make(way).await?;
                }
                self.make(self.place.service(service)).await
            }
            Act::PutCluster(cluster) => self.make(self.place.cluster(cluster)).await,
            Act::SetVersion { service, version } => self.set_version(service, *version).await,
            Act::Resize { service, group, size } => self.resize(service, *group, *size).await,
            Act::Scale { service, group, replicas } => self.scale(service, *group, *replicas).await,
            Act::EditServeConfig { service, edition } => {
                let change = json!({"spec": {"serveConfigV2": manifests::serve_config(*edition)}});
                self.merge("RayService", service, change).await
            }
            Act::Suspend { service, suspend } => {
                self.merge("RayService", service, json!({"spec": {"suspend": suspend}})).await
            }
            Act::SetPriority { service, priority } => {
                let class = priority.as_ref().map(|class| self.place.global(class));
                let labels = json!({"kueue.x-k8s.io/priority-class": class});
                self.merge("RayService", service, json!({"metadata": {"labels": labels}})).await
            }
            Act::TryAgain { service } => {
                let notes = [ADMISSION_TIMEOUT_ANNOTATION, TIMED_OUT_ANNOTATION, UPGRADE_FAILED_ANNOTATION];
                let annotations: Map<String, Value> =
                    notes.map(|note| (note.to_owned(), Value::Null)).into_iter().collect();
                self.merge("RayService", service, json!({"metadata": {"annotations": annotations}})).await
            }
            Act::DeleteService { service, foreground } => self.delete("RayService", service, *foreground).await,
            Act::ScaleCluster { cluster, group, replicas } => self.scale_cluster(cluster, *group, *replicas).await,
            Act::DeleteCluster { cluster } => self.delete("RayCluster", cluster, false).await,
            Act::SetQuota { queue, quotas } => {
                let change = json!({"spec": {"resourceGroups": self.place.quotas(quotas)}});
                self.merge("ClusterQueue", &self.place.global(queue), change).await
            }
            Act::StopQueue { queue, policy } => {
                let change = json!({"spec": {"stopPolicy": policy}});
                self.merge("ClusterQueue", &self.place.global(queue), change).await
            }
            Act::StopLocalQueue { queue, policy } => {
                self.merge("LocalQueue", queue, json!({"spec": {"stopPolicy": policy}})).await
            }
        }
    }

    fn api(&self, kind: &str) -> Api<DynamicObject> {
        let resource = resource(kind);
        match kind {
            "Namespace" | "ResourceFlavor" | "WorkloadPriorityClass" | "Cohort" | "ClusterQueue" | "GatewayClass" => {
                Api::all_with(self.client.clone(), &resource)
            }
            _ => Api::namespaced_with(self.client.clone(), &self.place.namespace, &resource),
        }
    }

    async fn apply(&self, object: Value) -> Result<DynamicObject, kube::Error> {
        let text = |pointer: &str| object.pointer(pointer).and_then(Value::as_str).unwrap_or_default();
        let (kind, name) = (text("/kind"), text("/metadata/name"));
        self.api(kind).patch(name, &PatchParams::apply(PEOPLE).force(), &Patch::Apply(&object)).await
    }

    /// Applies an object, again while an object of this name is terminating.
    async fn make(&self, object: Value) -> Result<(), kube::Error> {
        while self.apply(object.clone()).await?.metadata.deletion_timestamp.is_some() {
            tokio::time::sleep(PATIENCE).await;
        }
        Ok(())
    }

    async fn merge(&self, kind: &str, name: &str, change: Value) -> Result<(), kube::Error> {
        let params = PatchParams { field_manager: Some(PEOPLE.into()), ..PatchParams::default() };
        if_there(self.api(kind).patch(name, &params, &Patch::Merge(change)).await)
    }

    /// Replaces fields of an object. Has no effect unless all of them exist.
    async fn replace(&self, kind: &str, name: &str, changes: Vec<(String, Value)>) -> Result<(), kube::Error> {
        let operations =
            changes.into_iter().map(|(path, value)| json!({"op": "replace", "path": path, "value": value}));
        let patch = serde_json::from_value(Value::Array(operations.collect())).map_err(kube::Error::SerdeError)?;
        let params = PatchParams { field_manager: Some(PEOPLE.into()), ..PatchParams::default() };
        let patched = self.api(kind).patch(name, &params, &Patch::Json::<()>(patch)).await;
        match patched {
            // The group does not exist: this is the response to a patch of a missing path.
            Err(kube::Error::Api(status)) if status.code == 422 && status.message == PATCH_DOES_NOT_APPLY => Ok(()),
            patched => if_there(patched),
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

    async fn resize(&self, service: &str, group: usize, size: Size) -> Result<(), kube::Error> {
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

    async fn delete(&self, kind: &str, name: &str, foreground: bool) -> Result<(), kube::Error> {
        let policy = if foreground { PropagationPolicy::Foreground } else { PropagationPolicy::Background };
        let params = DeleteParams { propagation_policy: Some(policy), ..DeleteParams::default() };
        if_there(self.api(kind).delete(name, &params).await)
    }
}

fn if_there<T>(answer: Result<T, kube::Error>) -> Result<(), kube::Error> {
    match answer {
        Err(kube::Error::Api(status)) if status.code == 404 => Ok(()),
        answer => answer.map(drop),
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;
    use crate::api::Api as Server;
    use crate::chance::Chance;
    use crate::cluster::{Cluster, Fates, Nodes, Pace};
    use crate::observer::Observer;
    use crate::script::step::{Group, Pods, Service, StopPolicy};
    use crate::time::Time;
    use crate::transport::reliable;
    use crate::world::Shared;

    /// Returns an API server with a service and no manager.
    async fn world() -> Shared {
        let time = Time::start();
        let cluster = Cluster::new(Nodes::alike(1), Pace::steady(Chance::new(0)), Fates::kind());
        let world = Shared::new(time, Server::new(time.now()), cluster, Observer::new());
        done(&world, &[Act::PutService(service())]).await;
        world
    }

    fn service() -> Service {
        let size = Size { cpu: 250, memory: 256, gpu: 0 };
        let group = Group { name: "small".into(), replicas: 1, hosts: 1, size };
        Service {
            name: "chat".into(),
            queue: None,
            priority: None,
            pods: Pods { version: 52, head: size, groups: vec![group] },
            edition: 0,
            linger: 0,
            suspend: false,
            recreate: false,
            patience: None,
            steps: None,
        }
    }

    async fn done(world: &Shared, acts: &[Act]) {
        let (client, place) = (reliable(world), Place::new("team"));
        let people = Performer::new(&client, &place);
        people.set_up(&Scene::default()).await.expect("the setup is accepted");
        for act in acts {
            people.perform(act).await.unwrap_or_else(|error| panic!("{act:?}: {error}"));
        }
    }

    fn spec(world: &Shared) -> Value {
        world.with(|world| world.api.get("RayService", "team", "chat").expect("the service")["spec"].clone())
    }

    #[rstest]
    #[case::version(Act::SetVersion { service: "chat".into(), version: 53 })]
    #[case::size(Act::Resize { service: "chat".into(), group: 0, size: Size { cpu: 500, memory: 256, gpu: 1 } })]
    #[case::workers(Act::Scale { service: "chat".into(), group: 0, replicas: 3 })]
    #[case::serve_config(Act::EditServeConfig { service: "chat".into(), edition: 7 })]
    #[case::suspension(Act::Suspend { service: "chat".into(), suspend: true })]
    #[tokio::test(start_paused = true)]
    async fn a_patch_and_a_full_apply_yield_the_same_service(#[case] act: Act) {
        let (changed, applied) = (world().await, world().await);
        let mut wishes = crate::script::wishes::Wishes::default();
        wishes.heed(&Act::PutService(service()));
        wishes.heed(&act);

        done(&changed, &[act]).await;
        done(&applied, &[Act::PutService(wishes.services["chat"].clone())]).await;

        assert_eq!(spec(&changed), spec(&applied));
    }

    #[rstest]
    #[case::no_service(Act::SetVersion { service: "rank".into(), version: 53 })]
    #[case::no_service_to_delete(Act::DeleteService { service: "rank".into(), foreground: true })]
    #[case::no_group(Act::Resize { service: "chat".into(), group: 4, size: Size::default() })]
    #[case::no_group_to_scale(Act::Scale { service: "chat".into(), group: 4, replicas: 2 })]
    #[case::no_cluster(Act::ScaleCluster { cluster: "basket".into(), group: 0, replicas: 2 })]
    #[case::no_queue(Act::StopQueue { queue: "team-a".into(), policy: StopPolicy::Hold })]
    #[tokio::test(start_paused = true)]
    async fn an_action_on_a_missing_object_has_no_effect(#[case] act: Act) {
        let world = world().await;
        let before = spec(&world);

        done(&world, &[act]).await;

        assert_eq!(spec(&world), before);
    }
}
