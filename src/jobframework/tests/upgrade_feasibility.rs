//! Condition UpgradeAdmissible: upgrades that can never be admitted together with the active
//! cluster.

use rstest::rstest;
use serde_json::{Value, json};

use super::*;
use crate::upgrade_feasibility::UPGRADE_ADMISSIBLE;
use sluice_api::kueue::{ClusterQueue, Cohort, LocalQueue, ResourceFlavor};
use sluice_api::ray::admission_annotations::EXCEEDS_QUOTA_ANNOTATION;

fn object<T: serde::de::DeserializeOwned>(object: Value) -> T {
    serde_json::from_value(object).expect("an object of its kind")
}

/// ClusterQueue `cq` with this CPU quota in one flavor, and its LocalQueue `lq`.
pub(super) fn queue(cohort: Option<&str>, cpu: Value) -> sluice_queue::Scheduler {
    queue_of(cohort, &[("a100", cpu)])
}

/// ClusterQueue `cq` with this CPU quota in each of these flavors, and its LocalQueue `lq`.
fn queue_of(cohort: Option<&str>, flavors: &[(&str, Value)]) -> sluice_queue::Scheduler {
    let mut engine = sluice_queue::Scheduler::default();
    let now = Timestamp::UNIX_EPOCH;
    let mut quotas = Vec::new();
    for (name, cpu) in flavors {
        let mut cpu = cpu.clone();
        cpu["name"] = json!("cpu");
        quotas.push(json!({"name": name, "resources": [cpu]}));
        let flavor: ResourceFlavor = object(json!({"metadata": {"name": name}, "spec": {}}));
        engine.observe(now, &sluice_queue::Input::ResourceFlavor(&flavor));
    }
    let spec = json!({
        "namespaceSelector": {}, "cohortName": cohort,
        "resourceGroups": [{"coveredResources": ["cpu"], "flavors": quotas}],
    });
    let cluster_queue: ClusterQueue = object(json!({"metadata": {"name": "cq"}, "spec": spec}));
    engine.observe(now, &sluice_queue::Input::ClusterQueue(&cluster_queue));
    let own = json!([{"coveredResources": ["cpu"],
        "flavors": [{"name": "a100", "resources": [{"name": "cpu", "nominalQuota": "1"}]}]}]);
    if let Some(name) = cohort {
        let cohort: Cohort = object(json!({"metadata": {"name": name}, "spec": {"resourceGroups": own}}));
        engine.observe(now, &sluice_queue::Input::Cohort(&cohort));
    }
    let local: LocalQueue =
        object(json!({"metadata": {"name": "lq", "namespace": NAMESPACE}, "spec": {"clusterQueue": "cq"}}));
    engine.observe(now, &sluice_queue::Input::LocalQueue(&local));
    engine.run_cycle(now);
    engine
}

/// A member that needs only its head, and whose worker replicas have `hosts` pods.
fn elastic(name: &str, workers: u32, hosts: u32) -> Member {
    let member = cluster(name, workers, "1");
    let groups = member.groups.iter().flatten().cloned().map(|group| match group.name.as_str() {
        "small" => PodGroupDemand { min_pods: 0, hosts_per_replica: hosts, ..group },
        _ => group,
    });
    Member { groups: Arc::new(Ok(groups.collect())), ..member }
}

/// A job with active member `a` and pending member `b`, and its slice.
fn upgrade(to: Member) -> (FakeJob, Workload) {
    let (active, held) = serving();
    let mut job = job(vec![active, Member { is_surge: true, ..to }]);
    job.pending = Some("b".into());
    (job, held)
}

fn upgrade_condition(
    job: &FakeJob,
    held: &Workload,
    queue: &sluice_queue::Scheduler,
) -> Option<(String, String, String)> {
    plan(&ReconcileContext { scheduler: queue, ..context(job, &[held]) });
    job.last_condition(UPGRADE_ADMISSIBLE).map(|said| (said.status, said.reason, said.message))
}

const NEVER: &str = "Active RayCluster a and pending RayCluster b never fit together: cpu in flavor a100: ";
const RECREATE: &str = "; or set annotation sluice.dev/when-upgrade-exceeds-quota: Recreate, so that RayCluster a stops \
                        before RayCluster b starts";

/// `a` requests 3 CPU, `b` 5.
#[rstest]
#[case::only_more_quota(None, json!({"nominalQuota": "4"}), 4, "8 needed, maximum capacity 4, 4 short, limited by the nominalQuota \
    of ClusterQueue cq. To admit the upgrade, raise the nominalQuota of cpu in flavor a100 of ClusterQueue cq to at least 8", "")]
#[case::the_pending_member_alone(None, json!({"nominalQuota": "5"}), 4, "8 needed, maximum capacity 5, 3 short, limited by the \
    nominalQuota of ClusterQueue cq. To admit the upgrade, raise the nominalQuota of cpu in flavor a100 of ClusterQueue cq to at \
    least 8", RECREATE)]
