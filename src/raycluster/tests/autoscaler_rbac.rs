//! RBAC of the autoscaler.

use rstest::rstest;
use serde_json::{Value, json};

use super::super::autoscaler_rbac::AutoscalerRbac;
use super::super::fixtures::{TestCluster, cluster_with_patch};
use super::super::names;
use super::created;

/// Returns a cluster with an autoscaler, and with this user-provided ServiceAccount of the head if
/// given.
fn autoscaled(account: Option<&str>) -> TestCluster {
    let account = account.map_or(Value::Null, Value::from);
    let template = json!({"spec": {"serviceAccountName": account}});
    TestCluster::new(cluster_with_patch(
        json!({"enableInTreeAutoscaling": true, "headGroupSpec": {"template": template}}),
    ))
}

fn account_of_head(test_cluster: &TestCluster) -> Option<&str> {
    test_cluster.pods.values().next()?.spec.as_ref()?.service_account_name.as_deref()
}

#[test]
fn autoscaler_gets_a_service_account_with_its_permissions() {
    let mut test_cluster = autoscaled(None);

    test_cluster.reconcile_until_stable();

    let [account, role, binding] = &test_cluster.created_rbac[..] else { panic!("{:?}", test_cluster.created_rbac) };
    for object in [account, role, binding] {
        assert_eq!(object["metadata"]["name"], "demo");
        assert_eq!(object["metadata"]["labels"]["ray.io/cluster"], "demo");
        assert_eq!(object["metadata"]["ownerReferences"][0]["uid"], "uid-1");
    }
    let allowed = json!([
        {"apiGroups": [""], "resources": ["pods"], "verbs": ["get", "list", "watch", "patch"]},
        {"apiGroups": [""], "resources": ["pods/resize"], "verbs": ["patch"]},
        {"apiGroups": ["ray.io"], "resources": ["rayclusters"], "verbs": ["get", "patch"]},
    ]);
    assert_eq!(role["rules"], allowed);
    let subjects = json!([{"kind": "ServiceAccount", "name": "demo", "namespace": "default"}]);
    assert_eq!(binding["subjects"], subjects);
    assert_eq!(binding["roleRef"], json!({"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "demo"}));
    assert_eq!(account_of_head(&test_cluster), Some("demo"));
}

#[test]
fn head_is_created_after_its_service_account() {
    let mut test_cluster = autoscaled(None);

    let first = test_cluster.reconcile_once();
    assert_eq!((created(&first, "ServiceAccount"), created(&first, "Pod")), (1, 0));
    let second = test_cluster.reconcile_once();
    assert_eq!((created(&second, "ServiceAccount"), created(&second, "Pod")), (0, 1));
}

#[test]
fn user_provided_service_account_is_not_created() {
    let mut test_cluster = autoscaled(Some("ray"));

    let first = test_cluster.reconcile_once();

    assert_eq!((created(&first, "ServiceAccount"), created(&first, "Pod")), (0, 1));
    assert_eq!((created(&first, "Role"), created(&first, "RoleBinding")), (1, 1));
    let binding = test_cluster.created_rbac.last().expect("a binding");
    assert_eq!((binding["kind"].as_str(), binding["subjects"][0]["name"].as_str()), (Some("RoleBinding"), Some("ray")));
    assert_eq!(account_of_head(&test_cluster), Some("ray"));
}

#[rstest]
#[case::all(AutoscalerRbac { service_account: true, role: true, role_binding: true }, &[])]
#[case::only_the_role(AutoscalerRbac { role: true, ..AutoscalerRbac::default() }, &["ServiceAccount", "RoleBinding"])]
fn existing_rbac_objects_stay_unchanged(#[case] existing: AutoscalerRbac, #[case] expected: &[&str]) {
    let mut test_cluster = autoscaled(None);
    test_cluster.autoscaler_rbac = existing;

    test_cluster.reconcile_until_stable();

    let created: Vec<_> = test_cluster.created_rbac.iter().filter_map(|object| object["kind"].as_str()).collect();
    assert_eq!(created, expected);
}

#[test]
fn deleted_role_binding_is_recreated() {
    let mut test_cluster = autoscaled(None);
    test_cluster.reconcile_until_stable();
    test_cluster.autoscaler_rbac.role_binding = false;

    assert_eq!(created(&test_cluster.plan(), "RoleBinding"), 1);
}

#[test]
fn cluster_without_autoscaler_has_no_service_account() {
    let mut test_cluster = TestCluster::new(cluster_with_patch(json!({})));

    test_cluster.reconcile_until_stable();

    assert_eq!((test_cluster.created_rbac.len(), account_of_head(&test_cluster)), (0, None));
}

#[rstest]
#[case::maximum_length("a", "a")]
#[case::longer("za", "a")]
#[case::cut_at_a_digit("z1", "r")]
#[case::cut_at_a_hyphen("zz-", "r")]
fn long_names_are_trimmed_as_in_kuberay(#[case] prefix: &str, #[case] expected: &str) {
    let rest = "x".repeat(49);
    let mut named = cluster_with_patch(json!({}));
    named.metadata.name = Some(format!("{prefix}{rest}"));
    assert_eq!(names::autoscaler_rbac(&named), format!("{expected}{rest}"));
}
