//! Manifests that users apply, derived from the samples of the project.

use std::sync::LazyLock;

use serde_json::{Value, json};
use sluice_api::ray::admission_annotations::{ADMISSION_TIMEOUT_ANNOTATION, EXCEEDS_QUOTA_ANNOTATION};
use sluice_api::ray::routing_annotations::ROUTE_ANNOTATION;
use sluice_testkit::invariants::charges::CREDITS;

use super::setup::{Cohort, Flavor, Priority, Queue, Quota, ResourceAmounts, Setup};
use super::step::{Cluster, Group, Pods, Service};

/// Documents of the RayService sample and of the queue sample.
static SERVICE_SAMPLE: LazyLock<Vec<Value>> =
    LazyLock::new(|| parse_documents(include_str!("../../../config/samples/rayservice.yaml")));
static QUEUE_SAMPLE: LazyLock<Vec<Value>> =
    LazyLock::new(|| parse_documents(include_str!("../../../config/samples/queue.yaml")));
/// `maxReplicas` of every worker group.
pub(crate) const MAX_WORKERS: u32 = 10;
/// Name of the GatewayClass.
const GATEWAY_CLASS: &str = "ways";
/// Quota of credits: more than any script needs, so that other resources bind.
const CREDITS_QUOTA: &str = "10k";
/// Resources of every quota.
const RESOURCES: [&str; 3] = ["cpu", "memory", "nvidia.com/gpu"];

/// Namespace of a script. The names of its cluster-scoped objects begin with the name of the
/// namespace.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ScriptNamespace {
    /// Name of the namespace.
    pub(crate) name: String,
    /// Gives every ClusterQueue quota for credits.
    credits: bool,
}

impl ScriptNamespace {
    /// Returns the namespace with this name.
    pub(crate) fn new(namespace: impl Into<String>) -> Self {
        Self { name: namespace.into(), credits: false }
    }

    /// Returns the namespace of a script with this setup.
    pub(crate) fn of_setup(namespace: impl Into<String>, setup: &Setup) -> Self {
        Self { name: namespace.into(), credits: setup.credits }
    }

    /// Returns the prefixed name of a cluster-scoped object.
    pub(crate) fn cluster_scoped_name(&self, name: &str) -> String {
        format!("{}-{name}", self.name)
    }

    /// Returns the Namespace.
    pub(crate) fn namespace(&self) -> Value {
        json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": self.name}})
    }

    /// Returns a ResourceFlavor. The node label of a dedicated one is the architecture of all
    /// simulated nodes.
    pub(crate) fn flavor(&self, flavor: &Flavor) -> Value {
        let mut object = QUEUE_SAMPLE[0].clone();
        object["metadata"]["name"] = self.cluster_scoped_name(&flavor.name).into();
        if flavor.dedicated {
            object["spec"] = json!({
                "nodeLabels": {"kubernetes.io/arch": "amd64"},
                "tolerations": [{"key": "spot", "operator": "Exists"}],
            });
        }
        object
    }

    /// Returns a WorkloadPriorityClass.
    pub(crate) fn priority(&self, priority: &Priority) -> Value {
        json!({
            "apiVersion": "kueue.x-k8s.io/v1beta2",
            "kind": "WorkloadPriorityClass",
            "metadata": {"name": self.cluster_scoped_name(&priority.name)},
            "value": priority.value,
        })
    }

    /// Returns the GatewayClass.
    pub(crate) fn gateway_class(&self) -> Value {
        json!({
            "apiVersion": "gateway.networking.k8s.io/v1",
            "kind": "GatewayClass",
            "metadata": {"name": self.cluster_scoped_name(GATEWAY_CLASS)},
            "spec": {"controllerName": "sluice.dev/simulated"},
        })
    }

    /// Returns a Cohort.
    pub(crate) fn cohort(&self, cohort: &Cohort) -> Value {
        let mut spec = json!({});
        if !cohort.quotas.is_empty() {
            spec["resourceGroups"] = self.resource_groups(&cohort.quotas);
        }
        json!({
            "apiVersion": "kueue.x-k8s.io/v1beta2",
            "kind": "Cohort",
            "metadata": {"name": self.cluster_scoped_name(&cohort.name)},
            "spec": spec,
        })
    }

