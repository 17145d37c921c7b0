//! Properties under random requests.

use std::collections::BTreeMap;

use fastrand::Rng;

use super::*;

const HISTORIES: u64 = 30;
const REQUESTS: usize = 120;

/// Sends one random request for one of a few pods.
fn random_request(server: &mut TestServer, rng: &mut Rng) {
    let name = format!("p{}", rng.u8(0..4));
    let path = format!("{PODS}/{name}");
    let app = rng.choice(["x", "y"]);
    let now = server.now;
    match rng.u8(0..8) {
        0 | 1 => {
            server.post(PODS, pod(&name, json!({"app": app})));
        }
        2 | 3 => {
            server.merge(&path, json!({"metadata": {"labels": {"app": app}}}));
        }
        4 => {
            let finalizers = if rng.bool() { json!(["a/b"]) } else { Value::Null };
            server.merge(&path, json!({"metadata": {"finalizers": finalizers}}));
        }
        5 => {
            // The pod may not exist.
            let _ = server.api.update(now, "Pod", "default", &name, |pod| pod["spec"]["nodeName"] = "node".into());
        }
        6 => {
            server.delete(&path, json!({"gracePeriodSeconds": rng.i64(0..3)}));
        }
        _ => server.api.delete_immediately(now, "Pod", "default", &name),
    }
}

/// Client that lists and watches, with its cached pods.
struct CachingClient {
    selector: &'static str,
    watch: Watch,
    cached: BTreeMap<String, Value>,
}

impl CachingClient {
    fn new(server: &mut TestServer, selector: &'static str) -> Self {
        let (believes, version) = list_pods(server, selector);
        let path = format!("{PODS}?watch=true&labelSelector={selector}&resourceVersion={version}");
        Self { selector, watch: server.watch(&path), cached: believes }
    }

    fn catch_up(&mut self, server: &mut TestServer) {
        for (change, object) in server.events(&mut self.watch) {
            let name = object["metadata"]["name"].as_str().unwrap_or_default().to_owned();
            let known = self.cached.contains_key(&name);
            match change.as_str() {
                "ADDED" => assert!(!known, "{name} was added twice"),
                "MODIFIED" | "DELETED" => assert!(known, "{name} was {change} but is not known"),
                _ => return *self = Self::new(server, self.selector),
            }
            match change.as_str() {
                "DELETED" => self.cached.remove(&name),
                _ => self.cached.insert(name, object),
            };
        }
    }
}

/// Lists the selected pods; returns them by name, and the version of the list.
fn list_pods(server: &mut TestServer, selector: &str) -> (BTreeMap<String, Value>, String) {
    let (_, list) = server.get(&format!("{PODS}?labelSelector={selector}"));
    let pods = list["items"].as_array().into_iter().flatten().map(|pod| {
        let mut pod = pod.clone();
        (pod["apiVersion"], pod["kind"]) = ("v1".into(), "Pod".into());
        (pod["metadata"]["name"].as_str().unwrap_or_default().to_owned(), pod)
    });
    (pods.collect(), list["metadata"]["resourceVersion"].as_str().unwrap_or_default().to_owned())
}

#[test]
fn watch_events_add_up_to_the_list() {
    for seed in 0..HISTORIES {
        let (mut rng, mut server) = (Rng::with_seed(seed), TestServer::new());
        let mut clients = ["", "app%3Dx", "%21app"].map(|selector| CachingClient::new(&mut server, selector));
        for _ in 0..REQUESTS {
            random_request(&mut server, &mut rng);
            if rng.u8(0..40) == 0 {
                server.api.compact();
            }
            for client in &mut clients {
                if rng.u8(0..3) == 0 {
                    client.catch_up(&mut server);
                    assert_eq!(client.cached, list_pods(&mut server, client.selector).0, "seed {seed}");
                }
            }
        }
        let versions: Vec<u64> = server.api.changes_from(0).iter().map(|change| change.version).collect();
        assert!(versions.is_sorted_by(|earlier, later| earlier < later), "seed {seed}");
    }
}

/// Returns a random configuration of a Workload to apply.
fn random_workload(rng: &mut Rng) -> Value {
    let mut spec = json!({"podSets": []});
    for name in ["head", "worker"] {
        if rng.bool() {
            let mut set = json!({"name": name, "template": {}});
            if rng.bool() {
                set["count"] = rng.u8(0..3).into();
            }
            if rng.bool() {
                set["topologyRequest"] = json!({"required": rng.choice(["a", "b"])});
            }
            spec["podSets"].as_array_mut().expect("a list").push(set);
        }
    }
    if rng.bool() {
        spec["queueName"] = rng.choice(["p", "q"]).into();
    }
    let mut metadata = json!({"name": "w"});
    if rng.bool() {
        metadata["labels"] = json!({"x": rng.u8(0..2).to_string()});
    }
    json!({"apiVersion": "kueue.x-k8s.io/v1beta2", "kind": "Workload", "metadata": metadata, "spec": spec})
}

/// Returns true if `object` contains all of `part`; list items match in any order.
fn contains(object: Option<&Value>, part: &Value) -> bool {
    match part {
        Value::Object(parts) => {
            parts.iter().all(|(name, part)| contains(object.and_then(|object| object.get(name)), part))
        }
        Value::Array(parts) => {
            let items = object.and_then(Value::as_array);
            parts.iter().all(|part| items.is_some_and(|items| items.iter().any(|item| contains(Some(item), part))))
        }
        _ => object == Some(part),
    }
}

#[test]
fn applied_fields_exist_until_no_longer_applied() {
    const PATH: &str = "/apis/kueue.x-k8s.io/v1beta2/namespaces/default/workloads/w";
    for seed in 0..HISTORIES {
        let (mut rng, mut server) = (Rng::with_seed(seed), TestServer::new());
        let mut base = json!({"apiVersion": "kueue.x-k8s.io/v1beta2", "kind": "Workload", "metadata": {"name": "w"}});
        base["spec"] = json!({"podSets": [{"name": "base", "template": {}}]});
        server.send("PATCH", &format!("{PATH}?fieldManager=base"), "application/apply-patch+yaml", &base);
        for _ in 0..REQUESTS / 4 {
            let by = rng.choice(["first", "second"]).expect("a manager");
            let path = format!("{PATH}?fieldManager={by}&force=true");
            let wish = random_workload(&mut rng);

            let (code, applied) = server.send("PATCH", &path, "application/apply-patch+yaml", &wish);
            let again = server.send("PATCH", &path, "application/apply-patch+yaml", &wish);

            assert_eq!(code, 200, "seed {seed}: {applied}");
            assert!(contains(Some(&applied), &wish), "seed {seed}: {wish} is not in {applied}");
            assert_eq!(again, (200, applied), "seed {seed}");
        }
        for by in ["first", "second"] {
            let nothing = json!({"apiVersion": "kueue.x-k8s.io/v1beta2", "kind": "Workload", "spec": {}});
            let path = format!("{PATH}?fieldManager={by}&force=true");
            let (code, left) = server.send("PATCH", &path, "application/apply-patch+yaml", &nothing);
            assert_eq!(code, 200, "seed {seed}: {left}");
        }
        let left = server.api.get("Workload", "default", "w").expect("the workload");
        assert!(left["metadata"].get("labels").is_none(), "seed {seed}: {left}");
        let spec = json!({"active": true, "podSets": [{"name": "base", "count": 1, "template": {}}]});
        assert_eq!(left["spec"], spec, "seed {seed}");
    }
}
