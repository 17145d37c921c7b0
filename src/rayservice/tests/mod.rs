mod convergence;
pub(crate) mod harness;
mod kuberay_compatibility;
mod lifecycle;
mod restarts;
mod serving;
mod upgrades;

use harness::Harness;
use serde_json::{Value, json};

/// Returns a Serve configuration with one application.
fn serve_config(name: &str) -> String {
    format!("applications: [{{name: {name}, import_path: {name}:app}}]")
}

/// Returns the RayService `ml/chat` with a head and one worker group.
pub(crate) fn chat_service() -> Value {
    let template = |image: &str| {
        json!({"spec": {"containers": [{
            "name": "ray", "image": image,
            "ports": [{"name": "dashboard", "containerPort": 8265}, {"name": "serve", "containerPort": 8000}],
            "resources": {"requests": {"cpu": "1"}},
        }]}})
    };
    json!({
        "metadata": {"name": "chat", "namespace": "ml", "labels": {"team": "a"}, "annotations": {"note": "b"}},
        "spec": {
            "serveConfigV2": serve_config("one"),
            "rayClusterConfig": {
                "rayVersion": "2.53.0",
                "headGroupSpec": {"template": template("ray:1")},
                "workerGroupSpecs": [{
                    "groupName": "small", "replicas": 1, "minReplicas": 0, "maxReplicas": 5,
                    "template": template("ray:1"),
                }],
            },
        },
    })
}

/// Returns the worker groups of the RayService and one more.
fn groups_with_one_appended() -> Value {
    let mut groups = chat_service()["spec"]["rayClusterConfig"]["workerGroupSpecs"].clone();
    let mut big = groups[0].clone();
    big["groupName"] = json!("big");
    groups.as_array_mut().expect("a list").push(big);
    groups
}

/// Returns a RayService that has been running for a minute.
fn running_service() -> Harness {
    let mut harness = Harness::new(chat_service());
    harness.run_for(60);
    assert_eq!(harness.condition("Ready"), Some(("True".into(), "NonZeroServeEndpoints".into())));
    harness
}

/// Returns a patch that sets the Ray version.
pub(crate) fn ray_version_patch(version: &str) -> Value {
    json!({"spec": {"rayClusterConfig": {"rayVersion": version}}})
}

pub(crate) fn state(status: &str, reason: &str) -> Option<(String, String)> {
    Some((status.to_owned(), reason.to_owned()))
}
