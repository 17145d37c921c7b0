//! Classification of existing pods by group and shape.
//!
//! A template can change while pods created from the earlier version run, so the quota that a pod
//! uses does not follow from its group. Our operator labels each pod with its shape
//! (`sluice.dev/shape`). A pod without that label comes from another operator: it is compared with
//! the templates that it may have been created from, and classified as the one with the lowest
//! mismatch score, since admission only adds to pods (LimitRanges, flavors, injected sidecars). A
//! pod that matches none of them is accounted by its own spec.

use std::cell::OnceCell;
use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{Container, Pod, PodSpec, PodTemplateSpec, ResourceRequirements};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use kube_core::ResourceExt;

use super::shape::shape_of;
use super::slice_record::SliceRecord;
use super::types::PodGroupDemands;
use super::types::PodKind;
use sluice_api::kueue::{Workload, names};
use sluice_api::quantity::Exact;
use sluice_api::ray::names::GROUP_LABEL;
use sluice_api::toleration;

/// Pod templates recorded in the slices of a job, which its older pods may come from.
#[derive(Debug, Default)]
pub struct KnownTemplates<'a> {
    workloads: Vec<&'a Workload>,
    /// Newest slice first. Parsed lazily: only pods that match no current template need it.
    recorded: OnceCell<Vec<(PodKind, PodSpec)>>,
}

impl<'a> KnownTemplates<'a> {
    /// Reads the templates of these slices.
    pub fn from_workloads(workloads: impl IntoIterator<Item = &'a Workload>) -> Self {
        Self { workloads: workloads.into_iter().collect(), recorded: OnceCell::new() }
    }

    fn recorded(&self) -> &[(PodKind, PodSpec)] {
        self.recorded.get_or_init(|| {
            let mut slices: Vec<(SliceRecord, &Workload)> =
                self.workloads.iter().filter_map(|slice| Some((SliceRecord::from_workload(slice)?, *slice))).collect();
            slices.sort_by_key(|(record, _)| std::cmp::Reverse(record.sequence));
            let mut recorded: Vec<(PodKind, PodSpec)> = Vec::new();
            for (record, slice) in slices {
                for share in record.members.iter().flat_map(|member| &member.pods) {
                    let kind = PodKind::new(&share.group, &share.shape);
                    let set = slice.spec.pod_sets.iter().find(|set| set.name == share.pod_set);
                    let spec = set.and_then(|set| set.template.pod_spec().ok());
                    let is_new = recorded.iter().all(|(known, _)| *known != kind);
                    if let (Some(spec), true) = (spec, is_new) {
                        recorded.push((kind, spec));
                    }
                }
            }
            recorded
        })
    }
}

/// Classifier for the pods of one member.
pub(super) struct PodClassifier<'a> {
    groups: &'a PodGroupDemands,
    known_templates: &'a KnownTemplates<'a>,
    /// Templates of the kinds of pods that neither a group of the member nor a slice of the job
    /// has.
    pub(super) unknown_kinds: BTreeMap<PodKind, PodTemplateSpec>,
}

impl<'a> PodClassifier<'a> {
    /// Creates a classifier for the pods of a member with these groups.
    pub(super) fn new(groups: &'a PodGroupDemands, templates: &'a KnownTemplates<'a>) -> Self {
        Self { groups, known_templates: templates, unknown_kinds: BTreeMap::new() }
    }