#[case::at_the_borrowing_limit(Some("all"), json!({"nominalQuota": "4", "borrowingLimit": "500m"}), 4,
    "8 needed, maximum capacity 4500m, 3500m short, limited by the borrowingLimit of ClusterQueue cq. To admit the upgrade, raise \
    the nominalQuota of cpu in flavor a100 of ClusterQueue cq to at least 7500m", "")]
#[case::at_the_quota_of_the_cohort(Some("all"), json!({"nominalQuota": "3"}), 4,
    "8 needed, maximum capacity 4, 4 short, limited by the quota of Cohort all. To admit the upgrade, raise the nominalQuota of \
    cpu in flavor a100 of ClusterQueue cq to at least 7 (or the nominalQuota of Cohort all to at least 5)", "")]
fn message_names_the_deficit_and_the_remedies_in_numbers(
    #[case] cohort: Option<&str>,
    #[case] cpu: Value,
    #[case] workers: u32,
    #[case] expected: &str,
    #[case] more: &str,
) {
    let queue = queue(cohort, cpu);
    let fixed = cluster("b", workers, "1");
    let (job, held) = upgrade(fixed);

    let condition = upgrade_condition(&job, &held, &queue);

    assert_eq!(condition, Some(("False".into(), "ExceedsMaxQuota".into(), format!("{NEVER}{expected}{more}"))));
}

/// `a` requests 3 CPU; the rest of the quota is for the head and the surge of `b`.
#[rstest]
#[case::its_head_does_not_fit("3", 4, 1, None)]
#[case::no_worker_fits("4", 4, 1, None)]
#[case::a_quarter("5", 4, 1, Some(25))]
#[case::a_third_is_one_of_three("5", 3, 1, Some(33))]
#[case::all_but_one("7", 4, 1, Some(75))]
#[case::not_half_a_replica("5", 4, 2, None)]
#[case::one_of_two_replicas("6", 4, 2, Some(50))]
fn incremental_upgrade_is_offered_up_to_the_largest_surge_that_fits(
    #[case] quota: &str,
    #[case] workers: u32,
    #[case] hosts: u32,
    #[case] surge: Option<u32>,
) {
    let (job, held) = upgrade(elastic("b", workers, hosts));

    let (_, _, message) =
        upgrade_condition(&job, &held, &queue(None, json!({"nominalQuota": quota}))).expect("an answer");

    let offered = surge.map(|percent| format!("with a surge of at most {percent} %"));
    assert_eq!(message.contains("incremental upgrade"), surge.is_some(), "{message}");
    assert!(offered.is_none_or(|offered| message.ends_with(&offered)), "{message}");
}

#[rstest]
#[case::waits("Wait", "False", "ExceedsMaxQuota")]
#[case::recreates("Recreate", "True", "Recreate")]
#[case::is_invalid("Sometimes", "False", "ExceedsMaxQuota")]
fn annotation_chooses_between_waiting_and_recreating(#[case] choice: &str, #[case] status: &str, #[case] reason: &str) {
    let (mut job, held) = upgrade(cluster("b", 4, "1"));
    job.meta.annotations = Some([(EXCEEDS_QUOTA_ANNOTATION.to_owned(), choice.to_owned())].into());

    let (is, why, _) = upgrade_condition(&job, &held, &queue(None, json!({"nominalQuota": "6"}))).expect("an answer");

    assert_eq!((is.as_str(), why.as_str()), (status, reason));
}

#[test]
fn upgrade_within_the_maximum_capacity_is_admissible() {
    let (job, held) = upgrade(cluster("b", 4, "1"));
    let condition = upgrade_condition(&job, &held, &queue(None, json!({"nominalQuota": "8"})));
    assert_eq!(condition.map(|(status, reason, _)| (status, reason)), Some(("True".into(), "Fits".into())));
}

#[test]
fn condition_is_absent_if_the_feasibility_is_unknown() {
    let (job, held) = upgrade(cluster("b", 4, "1"));
    assert_eq!(upgrade_condition(&job, &held, &sluice_queue::Scheduler::default()), None);
}

/// One flavor can hold `a`, the other one `b`, and none both. The active member stays in its
/// flavor; if neither has quota, pods of one kind are requested in one flavor.
#[rstest]
#[case::active_member_holds_quota(true, "True", "Fits")]
#[case::neither_holds_quota(false, "False", "ExceedsMaxQuota")]
fn pending_member_may_use_another_flavor(#[case] is_held: bool, #[case] status: &str, #[case] reason: &str) {
    let (job, held) = upgrade(cluster("b", 4, "1"));
    let slice = if is_held { held } else { Workload { status: None, ..held } };
    let queue = queue_of(None, &[("a100", json!({"nominalQuota": "3"})), ("h100", json!({"nominalQuota": "5"}))]);

    let (is, why, message) = upgrade_condition(&job, &slice, &queue).expect("an answer");

    assert_eq!((is.as_str(), why.as_str()), (status, reason), "{message}");
}
