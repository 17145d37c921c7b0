//! Hash of a RayCluster spec, and comparison of a RayCluster with the desired spec.

use kube_core::ResourceExt;
use serde_json::Value;

use sluice_api::canonical_hash;
use sluice_api::ray::{PodTemplate, RayCluster, RayClusterSpec, core_defaults, names};
use sluice_raycluster::{auth, canonical_json};

/// Prefix of hashes of specs in canonical form, see [`canonical_json`], with all defaults set.
const CANONICAL_PREFIX: &str = "defaulted-";

/// Result of comparing a RayCluster with the desired spec.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SpecMatch {
    /// It was created from the desired spec.
    Same,
    /// It matches the desired spec once worker groups are appended.
    GroupsAppended,
    /// It differs, so a new cluster is required.
    Different,
}

/// Returns the hash of the fields whose change requires a new cluster. Excluded are fields that
/// change during the life of a cluster: `suspend`, replica counts, `workersToDelete`, and what a
/// queue injects (KubeRay 1.7 `ray-operator/controllers/ray/utils/util.go`,
/// `GenerateHashWithoutReplicasAndWorkersToDelete`; and `rayservice_controller.go`,
/// `rayClusterSpecForHashing`). Equivalent notations hash equally.
pub fn compute(spec: &RayClusterSpec) -> String {
    // Strings, numbers, lists and string-keyed maps: serialization cannot fail.
    let mut json = serde_json::to_value(without_mutable_fields(spec)).unwrap_or_default();
    core_defaults::set_in_cluster_spec(&mut json);
    format!("{CANONICAL_PREFIX}{}", canonical_hash::hash(&canonical_json::canonical(json)))
}

/// Returns true if this hash was computed by the current version of [`compute`].
pub fn is_current_format(hash: &str) -> bool {
    hash.strip_prefix(CANONICAL_PREFIX).is_some_and(canonical_hash::is_comparable)
}

fn without_mutable_fields(spec: &RayClusterSpec) -> RayClusterSpec {
    let mut spec = spec.clone();
    spec.suspend = None;
    spec.upgrade_strategy = None;
    auth::set_default_mode(&mut spec);
    remove_injected_fields(&mut spec.head_group_spec.template);
    for group in &mut spec.worker_group_specs {
        group.replicas = None;
        group.min_replicas = None;
        group.max_replicas = None;
        group.scale_strategy = None;
        remove_injected_fields(&mut group.template);
    }
    spec
}

fn remove_injected_fields(template: &mut PodTemplate) {
    if let Some(spec) = template.0.get_mut("spec").and_then(Value::as_object_mut) {
        spec.remove("tolerations");
        spec.remove("schedulingGates");
    }
}

/// Compares `child` with the desired `spec`, whose hash is `wanted`.
pub fn compare(spec: &RayClusterSpec, wanted: &str, child: &RayCluster) -> SpecMatch {
    let (origin_hash, groups) = origin_spec(child);
    if origin_hash == wanted {
        return SpecMatch::Same;
    }
    if groups >= spec.worker_group_specs.len() {
        return SpecMatch::Different;
    }
    let mut prefix = spec.clone();
    prefix.worker_group_specs.truncate(groups);
    if compute(&prefix) == origin_hash { SpecMatch::GroupsAppended } else { SpecMatch::Different }
}

/// Returns the hash of the spec that a cluster was created from, and its number of worker groups.
/// An annotation written by KubeRay or by an earlier hash version is not comparable; the current
/// spec of the cluster is hashed then.
pub fn origin_spec(child: &RayCluster) -> (String, usize) {
    let annotations = child.annotations();
    let hash = annotations.get(names::SPEC_HASH_ANNOTATION).filter(|hash| is_current_format(hash));
    let groups = annotations.get(names::WORKER_GROUPS_ANNOTATION).and_then(|groups| groups.parse().ok());
    match (hash, groups) {
        (Some(hash), Some(groups)) => (hash.clone(), groups),
        _ => (compute(&child.spec), child.spec.worker_group_specs.len()),
    }
}

/// Records in annotations which spec a cluster was created from.
pub fn record_origin(child: &mut RayCluster, hash: &str, groups: usize) {
    let annotations = child.annotations_mut();
    annotations.insert(names::SPEC_HASH_ANNOTATION.to_owned(), hash.to_owned());
    annotations.insert(names::WORKER_GROUPS_ANNOTATION.to_owned(), groups.to_string());
}

#[cfg(test)]
mod tests {
    use rstest::rstest;
    use serde_json::json;

    use super::*;

    fn spec() -> RayClusterSpec {
        let template =
            json!({"spec": {"containers": [{"name": "ray", "image": "ray:1", "ports": [{"containerPort": 1}]}]}});
        serde_json::from_value(json!({
            "rayVersion": "2.53.0",
            "headGroupSpec": {"template": template},
            "workerGroupSpecs": [{"groupName": "small", "replicas": 1, "template": template}],
        }))
        .expect("a spec")
    }

