//! What lets the autoscaler of a cluster work.

use rstest::rstest;
use serde_json::{Value, json};

use super::super::access::Access;
use super::super::fixtures::{Stage, changed};
use super::super::names;
use super::created;

/// A cluster with an autoscaler, the head of which runs as this ServiceAccount if one is given.
fn autoscaled(account: Option<&str>) -> Stage {
    let account = account.map_or(Value::Null, Value::from);
    let template = json!({"spec": {"serviceAccountName": account}});
    Stage::new(changed(json!({"enableInTreeAutoscaling": true, "headGroupSpec": {"template": template}})))
}

fn account_of_head(stage: &Stage) -> Option<&str> {
    stage.pods.values().next()?.spec.as_ref()?.service_account_name.as_deref()
}

#[test]
fn a_cluster_with_an_autoscaler_gets_an_account_that_may_do_what_that_does() {
    let mut stage = autoscaled(None);

    stage.settle();

    let [account, role, binding] = &stage.made_access[..] else { panic!("{:?}", stage.made_access) };
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
    let whom = json!([{"kind": "ServiceAccount", "name": "demo", "namespace": "default"}]);
    assert_eq!(binding["subjects"], whom);
    assert_eq!(binding["roleRef"], json!({"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "demo"}));
    assert_eq!(account_of_head(&stage), Some("demo"));
}

#[test]
fn the_head_is_made_once_its_account_is_there() {
    let mut stage = autoscaled(None);

    let first = stage.step();
    assert_eq!((created(&first, "ServiceAccount"), created(&first, "Pod")), (1, 0));
    let second = stage.step();
    assert_eq!((created(&second, "ServiceAccount"), created(&second, "Pod")), (0, 1));
}

#[test]
fn an_account_of_the_users_is_theirs_to_make() {
    let mut stage = autoscaled(Some("ray"));

    let first = stage.step();

    assert_eq!((created(&first, "ServiceAccount"), created(&first, "Pod")), (0, 1));
    assert_eq!((created(&first, "Role"), created(&first, "RoleBinding")), (1, 1));
    let binding = stage.made_access.last().expect("a binding");
    assert_eq!((binding["kind"].as_str(), binding["subjects"][0]["name"].as_str()), (Some("RoleBinding"), Some("ray")));
    assert_eq!(account_of_head(&stage), Some("ray"));
}

#[rstest]
#[case::all(Access { account: true, role: true, binding: true }, &[])]
#[case::none_but_the_role(Access { role: true, ..Access::default() }, &["ServiceAccount", "RoleBinding"])]
fn what_is_there_stays_as_it_is(#[case] there: Access, #[case] expected: &[&str]) {
    let mut stage = autoscaled(None);
    stage.access = there;

    stage.settle();

    let made: Vec<_> = stage.made_access.iter().filter_map(|object| object["kind"].as_str()).collect();
    assert_eq!(made, expected);
}

#[test]
fn what_is_deleted_is_made_again() {
    let mut stage = autoscaled(None);
    stage.settle();
    stage.access.binding = false;

    assert_eq!(created(&stage.plan(), "RoleBinding"), 1);
}

#[test]
fn a_cluster_without_an_autoscaler_needs_no_account() {
    let mut stage = Stage::new(changed(json!({})));

    stage.settle();

    assert_eq!((stage.made_access.len(), account_of_head(&stage)), (0, None));
}

#[rstest]
#[case::of_the_length_that_is_kept("a", "a")]
#[case::longer("za", "a")]
#[case::cut_at_a_digit("z1", "r")]
#[case::cut_at_a_hyphen("zz-", "r")]
fn long_names_are_cut_as_kuberay_cuts_them(#[case] begins: &str, #[case] expected: &str) {
    let rest = "x".repeat(49);
    let mut named = changed(json!({}));
    named.metadata.name = Some(format!("{begins}{rest}"));
    assert_eq!(names::access(&named), format!("{expected}{rest}"));
}
