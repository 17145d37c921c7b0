mod behaviours;
mod goals;
mod life;
mod requests;
mod restarts;
pub(crate) mod stage;
mod upgrades;

use serde_json::{Value, json};
use stage::Stage;

/// Returns a Serve configuration with one application.
fn config(name: &str) -> String {
    format!("applications: [{{name: {name}, import_path: {name}:app}}]")
}

/// Returns the RayService `ml/chat` with a head and one worker group.
pub(crate) fn chat() -> Value {
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
            "serveConfigV2": config("one"),
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
fn with_another_group() -> Value {
    let mut groups = chat()["spec"]["rayClusterConfig"]["workerGroupSpecs"].clone();
    let mut big = groups[0].clone();
    big["groupName"] = json!("big");
    groups.as_array_mut().expect("a list").push(big);
    groups
}

/// Returns a RayService that has been running for a minute.
fn serving() -> Stage {
    let mut stage = Stage::new(chat());
    stage.play(60);
    assert_eq!(stage.condition("Ready"), Some(("True".into(), "NonZeroServeEndpoints".into())));
    stage
}

/// Returns a patch that sets the Ray version.
pub(crate) fn version(version: &str) -> Value {
    json!({"spec": {"rayClusterConfig": {"rayVersion": version}}})
}

pub(crate) fn state(status: &str, reason: &str) -> Option<(String, String)> {
    Some((status.to_owned(), reason.to_owned()))
}
