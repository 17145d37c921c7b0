//! Tests of server-side apply.

use super::*;

const APPLY: &str = "application/apply-patch+yaml";

fn apply_configuration(kind: &str, version: &str, name: &str, spec: Value) -> Value {
    json!({"apiVersion": version, "kind": kind, "metadata": {"name": name}, "spec": spec})
}

impl TestServer {
    fn apply(&mut self, path: &str, by: &str, object: &Value) -> (u16, Value) {
        self.send("PATCH", &format!("{path}?&fieldManager={by}"), APPLY, object)
    }
}

#[test]
fn first_apply_creates_the_object_and_the_next_updates_it() {
    let mut server = TestServer::new();
    let made = server.apply(&cluster_path("a"), "people", &cluster("a"));
    assert_eq!((made.0, &made.1["metadata"]["generation"]), (201, &json!(1)));

    let again = server.apply(&cluster_path("a"), "people", &cluster("a"));
    assert_eq!(again, (200, made.1), "nothing changed");

    let mut suspended = cluster("a");
    suspended["spec"]["suspend"] = json!(true);
    let (code, changed) = server.apply(&cluster_path("a"), "people", &suspended);
    assert_eq!((code, &changed["spec"]["suspend"], &changed["metadata"]["generation"]), (200, &json!(true), &json!(2)));

    let (_, released) = server.apply(&cluster_path("a"), "people", &cluster("a"));
    assert_eq!(released["spec"]["suspend"], Value::Null);
}

#[test]
fn field_written_by_a_controller_is_not_overwritten_without_force() {
    let mut server = TestServer::new();
    server.apply(&cluster_path("a"), "people", &cluster("a"));
    server.merge(&format!("{}?fieldManager=sluice", cluster_path("a")), json!({"spec": {"suspend": true}}));
    server.merge(&cluster_path("a/status"), json!({"status": {"state": "suspended"}}));

    let (_, same) = server.apply(&cluster_path("a"), "people", &cluster("a"));
    assert_eq!((&same["spec"]["suspend"], &same["status"]["state"]), (&json!(true), &json!("suspended")));

    let mut running = cluster("a");
    running["spec"]["suspend"] = json!(false);
    let (code, status) = server.apply(&cluster_path("a"), "people", &running);
    let message = "Apply failed with 1 conflict: conflict with \"sluice\" using ray.io/v1: .spec.suspend";
    assert_eq!((code, status["message"].as_str()), (409, Some(message)));

    let forced = format!("{}?fieldManager=people&force=true", cluster_path("a"));
    let (code, running) = server.send("PATCH", &forced, APPLY, &running);
    assert_eq!((code, &running["spec"]["suspend"]), (200, &json!(false)));
}

#[test]
fn defaults_have_no_owner() {
    let mut server = TestServer::new();
    let path = "/apis/kueue.x-k8s.io/v1beta2/clusterqueues/q";
    let queue = |spec: Value| apply_configuration("ClusterQueue", "kueue.x-k8s.io/v1beta2", "q", spec);
    let (code, made) = server.apply(path, "people", &queue(json!({})));
    assert_eq!((code, &made["spec"]["queueingStrategy"]), (201, &json!("BestEffortFIFO")), "{made}");

    let (code, _) = server.apply(path, "others", &queue(json!({"queueingStrategy": "StrictFIFO"})));
    assert_eq!(code, 200);

    let (_, defaulted) = server.apply(path, "others", &queue(json!({})));
    assert_eq!(defaulted["spec"]["queueingStrategy"], "BestEffortFIFO");
}

#[test]
fn samples_can_be_applied() {
    let mut server = TestServer::new();
    let samples = concat!(
        include_str!("../../../../config/samples/queue.yaml"),
        "\n---\n",
        include_str!("../../../../config/samples/rayservice.yaml")
    );
    for document in samples.split("\n---").filter(|document| document.contains("kind:")) {
        let object: Value = serde_saphyr::from_str(document).expect("YAML");
        let kind = super::super::kinds::by_name(object["kind"].as_str().expect("a kind"));
        let namespace = if kind.namespaced { "namespaces/default/" } else { "" };
        let name = object["metadata"]["name"].as_str().expect("a name");
        let path = format!("/apis/{}/{namespace}{}/{name}", kind.api_version(), kind.plural);
        let (code, answer) = server.apply(&path, "people", &object);
        assert_eq!(code, 201, "{answer}");
    }
    let service = server.api.get("RayService", "default", "fruit").expect("the service");
    assert_eq!(service.pointer("/spec/rayClusterConfig/workerGroupSpecs/0/numOfHosts"), Some(&json!(1)));
}
