//! Resolves the priority of Workloads (kueue v0.19.2 `pkg/util/priority/priority.go`,
//! `pkg/controller/core/workloadpriorityclass_controller.go`).

use k8s_openapi::api::scheduling::v1::PriorityClass;
use kube_core::ResourceExt;

use super::cluster_state::ClusterState;
use sluice_api::condition;
use sluice_api::kueue::workload::{PriorityClassGroup, PriorityClassKind, PriorityClassRef};
use sluice_api::kueue::{Workload, names};
use sluice_api::ray::RayClusterSpec;
use sluice_jobframework::{DemandError, GenericJob, Priority};
use sluice_plan::ObjectKey;
use sluice_plan::Write;

/// Returns the priority of a job's workloads: that of the WorkloadPriorityClass named by the job's
/// label, else of the one called `default` if it exists, else that of its pods. (Kueue 0.20 adds
/// the label in its webhook: `pkg/controller/jobframework/defaults.go`,
/// `ApplyDefaultWorkloadPriorityClass`.)
///
/// # Errors
/// Fails if the named class does not exist.
pub(super) fn job_priority(
    state: &ClusterState,
    job: &dyn GenericJob,
    pod_class: Option<&str>,
) -> Result<Priority, DemandError> {
    let labels = job.meta().labels.as_ref();
    let named = labels.and_then(|labels| labels.get(names::PRIORITY_CLASS_LABEL)).filter(|name| !name.is_empty());
    let name = named.map_or(names::DEFAULT_WORKLOAD_PRIORITY_CLASS, String::as_str);
    let class = state.workload_priority_classes.get(&ObjectKey::global(name));
    if class.is_none() && named.is_some() {
        return Err(DemandError::WorkloadPriorityClassNotFound { name: name.to_owned() });
    }
    if let Some(class) = class {
        let class_ref = PriorityClassRef {
            group: PriorityClassGroup::Kueue,
            kind: PriorityClassKind::WorkloadPriorityClass,
            name: name.to_owned(),
        };
        return Ok(Priority { value: class.spec.value, class: Some(class_ref) });
    }
    let class = match pod_class {
        Some(name) => {
            let class = state.priority_classes.get(&ObjectKey::global(name));
            Some(class.ok_or_else(|| DemandError::PriorityClassNotFound { name: name.to_owned() })?.as_ref())
        }
        None => default_priority_class(state),
    };
    Ok(class.map(pod_priority).unwrap_or_default())
}

/// Returns the PriorityClass of a cluster's pods: that of the head, else the first one of a worker
/// group; `None` if no template names one.
pub(super) fn pod_priority_class(cluster: &RayClusterSpec) -> Option<&str> {
    let workers = cluster.worker_group_specs.iter().map(|group| &group.template);
    std::iter::once(&cluster.head_group_spec.template).chain(workers).find_map(|template| template.priority_class())
}

/// Returns the write that syncs the priority of a Workload with its WorkloadPriorityClass; `None`
/// if they match, the class does not exist, or the Workload is finished.
pub(super) fn sync_priority(state: &ClusterState, workload: &Workload) -> Option<Write> {
    let class = workload_priority_class(workload)?;
    let value = state.workload_priority_classes.get(&ObjectKey::global(class))?.spec.value;
    let conditions = workload.conditions();
    if condition::is_true(conditions, names::FINISHED) {
        return None;
    }
    let mut refreshed = workload.clone();
    refreshed.spec.priority = Some(value);
    Write::patch(workload, &refreshed)
}

/// Iterates over the Workloads that use this WorkloadPriorityClass.
pub(super) fn workloads_of_class<'w>(
    state: &'w ClusterState,
    class: &'w str,
) -> impl Iterator<Item = ObjectKey> + use<'w> {
    let following =
        state.workloads.iter().filter(move |(_, workload)| workload_priority_class(workload) == Some(class));
    following.map(|(key, _)| key.clone())
}

fn workload_priority_class(workload: &Workload) -> Option<&str> {
    let class = workload.spec.priority_class_ref.as_ref()?;
    (class.kind == PriorityClassKind::WorkloadPriorityClass).then_some(class.name.as_str())
}

/// Returns the global default PriorityClass; of several, the one with the lowest value.
fn default_priority_class(state: &ClusterState) -> Option<&PriorityClass> {
    let defaults = state.priority_classes.iter().filter(|(_, class)| class.global_default == Some(true));
    defaults.map(|(_, class)| class.as_ref()).min_by_key(|class| class.value.unwrap_or(0))
}

