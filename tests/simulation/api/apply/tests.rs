//! Tests of merging and field ownership.

use rstest::rstest;

use super::super::kinds;
use super::*;

fn manager(name: &str) -> FieldManager {
    FieldManager { name: name.into(), is_apply: true, is_status: false }
}

/// Object under test with its field owners.
struct AppliedObject {
    kind: &'static kinds::ResourceKind,
    object: Value,
    owners: BTreeMap<FieldManager, FieldSet>,
}

impl AppliedObject {
    fn of_kind(kind: &str) -> Self {
        let kind = kinds::by_name(kind);
        let object = json!({"apiVersion": kind.api_version(), "kind": kind.kind, "metadata": {"name": "a"}});
        Self { kind, object, owners: BTreeMap::new() }
    }

    fn apply(&mut self, by: &str, wanted: Value, force: bool) -> Result<(), StatusError> {
        let applied =
            apply(MergeRules::for_kind(self.kind), &self.object, &wanted, self.owners.clone(), &manager(by), force)?;
        (self.object, self.owners) = (applied.object, applied.owners);
        Ok(())
    }
}

/// Builds a pod set of a Workload.
fn pod_set(name: &str, fields: Value) -> Value {
    let mut set = json!({"name": name});
    set.as_object_mut().expect("a map").extend(fields.as_object().expect("a map").clone());
    set
}

#[test]
fn field_no_longer_applied_is_removed_unless_another_manager_owns_it() {
    let mut workload = AppliedObject::of_kind("Workload");
    let first = json!({
        "metadata": {"labels": {"x": "1", "y": "1"}},
        "spec": {
            "queueName": "q",
            "podSets": [pod_set("head", json!({"count": 1})), pod_set("worker", json!({"template": {"spec": {"a": 1}}}))],
        },
    });
    workload.apply("people", first, false).expect("applied");
    let theirs = json!({"spec": {"podSets": [pod_set("head", json!({"minCount": 5}))]}});
    workload.apply("others", theirs, false).expect("applied");

    let second = json!({"metadata": {"labels": {"y": "1"}}, "spec": {"podSets": [pod_set("new", json!({}))]}});
    workload.apply("people", second, false).expect("applied");

    assert_eq!(workload.object["metadata"]["labels"], json!({"y": "1"}));
    let sets = json!([pod_set("new", json!({})), pod_set("head", json!({"minCount": 5}))]);
    assert_eq!(workload.object["spec"], json!({"podSets": sets}));
}

#[test]
fn field_of_another_manager_is_changed_only_with_force() {
    let mut cluster = AppliedObject::of_kind("RayCluster");
    cluster.apply("people", json!({"spec": {"suspend": true, "rayVersion": "2"}}), false).expect("applied");

    cluster.apply("others", json!({"spec": {"rayVersion": "2"}}), false).expect("the same value can be shared");
    let error = cluster.apply("others", json!({"spec": {"suspend": false}}), false).expect_err("a conflict");
    let message = "Apply failed with 1 conflict: conflict with \"people\": .spec.suspend";
    assert_eq!((error.code, error.message.as_str()), (409, message));

    cluster.apply("others", json!({"spec": {"suspend": false}}), true).expect("forced");
    assert_eq!(cluster.object["spec"], json!({"suspend": false, "rayVersion": "2"}));
    cluster.apply("people", json!({"spec": {"rayVersion": "2"}}), false).expect("applied");
    assert_eq!(cluster.object["spec"]["suspend"], false, "the first manager no longer owns the field");
}

#[test]
fn several_conflicts_are_grouped_by_manager() {
    let mut workload = AppliedObject::of_kind("Workload");
    let wanted = |active: bool, count: i64| json!({"spec": {"active": active, "podSets": [pod_set("head", json!({"count": count}))]}});
    workload.apply("people", wanted(true, 1), false).expect("applied");

    let error = workload.apply("others", wanted(false, 2), false).expect_err("a conflict");

    let message = "Apply failed with 2 conflicts: conflicts with \"people\":\n- .spec.active\n\
        - .spec.podSets[name=\"head\"].count";
    assert_eq!(error.message, message);
}

#[rstest]
#[case::list_without_schema(
    json!({"spec": {"headGroupSpec": {"template": {"spec": {"containers": [{"name": "a", "image": "1"}]}}}}}),
    ".spec.headGroupSpec.template.spec.containers"
)]
#[case::atomic_list(json!({"spec": {"workerGroupSpecs": [{"groupName": "a"}]}}), ".spec.workerGroupSpecs")]
#[case::map_entry(json!({"spec": {"headGroupSpec": {"rayStartParams": {"a": "2"}}}}), ".spec.headGroupSpec.rayStartParams.a")]
#[case::label(json!({"metadata": {"labels": {"x": "2"}}}), ".metadata.labels.x")]
fn conflict_names_the_owned_field(#[case] wanted: Value, #[case] path: &str) {
    let mut cluster = AppliedObject::of_kind("RayCluster");
    let first = json!({
        "metadata": {"labels": {"x": "1"}},
        "spec": {"headGroupSpec": {
            "rayStartParams": {"a": "1"},
            "template": {"spec": {"containers": [{"name": "a", "image": "1", "env": []}]}},
        }, "workerGroupSpecs": [{"groupName": "a", "replicas": 1}]},
    });
    cluster.apply("people", first, false).expect("applied");

    let error = cluster.apply("others", wanted, false).expect_err("a conflict");

    assert!(error.message.ends_with(&format!(": {path}")), "{}", error.message);
}

#[test]
fn writer_owns_the_written_fields() {
    let kind = kinds::by_name("RayCluster");
    let mut ledger = ManagedFields::default();
    let writer = FieldManager { name: "writer".into(), is_apply: false, is_status: false };
    let [first, second] = [json!({"spec": {"suspend": true, "rayVersion": "2"}}), json!({"spec": {"suspend": false}})];
    let first = std::sync::Arc::new(first);
    ledger.record_write(kind, "a", manager("maker"), None, first.clone());
    ledger.record_write(kind, "a", writer.clone(), Some(first), std::sync::Arc::new(second.clone()));

    let owners = ledger.owners(kind, "a");

    assert_eq!(owners.keys().collect::<Vec<_>>(), [&writer]);
    assert_eq!(owners[&writer], FieldSet::set_by(MergeRules::for_kind(kind), &second));
}

#[test]
fn containers_of_a_pod_are_merged_by_name() {
    let shape = MergeRules::for_kind(kinds::by_name("Pod"));
    let live = json!({"spec": {"containers": [{"name": "a", "image": "1"}, {"name": "b", "image": "1"}]}});
    let wanted = json!({"spec": {"containers": [{"name": "b", "image": "2"}]}});
    let applied = apply(shape, &live, &wanted, BTreeMap::new(), &manager("people"), false).expect("applied");
    let containers = json!([{"name": "b", "image": "2"}, {"name": "a", "image": "1"}]);
    assert_eq!(applied.object["spec"]["containers"], containers);
}