    /// Returns a ClusterQueue.
    pub(crate) fn cluster_queue(&self, queue: &Queue) -> Value {
        let mut object = QUEUE_SAMPLE[1].clone();
        object["metadata"]["name"] = self.cluster_scoped_name(&queue.name).into();
        let spec = &mut object["spec"];
        spec["resourceGroups"] = self.resource_groups(&queue.quotas);
        if let Some(cohort) = &queue.cohort {
            spec["cohortName"] = self.cluster_scoped_name(cohort).into();
        }
        if let Some(within) = queue.within_cluster_queue {
            spec["preemption"]["withinClusterQueue"] = json!(within);
        }
        if let Some(reclaim) = queue.reclaim {
            spec["preemption"]["reclaimWithinCohort"] = json!(reclaim);
        }
        if queue.strict_fifo {
            spec["queueingStrategy"] = "StrictFIFO".into();
        }
        object
    }

    /// Returns the LocalQueue of a ClusterQueue.
    pub(crate) fn local_queue(&self, queue: &Queue) -> Value {
        let mut object = QUEUE_SAMPLE[2].clone();
        object["metadata"] = json!({"name": queue.name, "namespace": self.name});
        object["spec"]["clusterQueue"] = self.cluster_scoped_name(&queue.name).into();
        object
    }

    /// Returns `spec.resourceGroups`.
    pub(crate) fn resource_groups(&self, quotas: &[Quota]) -> Value {
        let flavors = quotas.iter().map(|quota| {
            let limits = [("borrowingLimit", quota.borrowing), ("lendingLimit", quota.lending)];
            let resources = RESOURCES.into_iter().map(|resource| {
                let mut entry = json!({"name": resource, "nominalQuota": amount(resource, quota.nominal)});
                for (limit, size) in limits {
                    if let Some(size) = size {
                        entry[limit] = amount(resource, size).into();
                    }
                }
                entry
            });
            let credits = self.credits.then(|| json!({"name": CREDITS, "nominalQuota": CREDITS_QUOTA}));
            let resources: Vec<Value> = resources.chain(credits).collect();
            json!({"name": self.cluster_scoped_name(&quota.flavor), "resources": resources})
        });
        let covered: Vec<&str> = RESOURCES.into_iter().chain(self.credits.then_some(CREDITS)).collect();
        json!([{"coveredResources": covered, "flavors": flavors.collect::<Vec<_>>()}])
    }

    /// Returns a RayService.
    pub(crate) fn service(&self, service: &Service) -> Value {
        let mut object = SERVICE_SAMPLE[0].clone();
        object["metadata"] = self.metadata(&service.name, service.queue.as_deref(), service.priority.as_deref());
        if service.recreate {
            object["metadata"]["annotations"][EXCEEDS_QUOTA_ANNOTATION] = "Recreate".into();
        }
        if let Some(seconds) = service.admission_timeout {
            object["metadata"]["annotations"][ADMISSION_TIMEOUT_ANNOTATION] = format!("{seconds}s").into();
        }
        let spec = &mut object["spec"];
        spec["rayClusterDeletionDelaySeconds"] = service.deletion_delay.into();
        spec["serveConfigV2"] = serve_config(service.edition).into();
        spec["suspend"] = service.suspend.into();
        set_pods(&mut spec["rayClusterConfig"], &service.pods);
        if let Some(steps) = service.incremental {
            let replicas = service.pods.groups.first().map_or(0, |group| group.replicas);
            spec["serveConfigV2"] = serve_config_with_replicas(service.edition, replicas).into();
            spec["upgradeStrategy"] = json!({
                "type": "NewClusterWithIncrementalUpgrade",
                "clusterUpgradeOptions": {
                    "maxSurgePercent": steps.surge, "stepSizePercent": steps.step_size, "intervalSeconds": steps.interval,
                    "gatewayClassName": self.cluster_scoped_name(GATEWAY_CLASS),
                },
            });
            if steps.user_provided_route {
                object["metadata"]["annotations"][ROUTE_ANNOTATION] = service.name.as_str().into();
            }
        }
        object
    }

