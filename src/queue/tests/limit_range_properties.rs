//! Properties of random small clusters whose LimitRanges and RuntimeClasses change over time.

use std::collections::BTreeMap;

use proptest::prelude::*;
use proptest::test_runner::RngSeed;
use serde_json::{Value, json};

use super::fixture::{Cluster, edit_pod_spec};
use super::generators::{apply_decisions, cluster_plans, histories};
use crate::Decision;
use crate::log::replay;
use sluice_api::kueue::{Admission, Workload, names};
use sluice_api::quantity::Amount;

const CASES: u32 = 100;

/// Returns a configuration with a fixed seed, so that the result of a commit is reproducible.
fn proptest_config() -> ProptestConfig {
    ProptestConfig { cases: CASES, rng_seed: RngSeed::Fixed(1), failure_persistence: None, ..ProptestConfig::default() }
}

/// Bounds and default request of a LimitRange for one resource, in units.
#[derive(Debug, Clone, Default)]
struct Limit {
    resource: &'static str,
    min: Option<u8>,
    max: Option<u8>,
    default: Option<u8>,
}

#[derive(Debug, Clone)]
enum Change {
    /// Creates or changes one of the two LimitRanges: the first if true.
    PutLimitRange(bool, Limit),
    DeleteLimitRange(bool),
    /// Sets the GPU overhead of the RuntimeClass `sandbox`.
    PutRuntimeClass(u8),
    DeleteRuntimeClass,
    /// Makes a pending workload use the RuntimeClass `sandbox`.
    UseRuntimeClass(u8),
    Restart,
}

fn changes() -> impl Strategy<Value = Vec<Change>> {
    let resource = prop_oneof![2 => Just("gpu"), 1 => Just("tpu")];
    let limit = (resource, prop::option::of(0..3_u8), prop::option::of(1..4_u8), prop::option::of(0..3_u8));
    let limit = limit.prop_map(|(resource, min, max, default)| Limit { resource, min, max, default });
    let change = prop_oneof![
        6 => (any::<bool>(), limit).prop_map(|(first, limit)| Change::PutLimitRange(first, limit)),
        2 => any::<bool>().prop_map(Change::DeleteLimitRange),
        2 => (0..3_u8).prop_map(Change::PutRuntimeClass),
        1 => Just(Change::DeleteRuntimeClass),
        4 => any::<u8>().prop_map(Change::UseRuntimeClass),
        1 => Just(Change::Restart),
    ];
    prop::collection::vec(change, 0..3)
}

/// LimitRanges by name and the overhead of the RuntimeClass that exist at present.
#[derive(Debug, Clone, Default)]
struct ExpectedRules {
    limits: BTreeMap<&'static str, Limit>,
    overhead: Option<u8>,
}

impl ExpectedRules {
    fn apply(&mut self, cluster: &mut Cluster, change: &Change) {
        let name = |first: bool| if first { "a" } else { "b" };
        match change {
            Change::PutLimitRange(first, limit) => {
                let bound =
                    |value: Option<u8>| value.map_or(json!({}), |value| json!({limit.resource: value.to_string()}));
                let item = json!({"type": "Container", "min": bound(limit.min), "max": bound(limit.max), "defaultRequest": bound(limit.default)});
                cluster.put_limit_range(name(*first), json!([item]));
                self.limits.insert(name(*first), limit.clone());
            }
            Change::DeleteLimitRange(first) => {
                cluster.delete_limit_range(name(*first));
                self.limits.remove(name(*first));
            }
            Change::PutRuntimeClass(overhead) => {
                cluster.put_runtime_class("sandbox", json!({"gpu": overhead.to_string()}));
                self.overhead = Some(*overhead);
            }
            Change::DeleteRuntimeClass => {
                cluster.delete_runtime_class("sandbox");
                self.overhead = None;
            }
            Change::UseRuntimeClass(number) => {
                let is_pending = |name: &&String| !cluster.is_true(name, names::QUOTA_RESERVED);
                let keys: Vec<&String> = cluster.workloads.keys().map(|key| &key.name).filter(is_pending).collect();
                if let Some(name) = keys.get(usize::from(*number) % keys.len().max(1)).copied().cloned() {
                    cluster.update(&name, |workload| {
                        for set in &mut workload.spec.pod_sets {
                            edit_pod_spec(set, |spec| spec["runtimeClassName"] = json!("sandbox"));
                        }
                    });
                }
            }
            Change::Restart => cluster.restart(),
        }
    }

