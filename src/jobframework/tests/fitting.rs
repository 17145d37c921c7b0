//! What is said of upgrades that can never be admitted beside what serves.

use rstest::rstest;
use serde_json::{Value, json};

use super::*;
use crate::fitting::UPGRADE_ADMISSIBLE;
use sluice_api::kueue::{ClusterQueue, Cohort, LocalQueue, ResourceFlavor};
use sluice_api::ray::upgrade_choices::WHEN_EXCEEDS_ANNOTATION;

fn object<T: serde::de::DeserializeOwned>(object: Value) -> T {
    serde_json::from_value(object).expect("an object of its kind")
}

/// A queue `cq` with this quota of CPU in one flavor, behind the LocalQueue `lq`.
fn queue(cohort: Option<&str>, cpu: Value) -> queue::Engine {
    queue_of(cohort, &[("a100", cpu)])
}

/// The same with this quota in each of these flavors.
fn queue_of(cohort: Option<&str>, flavors: &[(&str, Value)]) -> queue::Engine {
    let mut engine = queue::Engine::default();
    let now = Timestamp::UNIX_EPOCH;
    let mut quotas = Vec::new();
    for (name, cpu) in flavors {
        let mut cpu = cpu.clone();
        cpu["name"] = json!("cpu");
        quotas.push(json!({"name": name, "resources": [cpu]}));
        let flavor: ResourceFlavor = object(json!({"metadata": {"name": name}, "spec": {}}));
        engine.step(now, &queue::Event::ResourceFlavor(&flavor));
    }
    let spec = json!({
        "namespaceSelector": {}, "cohortName": cohort,
        "resourceGroups": [{"coveredResources": ["cpu"], "flavors": quotas}],
    });
    let cluster_queue: ClusterQueue = object(json!({"metadata": {"name": "cq"}, "spec": spec}));
    engine.step(now, &queue::Event::ClusterQueue(&cluster_queue));
    let own = json!([{"coveredResources": ["cpu"],
        "flavors": [{"name": "a100", "resources": [{"name": "cpu", "nominalQuota": "1"}]}]}]);
    if let Some(name) = cohort {
        let cohort: Cohort = object(json!({"metadata": {"name": name}, "spec": {"resourceGroups": own}}));
        engine.step(now, &queue::Event::Cohort(&cohort));
    }
    let local: LocalQueue =
        object(json!({"metadata": {"name": "lq", "namespace": NAMESPACE}, "spec": {"clusterQueue": "cq"}}));
    engine.step(now, &queue::Event::LocalQueue(&local));
    engine.cycle(now);
    engine
}

/// A member that can do with a head, and has replicas of so many hosts.
fn elastic(name: &str, workers: u32, hosts: u32) -> Member {
    let member = cluster(name, workers, "1");
    let groups = member.groups.iter().flatten().cloned().map(|group| match group.name.as_str() {
        "small" => Group { fewest: 0, hosts, ..group },
        _ => group,
    });
    Member { groups: Arc::new(Ok(groups.collect())), ..member }
}

/// `a` serves, and `b` is to take its place.
fn upgrade(to: Member) -> (FakeJob, Workload) {
    let (active, held) = serving();
    let mut job = job(vec![active, Member { surge: true, ..to }]);
    job.next = Some("b".into());
    (job, held)
}

fn told(job: &FakeJob, held: &Workload, queue: &queue::Engine) -> Option<(String, String, String)> {
    plan(&JobView { queue, ..view(job, &[held]) });
    job.said(UPGRADE_ADMISSIBLE).map(|said| (said.status, said.reason, said.message))
}

const NEVER: &str = "RayCluster a, which serves, and RayCluster b never fit together: cpu in flavor a100: ";
const RECREATE: &str = "; or with annotation sluice.dev/when-upgrade-exceeds-quota: Recreate, with which RayCluster a stops before \
                        RayCluster b starts";

/// `a` asks for 3, `b` for 5.
#[rstest]
#[case::only_more_quota(None, json!({"nominalQuota": "4"}), 4, "8 needed, 4 is the most there could be, 4 short, bound by the \
    nominalQuota of ClusterQueue cq. It would fit with a nominalQuota of at least 8 of cpu in flavor a100 in ClusterQueue cq", "")]
#[case::the_next_one_alone(None, json!({"nominalQuota": "5"}), 4, "8 needed, 5 is the most there could be, 3 short, bound by the \
    nominalQuota of ClusterQueue cq. It would fit with a nominalQuota of at least 8 of cpu in flavor a100 in ClusterQueue cq", RECREATE)]