    /// Returns the user-provided Gateway and HTTPRoute of a service, if it uses them.
    pub(crate) fn gateway_objects(&self, service: &Service) -> Vec<Value> {
        if !service.incremental.is_some_and(|steps| steps.user_provided_route) {
            return Vec::new();
        }
        let object = |kind: &str, name: &str, spec: Value| {
            json!({
                "apiVersion": "gateway.networking.k8s.io/v1",
                "kind": kind,
                "metadata": {"name": name, "namespace": self.name},
                "spec": spec,
            })
        };
        let listener = json!({"name": "http", "protocol": "HTTP", "port": 80});
        let gateway = json!({"gatewayClassName": self.cluster_scoped_name(GATEWAY_CLASS), "listeners": [listener]});
        let backend = json!({"name": format!("{}-serve-svc", service.name), "port": 8000});
        let route = json!({"parentRefs": [{"name": "public"}], "rules": [{"backendRefs": [backend]}]});
        vec![object("Gateway", "public", gateway), object("HTTPRoute", &service.name, route)]
    }

    /// Returns a standalone RayCluster.
    pub(crate) fn cluster(&self, cluster: &Cluster) -> Value {
        let mut spec = SERVICE_SAMPLE[0].clone()["spec"]["rayClusterConfig"].take();
        set_pods(&mut spec, &cluster.pods);
        if cluster.recreate {
            spec["upgradeStrategy"] = json!({"type": "Recreate"});
        }
        json!({
            "apiVersion": "ray.io/v1",
            "kind": "RayCluster",
            "metadata": self.metadata(&cluster.name, cluster.queue.as_deref(), cluster.priority.as_deref()),
            "spec": spec,
        })
    }

    pub(super) fn metadata(&self, name: &str, queue: Option<&str>, priority: Option<&str>) -> Value {
        let mut labels = json!({});
        if let Some(queue) = queue {
            labels["kueue.x-k8s.io/queue-name"] = queue.into();
        }
        if let Some(priority) = priority {
            labels["kueue.x-k8s.io/priority-class"] = self.cluster_scoped_name(priority).into();
        }
        json!({"name": name, "namespace": self.name, "labels": labels})
    }
}

/// Returns a Serve configuration of one application with `replicas` replicas.
fn serve_config_with_replicas(edition: u32, replicas: u32) -> String {
    let deployment = json!({"name": deployment_name(edition), "num_replicas": replicas});
    json!({"applications": [{"name": "fruit", "import_path": "fruit:app", "deployments": [deployment]}]}).to_string()
}

/// Returns the Serve configuration of the sample. Editions differ by the name of a deployment, so
/// that the status shows which one is running.
pub(crate) fn serve_config(edition: u32) -> String {
    let text = SERVICE_SAMPLE[0].clone()["spec"]["serveConfigV2"].take();
    text.as_str().unwrap_or_default().replace("FruitMarket", &deployment_name(edition))
}

/// Returns the name of the deployment of an edition.
pub(crate) fn deployment_name(edition: u32) -> String {
    format!("FruitMarket{edition}")
}

/// Returns `spec.rayVersion` of a Ray minor version.
pub(crate) fn ray_version(version: u32) -> String {
    format!("2.{version}.0")
}

/// Returns the image of a Ray minor version.
pub(crate) fn image(version: u32) -> String {
    format!("rayproject/ray:{}", ray_version(version))
}

/// Returns the requests and equal limits of a container.
pub(crate) fn resources(size: ResourceAmounts) -> Value {
    let needed = RESOURCES.into_iter().filter(|resource| *resource != "nvidia.com/gpu" || size.gpu > 0);
    let amounts: serde_json::Map<String, Value> =
        needed.map(|resource| (resource.to_owned(), amount(resource, size).into())).collect();
    json!({"requests": amounts, "limits": amounts})
}

fn set_pods(config: &mut Value, pods: &Pods) {
    config["rayVersion"] = ray_version(pods.version).into();
    set_container(&mut config["headGroupSpec"], pods.version, pods.head);
    let like = config["workerGroupSpecs"][0].take();
    config["workerGroupSpecs"] = pods.groups.iter().map(|group| worker_group(&like, pods.version, group)).collect();
}

