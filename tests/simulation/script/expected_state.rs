//! Expected final state of a script, once no quota and no stopped queue blocks anything.

use std::collections::BTreeMap;

use serde_json::Value;
use sluice_api::quantity::{Amount, Quantity};
use sluice_testkit::invariants::charges::CREDITS;

use super::desired_state::DesiredState;
use super::manifests::{ScriptNamespace, deployment_name, image, ray_version, resources};
use super::step::{Cluster, Pods, Script, Service};

/// Returns the deviations from the desired state after a script that ends with [`Script::unblock`],
/// one sentence each. `objects` must have all RayServices, RayClusters, Jobs, Workloads, Pods and
/// Services of the namespace.
pub(crate) fn deviations<'a>(
    script: &Script,
    place: &ScriptNamespace,
    objects: impl IntoIterator<Item = &'a Value>,
) -> Vec<String> {
    let wishes = DesiredState::after_script(script);
    let own = |object: &&Value| text(object, "/metadata/namespace") == place.name;
    let found = ActualState { objects: objects.into_iter().filter(own).collect() };
    let mut unmet = Vec::new();
    for service in wishes.services.values() {
        let result = found.check_service(service);
        unmet.extend(result.err().map(|why| format!("RayService {}: {why}", service.name)));
    }
    for cluster in wishes.clusters.values() {
        unmet.extend(found.check_cluster(cluster).err().map(|why| format!("RayCluster {}: {why}", cluster.name)));
    }
    for job in wishes.jobs.keys() {
        unmet.extend(found.check_job(job).err().map(|why| format!("Job {job}: {why}")));
    }
    unmet.extend(found.leftovers(&wishes));
    unmet
}

struct ActualState<'a> {
    objects: Vec<&'a Value>,
}

