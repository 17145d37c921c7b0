//! Feasibility checks, compared with what the scheduler then admits, exact to one unit.

use proptest::prelude::*;
use serde_json::{Map, Value, json};

use super::fixture::{Cluster, group, replacing};
use super::proptest_config;
use crate::partial_admission::SLICE_ANNOTATION;
use crate::{BindingLimit, Feasibility, QuotaDeficit};
use sluice_api::kueue::{Workload, names};
use sluice_api::quantity::Amount;

const FLAVORS: [&str; 2] = ["big", "small"];

/// Quota of one flavor, in milli-CPU.
#[derive(Debug, Clone)]
struct QuotaLimits {
    nominal: i64,
    borrowing: Option<i64>,
    lending: Option<i64>,
}

/// Two ClusterQueues, optionally in a cohort, which optionally has a parent; and a workload.
#[derive(Debug, Clone)]
struct FeasibilityCase {
    queue_quotas: Vec<QuotaLimits>,
    sibling_quotas: Vec<QuotaLimits>,
    cohort_quotas: Option<Vec<QuotaLimits>>,
    parent_quotas: Option<Vec<QuotaLimits>>,
    /// Pods of each pod set, and the milli-CPU that each pod requests.
    pod_sets: Vec<(i32, i64)>,
}

fn quota_limits(in_cohort: bool) -> impl Strategy<Value = QuotaLimits> {
    let limit = proptest::option::of(0_i64..4).prop_map(move |limit| limit.filter(|_| in_cohort));
    (0_i64..8, limit.clone(), limit).prop_map(|(nominal, borrowing, lending)| QuotaLimits {
        nominal,
        borrowing,
        lending: lending.map(|limit| limit.min(nominal)),
    })
}

fn feasibility_case() -> impl Strategy<Value = FeasibilityCase> {
    (any::<bool>(), any::<bool>(), 1_usize..=2).prop_flat_map(|(shared, nested, flavors)| {
        let quotas = move |in_cohort| proptest::collection::vec(quota_limits(in_cohort), flavors);
        let sets = proptest::collection::vec((1_i32..4, 1_i64..4), 1..4);
        (quotas(shared), quotas(true), quotas(shared && nested), quotas(false), sets).prop_map(
            move |(own, other, cohort, top, sets)| FeasibilityCase {
                queue_quotas: own,
                sibling_quotas: other,
                cohort_quotas: shared.then_some(cohort),
                parent_quotas: (shared && nested).then_some(top),
                pod_sets: sets,
            },
        )
    })
}

fn resource_groups(all: &[QuotaLimits]) -> Value {
    let flavors = all.iter().zip(FLAVORS).map(|(limits, flavor)| {
        let mut cpu = json!({"name": "cpu", "nominalQuota": format!("{}m", limits.nominal)});
        for (field, limit) in [("borrowingLimit", limits.borrowing), ("lendingLimit", limits.lending)] {
            if let Some(limit) = limit {
                cpu[field] = format!("{limit}m").into();
            }
        }
        json!({"name": flavor, "resources": [cpu]})
    });
    json!([{"coveredResources": ["cpu"], "flavors": flavors.collect::<Vec<_>>()}])
}

fn with_optional_field(mut spec: Value, field: &str, value: Option<&str>) -> Value {
    let fields: &mut Map<String, Value> = spec.as_object_mut().expect("an object");
    fields.extend(value.map(|value| (field.to_owned(), value.into())));
    spec
}

impl FeasibilityCase {
    fn cluster(&self) -> Cluster {
        let queue = |quotas: &[QuotaLimits], cohort: Option<&str>| {
            with_optional_field(
                json!({"namespaceSelector": {}, "resourceGroups": resource_groups(quotas)}),
                "cohortName",
                cohort,
            )
        };
        let cohort = self.cohort_quotas.as_ref().map(|_| "all");
        let mut cluster = Cluster::with(queue(&self.queue_quotas, cohort));
        FLAVORS.iter().for_each(|flavor| cluster.put_flavor(flavor));
        if let Some(quotas) = &self.cohort_quotas {
            cluster.put_cluster_queue("other", queue(&self.sibling_quotas, cohort));
            let parent = self.parent_quotas.as_ref().map(|_| "top");
            cluster.put_cohort(
                "all",
                with_optional_field(json!({"resourceGroups": resource_groups(quotas)}), "parentName", parent),
            );
        }
        if let Some(quotas) = &self.parent_quotas {
            cluster.put_cohort("top", json!({"resourceGroups": resource_groups(quotas)}));
        }
        cluster.run_until_stable();
        cluster
    }

