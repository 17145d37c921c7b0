//! A pod, as far as it decides what the scheduler is asked for and what a LimitRange allows.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::limits::Limits;
use super::requests::Requests;
use sluice_api::quantity::Exact;

/// Amounts by resource; of one that is named, zero may be asked.
pub(super) type Sums = BTreeMap<String, Exact>;

/// A pod whose quantities are all read.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Pod {
    pub(super) containers: Vec<Container>,
    pub(super) init_containers: Vec<Container>,
    /// For the pod as a whole.
    pub(super) whole: Resources,
    pub(super) overhead: Sums,
    pub(super) runtime_class: Option<String>,
}

/// A container of a pod.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Container {
    pub(super) name: String,
    /// An init container that goes on beside all that come after it.
    pub(super) sidecar: bool,
    pub(super) resources: Resources,
}

/// What is requested, where a limit stands in for a request that is missing; and the limits.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Resources {
    pub(super) requests: Sums,
    pub(super) limits: Sums,
}

/// Resources that may be given for a pod as a whole (KEP-2837); others count by container only.
pub(super) fn is_pod_level(resource: &str) -> bool {
    matches!(resource, "cpu" | "memory") || resource.starts_with("hugepages-")
}

/// How a sentence names a container.
pub(super) fn place_of(container: &str) -> String {
    format!("container {container:?}")
}

impl Pod {
    /// What it asks the scheduler for, with the overhead of its runtime class unless it names its own.
    pub(super) fn requests(&self, of_class: Option<&Sums>) -> Requests {
        let mut total = self.requested();
        add(&mut total, if self.overhead.is_empty() { of_class.unwrap_or(&self.overhead) } else { &self.overhead });
        total.into_iter().map(|(resource, sum)| (resource.clone(), sum.amount(&resource))).collect()
    }

    /// All of it but the names of its containers.
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

    /// What all containers request together, or the pod as a whole; without overhead.
    pub(super) fn requested(&self) -> Sums {
        self.together(|resources| &resources.requests)
    }

    /// The limits of all containers together, or of the pod as a whole.
    pub(super) fn limited(&self) -> Sums {
        self.together(|resources| &resources.limits)
    }

    fn together(&self, list: impl Fn(&Resources) -> &Sums) -> Sums {
        let mut total = self.of_containers(&list);
        let whole = list(&self.whole).iter().filter(|(resource, _)| is_pod_level(resource));
        total.extend(whole.map(|(resource, value)| (resource.clone(), *value)));
        total
    }

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

    /// Fills in the requests for the pod as a whole where it has limits: what the containers request, or else the limit. The
    /// API server does so before it looks at LimitRanges (Kubernetes 1.36 `pkg/apis/core/v1/defaults.go`).
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

    /// The pod that the API server makes of this one in a namespace with these LimitRanges.
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

fn add(sums: &mut Sums, more: &Sums) {
    for (resource, value) in more {
        let sum = sums.entry(resource.clone()).or_insert(Exact::ZERO);
        *sum = sum.plus(*value);
    }
}

fn raise(sums: &mut Sums, to: &Sums) {
    for (resource, value) in to {
        let sum = sums.entry(resource.clone()).or_insert(*value);
        *sum = (*sum).max(*value);
    }
}