impl<'a> ActualState<'a> {
    fn of_kind(&self, kind: &'static str) -> impl Iterator<Item = &'a Value> {
        self.objects.iter().copied().filter(move |object| text(object, "/kind") == kind)
    }

    fn named(&self, kind: &'static str, name: &str) -> Result<&'a Value, String> {
        let named = self.of_kind(kind).find(|object| text(object, "/metadata/name") == name);
        named.ok_or_else(|| format!("{kind} {name} does not exist"))
    }

    fn owned_by(&self, kind: &'static str, owner: &Value) -> Vec<&'a Value> {
        let uid = text(owner, "/metadata/uid");
        self.of_kind(kind).filter(|object| owners(object).any(|owner| text(owner, "/uid") == uid)).collect()
    }

    /// Returns the unfinished Workloads of a job.
    fn slices(&self, job: &Value) -> Vec<&'a Value> {
        self.owned_by("Workload", job).into_iter().filter(|slice| !is_true(slice, "Finished")).collect()
    }

    /// Checks that a service serves its last spec from one cluster, with one slice and no pending
    /// cluster. The API server may have refused to move it, so its own queue and `suspend` count.
    fn check_service(&self, service: &Service) -> Result<(), String> {
        let found = self.named("RayService", &service.name)?;
        check_observed(found)?;
        if is_suspended(found) {
            return self.check_suspended(found);
        }
        if self.has_moved(found) {
            return Ok(());
        }
        ensure(is_true(found, "Ready"), || "is not ready".into())?;
        ensure(!is_true(found, "UpgradeInProgress"), || "an upgrade is in progress".into())?;
        let pending = text(found, "/status/pendingServiceStatus/rayClusterName");
        ensure(pending.is_empty(), || format!("RayCluster {pending} is pending"))?;
        let active = text(found, "/status/activeServiceStatus/rayClusterName");
        let cluster = self.named("RayCluster", active)?;
        let all = names(&self.owned_by("RayCluster", found));
        ensure(all == [active], || format!("serves from {active}, and has clusters {all:?}"))?;
        let pods = self.check_pods(cluster, &service.pods)?;
        self.check_quota(found, queue_of(found), &pods)?;
        let serve_service = self.named("Service", &format!("{}-serve-svc", service.name))?;
        let selected = text(serve_service, "/spec/selector/ray.io~1cluster");
        ensure(selected == active, || format!("serves from {active}, and its Service selects {selected:?}"))?;
        let applications = found.pointer("/status/activeServiceStatus/applicationStatuses");
        let edition = deployment_name(service.edition);
        let running = applications.and_then(Value::as_object).into_iter().flatten().any(|(_, application)| {
            let status = application.pointer(&format!("/serveDeploymentStatuses/{edition}/status"));
            status.is_some_and(|status| status == "HEALTHY")
        });
        ensure(running, || format!("does not serve edition {}: {applications:?}", service.edition))
    }

    /// Checks that a suspended service has no cluster, holds no quota, and reports that it is
    /// suspended.
    fn check_suspended(&self, found: &Value) -> Result<(), String> {
        ensure(is_true(found, "Suspended"), || "is not suspended".into())?;
        let clusters = names(&self.owned_by("RayCluster", found));
        ensure(clusters.is_empty(), || format!("is suspended, and has clusters {clusters:?}"))?;
        let slices = names(&self.slices(found));
        ensure(slices.is_empty(), || format!("is suspended, and has Workloads {slices:?}"))
    }

    /// Checks that a standalone cluster is complete, on quota of its queue. The API server may have
    /// refused to move it, so its own queue counts; without one, its user decides whether it runs.
    fn check_cluster(&self, cluster: &Cluster) -> Result<(), String> {
        let found = self.named("RayCluster", &cluster.name)?;
        if self.has_moved(found) {
            return Ok(());
        }
        if queue_of(found).is_none() && is_suspended(found) {
            check_observed(found)?;
            let pods: Vec<_> = self.pods_of_cluster(&cluster.name).collect();
            ensure(pods.is_empty(), || format!("is suspended, and has pods {:?}", names(&pods)))?;
            return self.check_quota(found, None, &[]);
        }
        let pods = self.check_pods(found, &cluster.pods)?;
        if cluster.recreate {
            let other = pods.iter().find(|pod| !matches_spec(pod, &cluster.pods));
            ensure(other.is_none(), || format!("{} has pods of an earlier spec", cluster.name))?;
        }
        self.check_quota(found, queue_of(found), &pods)
    }

    /// Reports whether a job moved to another queue while it ran, which the admission policies forbid. It
    /// keeps the quota that it has, and gets no more until it stops.
    fn has_moved(&self, job: &Value) -> bool {
        let queue = queue_of(job);
        let is_held = |slice: &&Value| is_true(slice, "QuotaReserved") && queue != Some(text(slice, "/spec/queueName"));
        queue.is_some() && self.slices(job).iter().any(is_held)
    }

    /// Checks that a Job is finished, or runs all its pods on the quota of one slice. The API server may
    /// have refused changes, so the spec of the Job counts.
    fn check_job(&self, name: &str) -> Result<(), String> {
        let found = self.named("Job", name)?;
        let terminating = found.pointer("/metadata/deletionTimestamp").is_some();
        ensure(!terminating, || "is terminating".into())?;
        let slices = self.slices(found);
        if is_true(found, "Complete") || is_true(found, "Failed") {
            return ensure(slices.is_empty(), || format!("is finished, and has Workloads {:?}", names(&slices)));
        }
        let number = |pointer: &str| found.pointer(pointer).and_then(Value::as_u64).unwrap_or(0);
        let parallelism = number("/spec/parallelism");
        let is_suspended = is_suspended(found);
        let queue = queue_of(found).unwrap_or_default();
        if is_suspended && is_true(found, "SuccessCriteriaMet") && (queue.is_empty() || parallelism == 0) {
            // Its owner has suspended it, and it can't be complete without a start time.
            return ensure(slices.is_empty(), || format!("has succeeded, and has Workloads {:?}", names(&slices)));
        }
        let is_active = |pod: &&&Value| !matches!(text(pod, "/status/phase"), "Succeeded" | "Failed");
        let owned = self.owned_by("Pod", found);
        let pods: Vec<&Value> = owned.iter().filter(is_active).copied().collect();
        let remaining = found.pointer("/spec/completions").and_then(Value::as_u64);
        // The Job controller lets the pods of a work queue run once one of them has succeeded, whatever
        // the parallelism.
        let is_drained = remaining.is_none() && number("/status/succeeded") > 0;
        if queue.is_empty() && is_suspended || !queue.is_empty() && parallelism == 0 && !is_drained {
            ensure(pods.is_empty(), || format!("is not to run, and has pods {:?}", names(&pods)))?;
            return ensure(slices.is_empty(), || format!("is not to run, and has Workloads {:?}", names(&slices)));
        }
        ensure(!is_suspended, || "is suspended".into())?;
        let remaining =
            remaining.map_or(u64::MAX, |completions| completions.saturating_sub(number("/status/succeeded")));
        let wanted = if is_drained { pods.len() as u64 } else { parallelism.min(remaining) };
        ensure(pods.len() as u64 == wanted, || format!("wants {wanted} pods, and has {:?}", names(&pods)))?;
        let waiting: Vec<&Value> = pods.iter().filter(|pod| !is_true(pod, "Ready")).copied().collect();
        ensure(waiting.is_empty(), || format!("has pods that are not ready: {:?}", names(&waiting)))?;
        // A Job that was admitted keeps its quota when its queue label changes, as in Kueue.
        let held = slices.first().map_or(queue, |slice| text(slice, "/spec/queueName"));
        if queue.is_empty() { Ok(()) } else { self.check_quota(found, Some(held), &pods) }
    }

    /// Checks that a cluster is unsuspended, as desired, and complete. Returns its pods.
    fn check_pods(&self, cluster: &Value, wanted: &Pods) -> Result<Vec<&'a Value>, String> {
        let name = text(cluster, "/metadata/name");
        check_observed(cluster)?;
        ensure(!is_suspended(cluster), || format!("{name} is suspended"))?;
        check_spec(cluster, wanted).map_err(|what| format!("{name} differs from the desired spec in {what}"))?;
        let pods: Vec<_> = self.pods_of_cluster(name).collect();
        // Replicas set by an autoscaler while the cluster was replaced may be lost, so the spec of
        // the cluster counts.
        let groups = cluster.pointer("/spec/workerGroupSpecs").and_then(Value::as_array);
        let counts = groups.into_iter().flatten().map(|group| {
            let number = |field: &str, default| group[field].as_u64().unwrap_or(default);
            number("replicas", 0) * number("numOfHosts", 1)
        });
        let count = 1 + counts.sum::<u64>();
        ensure(pods.len() as u64 == count, || format!("{name} has {} pods of {count}", pods.len()))?;
        let unready: Vec<_> = pods.iter().copied().filter(|pod| !is_true(pod, "Ready")).collect();
        ensure(unready.is_empty(), || format!("{:?} are not ready", names(&unready)))?;
        Ok(pods)
    }

    fn pods_of_cluster(&self, name: &str) -> impl Iterator<Item = &'a Value> {
        self.of_kind("Pod").filter(move |pod| text(pod, "/metadata/labels/ray.io~1cluster") == name)
    }

