//! Simulated Gateway controller, and Serve with replicas on workers.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::{ControlPlane, name_of};

impl ControlPlane {
    /// Acts as the Gateway controller: accepts all Gateways and routes.
    pub(super) fn accept_gateways_and_routes(&mut self) {
        for (kind, names) in [("Gateway", ["Accepted", "Programmed"]), ("HTTPRoute", ["Accepted", "ResolvedRefs"])] {
            for name in self.names(kind) {
                let generation = self.object(kind, &name)["metadata"]["generation"].clone();
                let conditions = names.map(|name| {
                    json!({
                        "type": name, "status": "True", "reason": name, "message": "", "observedGeneration": generation,
                        "lastTransitionTime": "2026-01-01T00:00:00Z",
                    })
                });
                let status = match kind {
                    "Gateway" => json!({"conditions": conditions}),
                    _ => {
                        let parent = &self.object(kind, &name)["spec"]["parentRefs"][0];
                        json!({"parents": [{"parentRef": parent, "controllerName": "a", "conditions": conditions}]})
                    }
                };
                self.patch(&(kind.to_owned(), name), &json!({"status": status}));
            }
        }
    }

    /// Returns the target number of Serve replicas of a cluster; `None` without a Serve
    /// configuration.
    pub(crate) fn target_serve_replicas(&self, cluster: &str) -> Option<u64> {
        let config = self.serve_configs.get(cluster)?;
        let full = config.pointer("/applications/0/deployments/0/num_replicas")?.as_f64()?;
        Some((full * config["target_capacity"].as_f64().unwrap_or(100.0) / 100.0).round() as u64)
    }

    /// Returns the deployments of a configuration as Serve reports them: each replica runs on a
    /// separate worker, and is starting while there is none.
    pub(super) fn serve_deployments(&self, cluster: &str, config: &Value) -> BTreeMap<String, Value> {
        let deployments = config.pointer("/applications/0/deployments").and_then(Value::as_array).into_iter().flatten();
        let capacity = config["target_capacity"].as_f64().unwrap_or(100.0);
        let workers = self.ungated_pods(cluster).filter(|pod| name_of(pod).contains("worker")).count();
        let reported = deployments.map(|deployment| {
            let full = deployment["num_replicas"].as_f64().unwrap_or(1.0);
            let wanted = (full * capacity / 100.0).round() as usize;
            let state = |index| json!({"state": if index < workers { "RUNNING" } else { "STARTING" }});
            let replicas: Vec<Value> = (0..wanted).map(state).collect();
            let name = deployment["name"].as_str().unwrap_or_default().to_owned();
            (
                name,
                json!({"status": "HEALTHY", "deployment_config": {"num_replicas": full as u32}, "replicas": replicas}),
            )
        });
        reported.collect()
    }
}
