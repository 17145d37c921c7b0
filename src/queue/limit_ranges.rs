//! The merged LimitRanges of a namespace: default requests and limits of containers, and
//! constraints on containers and pods.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;

use k8s_openapi::api::core::v1::LimitRangeSpec;

use super::pod_resources::{ContainerResources, ExactResources, PodResources, RequestsAndLimits, container_label};
use sluice_api::kueue::ResourceList;
use sluice_api::quantity::Exact;

/// The merged LimitRanges of one namespace: the smallest maximum, the largest minimum, and the
/// default of the first LimitRange by name (kueue v0.19.2 `pkg/util/limitrange/limitrange.go`).
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct LimitRangeSummary {
    container: MinMax,
    pod: MinMax,
    default_requests: Bounds,
    default_limits: Bounds,
}

/// Minimum and maximum by resource.
#[derive(Debug, Clone, Default, PartialEq)]
struct MinMax {
    min: Bounds,
    max: Bounds,
}

type Bounds = BTreeMap<String, Bound>;

#[derive(Debug, Clone, PartialEq)]
struct Bound {
    value: Exact,
    /// The quantity as written in the LimitRange.
    text: String,
    /// Name of the LimitRange that sets it.
    limit_range: String,
}

impl LimitRangeSummary {
    /// Merges LimitRanges, given in the order of their names. Ignores invalid quantities, which the
    /// API server rejects anyway.
    pub(super) fn merge_all<'a>(limit_ranges: impl IntoIterator<Item = (&'a str, &'a LimitRangeSpec)>) -> Self {
        let mut limits = Self::default();
        for (name, spec) in limit_ranges {
            for item in &spec.limits {
                let range = match item.type_.as_str() {
                    "Container" => &mut limits.container,
                    "Pod" => &mut limits.pod,
                    _ => continue,
                };
                merge(&mut range.min, item.min.as_ref(), name, |known, new| new > known);
                merge(&mut range.max, item.max.as_ref(), name, |known, new| new < known);
                if item.type_ == "Container" {
                    merge(&mut limits.default_requests, item.default_request.as_ref(), name, |_, _| false);
                    merge(&mut limits.default_limits, item.default.as_ref(), name, |_, _| false);
                }
            }
        }
        limits
    }

    /// Fills in the default requests and limits of a container.
    pub(super) fn apply_defaults(&self, resources: &mut RequestsAndLimits) {
        let RequestsAndLimits { requests, limits } = resources;
        set_missing(limits, values(&self.default_limits));
        set_missing(requests, values(&self.default_requests));
        set_missing(requests, limits.iter().map(|(resource, value)| (resource.clone(), *value)));
    }

    /// Returns a message for each constraint that a pod with filled-in defaults violates. Resources
    /// that the pod does not name and the overhead of its RuntimeClass are not checked (Kubernetes
    /// 1.36 `plugin/pkg/admission/limitranger`).
    pub(super) fn violations(&self, pod: &PodResources) -> Vec<String> {
        let containers = pod.init_containers.iter().chain(&pod.containers);
        let mut breaches: Vec<String> = containers.flat_map(|container| self.container_violations(container)).collect();
        let whole = RequestsAndLimits { requests: pod.total_requests(), limits: pod.total_limits() };
        let resources = self.pod.min.keys().chain(self.pod.max.keys().filter(|name| !self.pod.min.contains_key(*name)));
        breaches.extend(resources.filter_map(|resource| self.pod.violation("the pod", "Pod", resource, &whole)));
        breaches
    }

    /// Returns a message for each constraint that a container violates.
    fn container_violations<'a>(&'a self, container: &'a ContainerResources) -> impl Iterator<Item = String> + 'a {
        let place = container_label(&container.name);
        container.resources.requests.keys().filter_map(move |resource| {
            self.container
                .violation(&place, "Container", resource, &container.resources)
                .or_else(|| self.default_limit_violation(&place, resource, &container.resources))
        })
    }

    /// Returns a message if the request exceeds a default limit. A limit of the container itself
    /// was already validated against its request, so a smaller limit is a default.
    fn default_limit_violation(&self, place: &str, resource: &str, resources: &RequestsAndLimits) -> Option<String> {
        let (request, limit) = (resources.requests.get(resource)?, resources.limits.get(resource)?);
        let bound = self.default_limits.get(resource).filter(|_| request > limit)?;
        Some(format!(
            "{place} requests {} of {resource}, which is more than the default limit of {} set by LimitRange {}",
            display_amount(*request, resource),
            bound.text,
            bound.limit_range
        ))
    }
}