    /// Checks that exactly one Workload of the job is admitted and covers exactly these pods.
    fn check_quota(&self, job: &Value, queue: Option<&str>, pods: &[&Value]) -> Result<(), String> {
        let slices = self.slices(job);
        let Some(queue) = queue else {
            // The pods that started in a queue use its quota until they end.
            let is_held = |slice: &&Value| slice.pointer("/metadata/deletionTimestamp").is_some();
            let are_of_queue = pods.iter().any(|pod| pod.pointer("/metadata/labels/kueue.x-k8s.io~1podset").is_some());
            return ensure(slices.iter().all(|slice| is_held(slice) && are_of_queue), || {
                format!("has no queue, and has Workloads {:?}", names(&slices))
            });
        };
        let [slice] = slices[..] else { return Err(format!("has Workloads {:?}, expected one", names(&slices))) };
        let name = text(slice, "/metadata/name");
        ensure(text(slice, "/spec/queueName") == queue, || format!("{name} is not in LocalQueue {queue}"))?;
        ensure(is_true(slice, "Admitted"), || format!("{name} is not admitted"))?;
        ensure(!is_true(slice, "Evicted"), || format!("{name} is evicted"))?;
        let sets = slice.pointer("/status/admission/podSetAssignments").and_then(Value::as_array);
        let sets: Vec<_> = sets.into_iter().flatten().collect();
        let covered: u64 = sets.iter().filter_map(|set| set["count"].as_u64()).sum();
        ensure(covered == pods.len() as u64, || format!("{name} covers {covered} pods of {}", pods.len()))?;
        let mut usage = sum(sets.iter().filter_map(|set| set["resourceUsage"].as_object()));
        // No pod requests credits; how many it costs is checked with each change.
        usage.remove(CREDITS);
        let requested = sum(pods.iter().filter_map(|pod| requests(pod)));
        ensure(usage == requested, || format!("{name} uses {usage:?}, and the pods request {requested:?}"))
    }

