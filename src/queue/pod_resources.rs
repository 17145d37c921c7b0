//! Resource fields of a pod: the basis of its requests and of LimitRange checks.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Value, json};

use super::limit_ranges::LimitRangeSummary;
use super::requests::Requests;
use sluice_api::quantity::Exact;
use sluice_api::ray::names::{WAIT_CONTAINER, WAIT_CONTAINER_RESOURCES};

/// Exact amounts by resource. A resource that is named explicitly may have amount zero.
pub(super) type ExactResources = BTreeMap<String, Exact>;

/// Resource fields of a pod with parsed quantities.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct PodResources {
    pub(super) containers: Vec<ContainerResources>,
    pub(super) init_containers: Vec<ContainerResources>,
    /// Pod-level resources (KEP-2837).
    pub(super) pod_level: RequestsAndLimits,
    pub(super) overhead: ExactResources,
    pub(super) runtime_class: Option<String>,
}

/// Resource fields of a container.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct ContainerResources {
    pub(super) name: String,
    /// An init container with `restartPolicy: Always`, which keeps running.
    pub(super) sidecar: bool,
    pub(super) resources: RequestsAndLimits,
}

/// Requests, where a missing request defaults to the limit, and limits.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct RequestsAndLimits {
    pub(super) requests: ExactResources,
    pub(super) limits: ExactResources,
}

/// Returns true if the resource may be set at pod level (KEP-2837); others count per container
/// only.
pub(super) fn allowed_at_pod_level(resource: &str) -> bool {
    matches!(resource, "cpu" | "memory") || resource.starts_with("hugepages-")
}

/// Returns the name of a container for messages.
pub(super) fn container_label(container: &str) -> String {
    format!("container {container:?}")
}

impl PodResources {
    /// Returns its requests, including its own overhead or else that of its RuntimeClass.
    pub(super) fn requests(&self, class_overhead: Option<&ExactResources>) -> Requests {
        let mut total = self.total_requests();
        add_into(
            &mut total,
            if self.overhead.is_empty() { class_overhead.unwrap_or(&self.overhead) } else { &self.overhead },
        );
        total.into_iter().map(|(resource, sum)| (resource.clone(), sum.to_amount(&resource))).collect()
    }

    /// Returns the resources that nothing but the init container of KubeRay requests, which the owner
    /// of the manifest did not write. An own container of that name that requests more does not count.
    pub(super) fn injected_only(&self) -> BTreeSet<String> {
        let (injected, own): (Vec<_>, Vec<_>) =
            self.init_containers.iter().partition(|container| container.name == WAIT_CONTAINER);
        if injected.is_empty() {
            return BTreeSet::new();
        }
        let is_injected = |resource: &str, most: &str| {
            let most = Exact::parse(most).unwrap_or(Exact::ZERO);
            let requests = injected.iter().filter_map(|container| container.resources.requests.get(resource));
            requests.clone().next().is_some() && requests.into_iter().all(|amount| *amount <= most)
        };
        let is_own = |resource: &str| {
            let containers = self.containers.iter().chain(own.iter().copied());
            let mut requests = containers.map(|container| &container.resources.requests).chain([&self.overhead]);
            requests.any(|requests| requests.contains_key(resource)) || self.pod_level.requests.contains_key(resource)
        };
        let resources =
            WAIT_CONTAINER_RESOURCES.iter().filter(|(resource, most)| is_injected(resource, most) && !is_own(resource));
        resources.map(|(resource, _)| (*resource).to_owned()).collect()
    }

    /// Returns all fields but the container names as JSON with canonical amounts.
    pub(super) fn to_json(&self) -> Value {
        let containers = |list: &[ContainerResources]| -> Vec<Value> {
            let facts = list.iter().map(|container| {
                let mut facts = container.resources.to_json();
                facts["sidecar"] = container.sidecar.into();
                facts
            });
            facts.collect()
        };
        json!({
            "containers": containers(&self.containers),
            "initContainers": containers(&self.init_containers),
            "resources": self.pod_level.to_json(),
            "overhead": exact_json(&self.overhead),
            "runtimeClassName": self.runtime_class,
        })
    }

    /// Returns the total requests without overhead. Pod-level requests replace those of the
    /// containers.
    pub(super) fn total_requests(&self) -> ExactResources {
        self.pod_total(|resources| &resources.requests)
    }

    /// Returns the total limits. Pod-level limits replace those of the containers.
    pub(super) fn total_limits(&self) -> ExactResources {
        self.pod_total(|resources| &resources.limits)
    }

    fn pod_total(&self, list: impl Fn(&RequestsAndLimits) -> &ExactResources) -> ExactResources {
        let mut total = self.containers_total(&list);
        let whole = list(&self.pod_level).iter().filter(|(resource, _)| allowed_at_pod_level(resource));
        total.extend(whole.map(|(resource, value)| (resource.clone(), *value)));
        total
    }

    /// Returns the larger of the sum over all containers and the peak of the initialization.
    fn containers_total(&self, list: impl Fn(&RequestsAndLimits) -> &ExactResources) -> ExactResources {
        let mut running = ExactResources::new();
        for container in &self.containers {
            add_into(&mut running, list(&container.resources));
        }
        let (mut sidecars, mut peak) = (ExactResources::new(), ExactResources::new());
        for container in &self.init_containers {
            let mut step = list(&container.resources).clone();
            if container.sidecar {
                add_into(&mut running, &step);
                add_into(&mut sidecars, &step);
                step.clone_from(&sidecars);
            } else {
                add_into(&mut step, &sidecars);
            }
            max_into(&mut peak, &step);
        }
        max_into(&mut running, &peak);
        running
    }

    /// Defaults missing pod-level requests where the pod has pod-level limits: to the sum over the
    /// containers, or else to the limit. The API server does so before it applies LimitRanges
    /// (Kubernetes
    /// 1.36 `pkg/apis/core/v1/defaults.go`).
    #[must_use]
    pub(super) fn with_pod_level_requests(mut self) -> Self {
        if !self.pod_level.limits.is_empty() {
            let mut requests = self.pod_level.limits.clone();
            requests.extend(self.containers_total(|resources| &resources.requests));
            requests.append(&mut self.pod_level.requests);
            self.pod_level.requests = requests;
        }
        self
    }

    /// Returns the pod with the defaults that the API server fills in under these LimitRanges.
    #[must_use]
    pub(super) fn with_defaults(&self, limits: &LimitRangeSummary) -> Self {
        let mut pod = self.clone();
        for container in pod.containers.iter_mut().chain(&mut pod.init_containers) {
            limits.apply_defaults(&mut container.resources);
        }
        pod
    }
}

impl RequestsAndLimits {
    fn to_json(&self) -> Value {
        json!({"requests": exact_json(&self.requests), "limits": exact_json(&self.limits)})
    }
}

fn exact_json(sums: &ExactResources) -> BTreeMap<&str, String> {
    sums.iter().map(|(resource, value)| (resource.as_str(), value.nano().to_string())).collect()
}

/// Adds `more` to `sums`, by resource.
fn add_into(sums: &mut ExactResources, more: &ExactResources) {
    for (resource, value) in more {
        let sum = sums.entry(resource.clone()).or_insert(Exact::ZERO);
        *sum = sum.plus(*value);
    }
}

/// Raises `sums` to at least `to`, by resource.
fn max_into(sums: &mut ExactResources, to: &ExactResources) {
    for (resource, value) in to {
        let sum = sums.entry(resource.clone()).or_insert(*value);
        *sum = (*sum).max(*value);
    }
}
