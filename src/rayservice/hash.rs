//! Whether a cluster is what a spec asks for.

use kube_core::ResourceExt;
use serde_json::Value;

use sluice_api::fingerprint;
use sluice_api::ray::{PodTemplate, RayCluster, RayClusterSpec, names};
use sluice_raycluster::{auth, plain};

/// What hashes begin with of specs that were made [`plain`] before.
const PLAIN: &str = "plain-";

/// How a child compares with the cluster that is wanted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fit {
    /// It is what is wanted.
    Same,
    /// It becomes what is wanted if worker groups are appended.
    Appended,
    /// It is something else.
    Different,
}

/// The hash of what makes a cluster another one. Left out is what changes while a cluster lives: the gate, worker counts, which
/// workers go first, and what a queue injects (KubeRay 1.7 `ray-operator/controllers/ray/utils/util.go`,
/// `GenerateHashWithoutReplicasAndWorkersToDelete`; and `rayservice_controller.go`, `rayClusterSpecForHashing`); and how the same is
/// written in another way.
pub fn of(spec: &RayClusterSpec) -> String {
    // Strings, numbers, lists and string-keyed maps: serialisation can't fail.
    let plain = plain::of(serde_json::to_value(muted(spec)).unwrap_or_default());
    format!("{PLAIN}{}", fingerprint::of(&plain))
}

/// Whether [`of`], as it is now, has made this hash.
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

/// How `child` compares with the wanted `spec`, whose hash is `wanted`.
pub fn fit(spec: &RayClusterSpec, wanted: &str, child: &RayCluster) -> Fit {
    let (made_from, groups) = origin(child);
    if made_from == wanted {
        return Fit::Same;
    }
    if groups >= spec.worker_group_specs.len() {
        return Fit::Different;
    }
    let mut first = spec.clone();
    first.worker_group_specs.truncate(groups);
    if of(&first) == made_from { Fit::Appended } else { Fit::Different }
}

/// The hash of the spec that a child was made from, and its number of worker groups. A hash that another operator, or an
/// earlier way of hashing, left on it is of no use; then what the child is now tells what it was made from.
pub fn origin(child: &RayCluster) -> (String, usize) {
    let annotations = child.annotations();
    let hash = annotations.get(names::SPEC_HASH_ANNOTATION).filter(|hash| is_comparable(hash));
    let groups = annotations.get(names::WORKER_GROUPS_ANNOTATION).and_then(|groups| groups.parse().ok());
    match (hash, groups) {
        (Some(hash), Some(groups)) => (hash.clone(), groups),
        _ => (of(&child.spec), child.spec.worker_group_specs.len()),
    }
}

/// Notes on a child which spec it was made from.
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
        let mut value = serde_json::to_value(spec()).expect("it serialises");
        for (pointer, new) in change.as_object().expect("a map of pointers") {
            let (parent, field) = pointer.rsplit_once('/').expect("a pointer");
            value.pointer_mut(parent).expect("it is there")[field] = new.clone();
        }
        serde_json::from_value(value).expect("a spec")
    }

    #[rstest]
    #[case::the_gate("/suspend", json!(true))]
    #[case::replicas("/workerGroupSpecs/0/replicas", json!(7))]
    #[case::minimum("/workerGroupSpecs/0/minReplicas", json!(2))]
    #[case::maximum("/workerGroupSpecs/0/maxReplicas", json!(9))]
    #[case::workers_to_delete("/workerGroupSpecs/0/scaleStrategy", json!({"workersToDelete": ["w"]}))]
    #[case::tolerations("/workerGroupSpecs/0/template/spec/tolerations", json!([{"operator": "Exists"}]))]
    #[case::empty_metadata("/workerGroupSpecs/0/template/metadata", json!({}))]
    #[case::an_empty_strategy("/workerGroupSpecs/0/scaleStrategy", json!({}))]
    #[case::no_flags("/headGroupSpec/rayStartParams", json!({}))]
    #[case::gates("/headGroupSpec/template/spec/schedulingGates", json!([{"name": "g"}]))]
    fn b08_what_changes_while_a_cluster_lives_or_says_nothing_is_left_out(
        #[case] pointer: &str,
        #[case] new: serde_json::Value,
    ) {
        assert_eq!(of(&changed(json!({ (pointer): new }))), of(&spec()));
    }

    #[rstest]
    #[case::ray_version("/rayVersion", json!("2.54.0"))]
    #[case::image("/headGroupSpec/template/spec/containers/0/image", json!("ray:2"))]
    #[case::a_field_that_is_newer_than_our_types("/workerGroupSpecs/0/template/spec/newerField", json!(1))]
    #[case::node_selector("/workerGroupSpecs/0/template/spec/nodeSelector", json!({"gpu": "h100"}))]
    #[case::group_name("/workerGroupSpecs/0/groupName", json!("big"))]
    #[case::hosts("/workerGroupSpecs/0/numOfHosts", json!(2))]
    #[case::a_token("/authOptions", json!({}))]
    fn b08_everything_else_makes_another_cluster(#[case] pointer: &str, #[case] new: serde_json::Value) {
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
    #[case::the_same(spec(), Fit::Same)]
    #[case::scaled(changed(json!({"/workerGroupSpecs/0/replicas": 5})), Fit::Same)]
    #[case::another_version(changed(json!({"/rayVersion": "2.54.0"})), Fit::Different)]
    #[case::a_group_more(with_another_group(spec()), Fit::Appended)]
    #[case::a_group_more_and_another_version(
        with_another_group(changed(json!({"/rayVersion": "2.54.0"}))), Fit::Different)]
    #[case::a_group_less(RayClusterSpec { worker_group_specs: Vec::new(), ..spec() }, Fit::Different)]
    fn a_child_is_compared_with_what_is_wanted(#[case] wanted: RayClusterSpec, #[case] expected: Fit) {
        assert_eq!(fit(&wanted, &of(&wanted), &child()), expected);
    }

    #[test]
    fn a_hash_of_another_operator_is_replaced_by_that_of_what_the_child_is() {
        let mut child = child();
        let kuberay = "94Q7P53ETTCG3N1LC5S2KGF6PI8U6FHG".to_owned();
        child.annotations_mut().insert(names::SPEC_HASH_ANNOTATION.to_owned(), kuberay);

        assert_eq!(origin(&child), (of(&spec()), 1));
        assert_eq!(fit(&spec(), &of(&spec()), &child), Fit::Same);
        let another = changed(json!({"/rayVersion": "2.54.0"}));
        assert_eq!(fit(&another, &of(&another), &child), Fit::Different);
    }
}