    fn changed(change: serde_json::Value) -> RayClusterSpec {
        let mut value = serde_json::to_value(spec()).expect("serializable");
        for (pointer, new) in change.as_object().expect("a map of pointers") {
            let (parent, field) = pointer.rsplit_once('/').expect("a pointer");
            value.pointer_mut(parent).expect("it is there")[field] = new.clone();
        }
        serde_json::from_value(value).expect("a spec")
    }

    #[rstest]
    #[case::suspend("/suspend", json!(true))]
    #[case::replicas("/workerGroupSpecs/0/replicas", json!(7))]
    #[case::minimum("/workerGroupSpecs/0/minReplicas", json!(2))]
    #[case::maximum("/workerGroupSpecs/0/maxReplicas", json!(9))]
    #[case::workers_to_delete("/workerGroupSpecs/0/scaleStrategy", json!({"workersToDelete": ["w"]}))]
    #[case::tolerations("/workerGroupSpecs/0/template/spec/tolerations", json!([{"operator": "Exists"}]))]
    #[case::empty_metadata("/workerGroupSpecs/0/template/metadata", json!({}))]
    #[case::empty_scale_strategy("/workerGroupSpecs/0/scaleStrategy", json!({}))]
    #[case::empty_start_params("/headGroupSpec/rayStartParams", json!({}))]
    #[case::default_protocol("/headGroupSpec/template/spec/containers/0/ports/0/protocol", json!("TCP"))]
    #[case::default_protocol_of_workers("/workerGroupSpecs/0/template/spec/containers/0/ports/0/protocol", json!("TCP"))]
    #[case::scheduling_gates("/headGroupSpec/template/spec/schedulingGates", json!([{"name": "g"}]))]
    fn b08_mutable_fields_and_empty_values_do_not_change_the_hash(
        #[case] pointer: &str,
        #[case] new: serde_json::Value,
    ) {
        assert_eq!(compute(&changed(json!({ (pointer): new }))), compute(&spec()));
    }

    #[rstest]
    #[case::ray_version("/rayVersion", json!("2.54.0"))]
    #[case::image("/headGroupSpec/template/spec/containers/0/image", json!("ray:2"))]
    #[case::unknown_field("/workerGroupSpecs/0/template/spec/newerField", json!(1))]
    #[case::protocol("/headGroupSpec/template/spec/containers/0/ports/0/protocol", json!("UDP"))]
    #[case::node_selector("/workerGroupSpecs/0/template/spec/nodeSelector", json!({"gpu": "h100"}))]
    #[case::group_name("/workerGroupSpecs/0/groupName", json!("big"))]
    #[case::hosts("/workerGroupSpecs/0/numOfHosts", json!(2))]
    #[case::auth_options("/authOptions", json!({}))]
    fn b08_all_other_fields_change_the_hash(#[case] pointer: &str, #[case] new: serde_json::Value) {
        assert_ne!(compute(&changed(json!({ (pointer): new }))), compute(&spec()));
    }

    fn child() -> RayCluster {
        let mut child = RayCluster::new("chat-x1", spec());
        record_origin(&mut child, &compute(&spec()), 1);
        child
    }

    fn with_another_group(mut spec: RayClusterSpec) -> RayClusterSpec {
        let mut group = spec.worker_group_specs[0].clone();
        group.group_name = "big".into();
        spec.worker_group_specs.push(group);
        spec
    }

    #[rstest]
    #[case::same(spec(), SpecMatch::Same)]
    #[case::scaled(changed(json!({"/workerGroupSpecs/0/replicas": 5})), SpecMatch::Same)]
    #[case::different_version(changed(json!({"/rayVersion": "2.54.0"})), SpecMatch::Different)]
    #[case::group_appended(with_another_group(spec()), SpecMatch::GroupsAppended)]
    #[case::group_appended_and_different_version(
        with_another_group(changed(json!({"/rayVersion": "2.54.0"}))), SpecMatch::Different)]
    #[case::group_removed(RayClusterSpec { worker_group_specs: Vec::new(), ..spec() }, SpecMatch::Different)]
    fn cluster_is_compared_with_the_desired_spec(#[case] wanted: RayClusterSpec, #[case] expected: SpecMatch) {
        assert_eq!(compare(&wanted, &compute(&wanted), &child()), expected);
    }

    #[test]
    fn hash_of_kuberay_is_replaced_by_the_hash_of_the_current_spec() {
        let mut child = child();
        let kuberay = "94Q7P53ETTCG3N1LC5S2KGF6PI8U6FHG".to_owned();
        child.annotations_mut().insert(names::SPEC_HASH_ANNOTATION.to_owned(), kuberay);

        assert_eq!(origin_spec(&child), (compute(&spec()), 1));
        assert_eq!(compare(&spec(), &compute(&spec()), &child), SpecMatch::Same);
        let another = changed(json!({"/rayVersion": "2.54.0"}));
        assert_eq!(compare(&another, &compute(&another), &child), SpecMatch::Different);
    }
}
