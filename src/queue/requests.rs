//! Resource requests of a pod, as kube-scheduler computes them.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{Container as PodContainer, PodSpec, ResourceRequirements};
use serde::Deserialize;
use serde_json::Value;

use super::pod_resources::{self, ExactResources, PodResources, container_label};
use sluice_api::DecodeError;
use sluice_api::kueue::{PodTemplate, ResourceList};
use sluice_api::quantity::{Amount, Exact, QuantityError};

/// Amounts by resource, without zero amounts.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Requests(BTreeMap<String, Amount>);

impl Requests {
    /// Returns the amount of one resource, in milli-CPU, bytes or devices.
    pub fn get(&self, resource: &str) -> Amount {
        self.0.get(resource).copied().unwrap_or_default()
    }

    /// Iterates over all amounts, sorted by resource name.
    pub fn iter(&self) -> impl Iterator<Item = (&str, Amount)> {
        self.0.iter().map(|(resource, amount)| (resource.as_str(), *amount))
    }

    /// Sets the amount of one resource; zero removes it.
    pub fn set(&mut self, resource: &str, amount: Amount) {
        if amount == Amount::ZERO {
            self.0.remove(resource);
        } else {
            self.0.insert(resource.to_owned(), amount);
        }
    }

    /// Returns the requests of `count` pods, saturating at [`Amount::MAX`].
    #[must_use]
    pub fn times(&self, count: i64) -> Self {
        let scaled = self.0.iter().map(|(resource, amount)| (resource.clone(), amount.times(count)));
        Self(scaled.filter(|(_, amount)| *amount != Amount::ZERO).collect())
    }

    /// Returns the amounts as Kubernetes quantities.
    pub fn quantities(&self) -> ResourceList {
        self.iter().map(|(resource, amount)| (resource.to_owned(), amount.to_quantity(resource))).collect()
    }
}

impl FromIterator<(String, Amount)> for Requests {
    fn from_iter<I: IntoIterator<Item = (String, Amount)>>(amounts: I) -> Self {
        Self(amounts.into_iter().filter(|(_, amount)| *amount != Amount::ZERO).collect())
    }
}

/// Error in computing the requests of a pod.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RequestsError {
    /// The pod template cannot be decoded.
    #[error("invalid pod template: {0}")]
    Template(#[from] DecodeError),
    /// A quantity is malformed or negative.
    #[error("{place}: invalid quantity of {resource}: {source}")]
    Quantity {
        /// The container or the pod itself, for display.
        place: String,
        /// Name of the resource.
        resource: String,
        /// The error in the quantity.
        source: QuantityError,
    },
    /// The pod uses devices through ResourceClaims, which have no amount that quota could cover.
    #[error(
        "resourceClaims {} can't be charged to a quota; request the devices as an extended resource, like \
         nvidia.com/gpu, instead",
        .claims.join(", ")
    )]
    ResourceClaims {
        /// Names of the claims in the pod.
        claims: Vec<String>,
    },
    /// A request exceeds its limit; the API server rejects such a pod.
    #[error("{place} requests {request} of {resource}, which is more than its limit of {limit}")]
    AboveLimit {
        /// The container or the pod itself, for display.
        place: String,
        /// Name of the resource.
        resource: String,
        /// The request as written in the spec.
        request: String,
        /// The limit as written in the spec.
        limit: String,
    },
}

/// Returns the requests of a pod: the larger of the sum over its containers and the peak of its
/// initialization, plus its overhead. Sidecars (init containers that always restart) count towards
/// both from their start on. A missing request defaults to the limit. A pod-level request replaces
/// the sum (Kubernetes 1.36 `component-helpers/resource/helpers.go`).
///
/// # Errors
/// If a quantity is malformed or negative, or a request exceeds its limit (kueue v0.19.2
/// `pkg/workload/resources.go`, `ValidateResources`).
pub fn pod_requests(pod: &PodSpec) -> Result<Requests, RequestsError> {
    Ok(RawPodSpec::from_spec(pod).parse()?.requests(None))
}