    /// Returns services and clusters that should not exist, and objects whose owner was deleted.
    fn leftovers(&self, wishes: &DesiredState) -> Vec<String> {
        let is_wanted = |object: &Value| {
            let name = text(object, "/metadata/name");
            let of_service = text(object, "/metadata/labels/ray.io~1originated-from-cr-name");
            match text(object, "/kind") {
                "Job" => wishes.jobs.contains_key(name),
                "RayService" => wishes.services.contains_key(name),
                "RayCluster" if of_service.is_empty() => wishes.clusters.contains_key(name),
                "RayCluster" => wishes.services.contains_key(of_service),
                _ => true,
            }
        };
        let uids: Vec<&str> = self.objects.iter().map(|object| text(object, "/metadata/uid")).collect();
        // A LocalQueue is not among the objects, and stays.
        let is_job = |owner: &&Value| text(owner, "/kind") != "LocalQueue";
        // A terminating Workload is kept by its finalizer while pods use its quota.
        let is_held = |object: &Value| {
            text(object, "/kind") == "Workload" && object.pointer("/metadata/deletionTimestamp").is_some()
        };
        let is_orphan = |object: &Value| {
            !is_held(object) && owners(object).filter(is_job).any(|owner| !uids.contains(&text(owner, "/uid")))
        };
        let describe = |object: &&Value, what: &str| {
            format!("{} {} {what}", text(object, "/kind"), text(object, "/metadata/name"))
        };
        let unwanted =
            self.objects.iter().filter(|object| !is_wanted(object)).map(|object| describe(object, "should not exist"));
        let orphans = self.objects.iter().filter(|object| is_orphan(object));
        unwanted.chain(orphans.map(|object| describe(object, "has an owner that was deleted"))).collect()
    }
}

/// Checks that a cluster has the desired spec, except for the number of workers.
fn check_spec(cluster: &Value, wanted: &Pods) -> Result<(), String> {
    let spec = &cluster["spec"];
    let version = ray_version(wanted.version);
    ensure(text(spec, "/rayVersion") == version, || format!("rayVersion, which is not {version}"))?;
    let is_like = |group: &Value, size| {
        let container = &group["template"]["spec"]["containers"][0];
        container["image"] == image(wanted.version).as_str() && container["resources"] == resources(size)
    };
    ensure(is_like(&spec["headGroupSpec"], wanted.head), || "the head".into())?;
    let groups = spec["workerGroupSpecs"].as_array().map(Vec::as_slice).unwrap_or_default();
    ensure(groups.len() == wanted.groups.len(), || "its worker groups".into())?;
    for (group, wanted) in groups.iter().zip(&wanted.groups) {
        let fits = group["groupName"] == wanted.name.as_str()
            && group["numOfHosts"] == wanted.hosts
            && is_like(group, wanted.size);
        ensure(fits, || format!("group {}", wanted.name))?;
    }
    Ok(())
}