    /// Counts pods by kind.
    pub(super) fn count<'p>(&mut self, pods: impl IntoIterator<Item = &'p Pod>) -> BTreeMap<PodKind, u32> {
        let mut counts = BTreeMap::new();
        for pod in pods {
            *counts.entry(self.classify(pod)).or_default() += 1;
        }
        counts
    }

    /// Classifies a pod. An unknown kind is recorded with the template of its first pod.
    pub(super) fn classify(&mut self, pod: &Pod) -> PodKind {
        let group = pod.labels().get(GROUP_LABEL).cloned().unwrap_or_default();
        let labeled = pod.labels().get(names::SCHEDULING_HASH_LABEL).filter(|shape| !shape.is_empty());
        let shape = labeled.cloned().unwrap_or_else(|| self.infer_shape(&group, pod.spec.as_ref()));
        let kind = PodKind { group, shape };
        let is_present = self.current_templates(&kind.group).any(|(shape, _)| shape == kind.shape);
        if !is_present && self.known_templates.recorded().iter().all(|(known, _)| *known != kind) {
            let spec = pod.spec.as_ref().map(scheduling_fields);
            let template = PodTemplateSpec { spec, ..PodTemplateSpec::default() };
            self.unknown_kinds.entry(kind.clone()).or_insert(template);
        }
        kind
    }

    /// Infers the shape of a pod that has no shape label.
    fn infer_shape(&self, group: &str, pod: Option<&PodSpec>) -> String {
        let recorded = self.known_templates.recorded().iter().filter(|(kind, _)| kind.group == group);
        let recorded = recorded.map(|(kind, spec)| (kind.shape.as_str(), Some(spec)));
        let candidates = self.current_templates(group).chain(recorded);
        let explained = candidates.filter_map(|(shape, mold)| Some((mismatch_score(mold?, pod?)?, shape)));
        // Among equal scores the first one wins: the current template of the group.
        let closest = explained.min_by_key(|(unexplained, _)| *unexplained).map(|(_, shape)| shape.to_owned());
        let own = || shape_of(pod?).ok();
        let present = || self.current_templates(group).next().map(|(shape, _)| shape.to_owned());
        closest.or_else(own).or_else(present).unwrap_or_default()
    }

    /// Returns shape and pod spec of the current template of a group.
    fn current_templates(&self, group: &str) -> impl Iterator<Item = (&str, Option<&PodSpec>)> {
        let groups = self.groups.iter().flatten().filter(move |known| known.name == group);
        groups.map(|known| (known.shape.as_str(), known.template.spec.as_ref()))
    }
}

/// Returns the fields of a pod spec that its quota and its flavor depend on.
fn scheduling_fields(pod: &PodSpec) -> PodSpec {
    let container = |container: &Container| Container {
        name: container.name.clone(),
        image: container.image.clone(),
        resources: container.resources.clone(),
        restart_policy: container.restart_policy.clone(),
        ..Container::default()
    };
    PodSpec {
        containers: pod.containers.iter().map(container).collect(),
        init_containers: pod.init_containers.as_ref().map(|list| list.iter().map(container).collect()),
        affinity: pod.affinity.clone(),
        node_selector: pod.node_selector.clone(),
        overhead: pod.overhead.clone(),
        resources: pod.resources.clone(),
        runtime_class_name: pod.runtime_class_name.clone(),
        tolerations: pod.tolerations.clone(),
        ..PodSpec::default()
    }
}

/// Scores a pod against a template: the number of entries in the pod that the template does not
/// have. `None` if the pod cannot come from the template.
fn mismatch_score(template: &PodSpec, pod: &PodSpec) -> Option<usize> {
    let node_affinity = |spec: &'_ PodSpec| spec.affinity.as_ref().and_then(|affinity| affinity.node_affinity.clone());
    if node_affinity(template) != node_affinity(pod) {
        return None;
    }
    let mut more = container_mismatch(&template.containers, &pod.containers)?;
    let (expected, actual) = (template.init_containers.as_deref(), pod.init_containers.as_deref());
    let actual = actual.unwrap_or_default();
    // KubeRay's init container that waits for the head can be disabled, so it may be missing.
    let expected: Vec<Container> = expected
        .unwrap_or_default()
        .iter()
        .filter(|expected| actual.iter().any(|c| c.name == expected.name))
        .cloned()
        .collect();
    more += container_mismatch(&expected, actual)?;
    more += resource_mismatch(template.resources.as_ref(), pod.resources.as_ref())?;
    more += match (&template.runtime_class_name, &pod.runtime_class_name) {
        (expected, actual) if expected == actual => 0,
        (None, Some(_)) => 1,
        _ => return None,
    };
    let (expected, actual) = (template.node_selector.iter().flatten(), pod.node_selector.as_ref());
    let is_kept = |(key, value): (&String, &String)| actual.is_some_and(|actual| actual.get(key) == Some(value));
    more += actual.map_or(0, BTreeMap::len) - expected.clone().count().min(actual.map_or(0, BTreeMap::len));
    if !expected.clone().all(is_kept) {
        return None;
    }
    let tolerated = |list: &'_ PodSpec| list.tolerations.clone().unwrap_or_default();
    let (expected, actual) = (tolerated(template), tolerated(pod));
    expected
        .iter()
        .all(|expected| actual.iter().any(|actual| toleration::is_same(actual, expected)))
        .then(|| more + actual.len().saturating_sub(expected.len()))
}