/// Returns all resource fields that the usage of a pod can depend on under any LimitRange and
/// RuntimeClass, in canonical form: equal amounts are written alike.
///
/// # Errors
/// Same as [`pod_requests`]; and if the pod has resource claims, which no quota covers. (Kueue charges
/// them by DeviceClass with a feature gate, and lets them run uncharged without it.)
pub fn pod_resources_json(pod: &PodSpec) -> Result<Value, RequestsError> {
    Ok(RawPodSpec::from_spec(pod).without_claims()?.parse()?.to_json())
}

/// Returns the requests of a pod template like [`pod_requests`], decoding only the fields that
/// count.
///
/// # Errors
/// If the template cannot be decoded, and as in [`pod_resources_json`].
pub fn template_requests(template: &PodTemplate) -> Result<Requests, RequestsError> {
    Ok(parse_pod(template)?.requests(None))
}

/// Parses the resource fields of a pod template.
///
/// # Errors
/// Same as [`template_requests`].
pub(super) fn parse_pod(template: &PodTemplate) -> Result<PodResources, RequestsError> {
    template.decode_spec::<RawPodSpec>().map_err(DecodeError::from)?.without_claims()?.parse()
}

/// The resource fields of a pod spec, unparsed. Decoding a full `PodSpec` takes ten times as long.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct RawPodSpec {
    #[serde(deserialize_with = "null_is_default")]
    containers: Vec<RawContainer>,
    #[serde(deserialize_with = "null_is_default")]
    init_containers: Vec<RawContainer>,
    #[serde(deserialize_with = "null_is_default")]
    overhead: ResourceList,
    #[serde(deserialize_with = "null_is_default")]
    resources: RawResources,
    #[serde(deserialize_with = "null_is_default")]
    resource_claims: Vec<RawResourceClaim>,
    runtime_class_name: Option<String>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct RawResourceClaim {
    name: String,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct RawContainer {
    name: String,
    #[serde(deserialize_with = "null_is_default")]
    resources: RawResources,
    restart_policy: Option<String>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct RawResources {
    #[serde(deserialize_with = "null_is_default")]
    requests: ResourceList,
    #[serde(deserialize_with = "null_is_default")]
    limits: ResourceList,
}

/// Deserializes null as the default: templates written by Go clients contain explicit nulls.
pub(super) fn null_is_default<'de, D: serde::Deserializer<'de>, T: Default + Deserialize<'de>>(
    from: D,
) -> Result<T, D::Error> {
    Ok(Option::<T>::deserialize(from)?.unwrap_or_default())
}

impl RawPodSpec {
    fn from_spec(pod: &PodSpec) -> Self {
        let containers = |list: &[PodContainer]| list.iter().map(RawContainer::from_spec).collect();
        Self {
            containers: containers(&pod.containers),
            init_containers: containers(pod.init_containers.as_deref().unwrap_or_default()),
            overhead: pod.overhead.clone().unwrap_or_default(),
            resources: RawResources::from_spec(pod.resources.as_ref()),
            resource_claims: pod
                .resource_claims
                .iter()
                .flatten()
                .map(|claim| RawResourceClaim { name: claim.name.clone() })
                .collect(),
            runtime_class_name: pod.runtime_class_name.clone(),
        }
    }

    fn without_claims(self) -> Result<Self, RequestsError> {
        if self.resource_claims.is_empty() {
            return Ok(self);
        }
        Err(RequestsError::ResourceClaims {
            claims: self.resource_claims.into_iter().map(|claim| claim.name).collect(),
        })
    }

    fn parse(&self) -> Result<PodResources, RequestsError> {
        let containers = |list: &[RawContainer]| list.iter().map(RawContainer::parse).collect::<Result<Vec<_>, _>>();
        let (requests, limits) = self.resources.parse("the pod")?;
        let pod = PodResources {
            containers: containers(&self.containers)?,
            init_containers: containers(&self.init_containers)?,
            pod_level: pod_resources::RequestsAndLimits { requests, limits },
            overhead: parse_quantities(&self.overhead, "the pod's overhead")?,
            runtime_class: self.runtime_class_name.clone(),
        };
        Ok(pod.with_pod_level_requests())
    }
}

impl RawContainer {
    fn from_spec(container: &PodContainer) -> Self {
        Self {
            name: container.name.clone(),
            resources: RawResources::from_spec(container.resources.as_ref()),
            restart_policy: container.restart_policy.clone(),
        }
    }

    fn parse(&self) -> Result<pod_resources::ContainerResources, RequestsError> {
        let (mut requests, limits) = self.resources.parse(&container_label(&self.name))?;
        for (resource, limit) in &limits {
            requests.entry(resource.clone()).or_insert(*limit);
        }
        Ok(pod_resources::ContainerResources {
            name: self.name.clone(),
            sidecar: self.restart_policy.as_deref() == Some("Always"),
            resources: pod_resources::RequestsAndLimits { requests, limits },
        })
    }
}

impl RawResources {
    fn from_spec(resources: Option<&ResourceRequirements>) -> Self {
        let list = |list: Option<&ResourceList>| list.cloned().unwrap_or_default();
        Self {
            requests: list(resources.and_then(|r| r.requests.as_ref())),
            limits: list(resources.and_then(|r| r.limits.as_ref())),
        }
    }

    /// Returns the parsed requests and limits. Errors if a request exceeds its limit.
    fn parse(&self, place: &str) -> Result<(ExactResources, ExactResources), RequestsError> {
        let (requests, limits) = (parse_quantities(&self.requests, place)?, parse_quantities(&self.limits, place)?);
        let exceeds_limit =
            |(resource, request): &(&String, &Exact)| limits.get(*resource).is_some_and(|limit| *request > limit);
        match requests.iter().find(exceeds_limit) {
            Some((resource, _)) => Err(RequestsError::AboveLimit {
                place: place.to_owned(),
                resource: resource.clone(),
                request: self.requests[resource].0.clone(),
                limit: self.limits[resource].0.clone(),
            }),
            None => Ok((requests, limits)),
        }
    }
}

/// Parses the quantities of `place`.
fn parse_quantities(list: &ResourceList, place: &str) -> Result<ExactResources, RequestsError> {
    list.iter()
        .map(|(resource, quantity)| match Exact::parse_request(quantity) {
            Ok(value) => Ok((resource.clone(), value)),
            Err(source) => Err(RequestsError::Quantity { place: place.to_owned(), resource: resource.clone(), source }),
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use rstest::rstest;
    use serde_json::json;

    use super::*;

    fn cpu(value: &str) -> Value {
        json!({"requests": {"cpu": value}})
    }

    #[rstest]
    #[case::no_containers(json!({"containers": []}), &[])]
    #[case::containers_add_up(
        json!({"containers": [{"name": "a", "resources": cpu("500m")}, {"name": "b", "resources": cpu("1")}]}),
        &[("cpu", 1500)]
    )]
    #[case::numbers_are_quantities(
        json!({"containers": [{"name": "a", "resources": {"requests": {"cpu": 2, "memory": 1024}}}]}),
        &[("cpu", 2000), ("memory", 1024)]
    )]
    #[case::fractions_round_up_once_after_adding(
        json!({"containers": [{"name": "a", "resources": cpu("400u")}, {"name": "b", "resources": cpu("400u")}]}),
        &[("cpu", 1)]
    )]
    #[case::missing_request_defaults_to_limit(
        json!({"containers": [{"name": "a", "resources": {"limits": {"nvidia.com/gpu": "2", "cpu": "4"}, "requests": {"cpu": "1"}}}]}),
        &[("cpu", 1000), ("nvidia.com/gpu", 2)]
    )]
    #[case::the_largest_init_container_counts(
        json!({"containers": [{"name": "a", "resources": cpu("1")}],
               "initContainers": [{"name": "i", "resources": cpu("3")}, {"name": "j", "resources": cpu("2")}]}),
        &[("cpu", 3000)]
    )]
    #[case::a_sidecar_adds_to_the_containers(
        json!({"containers": [{"name": "a", "resources": cpu("1")}],
               "initContainers": [{"name": "s", "restartPolicy": "Always", "resources": cpu("2")}]}),
        &[("cpu", 3000)]
    )]
    #[case::sidecar_runs_alongside_later_init_containers(
        json!({"containers": [{"name": "a", "resources": cpu("1")}],
               "initContainers": [{"name": "s", "restartPolicy": "Always", "resources": cpu("2")}, {"name": "i", "resources": cpu("4")}]}),
        &[("cpu", 6000)]
    )]
    #[case::an_init_container_before_a_sidecar_runs_alone(
        json!({"containers": [{"name": "a", "resources": cpu("1")}],
               "initContainers": [{"name": "i", "resources": cpu("4")}, {"name": "s", "restartPolicy": "Always", "resources": cpu("2")}]}),
        &[("cpu", 4000)]
    )]
    #[case::overhead_comes_on_top(
        json!({"containers": [{"name": "a", "resources": cpu("1")}], "overhead": {"cpu": "250m", "memory": "1Mi"}}),
        &[("cpu", 1250), ("memory", 1_048_576)]
    )]
    #[case::pod_level_request_replaces_the_sum(
        json!({"containers": [{"name": "a", "resources": cpu("1")}], "resources": {"requests": {"cpu": "3", "nvidia.com/gpu": "1"}}}),
        &[("cpu", 3000)]
    )]
    #[case::pod_level_limit_counts_without_container_requests(
        json!({"containers": [{"name": "a", "resources": cpu("1")}], "resources": {"limits": {"cpu": "3", "memory": "1Ki"}}}),
        &[("cpu", 1000), ("memory", 1024)]
    )]
    #[case::zero_requests_are_omitted(json!({"containers": [{"name": "a", "resources": cpu("0")}]}), &[])]
    #[case::excessive_amounts_saturate(
        json!({"containers": [{"name": "a", "resources": {"requests": {"memory": "1e400"}}}, {"name": "b", "resources": {"requests": {"memory": "1Gi"}}}]}),
        &[("memory", i64::MAX)]
    )]
    fn pod_requests_are_computed_like_in_kube_scheduler(#[case] spec: Value, #[case] expected: &[(&str, i64)]) {
        let expected: Requests = expected.iter().map(|(name, n)| ((*name).to_owned(), Amount::new(*n))).collect();
        let pod: PodSpec = serde_json::from_value(spec.clone()).expect("a pod spec");
        assert_eq!(pod_requests(&pod).expect("valid quantities"), expected);
        let template = PodTemplate::from(json!({"metadata": {"creationTimestamp": null}, "spec": spec}));
        assert_eq!(template_requests(&template).expect("valid quantities"), expected);
    }

    #[rstest]
    #[case::negative(
        "-1",
        "container \"a\": invalid quantity of cpu: \"-1\" is negative; only zero or more is allowed"
    )]
    #[case::malformed(
        "many",
        "container \"a\": invalid quantity of cpu: \"many\" is not a quantity; write a number like 4, 500m, 1.5, 64Gi or 1e3"
    )]
    fn invalid_quantity_is_reported(#[case] quantity: &str, #[case] message: &str) {
        let template = PodTemplate::from(json!({"spec": {"containers": [{"name": "a", "resources": cpu(quantity)}]}}));
        assert_eq!(template_requests(&template).expect_err("it is bad").to_string(), message);
    }

    #[test]
    fn resource_claims_are_refused() {
        let claims =
            json!([{"name": "gpu", "resourceClaimTemplateName": "t"}, {"name": "nic", "resourceClaimName": "c"}]);
        let spec = json!({"containers": [{"name": "a", "resources": cpu("1")}], "resourceClaims": claims});
        let message = "resourceClaims gpu, nic can't be charged to a quota; request the devices as an extended \
                       resource, like nvidia.com/gpu, instead";

        let template = PodTemplate::from(json!({"spec": spec}));
        assert_eq!(template_requests(&template).expect_err("it has claims").to_string(), message);
        let pod: PodSpec = serde_json::from_value(spec).expect("a pod spec");
        assert_eq!(pod_resources_json(&pod).expect_err("it has claims").to_string(), message);
    }

    #[test]
    fn explicit_nulls_are_absent() {
        let spec = json!({"containers": [{"name": "a", "resources": null}], "initContainers": null, "overhead": null});
        let template = PodTemplate::from(json!({"spec": spec}));
        assert_eq!(template_requests(&template).expect("nothing is wrong"), Requests::default());
    }
}