    fn workload(&self, cluster: &Cluster) -> Workload {
        let names: Vec<String> = (0..self.pod_sets.len()).map(|index| format!("set-{index}")).collect();
        let sets: Vec<(&str, i32, Value)> = names
            .iter()
            .zip(&self.pod_sets)
            .map(|(name, (count, cpu))| (name.as_str(), *count, json!({"cpu": format!("{cpu}m")})))
            .collect();
        cluster.workload("w", &sets)
    }

    /// Reports whether the scheduler admits the workload when there is no other.
    fn is_admitted(&self) -> bool {
        let mut cluster = self.cluster();
        let workload = self.workload(&cluster);
        cluster.put(workload);
        !cluster.run_until_stable().is_empty()
    }

    fn feasibility(&self) -> Feasibility {
        let cluster = self.cluster();
        feasibility_of(&cluster, &self.workload(&cluster))
    }

    /// Returns the ClusterQueue's nominal quota of the flavor in deficit.
    fn nominal_quota_mut(&mut self, deficit: &QuotaDeficit) -> &mut i64 {
        &mut self.queue_quotas[flavor_index(deficit)].nominal
    }

    /// Returns the limit that causes the deficit.
    fn binding_limit_mut(&mut self, deficit: &QuotaDeficit) -> &mut i64 {
        let flavor = flavor_index(deficit);
        match &deficit.binding {
            BindingLimit::NominalQuota => &mut self.queue_quotas[flavor].nominal,
            BindingLimit::BorrowingLimit => self.queue_quotas[flavor].borrowing.as_mut().expect("a limit"),
            BindingLimit::Cohort(name) => &mut self.cohort_quotas_mut(name)[flavor].nominal,
            BindingLimit::CohortBorrowingLimit(name) => {
                self.cohort_quotas_mut(name)[flavor].borrowing.as_mut().expect("a limit")
            }
        }
    }

    fn cohort_quotas_mut(&mut self, cohort: &str) -> &mut Vec<QuotaLimits> {
        let shared = if cohort == "all" { &mut self.cohort_quotas } else { &mut self.parent_quotas };
        shared.as_mut().expect("the binding cohort exists")
    }
}

fn flavor_index(deficit: &QuotaDeficit) -> usize {
    FLAVORS.iter().position(|flavor| *flavor == deficit.flavor).expect("a flavor of the queue")
}

fn feasibility_of(cluster: &Cluster, workload: &Workload) -> Feasibility {
    let all = workload.spec.pod_sets.iter().map(|set| (set.name.clone(), set.count.unsigned_abs())).collect();
    cluster.scheduler.feasibility_checker(workload).expect("the queue exists").check(&all)
}

proptest! {
    #![proptest_config(proptest_config())]

    /// A workload that fits is admitted. One with a deficit is not, is admitted with the reported
    /// nominal quota, and is not with one unit less.
    #[test]
    fn reported_nominal_quota_is_exactly_sufficient(case in feasibility_case()) {
        match case.feasibility() {
            Feasibility::Fits => prop_assert!(case.is_admitted()),
            Feasibility::NoMatchingFlavor(rejections) => prop_assert!(false, "every flavor matches every pod: {rejections:?}"),
            Feasibility::ExceedsQuota(deficits) => {
                prop_assert!(!case.is_admitted());
                let mut enough = case.clone();
                for deficit in &deficits {
                    *enough.nominal_quota_mut(deficit) = deficit.required_nominal.get();
                }
                prop_assert!(enough.is_admitted(), "{deficits:?}");
                for deficit in &deficits {
                    let mut short = enough.clone();
                    *short.nominal_quota_mut(deficit) -= 1;
                    prop_assert!(!short.is_admitted(), "{deficit:?}");
                }
            }
        }
    }

    /// Raising the binding limit to the reported value is enough too, and one unit less is not.
    #[test]
    fn reported_binding_limit_is_exactly_sufficient(case in feasibility_case()) {
        let Feasibility::ExceedsQuota(deficits) = case.feasibility() else { return Ok(()) };
        let [deficit] = deficits.as_slice() else { return Ok(()) };
        let Some(limit) = deficit.required_limit else { return Ok(()) };
        let mut enough = case.clone();
        *enough.binding_limit_mut(deficit) = limit.get();
        prop_assert!(enough.is_admitted(), "{deficit:?}");
        *enough.binding_limit_mut(deficit) -= 1;
        prop_assert!(!enough.is_admitted(), "{deficit:?}");
    }
}