impl MinMax {
    /// Returns a message if `place` violates the constraints on one resource.
    fn violation(&self, place: &str, kind: &str, resource: &str, asked: &RequestsAndLimits) -> Option<String> {
        let (min, max) = (self.min.get(resource), self.max.get(resource));
        let sentence = |verb: &str, value: Exact, relation: &str, bound: &Bound| {
            let (value, Bound { text: written, limit_range, .. }) = (display_amount(value, resource), bound);
            let whose = format!("{written} set by LimitRange {limit_range} for a {kind}");
            format!("{place} {verb} {value} of {resource}, which is {relation} of {whose}")
        };
        let request = asked.requests.get(resource).copied();
        let limit = asked.limits.get(resource).copied();
        let above = |value: Option<Exact>| value.zip(max).filter(|(value, max)| *value > max.value);
        let below = |value: Option<Exact>| value.zip(min).filter(|(value, min)| *value < min.value);
        if let Some((value, max)) = above(request) {
            return Some(sentence("requests", value, "more than the maximum", max));
        }
        if let Some((value, max)) = above(limit) {
            return Some(sentence("is limited to", value, "more than the maximum", max));
        }
        below(request).map(|(value, min)| sentence("requests", value, "less than the minimum", min))
    }
}

/// Adds the quantities of one LimitRange where there is none yet or where they are `better`.
fn merge(bounds: &mut Bounds, list: Option<&ResourceList>, limit_range: &str, better: impl Fn(Exact, Exact) -> bool) {
    for (resource, quantity) in list.into_iter().flatten() {
        let Ok(value) = Exact::parse_request(quantity) else { continue };
        let new = Bound { value, text: quantity.0.clone(), limit_range: limit_range.to_owned() };
        match bounds.entry(resource.clone()) {
            Entry::Vacant(place) => {
                place.insert(new);
            }
            Entry::Occupied(mut place) => {
                if better(place.get().value, value) {
                    place.insert(new);
                }
            }
        }
    }
}

fn values(bounds: &Bounds) -> impl Iterator<Item = (String, Exact)> + '_ {
    bounds.iter().map(|(resource, bound)| (resource.clone(), bound.value))
}

/// Sets the resources that are unset.
fn set_missing(sums: &mut ExactResources, with: impl Iterator<Item = (String, Exact)>) {
    for (resource, value) in with {
        sums.entry(resource).or_insert(value);
    }
}

fn display_amount(value: Exact, resource: &str) -> String {
    value.to_amount(resource).display(resource).to_string()
}

#[cfg(test)]
mod tests {
    use rstest::rstest;
    use serde_json::{Value, json};

    use super::*;
    use crate::requests::parse_pod;
    use sluice_api::kueue::PodTemplate;

    fn limits(ranges: &[(&str, Value)]) -> LimitRangeSummary {
        let specs: Vec<(&str, LimitRangeSpec)> = ranges
            .iter()
            .map(|(name, items)| (*name, serde_json::from_value(json!({"limits": items})).expect("a LimitRange")))
            .collect();
        LimitRangeSummary::merge_all(specs.iter().map(|(name, spec)| (*name, spec)))
    }

    /// The pod as the API server would create it.
    fn pod(spec: &Value, limits: &LimitRangeSummary) -> PodResources {
        parse_pod(&PodTemplate::from(json!({"spec": spec}))).expect("a pod").with_defaults(limits)
    }

    fn one(resources: Value) -> Value {
        json!({"containers": [{"name": "c", "resources": resources}]})
    }

    /// A LimitRange as the API server stores it: a default limit implies a default request.
    fn defaults() -> Value {
        json!([{"type": "Container", "default": {"cpu": "4"}, "defaultRequest": {"cpu": "2"}}])
    }