fn pod_priority(class: &PriorityClass) -> Priority {
    let class_ref = PriorityClassRef {
        group: PriorityClassGroup::Scheduling,
        kind: PriorityClassKind::PriorityClass,
        name: class.name_any(),
    };
    Priority { value: class.value.unwrap_or(0), class: Some(class_ref) }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, ObjectMeta};
    use rstest::rstest;
    use serde_json::{Value, json};

    use super::*;
    use crate::cluster_state::{Object, WatchedKind, strip_and_wrap};
    use sluice_api::kueue::WorkloadPriorityClass;
    use sluice_api::ray::RayCluster;
    use sluice_jobframework::members::MemberPods;
    use sluice_jobframework::pod_classifier::KnownTemplates;
    use sluice_jobframework::ray_cluster::RayClusterAdapter;
    use sluice_plan::WriteOp;

    fn object<K: WatchedKind>(mut manifest: Value) -> Object {
        manifest["metadata"]["resourceVersion"] = "1".into();
        strip_and_wrap(serde_json::from_value::<K>(manifest).expect("an object"))
    }

    /// Returns a state with two WorkloadPriorityClasses and two PriorityClasses.
    fn state() -> ClusterState {
        let mut state = ClusterState::default();
        for (name, value) in [("low", 1), ("high", 100)] {
            state.apply(object::<WorkloadPriorityClass>(json!({"metadata": {"name": name}, "value": value})));
            state.apply(object::<PriorityClass>(json!({"metadata": {"name": name}, "value": 10 * value})));
        }
        state
    }

    fn cluster(labels: Value, head: Value, workers: Value) -> RayCluster {
        let template = |spec: Value| json!({"spec": spec});
        let groups = json!([{"groupName": "g", "template": template(workers)}]);
        let spec = json!({"headGroupSpec": {"template": template(head)}, "workerGroupSpecs": groups});
        serde_json::from_value(json!({"metadata": {"name": "c", "labels": labels}, "spec": spec})).expect("a cluster")
    }

    fn priority_of(state: &ClusterState, cluster: &RayCluster) -> Result<Priority, DemandError> {
        let job = RayClusterAdapter {
            cluster,
            pods: MemberPods::default(),
            groups: Arc::new(Ok(Vec::new())),
            known_templates: &KnownTemplates::default(),
            member_uid: String::new(),
            recreation: None,
        };
        job_priority(state, &job, pod_priority_class(&cluster.spec))
    }

    #[rstest]
    #[case::label(json!({"kueue.x-k8s.io/priority-class": "high"}), json!({"priorityClassName": "low"}), json!({}), Ok((100, Some("WorkloadPriorityClass/high"))))]
    #[case::head(json!({}), json!({"priorityClassName": "low"}), json!({"priorityClassName": "high"}), Ok((10, Some("PriorityClass/low"))))]
    #[case::worker_group(json!({}), json!({}), json!({"priorityClassName": "high"}), Ok((1000, Some("PriorityClass/high"))))]
    #[case::no_class_named(json!({"kueue.x-k8s.io/priority-class": ""}), json!({}), json!({}), Ok((0, None)))]
    #[case::unknown_workload_priority_class(json!({"kueue.x-k8s.io/priority-class": "none"}), json!({}), json!({}), Err("label kueue.x-k8s.io/priority-class: WorkloadPriorityClass \"none\" not found"))]
    #[case::unknown_pod_priority_class(json!({}), json!({"priorityClassName": "none"}), json!({}), Err("priorityClassName: PriorityClass \"none\" not found"))]
    fn job_has_the_priority_of_its_label_else_of_its_pods(
        #[case] labels: Value,
        #[case] head: Value,
        #[case] workers: Value,
        #[case] expected: Result<(i32, Option<&str>), &str>,
    ) {
        let cluster = cluster(labels, head, workers);

        let found = priority_of(&state(), &cluster);

        let found = found.map(|priority| (priority.value, priority.class.map(|c| format!("{:?}/{}", c.kind, c.name))));
        let found = found.map_err(|error| error.to_string());
        assert_eq!(found, expected.map(|(value, class)| (value, class.map(str::to_owned))).map_err(str::to_owned));
    }

    #[test]
    fn pods_without_a_class_have_the_lowest_global_default() {
        let mut state = state();
        for (name, value) in [("usual", 7), ("usual-too", 5)] {
            let class = json!({"metadata": {"name": name}, "value": value, "globalDefault": true});
            state.apply(object::<PriorityClass>(class));
        }
        let cluster = cluster(json!({}), json!({}), json!({}));

        let found = priority_of(&state, &cluster).expect("a priority");

        assert_eq!((found.value, found.class.map(|class| class.name)), (5, Some("usual-too".to_owned())));
    }

    #[rstest]
    #[case::no_class_named(json!({}), json!({}), Ok((50, "default")))]
    #[case::class_of_the_pods(json!({}), json!({"priorityClassName": "high"}), Ok((50, "default")))]
    #[case::label(json!({"kueue.x-k8s.io/priority-class": "low"}), json!({}), Ok((1, "low")))]
    #[case::label_of_a_missing_class(json!({"kueue.x-k8s.io/priority-class": "none"}), json!({}), Err("label kueue.x-k8s.io/priority-class: WorkloadPriorityClass \"none\" not found"))]
    fn default_workload_priority_class_applies_to_jobs_without_a_label(
        #[case] labels: Value,
        #[case] head: Value,
        #[case] expected: Result<(i32, &str), &str>,
    ) {
        let mut state = state();
        state.apply(object::<WorkloadPriorityClass>(json!({"metadata": {"name": "default"}, "value": 50})));
        let cluster = cluster(labels, head, json!({}));

        let found = priority_of(&state, &cluster);

        let found = found.map(|priority| (priority.value, priority.class.expect("a class").name));
        let found = found.map_err(|error| error.to_string());
        assert_eq!(found, expected.map(|(value, class)| (value, class.to_owned())).map_err(str::to_owned));
    }

    fn workload(kind: PriorityClassKind, class: &str, value: i32) -> Workload {
        let group = match kind {
            PriorityClassKind::WorkloadPriorityClass => PriorityClassGroup::Kueue,
            PriorityClassKind::PriorityClass => PriorityClassGroup::Scheduling,
        };
        let mut workload = Workload {
            metadata: ObjectMeta { name: Some("w".into()), ..ObjectMeta::default() },
            ..Workload::default()
        };
        workload.spec.priority = Some(value);
        workload.spec.priority_class_ref = Some(PriorityClassRef { group, kind, name: class.into() });
        workload
    }

    #[rstest]
    #[case::changed(PriorityClassKind::WorkloadPriorityClass, "high", Some(100))]
    #[case::unchanged(PriorityClassKind::WorkloadPriorityClass, "low", None)]
    #[case::deleted(PriorityClassKind::WorkloadPriorityClass, "none", None)]
    #[case::pod_priority_class(PriorityClassKind::PriorityClass, "high", None)]
    fn workload_priority_follows_its_workload_priority_class(
        #[case] kind: PriorityClassKind,
        #[case] class: &str,
        #[case] expected: Option<i32>,
    ) {
        let write = sync_priority(&state(), &workload(kind, class, 1));

        let patches = write.map(|write| write.op);
        assert_eq!(patches, expected.map(|value| WriteOp::Patch(json!({"spec": {"priority": value}}))));
    }

    #[test]
    fn finished_workload_keeps_its_priority() {
        let mut workload = workload(PriorityClassKind::WorkloadPriorityClass, "high", 1);
        let finished = json!({"type": "Finished", "status": "True", "reason": "R", "message": "", "lastTransitionTime": "2026-01-01T00:00:00Z"});
        let finished: Condition = serde_json::from_value(finished).expect("a condition");
        workload.status.get_or_insert_default().conditions.push(finished);

        assert_eq!(sync_priority(&state(), &workload), None);
    }

    #[test]
    fn workloads_of_a_class_are_found() {
        let mut state = state();
        for (name, kind) in [("a", PriorityClassKind::WorkloadPriorityClass), ("b", PriorityClassKind::PriorityClass)] {
            let mut follower = workload(kind, "high", 1);
            follower.metadata.name = Some(name.into());
            follower.metadata.resource_version = Some("1".into());
            state.apply(Workload::wrap(Arc::new(follower)));
        }
        assert_eq!(workloads_of_class(&state, "high").collect::<Vec<_>>(), [ObjectKey::global("a")]);
    }
}
