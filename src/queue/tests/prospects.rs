//! What could ever be given: held against what the engine then gives, to the last unit.

use proptest::prelude::*;
use serde_json::{Map, Value, json};

use super::config;
use super::fixture::{Cluster, group, replacing};
use crate::partial_admission::SLICE_ANNOTATION;
use crate::{BindingLimit, Feasibility, QuotaDeficit};
use sluice_api::kueue::{Workload, names};
use sluice_api::quantity::Amount;

const FLAVORS: [&str; 2] = ["big", "small"];

/// Quota of one flavor, in thousandths of a CPU.
#[derive(Debug, Clone)]
struct Limits {
    nominal: i64,
    borrowing: Option<i64>,
    lending: Option<i64>,
}

/// A ClusterQueue and one beside it, perhaps in a cohort, perhaps below another; and a workload.
#[derive(Debug, Clone)]
struct World {
    own: Vec<Limits>,
    other: Vec<Limits>,
    cohort: Option<Vec<Limits>>,
    top: Option<Vec<Limits>>,
    /// Pods of each pod set, and what each of them asks for.
    sets: Vec<(i32, i64)>,
}

fn limits(in_cohort: bool) -> impl Strategy<Value = Limits> {
    let limit = proptest::option::of(0_i64..4).prop_map(move |limit| limit.filter(|_| in_cohort));
    (0_i64..8, limit.clone(), limit).prop_map(|(nominal, borrowing, lending)| Limits {
        nominal,
        borrowing,
        lending: lending.map(|limit| limit.min(nominal)),
    })
}

fn world() -> impl Strategy<Value = World> {
    (any::<bool>(), any::<bool>(), 1_usize..=2).prop_flat_map(|(shared, nested, flavors)| {
        let quotas = move |in_cohort| proptest::collection::vec(limits(in_cohort), flavors);
        let sets = proptest::collection::vec((1_i32..4, 1_i64..4), 1..4);
        (quotas(shared), quotas(true), quotas(shared && nested), quotas(false), sets).prop_map(
            move |(own, other, cohort, top, sets)| World {
                own,
                other,
                cohort: shared.then_some(cohort),
                top: (shared && nested).then_some(top),
                sets,
            },
        )
    })
}