fn container_mismatch(template: &[Container], pod: &[Container]) -> Option<usize> {
    let mut more = pod.len().saturating_sub(template.len());
    for expected in template {
        let actual = pod.iter().find(|actual| actual.name == expected.name)?;
        if expected.restart_policy != actual.restart_policy {
            return None;
        }
        more += resource_mismatch(expected.resources.as_ref(), actual.resources.as_ref())?;
    }
    Some(more)
}

/// Scores resources. A limit also counts as a missing request, since the API server defaults it.
fn resource_mismatch(template: Option<&ResourceRequirements>, pod: Option<&ResourceRequirements>) -> Option<usize> {
    let (none, mut more) = (ResourceRequirements::default(), 0);
    let (expected, actual) = (template.unwrap_or(&none), pod.unwrap_or(&none));
    let limits = amounts(expected.limits.as_ref());
    let mut requests = limits.clone();
    requests.extend(amounts(expected.requests.as_ref()));
    for (expected, actual) in [(limits, &actual.limits), (requests, &actual.requests)] {
        let actual = amounts(actual.as_ref());
        let is_kept = |(resource, amount): (&&str, &Option<Exact>)| actual.get(*resource) == Some(amount);
        if !expected.iter().all(is_kept) {
            return None;
        }
        more += actual.len() - expected.len();
    }
    Some(more)
}

fn amounts(list: Option<&BTreeMap<String, Quantity>>) -> BTreeMap<&str, Option<Exact>> {
    let amounts = list.into_iter().flatten();
    amounts.map(|(resource, quantity)| (resource.as_str(), Exact::parse_request(quantity).ok())).collect()
}

#[cfg(test)]
mod tests {
    use rstest::rstest;
    use serde_json::{Value, json};

    use super::super::slice_record::{MemberShare, PodShare};
    use super::super::types::PodGroupDemand;
    use super::*;
    use sluice_api::kueue::{PodSet, PodTemplate};
    use sluice_queue::partial_admission::SLICE_ANNOTATION;

    fn spec(pod: &Value) -> PodSpec {
        serde_json::from_value(pod.clone()).expect("a pod spec")
    }

    fn worker(gpus: u32) -> Value {
        json!({"containers": [{"name": "ray", "resources": {"limits": {"cpu": "1", "gpu": gpus.to_string()}}}],
               "initContainers": [{"name": "wait", "resources": {"limits": {"cpu": "200m"}}}]})
    }

    fn with(mut pod: Value, pointer: &str, value: Value) -> Value {
        let (parent, field) = pointer.rsplit_once('/').expect("a field");
        pod.pointer_mut(parent).expect("a place")[field] = value;
        pod
    }

    fn with_sidecar(mut pod: Value) -> Value {
        pod["containers"].as_array_mut().expect("containers").push(json!({"name": "proxy"}));
        pod
    }

    /// The group `small` with its current template.
    fn groups(now: &Value) -> PodGroupDemands {
        let spec = spec(now);
        let shape = shape_of(&spec).expect("a shape");
        let template = PodTemplateSpec { spec: Some(spec), ..PodTemplateSpec::default() };
        Ok(vec![PodGroupDemand {
            name: "small".into(),
            pod_set: "small".into(),
            shape,
            count: 1,
            min_count: None,
            min_pods: 1,
            hosts_per_replica: 1,
            template: template.into(),
        }])
    }

    /// A slice that covers pods of `small` of the earlier template.
    fn slice(before: &Value) -> Workload {
        let shape = shape_of(&spec(before)).expect("a shape");
        let share = PodShare { group: "small".into(), shape, pod_set: "small".into(), count: 1, starting: 0 };
        let member = MemberShare { name: "a".into(), uid: "a".into(), pods: vec![share] };
        let record = SliceRecord { members: vec![member], ..SliceRecord::default() };
        let mut slice = Workload::default();
        let template = PodTemplate::from(json!({"spec": before}));
        slice.spec.pod_sets = vec![PodSet { name: "small".into(), template, count: 1, ..PodSet::default() }];
        slice.metadata.annotations.get_or_insert_default().insert(SLICE_ANNOTATION.into(), record.to_annotation());
        slice
    }

    fn pod(spec: &Value, shape: Option<&str>) -> Pod {
        let mut labels = json!({"ray.io/group": "small"});
        if let Some(shape) = shape {
            labels[names::SCHEDULING_HASH_LABEL] = shape.into();
        }
        serde_json::from_value(json!({"metadata": {"name": "p", "labels": labels}, "spec": spec})).expect("a pod")
    }