#[test]
fn quota_deficit_reports_required_quota_and_binding_limit() {
    let case = FeasibilityCase {
        queue_quotas: vec![QuotaLimits { nominal: 4, borrowing: Some(1), lending: None }],
        sibling_quotas: vec![QuotaLimits { nominal: 3, borrowing: None, lending: None }],
        cohort_quotas: Some(vec![QuotaLimits { nominal: 0, borrowing: None, lending: None }]),
        parent_quotas: None,
        pod_sets: vec![(1, 2), (2, 2)],
    };

    let deficit = QuotaDeficit {
        flavor: "big".into(),
        resource: "cpu".into(),
        requested: Amount::new(6),
        maximum: Amount::new(5),
        missing: Amount::new(1),
        cluster_queue: "cq".into(),
        binding: BindingLimit::BorrowingLimit,
        required_nominal: Amount::new(5),
        required_limit: Some(Amount::new(2)),
    };
    assert_eq!(case.feasibility(), Feasibility::ExceedsQuota(vec![deficit]));
}

#[test]
fn uncovered_resource_is_no_matching_flavor_instead_of_deficit() {
    let cluster = Cluster::with_cpu("4");
    let workload = cluster.workload("w", &[("main", 1, json!({"gpu": "1"}))]);
    assert!(matches!(feasibility_of(&cluster, &workload), Feasibility::NoMatchingFlavor(_)));
}

#[test]
fn replacement_slice_must_fit_into_flavor_of_running_pods() {
    // Given a slice in the first of two flavors, the second of which is much larger,
    let spec = json!({"namespaceSelector": {}, "resourceGroups": [group(&["cpu"], &[("a", &["4"]), ("b", &["99"])])]});
    let mut cluster = Cluster::with(spec);
    let slice =
        |cluster: &Cluster, name: &str, pods: i32| cluster.workload(name, &[("main", pods, json!({"cpu": "1"}))]);
    let first = slice(&cluster, "first", 3);
    cluster.put(first);
    cluster.run_until_stable();

    // then its replacement has to fit into the first, and an unrelated workload need not.
    let next = slice(&cluster, "next", 6);
    assert_eq!(feasibility_of(&cluster, &next), Feasibility::Fits);
    let Feasibility::ExceedsQuota(deficits) = feasibility_of(&cluster, &replacing(next, "first")) else {
        panic!("6 don't fit into 4")
    };
    assert_eq!(
        deficits.iter().map(|deficit| (deficit.flavor.as_str(), deficit.missing)).collect::<Vec<_>>(),
        [("a", Amount::new(2000))]
    );
}

#[test]
fn feasibility_is_unknown_without_local_queue() {
    let mut cluster = Cluster::with_cpu("4");
    let workload = cluster.workload("w", &[("main", 1, json!({"cpu": "1"}))]);
    cluster.delete_local_queue("lq");
    assert!(cluster.scheduler.feasibility_checker(&workload).is_none());
}

/// A displaced slice keeps running until its job reports that it is gone; until then the usage of
/// both slices is the larger of the two.
#[test]
fn displaced_slice_holds_quota_until_its_job_finishes_it() {
    // Given a slice of 6 CPUs that is displaced by one of 4,
    let mut cluster = Cluster::with_cpu("8");
    let slice =
        |cluster: &Cluster, name: &str, pods: i32| cluster.workload(name, &[("main", pods, json!({"cpu": "2"}))]);
    let old = slice(&cluster, "old", 3);
    cluster.put(old);
    cluster.run_until_stable();
    let mut new = replacing(slice(&cluster, "new", 2), "old");
    let record = json!({"sequence": 2, "members": [], "displaces": [{"name": "a", "uid": "a", "by": "b"}]});
    let annotation = (SLICE_ANNOTATION.to_owned(), record.to_string());
    new.metadata.annotations.get_or_insert_default().extend([annotation]);
    cluster.put(new);

    // when the new slice is admitted, then no other workload gets the quota that the old one still
    // uses,
    assert_eq!(cluster.run_until_stable(), ["new"]);
    assert!(!cluster.is_true("old", names::FINISHED));
    assert_eq!(cluster.reserved_quantity("default", "cpu"), "6");
    cluster.submit("other", "4");
    assert_eq!(cluster.run_until_stable(), [""; 0]);

    // and another one does once the old slice is finished.
    cluster.finish("old");
    assert_eq!(cluster.run_until_stable(), ["other"]);
    assert_eq!(cluster.reserved_quantity("default", "cpu"), "8");
}