fn groups(all: &[Limits]) -> Value {
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

fn with_optional(mut spec: Value, field: &str, value: Option<&str>) -> Value {
    let fields: &mut Map<String, Value> = spec.as_object_mut().expect("an object");
    fields.extend(value.map(|value| (field.to_owned(), value.into())));
    spec
}

impl World {
    fn cluster(&self) -> Cluster {
        let queue = |quotas: &[Limits], cohort: Option<&str>| {
            with_optional(json!({"namespaceSelector": {}, "resourceGroups": groups(quotas)}), "cohortName", cohort)
        };
        let cohort = self.cohort.as_ref().map(|_| "all");
        let mut cluster = Cluster::with(queue(&self.own, cohort));
        FLAVORS.iter().for_each(|flavor| cluster.put_flavor(flavor));
        if let Some(quotas) = &self.cohort {
            cluster.put_cluster_queue("other", queue(&self.other, cohort));
            let parent = self.top.as_ref().map(|_| "top");
            cluster.put_cohort("all", with_optional(json!({"resourceGroups": groups(quotas)}), "parentName", parent));
        }
        if let Some(quotas) = &self.top {
            cluster.put_cohort("top", json!({"resourceGroups": groups(quotas)}));
        }
        cluster.run();
        cluster
    }

    fn workload(&self, cluster: &Cluster) -> Workload {
        let named: Vec<String> = (0..self.sets.len()).map(|index| format!("set-{index}")).collect();
        let sets: Vec<(&str, i32, Value)> = named
            .iter()
            .zip(&self.sets)
            .map(|(name, (count, cpu))| (name.as_str(), *count, json!({"cpu": format!("{cpu}m")})))
            .collect();
        cluster.workload("w", &sets)
    }

    /// Whether the engine admits the workload, with nobody else there.
    fn admits(&self) -> bool {
        let mut cluster = self.cluster();
        let workload = self.workload(&cluster);
        cluster.put(workload);
        !cluster.run().is_empty()
    }

    fn prospect(&self) -> Feasibility {
        let cluster = self.cluster();
        prospect(&cluster, &self.workload(&cluster))
    }

    /// The quota of the ClusterQueue that is short of something, with the least that is enough.
    fn nominal(&mut self, lack: &QuotaDeficit) -> &mut i64 {
        &mut self.own[flavor(lack)].nominal
    }

    /// What binds, if the lack says how much of it would be enough.
    fn limit(&mut self, lack: &QuotaDeficit) -> &mut i64 {
        let flavor = flavor(lack);
        match &lack.binding {
            BindingLimit::NominalQuota => &mut self.own[flavor].nominal,
            BindingLimit::BorrowingLimit => self.own[flavor].borrowing.as_mut().expect("a limit"),
            BindingLimit::Cohort(name) => &mut self.shared(name)[flavor].nominal,
            BindingLimit::CohortBorrowingLimit(name) => self.shared(name)[flavor].borrowing.as_mut().expect("a limit"),
        }
    }

    fn shared(&mut self, cohort: &str) -> &mut Vec<Limits> {
        let shared = if cohort == "all" { &mut self.cohort } else { &mut self.top };
        shared.as_mut().expect("the cohort that binds is there")
    }
}

fn flavor(lack: &QuotaDeficit) -> usize {
    FLAVORS.iter().position(|flavor| *flavor == lack.flavor).expect("a flavor of the queue")
}

fn prospect(cluster: &Cluster, workload: &Workload) -> Feasibility {
    let all = workload.spec.pod_sets.iter().map(|set| (set.name.clone(), set.count.unsigned_abs())).collect();
    cluster.engine.feasibility_checker(workload).expect("a queue that is there").check(&all)
}

proptest! {
    #![proptest_config(config())]

    /// What is said to fit is admitted; what lacks something is not, is with the quota that is named, and not with a unit less.
    #[test]
    fn what_is_said_to_be_enough_is_and_a_unit_less_is_not(world in world()) {
        match world.prospect() {
            Feasibility::Fits => prop_assert!(world.admits()),
            Feasibility::NoMatchingFlavor(obstacles) => prop_assert!(false, "all flavors are for all pods: {obstacles:?}"),
            Feasibility::ExceedsQuota(lacks) => {
                prop_assert!(!world.admits());
                let mut enough = world.clone();
                for lack in &lacks {
                    *enough.nominal(lack) = lack.required_nominal.get();
                }
                prop_assert!(enough.admits(), "{lacks:?}");
                for lack in &lacks {
                    let mut short = enough.clone();
                    *short.nominal(lack) -= 1;
                    prop_assert!(!short.admits(), "{lack:?}");
                }
            }
        }
    }

    /// More of what binds is enough as well where that is said, and a unit less is not.
    #[test]
    fn what_binds_can_be_raised_instead(world in world()) {
        let Feasibility::ExceedsQuota(lacks) = world.prospect() else { return Ok(()) };
        let [lack] = lacks.as_slice() else { return Ok(()) };
        let Some(limit) = lack.required_limit else { return Ok(()) };
        let mut enough = world.clone();
        *enough.limit(lack) = limit.get();
        prop_assert!(enough.admits(), "{lack:?}");
        *enough.limit(lack) -= 1;
        prop_assert!(!enough.admits(), "{lack:?}");
    }
}

#[test]
fn a_lack_says_what_is_needed_and_where_it_binds() {
    let world = World {
        own: vec![Limits { nominal: 4, borrowing: Some(1), lending: None }],
        other: vec![Limits { nominal: 3, borrowing: None, lending: None }],
        cohort: Some(vec![Limits { nominal: 0, borrowing: None, lending: None }]),
        top: None,
        sets: vec![(1, 2), (2, 2)],
    };

    let lack = QuotaDeficit {
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
    assert_eq!(world.prospect(), Feasibility::ExceedsQuota(vec![lack]));
}

#[test]
fn what_nobody_offers_is_no_lack() {
    let cluster = Cluster::with_cpu("4");
    let workload = cluster.workload("w", &[("main", 1, json!({"gpu": "1"}))]);
    assert!(matches!(prospect(&cluster, &workload), Feasibility::NoMatchingFlavor(_)));
}

#[test]
fn pods_that_run_stay_in_their_flavor() {
    // Given a slice in the first of two flavors, the second of which is much larger,
    let spec = json!({"namespaceSelector": {}, "resourceGroups": [group(&["cpu"], &[("a", &["4"]), ("b", &["99"])])]});
    let mut cluster = Cluster::with(spec);
    let slice =
        |cluster: &Cluster, name: &str, pods: i32| cluster.workload(name, &[("main", pods, json!({"cpu": "1"}))]);
    let first = slice(&cluster, "first", 3);
    cluster.put(first);
    cluster.run();

    // then what succeeds it has to fit into the first, and what has nothing to do with it need not.
    let next = slice(&cluster, "next", 6);
    assert_eq!(prospect(&cluster, &next), Feasibility::Fits);
    let Feasibility::ExceedsQuota(lacks) = prospect(&cluster, &replacing(next, "first")) else {
        panic!("6 don't fit into 4")
    };
    assert_eq!(
        lacks.iter().map(|lack| (lack.flavor.as_str(), lack.missing)).collect::<Vec<_>>(),
        [("a", Amount::new(2000))]
    );
}

#[test]
fn it_can_not_be_told_without_a_queue() {
    let mut cluster = Cluster::with_cpu("4");
    let workload = cluster.workload("w", &[("main", 1, json!({"cpu": "1"}))]);
    cluster.delete_local_queue("lq");
    assert!(cluster.engine.feasibility_checker(&workload).is_none());
}

/// What a slice takes the place of runs on until its job says that it is gone, and both are charged by what is larger.
#[test]
fn a_slice_whose_place_is_taken_is_over_when_its_job_says_so() {
    // Given a slice of 6 CPU that one of 4 has taken the place of,
    let mut cluster = Cluster::with_cpu("8");
    let slice =
        |cluster: &Cluster, name: &str, pods: i32| cluster.workload(name, &[("main", pods, json!({"cpu": "2"}))]);
    let old = slice(&cluster, "old", 3);
    cluster.put(old);
    cluster.run();
    let mut new = replacing(slice(&cluster, "new", 2), "old");
    let record = json!({"sequence": 2, "members": [], "displaces": [{"name": "a", "uid": "a", "by": "b"}]});
    let annotation = (SLICE_ANNOTATION.to_owned(), record.to_string());
    new.metadata.annotations.get_or_insert_default().extend([annotation]);
    cluster.put(new);

    // when it is admitted, then nobody else gets what the old one still uses,
    assert_eq!(cluster.run(), ["new"]);
    assert!(!cluster.is_true("old", names::FINISHED));
    assert_eq!(cluster.reserved("default", "cpu"), "6");
    cluster.submit("other", "4");
    assert_eq!(cluster.run(), [""; 0]);

    // and they do once that is over.
    cluster.finish("old");
    assert_eq!(cluster.run(), ["other"]);
    assert_eq!(cluster.reserved("default", "cpu"), "8");
}
