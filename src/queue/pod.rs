//! Resource fields of a pod: the basis of its requests and of LimitRange checks.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::limits::Limits;
use super::requests::Requests;
use sluice_api::quantity::Exact;

/// Exact amounts by resource. A resource that is named explicitly may have amount zero.
pub(super) type Sums = BTreeMap<String, Exact>;

/// Resource fields of a pod with parsed quantities.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Pod {
    pub(super) containers: Vec<Container>,
    pub(super) init_containers: Vec<Container>,
    /// Pod-level resources (KEP-2837).
    pub(super) whole: Resources,
    pub(super) overhead: Sums,
    pub(super) runtime_class: Option<String>,
}

/// Resource fields of a container.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Container {
    pub(super) name: String,
    /// An init container with `restartPolicy: Always`, which keeps running.
    pub(super) sidecar: bool,
    pub(super) resources: Resources,
}

/// Requests, where a missing request defaults to the limit, and limits.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Resources {
    pub(super) requests: Sums,
    pub(super) limits: Sums,
}

/// Returns true if the resource may be set at pod level (KEP-2837); others count per container
/// only.
pub(super) fn is_pod_level(resource: &str) -> bool {
    matches!(resource, "cpu" | "memory") || resource.starts_with("hugepages-")
}

/// Returns the name of a container for messages.
pub(super) fn place_of(container: &str) -> String {
    format!("container {container:?}")
}

impl Pod {
    /// Returns its requests, including its own overhead or else that of its RuntimeClass.
    pub(super) fn requests(&self, class_overhead: Option<&Sums>) -> Requests {
        let mut total = self.requested();
        add(
            &mut total,
            if self.overhead.is_empty() { class_overhead.unwrap_or(&self.overhead) } else { &self.overhead },
        );
        total.into_iter().map(|(resource, sum)| (resource.clone(), sum.amount(&resource))).collect()
    }

    /// Returns all fields but the container names as JSON with canonical amounts.
    pub(super) fn facts(&self) -> Value {
        let containers = |list: &[Container]| -> Vec<Value> {
            let facts = list.iter().map(|container| {
                let mut facts = container.resources.facts();
                facts["sidecar"] = container.sidecar.into();
                facts
            });
            facts.collect()
        };
        json!({
            "containers": containers(&self.containers),
            "initContainers": containers(&self.init_containers),
            "resources": self.whole.facts(),
            "overhead": facts_of(&self.overhead),
            "runtimeClassName": self.runtime_class,
        })
    }

    /// Returns the total requests without overhead. Pod-level requests replace those of the
    /// containers.
    pub(super) fn requested(&self) -> Sums {
        self.together(|resources| &resources.requests)
    }

    /// Returns the total limits. Pod-level limits replace those of the containers.
    pub(super) fn limited(&self) -> Sums {
        self.together(|resources| &resources.limits)
    }

    fn together(&self, list: impl Fn(&Resources) -> &Sums) -> Sums {
        let mut total = self.of_containers(&list);
        let whole = list(&self.whole).iter().filter(|(resource, _)| is_pod_level(resource));
        total.extend(whole.map(|(resource, value)| (resource.clone(), *value)));
        total
    }

    /// Returns the larger of the sum over all containers and the peak of the initialization.
    fn of_containers(&self, list: impl Fn(&Resources) -> &Sums) -> Sums {
        let mut running = Sums::new();
        for container in &self.containers {
            add(&mut running, list(&container.resources));
        }
        let (mut sidecars, mut peak) = (Sums::new(), Sums::new());
        for container in &self.init_containers {
            let mut step = list(&container.resources).clone();
            if container.sidecar {
                add(&mut running, &step);
                add(&mut sidecars, &step);
                step.clone_from(&sidecars);
            } else {
                add(&mut step, &sidecars);
            }
            raise(&mut peak, &step);
        }
        raise(&mut running, &peak);
        running
    }

    /// Defaults missing pod-level requests where the pod has pod-level limits: to the sum over the
    /// containers, or else to the limit. The API server does so before it applies LimitRanges
    /// (Kubernetes
    /// 1.36 `pkg/apis/core/v1/defaults.go`).
    #[must_use]
    pub(super) fn with_whole_requests(mut self) -> Self {
        if !self.whole.limits.is_empty() {
            let mut requests = self.whole.limits.clone();
            requests.extend(self.of_containers(|resources| &resources.requests));
            requests.append(&mut self.whole.requests);
            self.whole.requests = requests;
        }
        self
    }

    /// Returns the pod with the defaults that the API server fills in under these LimitRanges.
    #[must_use]
    pub(super) fn completed(&self, limits: &Limits) -> Self {
        let mut pod = self.clone();
        for container in pod.containers.iter_mut().chain(&mut pod.init_containers) {
            limits.complete(&mut container.resources);
        }
        pod
    }
}

impl Resources {
    fn facts(&self) -> Value {
        json!({"requests": facts_of(&self.requests), "limits": facts_of(&self.limits)})
    }
}

fn facts_of(sums: &Sums) -> BTreeMap<&str, String> {
    sums.iter().map(|(resource, value)| (resource.as_str(), value.nano().to_string())).collect()
}

/// Adds `more` to `sums`, by resource.
fn add(sums: &mut Sums, more: &Sums) {
    for (resource, value) in more {
        let sum = sums.entry(resource.clone()).or_insert(Exact::ZERO);
        *sum = sum.plus(*value);
    }
}

/// Raises `sums` to at least `to`, by resource.
fn raise(sums: &mut Sums, to: &Sums) {
    for (resource, value) in to {
        let sum = sums.entry(resource.clone()).or_insert(*value);
        *sum = (*sum).max(*value);
    }
}