    fn shape(pod: &Value) -> String {
        shape_of(&spec(pod)).expect("a shape")
    }

    /// A pod as the API server stores it: limits are also requests, and it has a node selector and
    /// tolerations.
    fn admitted(gpus: u32) -> Value {
        let amounts = json!({"cpu": "1000m", "gpu": gpus});
        let waits = json!({"cpu": "0.2"});
        json!({
            "containers": [{"name": "ray", "resources": {"limits": amounts, "requests": amounts}}],
            "initContainers": [{"name": "wait", "resources": {"limits": waits, "requests": waits}}],
            "nodeSelector": {"flavor": "a100"},
            "tolerations": [{"key": "node.kubernetes.io/not-ready", "operator": "Exists", "tolerationSeconds": 300}],
        })
    }

    #[rstest]
    #[case::of_the_present_template(admitted(2), Some(2))]
    #[case::of_an_earlier_one(admitted(1), Some(1))]
    #[case::with_what_a_limit_range_adds(
        with(admitted(1), "/containers/0/resources/requests/memory", json!("1Gi")), Some(1))]
    #[case::with_an_injected_sidecar(with_sidecar(admitted(1)), Some(1))]
    #[case::without_the_init_container(with(admitted(2), "/initContainers", json!(null)), Some(2))]
    #[case::of_a_runtime_class(with(admitted(2), "/runtimeClassName", json!("kata")), Some(2))]
    #[case::of_no_template(admitted(4), None)]
    fn pod_of_another_operator_is_classified_by_its_closest_template(#[case] made: Value, #[case] gpus: Option<u32>) {
        let (groups, before) = (groups(&worker(2)), slice(&worker(1)));
        let templates = KnownTemplates::from_workloads([&before]);
        let mut classifier = PodClassifier::new(&groups, &templates);

        let kind = classifier.classify(&pod(&made, None));

        assert_eq!(kind.group, "small");
        assert_eq!(kind.shape, gpus.map_or_else(|| shape(&made), |gpus| shape(&worker(gpus))));
        assert_eq!(
            classifier.unknown_kinds.len(),
            usize::from(gpus.is_none()),
            "the template of an unknown kind is recorded"
        );
    }

    #[test]
    fn toleration_in_another_notation_matches_the_template() {
        let template = with(worker(2), "/tolerations", json!([{"key": "gpu", "value": "a"}]));
        let made = with(admitted(2), "/tolerations", json!([{"key": "gpu", "operator": "Equal", "value": "a"}]));
        let (groups, templates) = (groups(&template), KnownTemplates::default());

        assert_eq!(PodClassifier::new(&groups, &templates).classify(&pod(&made, None)).shape, shape(&template));
    }

    /// A template with fewer requests matches part of a pod that was created from one with more.
    #[test]
    fn pod_with_a_container_that_the_template_has_lost_is_of_the_earlier_template() {
        let sidecar = json!({"name": "cache", "resources": {"requests": {"cpu": "2"}}});
        let mut before = worker(1);
        before["containers"].as_array_mut().expect("containers").push(sidecar.clone());
        let mut made = admitted(1);
        made["containers"].as_array_mut().expect("containers").push(sidecar);
        let (groups, slice) = (groups(&worker(1)), slice(&before));
        let templates = KnownTemplates::from_workloads([&slice]);

        assert_eq!(PodClassifier::new(&groups, &templates).classify(&pod(&made, None)).shape, shape(&before));
        assert_eq!(PodClassifier::new(&groups, &templates).classify(&pod(&admitted(1), None)).shape, shape(&worker(1)));
    }

    #[test]
    fn shape_label_of_a_pod_takes_precedence_over_the_current_template() {
        let groups = groups(&worker(2));
        let templates = KnownTemplates::default();
        let mut classifier = PodClassifier::new(&groups, &templates);

        let counts =
            classifier.count([&pod(&admitted(1), Some("before")), &pod(&admitted(2), Some(&shape(&worker(2))))]);

        let one_each = [PodKind::new("small", "before"), PodKind::new("small", shape(&worker(2)))];
        assert_eq!(counts, one_each.map(|kind| (kind, 1)).into());
        let unknown = &classifier.unknown_kinds[&PodKind::new("small", "before")];
        assert_eq!(unknown.spec.as_ref().expect("a spec").containers, spec(&admitted(1)).containers);
    }
}