    #[rstest]
    #[case::no_resources(one(json!({})), "2", Some("4"))]
    #[case::a_request_is_kept(one(json!({"requests": {"cpu": "1"}})), "1", Some("4"))]
    // Kueue counts 2 here, but the pod gets 3: the API server defaults the request from the limit
    // before it applies LimitRanges.
    #[case::limit_takes_precedence_over_default_request(one(json!({"limits": {"cpu": "3"}})), "3", Some("3"))]
    #[case::every_container_gets_it(json!({"containers": [{"name": "a"}, {"name": "b"}]}), "4", Some("8"))]
    #[case::init_containers_too(
        json!({"initContainers": [{"name": "i"}], "containers": [{"name": "c", "resources": {"requests": {"cpu": "1"}}}]}),
        "2", Some("4"))]
    #[case::not_pod_level_resources(
        json!({"resources": {"requests": {"cpu": "9"}}, "containers": [{"name": "c"}]}), "9", Some("4"))]
    // Kueue's test "Should sync the pod-level resource requests with the pod-level limit".
    #[case::pod_level_limit_takes_precedence_over_default_request(
        json!({"resources": {"limits": {"cpu": "7"}}, "containers": [{"name": "c"}]}), "7", Some("7"))]
    fn missing_requests_and_limits_get_defaults(
        #[case] spec: Value,
        #[case] request: &str,
        #[case] limit: Option<&str>,
    ) {
        let limits = limits(&[("defaults", defaults())]);

        let pod = pod(&spec, &limits);

        let cpu = |sums: ExactResources| sums.get("cpu").map(|value| display_amount(*value, "cpu"));
        assert_eq!(cpu(pod.total_requests()).as_deref(), Some(request));
        assert_eq!(cpu(pod.total_limits()).as_deref(), limit);
        assert_eq!(limits.violations(&pod), [""; 0]);
    }

    fn bounds(type_: &str, min: &str, max: &str) -> Value {
        json!([{"type": type_, "min": {"cpu": min}, "max": {"cpu": max}}])
    }

    #[rstest]
    #[case::within(json!({"requests": {"cpu": "1"}, "limits": {"cpu": "2"}}), "")]
    #[case::a_request_above(json!({"requests": {"cpu": "2500m"}}),
        "container \"c\" requests 2500m of cpu, which is more than the maximum of 2 set by LimitRange r for a Container")]
    #[case::a_limit_above(json!({"requests": {"cpu": "1"}, "limits": {"cpu": "3"}}),
        "container \"c\" is limited to 3 of cpu, which is more than the maximum of 2 set by LimitRange r for a Container")]
    #[case::a_request_below(json!({"requests": {"cpu": "0"}}),
        "container \"c\" requests 0 of cpu, which is less than the minimum of 1 set by LimitRange r for a Container")]
    #[case::unnamed_resource_is_not_checked(json!({"requests": {"memory": "1Gi"}}), "")]
    fn container_violating_constraints_is_reported(#[case] resources: Value, #[case] expected: &str) {
        let limits = limits(&[("r", bounds("Container", "1", "2"))]);
        assert_eq!(limits.violations(&pod(&one(resources), &limits)).join("; "), expected);
    }

    #[rstest]
    #[case::within("1500m", "2", json!({}), "")]
    #[case::requests_above("2500m", "9", json!({}),
        "the pod requests 5 of cpu, which is more than the maximum of 4 set by LimitRange r for a Pod")]
    #[case::limits_above("2", "2500m", json!({}),
        "the pod is limited to 5 of cpu, which is more than the maximum of 4 set by LimitRange r for a Pod")]
    #[case::requests_below("1", "2", json!({}),
        "the pod requests 2 of cpu, which is less than the minimum of 3 set by LimitRange r for a Pod")]
    #[case::pod_level_resources_count("1", "1", json!({"requests": {"cpu": "5"}, "limits": {"cpu": "5"}}),
        "the pod requests 5 of cpu, which is more than the maximum of 4 set by LimitRange r for a Pod")]
    fn pod_violating_constraints_is_reported(
        #[case] request: &str,
        #[case] limit: &str,
        #[case] whole: Value,
        #[case] expected: &str,
    ) {
        let container =
            |name: &str| json!({"name": name, "resources": {"requests": {"cpu": request}, "limits": {"cpu": limit}}});
        let spec = json!({
            "containers": [container("a"), container("b")],
            "resources": whole,
            "overhead": {"cpu": "2"},
        });
        let limits = limits(&[("r", bounds("Pod", "3", "4"))]);
        assert_eq!(limits.violations(&pod(&spec, &limits)).join("; "), expected);
    }

    #[test]
    fn request_above_default_limit_is_reported() {
        let limits = limits(&[("r", json!([{"type": "Container", "default": {"cpu": "1"}}]))]);
        let messages = limits.violations(&pod(&one(json!({"requests": {"cpu": "2"}})), &limits));
        assert_eq!(
            messages,
            ["container \"c\" requests 2 of cpu, which is more than the default limit of 1 set by LimitRange r"]
        );
    }

    /// Kueue's table `TestSummarize`. Other types of limits and invalid quantities are ignored.
    #[test]
    fn merged_limit_ranges_use_narrowest_bounds_and_first_defaults() {
        let narrow = |min: &str, max: &str, default: &str| {
            json!([
                {"type": "Container", "min": {"cpu": min}, "max": {"cpu": max}, "defaultRequest": {"cpu": default}},
                {"type": "PersistentVolumeClaim", "max": {"cpu": "0"}},
                {"type": "Pod", "max": {"cpu": "many"}, "defaultRequest": {"memory": "1"}},
            ])
        };
        let limits = limits(&[("a", narrow("1", "4", "3")), ("b", narrow("2", "5", "2"))]);

        let messages = |cpu: &str| limits.violations(&pod(&one(json!({"requests": {"cpu": cpu}})), &limits)).join("; ");
        assert!(messages("1500m").contains("the minimum of 2 set by LimitRange b"), "{}", messages("1500m"));
        assert!(messages("4500m").contains("the maximum of 4 set by LimitRange a"), "{}", messages("4500m"));
        assert_eq!(
            pod(&one(json!({})), &limits).total_requests(),
            [("cpu".to_owned(), Exact::parse_request(&quantity("3")).expect("a number"))].into()
        );
    }

    fn quantity(text: &str) -> sluice_api::quantity::Quantity {
        sluice_api::quantity::Quantity(text.to_owned())
    }
}