#[case::where_it_may_not_borrow_more(Some("all"), json!({"nominalQuota": "4", "borrowingLimit": "500m"}), 4,
    "8 needed, 4500m is the most there could be, 3500m short, bound by the borrowingLimit of ClusterQueue cq. It would fit with a \
    nominalQuota of at least 7500m of cpu in flavor a100 in ClusterQueue cq", "")]
#[case::where_all_together_have_no_more(Some("all"), json!({"nominalQuota": "3"}), 4,
    "8 needed, 4 is the most there could be, 4 short, bound by the quota of Cohort all. It would fit with a nominalQuota of at least 7 \
    of cpu in flavor a100 in ClusterQueue cq (or a nominalQuota of at least 5 in Cohort all)", "")]
fn what_is_missing_and_what_would_help_is_said_in_numbers(
    #[case] cohort: Option<&str>,
    #[case] cpu: Value,
    #[case] workers: u32,
    #[case] expected: &str,
    #[case] more: &str,
) {
    let queue = queue(cohort, cpu);
    let fixed = cluster("b", workers, "1");
    let (job, held) = upgrade(fixed);

    let says = told(&job, &held, &queue);

    assert_eq!(says, Some(("False".into(), "ExceedsMaxQuota".into(), format!("{NEVER}{expected}{more}"))));
}

/// Beside `a`, which asks for 3, a head and so many workers of `b` find room.
#[rstest]
#[case::its_head_does_not_fit("3", 4, 1, None)]
#[case::no_worker_fits("4", 4, 1, None)]
#[case::a_quarter("5", 4, 1, Some(25))]
#[case::a_third_is_one_of_three("5", 3, 1, Some(33))]
#[case::all_but_one("7", 4, 1, Some(75))]
#[case::not_half_a_replica("5", 4, 2, None)]
#[case::one_of_two_replicas("6", 4, 2, Some(50))]
fn an_incremental_upgrade_is_offered_as_far_as_it_fits(
    #[case] quota: &str,
    #[case] workers: u32,
    #[case] hosts: u32,
    #[case] surge: Option<u32>,
) {
    let (job, held) = upgrade(elastic("b", workers, hosts));

    let (_, _, message) = told(&job, &held, &queue(None, json!({"nominalQuota": quota}))).expect("an answer");

    let offered = surge.map(|percent| format!("with a surge of at most {percent} %"));
    assert_eq!(message.contains("incremental upgrade"), surge.is_some(), "{message}");
    assert!(offered.is_none_or(|offered| message.ends_with(&offered)), "{message}");
}

#[rstest]
#[case::waits("Wait", "False", "ExceedsMaxQuota")]
#[case::is_made_anew("Recreate", "True", "Recreate")]
#[case::is_neither("Sometimes", "False", "ExceedsMaxQuota")]
fn its_owner_chooses_what_becomes_of_it(#[case] choice: &str, #[case] status: &str, #[case] reason: &str) {
    let (mut job, held) = upgrade(cluster("b", 4, "1"));
    job.meta.annotations = Some([(WHEN_EXCEEDS_ANNOTATION.to_owned(), choice.to_owned())].into());

    let (is, why, _) = told(&job, &held, &queue(None, json!({"nominalQuota": "6"}))).expect("an answer");

    assert_eq!((is.as_str(), why.as_str()), (status, reason));
}

#[test]
fn an_upgrade_for_which_there_is_quota_in_all_is_admissible() {
    let (job, held) = upgrade(cluster("b", 4, "1"));
    let says = told(&job, &held, &queue(None, json!({"nominalQuota": "8"})));
    assert_eq!(says.map(|(status, reason, _)| (status, reason)), Some(("True".into(), "Fits".into())));
}

#[test]
fn nothing_is_said_where_nobody_can_tell() {
    let (job, held) = upgrade(cluster("b", 4, "1"));
    assert_eq!(told(&job, &held, &queue::Engine::default()), None);
}

/// There is room for `a` in one flavor and for `b` in the other, and for both in none. What serves stays where it is; if neither
/// has quota, the pods of one kind are asked for in one flavor.
#[rstest]
#[case::beside_what_serves(true, "True", "Fits")]
#[case::together(false, "False", "ExceedsMaxQuota")]
fn what_comes_may_go_to_another_flavor(#[case] serves: bool, #[case] status: &str, #[case] reason: &str) {
    let (job, held) = upgrade(cluster("b", 4, "1"));
    let slice = if serves { held } else { Workload { status: None, ..held } };
    let queue = queue_of(None, &[("a100", json!({"nominalQuota": "3"})), ("h100", json!({"nominalQuota": "5"}))]);

    let (is, why, message) = told(&job, &slice, &queue).expect("an answer");

    assert_eq!((is.as_str(), why.as_str()), (status, reason), "{message}");
}