/// True if a pod matches the desired spec.
fn matches_spec(pod: &Value, wanted: &Pods) -> bool {
    let group = text(pod, "/metadata/labels/ray.io~1group");
    let worker = wanted.groups.iter().find(|wanted| wanted.name == group).map(|group| group.size);
    let size = if group == "headgroup" { Some(wanted.head) } else { worker };
    let container = &pod["spec"]["containers"][0];
    container["image"] == image(wanted.version).as_str()
        && size.is_some_and(|size| container["resources"]["requests"] == resources(size)["requests"])
}

fn requests(pod: &Value) -> Option<serde_json::Map<String, Value>> {
    let spec = serde_json::from_value(pod["spec"].clone()).ok()?;
    let requests = sluice_queue::requests::pod_requests(&spec).ok()?;
    let amounts = ["cpu", "memory", "nvidia.com/gpu"].into_iter();
    Some(amounts.map(|name| (name.to_owned(), requests.get(name).get().into())).collect())
}

/// Sums amounts by resource, in the units of [`Amount`].
fn sum(all: impl Iterator<Item = impl std::borrow::Borrow<serde_json::Map<String, Value>>>) -> BTreeMap<String, i64> {
    let mut sum = BTreeMap::new();
    for amounts in all {
        for (resource, amount) in amounts.borrow() {
            let amount = match amount {
                Value::String(text) => {
                    Amount::from_quantity(resource, &Quantity(text.clone())).map_or(i64::MAX, Amount::get)
                }
                other => other.as_i64().unwrap_or(i64::MAX),
            };
            *sum.entry(resource.clone()).or_insert(0_i64) += amount;
        }
    }
    sum.retain(|_, amount| *amount != 0);
    sum
}

fn ensure(holds: bool, otherwise: impl FnOnce() -> String) -> Result<(), String> {
    if holds { Ok(()) } else { Err(otherwise()) }
}

/// Checks that the last change of an object was observed and that it is not terminating.
fn check_observed(object: &Value) -> Result<(), String> {
    ensure(object.pointer("/metadata/deletionTimestamp").is_none(), || "is terminating".into())?;
    let seen = object.pointer("/status/observedGeneration") == object.pointer("/metadata/generation");
    ensure(seen, || "its last change was not observed".into())
}

fn is_suspended(object: &Value) -> bool {
    object.pointer("/spec/suspend") == Some(&Value::Bool(true))
}

/// Returns the LocalQueue that an object names, if any.
fn queue_of(object: &Value) -> Option<&str> {
    Some(text(object, "/metadata/labels/kueue.x-k8s.io~1queue-name")).filter(|queue| !queue.is_empty())
}

fn text<'a>(object: &'a Value, pointer: &str) -> &'a str {
    object.pointer(pointer).and_then(Value::as_str).unwrap_or_default()
}

fn names(objects: &[&Value]) -> Vec<String> {
    objects.iter().map(|object| text(object, "/metadata/name").to_owned()).collect()
}

fn owners(object: &Value) -> impl Iterator<Item = &Value> {
    object.pointer("/metadata/ownerReferences").and_then(Value::as_array).into_iter().flatten()
}

fn is_true(object: &Value, condition: &str) -> bool {
    let conditions = object.pointer("/status/conditions").and_then(Value::as_array);
    conditions.into_iter().flatten().any(|found| found["type"] == condition && found["status"] == "True")
}