    /// Returns the expected usage of one pod of this template, in units; `None` if it violates a
    /// LimitRange.
    fn usage_of_pod(&self, template: &Value) -> Option<BTreeMap<&'static str, u8>> {
        let spec = &template["spec"];
        let mut charge = BTreeMap::new();
        for resource in ["gpu", "tpu"] {
            let limits = || self.limits.values().filter(|limit| limit.resource == resource);
            let requested = spec["containers"][0]["resources"]["requests"][resource].as_str();
            let requested = requested.map(|text| text.parse::<u8>().expect("a number"));
            if let Some(amount) = requested.or_else(|| limits().find_map(|limit| limit.default)) {
                if limits()
                    .any(|limit| limit.min.is_some_and(|min| amount < min) || limit.max.is_some_and(|max| amount > max))
                {
                    return None;
                }
                charge.insert(resource, amount);
            }
        }
        if let Some(overhead) = self.overhead.filter(|_| !spec["runtimeClassName"].is_null()) {
            *charge.entry("gpu").or_default() += overhead;
        }
        Some(charge)
    }

    fn check(&self, workload: &Workload, admission: &Admission) -> Result<(), TestCaseError> {
        for (set, assignment) in workload.spec.pod_sets.iter().zip(&admission.pod_set_assignments) {
            let Some(charge) = self.usage_of_pod(&set.template.decode()) else {
                // Pods that already run are exempt from LimitRanges.
                prop_assert!(workload.metadata.annotations.is_some(), "{:?} violates a LimitRange", set);
                continue;
            };
            for (resource, amount) in charge {
                let used = assignment
                    .resource_usage
                    .get(resource)
                    .map(|usage| Amount::from_quantity(resource, usage).expect("a number"));
                let count = i64::from(assignment.count.unwrap_or(set.count));
                prop_assert_eq!(used.unwrap_or_default(), Amount::new(i64::from(amount)).times(count), "{:?}", set);
            }
        }
        Ok(())
    }
}

proptest! {
    #![proptest_config(proptest_config())]

    /// Admitted workloads comply with the LimitRanges and their usage is what their pods request.
    /// Replaying the decision log gives the same decisions.
    #[test]
    fn admitted_usage_follows_limit_ranges_and_runtime_class_overhead(
        plan in cluster_plans(),
        history in histories(),
        changes in prop::collection::vec(changes(), 12),
    ) {
        let (mut plan, mut cluster) = (plan.clone(), plan.new_cluster());
        cluster.restart_recording(cluster.settings.clone());
        let mut in_force = ExpectedRules::default();
        for (acts, changes) in history.iter().zip(&changes) {
            acts.iter().for_each(|act| plan.apply(&mut cluster, act));
            // Decisions of earlier cycles may be returned again: an admission in flight is not
            // reversed by a LimitRange that changed since.
            let in_flight: Vec<_> = cluster.workloads.keys().filter(|key| cluster.pending_cause(&key.name).is_none()).cloned().collect();
            changes.iter().for_each(|change| in_force.apply(&mut cluster, change));
            let effects = cluster.cycle();
            for effect in &effects {
                if let Decision::Admit { workload, admission, .. } = effect && !in_flight.contains(workload) {
                    in_force.check(&cluster.workloads[workload], admission)?;
                }
            }
            apply_decisions(&mut cluster, &effects);
        }
        let replayed = replay(cluster.decision_log()).expect("a valid log");
        prop_assert_eq!(replayed.first_difference, None);
        prop_assert_eq!((replayed.differences, replayed.truncated_lines, replayed.cycles), (0, 0, history.len()));
    }
}
