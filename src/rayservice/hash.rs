//! Hash of a RayCluster spec, and comparison of a RayCluster with the desired spec.

use kube_core::ResourceExt;
use serde_json::Value;

use sluice_api::fingerprint;
use sluice_api::ray::{PodTemplate, RayCluster, RayClusterSpec, names};
use sluice_raycluster::{auth, plain};

/// Prefix of hashes of specs in canonical form; see [`plain`].
const PLAIN: &str = "plain-";

/// Result of comparing a RayCluster with the desired spec.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fit {
    /// It was created from the desired spec.
    Same,
    /// It matches the desired spec once worker groups are appended.
    Appended,
    /// It differs, so a new cluster is required.
    Different,
}

/// Returns the hash of the fields whose change requires a new cluster. Excluded are fields that
/// change during the life of a cluster: `suspend`, replica counts, `workersToDelete`, and what a
/// queue injects (KubeRay 1.7 `ray-operator/controllers/ray/utils/util.go`,
/// `GenerateHashWithoutReplicasAndWorkersToDelete`; and `rayservice_controller.go`,
/// `rayClusterSpecForHashing`). Equivalent notations hash equally.
pub fn of(spec: &RayClusterSpec) -> String {
    // Strings, numbers, lists and string-keyed maps: serialization cannot fail.
    let plain = plain::of(serde_json::to_value(muted(spec)).unwrap_or_default());
    format!("{PLAIN}{}", fingerprint::of(&plain))
}

/// Returns true if this hash was computed by the current version of [`of`].
pub fn is_comparable(hash: &str) -> bool {
    hash.strip_prefix(PLAIN).is_some_and(fingerprint::is_comparable)
}

fn muted(spec: &RayClusterSpec) -> RayClusterSpec {
    let mut spec = spec.clone();
    spec.suspend = None;
    spec.upgrade_strategy = None;
    auth::spell_out(&mut spec);
    mute_template(&mut spec.head_group_spec.template);
    for group in &mut spec.worker_group_specs {
        group.replicas = None;
        group.min_replicas = None;
        group.max_replicas = None;
        group.scale_strategy = None;
        mute_template(&mut group.template);
    }
    spec
}

fn mute_template(template: &mut PodTemplate) {
    if let Some(spec) = template.0.get_mut("spec").and_then(Value::as_object_mut) {
        spec.remove("tolerations");
        spec.remove("schedulingGates");
    }
}

/// Compares `child` with the desired `spec`, whose hash is `wanted`.
pub fn fit(spec: &RayClusterSpec, wanted: &str, child: &RayCluster) -> Fit {
    let (origin_hash, groups) = origin(child);
    if origin_hash == wanted {
        return Fit::Same;
    }
    if groups >= spec.worker_group_specs.len() {
        return Fit::Different;
    }
    let mut prefix = spec.clone();
    prefix.worker_group_specs.truncate(groups);
    if of(&prefix) == origin_hash { Fit::Appended } else { Fit::Different }
}

/// Returns the hash of the spec that a cluster was created from, and its number of worker groups.
/// An annotation written by KubeRay or by an earlier hash version is not comparable; the current
/// spec of the cluster is hashed then.
pub fn origin(child: &RayCluster) -> (String, usize) {
    let annotations = child.annotations();
    let hash = annotations.get(names::SPEC_HASH_ANNOTATION).filter(|hash| is_comparable(hash));
    let groups = annotations.get(names::WORKER_GROUPS_ANNOTATION).and_then(|groups| groups.parse().ok());
    match (hash, groups) {
        (Some(hash), Some(groups)) => (hash.clone(), groups),
        _ => (of(&child.spec), child.spec.worker_group_specs.len()),
    }
}

/// Records in annotations which spec a cluster was created from.
pub fn stamp(child: &mut RayCluster, hash: &str, groups: usize) {
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
        let template = json!({"spec": {"containers": [{"name": "ray", "image": "ray:1"}]}});
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
    #[case::scheduling_gates("/headGroupSpec/template/spec/schedulingGates", json!([{"name": "g"}]))]
    fn b08_mutable_fields_and_empty_values_do_not_change_the_hash(
        #[case] pointer: &str,
        #[case] new: serde_json::Value,
    ) {
        assert_eq!(of(&changed(json!({ (pointer): new }))), of(&spec()));
    }

    #[rstest]
    #[case::ray_version("/rayVersion", json!("2.54.0"))]
    #[case::image("/headGroupSpec/template/spec/containers/0/image", json!("ray:2"))]
    #[case::unknown_field("/workerGroupSpecs/0/template/spec/newerField", json!(1))]
    #[case::node_selector("/workerGroupSpecs/0/template/spec/nodeSelector", json!({"gpu": "h100"}))]
    #[case::group_name("/workerGroupSpecs/0/groupName", json!("big"))]
    #[case::hosts("/workerGroupSpecs/0/numOfHosts", json!(2))]
    #[case::auth_options("/authOptions", json!({}))]
    fn b08_all_other_fields_change_the_hash(#[case] pointer: &str, #[case] new: serde_json::Value) {
        assert_ne!(of(&changed(json!({ (pointer): new }))), of(&spec()));
    }

    fn child() -> RayCluster {
        let mut child = RayCluster::new("chat-x1", spec());
        stamp(&mut child, &of(&spec()), 1);
        child
    }

    fn with_another_group(mut spec: RayClusterSpec) -> RayClusterSpec {
        let mut group = spec.worker_group_specs[0].clone();
        group.group_name = "big".into();
        spec.worker_group_specs.push(group);
        spec
    }

    #[rstest]
    #[case::same(spec(), Fit::Same)]
    #[case::scaled(changed(json!({"/workerGroupSpecs/0/replicas": 5})), Fit::Same)]
    #[case::different_version(changed(json!({"/rayVersion": "2.54.0"})), Fit::Different)]
    #[case::group_appended(with_another_group(spec()), Fit::Appended)]
    #[case::group_appended_and_different_version(
        with_another_group(changed(json!({"/rayVersion": "2.54.0"}))), Fit::Different)]
    #[case::group_removed(RayClusterSpec { worker_group_specs: Vec::new(), ..spec() }, Fit::Different)]
    fn cluster_is_compared_with_the_desired_spec(#[case] wanted: RayClusterSpec, #[case] expected: Fit) {
        assert_eq!(fit(&wanted, &of(&wanted), &child()), expected);
    }

    #[test]
    fn hash_of_kuberay_is_replaced_by_the_hash_of_the_current_spec() {
        let mut child = child();
        let kuberay = "94Q7P53ETTCG3N1LC5S2KGF6PI8U6FHG".to_owned();
        child.annotations_mut().insert(names::SPEC_HASH_ANNOTATION.to_owned(), kuberay);

        assert_eq!(origin(&child), (of(&spec()), 1));
        assert_eq!(fit(&spec(), &of(&spec()), &child), Fit::Same);
        let another = changed(json!({"/rayVersion": "2.54.0"}));
        assert_eq!(fit(&another, &of(&another), &child), Fit::Different);
    }
}