fn worker_group(like: &Value, version: u32, group: &Group) -> Value {
    let mut object = like.clone();
    object["groupName"] = group.name.clone().into();
    object["replicas"] = group.replicas.into();
    object["minReplicas"] = 0.into();
    object["maxReplicas"] = MAX_WORKERS.into();
    object["numOfHosts"] = group.hosts.into();
    set_container(&mut object, version, group.size);
    object
}

fn set_container(group: &mut Value, version: u32, size: ResourceAmounts) {
    let container = &mut group["template"]["spec"]["containers"][0];
    container["image"] = image(version).into();
    container["resources"] = resources(size);
}

fn amount(resource: &str, size: ResourceAmounts) -> String {
    match resource {
        "cpu" => format!("{}m", size.cpu),
        "memory" => format!("{}Mi", size.memory),
        _ => size.gpu.to_string(),
    }
}

/// Parses the documents of an embedded YAML file.
fn parse_documents(text: &str) -> Vec<Value> {
    text.split("\n---").map(|part| serde_saphyr::from_str(part).expect("samples are YAML")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_service_is_the_sample_with_the_fields_of_the_script() {
        let size = ResourceAmounts { cpu: 250, memory: 512, gpu: 0 };
        let group = Group { name: "small".into(), replicas: 2, hosts: 1, size: ResourceAmounts { gpu: 1, ..size } };
        let service = Service {
            name: "chat".into(),
            queue: Some("team".into()),
            priority: Some("high".into()),
            pods: Pods { version: 53, head: size, groups: vec![group] },
            edition: 4,
            deletion_delay: 1,
            suspend: false,
            recreate: true,
            admission_timeout: Some(20),
            incremental: None,
        };

        let object = ScriptNamespace::new("s7").service(&service);

        let labels = json!({"kueue.x-k8s.io/queue-name": "team", "kueue.x-k8s.io/priority-class": "s7-high"});
        let annotations = json!({
            "sluice.dev/when-upgrade-exceeds-quota": "Recreate",
            "sluice.dev/upgrade-admission-timeout": "20s",
        });
        let metadata = json!({"name": "chat", "namespace": "s7", "labels": labels, "annotations": annotations});
        assert_eq!(object["metadata"], metadata);
        assert_eq!(object["spec"]["rayClusterConfig"]["rayVersion"], "2.53.0");
        assert!(object["spec"]["serveConfigV2"].as_str().is_some_and(|text| text.contains("FruitMarket4")));
        let workers = &object["spec"]["rayClusterConfig"]["workerGroupSpecs"][0];
        let container = &workers["template"]["spec"]["containers"][0];
        assert_eq!(container["image"], "rayproject/ray:2.53.0");
        assert_eq!(
            container["resources"]["requests"],
            json!({"cpu": "250m", "memory": "512Mi", "nvidia.com/gpu": "1"})
        );
        assert_eq!((&workers["replicas"], &workers["numOfHosts"]), (&json!(2), &json!(1)));
    }

    #[test]
    fn references_to_a_queue_use_the_prefixed_name() {
        let size = ResourceAmounts { cpu: 1000, memory: 2048, gpu: 2 };
        let quota = Quota { flavor: "spot".into(), nominal: size, borrowing: Some(size), lending: None };
        let queue = Queue {
            name: "team".into(),
            cohort: Some("all".into()),
            quotas: vec![quota],
            within_cluster_queue: None,
            reclaim: None,
            strict_fifo: false,
        };

        let place = ScriptNamespace::new("s7");

        let spec = place.cluster_queue(&queue)["spec"].take();
        assert_eq!(spec["cohortName"], "s7-all");
        let flavor = &spec["resourceGroups"][0]["flavors"][0];
        assert_eq!(flavor["name"], "s7-spot");
        assert_eq!(flavor["resources"][0], json!({"name": "cpu", "nominalQuota": "1000m", "borrowingLimit": "1000m"}));
        assert_eq!(place.local_queue(&queue)["spec"]["clusterQueue"], "s7-team");
    }
}
