//! Requests, admission, stopped queues, partial admission and waitForPodsReady. B17–B21, B25,
//! B36–B38, B52–B54.

use jiff::SignedDuration;
use rstest::rstest;
use serde_json::{Value, json};

use super::super::fixture::{Cluster, edit_pod_spec, group, object_key, pod_set, timestamp};
use super::scene::{CycleDecisions, Scene, queue, three_teams};
use crate::Settings;
use crate::settings::{Requeuing, RequeuingTimestamp, WaitForPodsReady};
use sluice_api::condition;
use sluice_api::kueue::workload_status::{ReclaimablePod, RequeueState};
use sluice_api::kueue::{Workload, names};

/// Integration "Should evict workloads when stop policy is drain", of a ClusterQueue.
#[test]
fn b17_drained_queue_evicts_all_workloads_and_readmits_them_after_restart() {
    let mut scene = Scene::new().queues([queue("q").has("cpu=5")]).pending("q", "w1 cpu=1");
    scene.run_until_stable();

    scene.put_queue(queue("q").has("cpu=5").stop_policy("HoldAndDrain"));
    scene.submit_to("q", "w2 cpu=1");
    assert_eq!(scene.decide().evicted, ["w1 ClusterQueueStopped"]);
    assert_eq!(scene.run_with_evictions(), [""; 0]);
    assert_eq!(scene.holders(), [""; 0]);

    scene.put_queue(queue("q").has("cpu=5").stop_policy("None"));
    assert_eq!(scene.run_until_stable(), ["w1", "w2"]);
}

/// Integration "Should admit workloads when resources are dynamically reclaimed".
#[test]
fn b18_reclaimable_pods_release_quota_for_the_next_workload() {
    let mut scene =
        Scene::new().queues([queue("q").has("cpu=5")]).pending("q", "first n=4 cpu=1; second n=3 cpu=1 t=1001");
    assert_eq!(scene.run_until_stable(), ["first"]);

    let done = vec![ReclaimablePod { name: "main".into(), count: 2 }];
    scene.update("first", |workload| workload.status.get_or_insert_default().reclaimable_pods = done);

    assert_eq!(scene.run_until_stable(), ["second"]);
}

/// Integration "Reclaimed resources are not accounted during admission": a pending workload needs
/// quota only for the remaining pods.
#[test]
fn b18_pods_reclaimable_before_admission_need_no_quota() {
    let mut scene = Scene::new().queues([queue("q").has("cpu=5")]).pending("q", "w n=2 cpu=5");
    assert_eq!(scene.run_until_stable(), [""; 0]);

    let done = vec![ReclaimablePod { name: "main".into(), count: 1 }];
    scene.update("w", |workload| workload.status.get_or_insert_default().reclaimable_pods = done);

    assert_eq!(scene.decide().admitted, ["w@default*1"]);
}

/// Integration "Should admit workload with zero quantity request for resource not in ClusterQueue",
/// and "… borrowing from cohort when requesting zero of a resource …".
#[test]
fn b19_zero_request_for_uncovered_resource_is_admitted_and_not_assigned() {
    let mut scene = three_teams().pending("sales", "w cpu=1 gpu=0");

    assert_eq!(scene.run_until_stable(), ["w"]);
    let admission =
        scene.workloads[&object_key("w")].status.clone().and_then(|status| status.admission).unwrap_or_default();
    let assignment = &admission.pod_set_assignments[0];
    assert!(!assignment.flavors.contains_key("gpu") && !assignment.resource_usage.contains_key("gpu"));
}

/// Integration "Should admit workload when creating …", four orders.
#[rstest]
#[case(["flavor", "local queue", "workload", "queue"])]
#[case(["workload", "flavor", "local queue", "queue"])]
#[case(["workload", "flavor", "queue", "local queue"])]
#[case(["workload", "queue", "local queue", "flavor"])]
fn b20_creation_order_of_objects_does_not_matter(#[case] order: [&str; 4]) {
    let mut cluster = Cluster::default();
    for object in order {
        match object {
            "flavor" => cluster.put_flavor("default"),
            "local queue" => cluster.put_local_queue("lq", json!({"clusterQueue": "cq"})),
            "workload" => cluster.submit("w", "2"),
            _ => {
                let groups = [group(&["cpu"], &[("default", &["5"])])];
                cluster.put_cluster_queue("cq", json!({"namespaceSelector": {}, "resourceGroups": groups}));
            }
        }
        let last = object == order[3];
        assert_eq!(cluster.run_until_stable(), if last { vec!["w"] } else { vec![] });
    }
}

/// Integration "request more that limits"; `limits.rs` tests LimitRanges.
#[rstest]
#[case::container(json!({"containers": [{"name": "c", "resources": request_above_limit()}]}), "container \"c\"")]
#[case::init_container(json!({"initContainers": [{"name": "i", "resources": request_above_limit()}], "containers": []}), "container \"i\"")]
#[case::pod(json!({"resources": request_above_limit(), "containers": []}), "the pod")]
fn b21_request_above_limit_is_reported_until_corrected(#[case] pod: Value, #[case] subject: &str) {
    let mut scene = Scene::new().queues([queue("q").has("cpu=5")]).pending("q", "w cpu=1");
    let original = scene.workloads[&object_key("w")].spec.pod_sets[0].template.clone();
    scene.update("w", |workload| edit_pod_spec(&mut workload.spec.pod_sets[0], |spec| *spec = pod));
    assert_eq!(scene.run_until_stable(), [""; 0]);
    let (reason, message) = scene.reason_and_message("w", names::QUOTA_RESERVED);
    assert_eq!(reason, "Misconfigured");
    assert_eq!(
        message,
        format!(
            "resources validation failed: pod set main: {subject} requests 1100m of cpu, which is more than its limit of 1"
        )
    );

    scene.update("w", |workload| workload.spec.pod_sets[0].template = original);

    assert_eq!(scene.run_until_stable(), ["w"]);
}

fn request_above_limit() -> Value {
    json!({"requests": {"cpu": "1100m"}, "limits": {"cpu": "1"}})
}

/// Integration "Should gate workload admission with AdmissionGatedBy annotation and admit when
/// removed".
#[test]
fn b25_gated_workload_is_queued_once_its_gate_is_removed() {
    let gate = |by: &'static str| {
        move |workload: &mut Workload| {
            let gate = (names::ADMISSION_GATED_BY_ANNOTATION.to_owned(), by.to_owned());
            workload.metadata.annotations.get_or_insert_default().extend([gate]);
        }
    };
    let mut scene = Scene::new().queues([queue("q").has("cpu=5").strict()]).pending("q", "gated cpu=5 p=1");
    scene.update("gated", gate("example.com/approval"));
    scene.submit_to("q", "free cpu=1");
    assert_eq!(scene.run_until_stable(), ["free"], "a gated workload blocks no other");
    assert_eq!(scene.reason_and_message("gated", names::QUOTA_RESERVED).0, "AdmissionGated");

    scene.finish("free");
    scene.update("gated", gate(""));

    assert_eq!(scene.run_until_stable(), ["gated"]);
}

#[rstest]
// "partial admission single variable pod set".
#[case::b36_half_of_the_pods_is_admitted(three_teams().pending("sales", "w n=50 min=20 cpu=2"), &["w@default*25"], &[])]
// "partial admission multiple variable pod sets".
#[case::b37_pod_sets_shrink_in_proportion(
    three_teams().pending("sales", "w +one n=20 cpu=1 +two n=30 min=10 cpu=1 +three n=15 min=5 cpu=1"),
    &["w@default|default*20|default*10"], &[])]
// "partial admission single variable pod set, preempt first".
#[case::b38_preempts_for_all_pods(
    three_teams().admitted("beta", "old n=10 gpu=1@model-a p=-4").pending("beta", "new n=20 min=10 gpu=1 p=4"), &[], &["old InClusterQueue"])]
// "partial admission single variable pod set, preempt with partial admission".
#[case::b38_preempts_for_fewer_pods(
    three_teams().admitted("beta", "old n=10 gpu=1@model-a p=-4").pending("beta", "new n=30 min=10 gpu=1 p=4"), &[], &["old InClusterQueue"])]
#[case::min_count_does_not_fit(three_teams().pending("sales", "w n=50 min=26 cpu=2"), &[], &[])]
fn b36_partial_admission_reduces_pod_counts(
    #[case] mut scene: Scene,
    #[case] admitted: &[&str],
    #[case] evicted: &[&str],
) {
    let decided = scene.decide();

    assert_eq!(decided.admitted, admitted);
    assert_eq!(decided.evicted, evicted);
}

#[test]
fn b38_preemptor_is_admitted_with_the_reduced_count_it_preempted_for() {
    let mut scene =
        three_teams().admitted("beta", "old n=10 gpu=1@model-a p=-4").pending("beta", "new n=30 min=10 gpu=1 p=4");

    assert_eq!(scene.run_with_evictions(), ["new"]);
    assert_eq!(scene.flavors_of("new"), "model-a*20");
}

/// Returns a scene with a PodsReady timeout of 300 seconds and a requeue backoff of 30, 60, 120
/// seconds.
fn scene_with_pods_ready_timeout(change: impl FnOnce(&mut WaitForPodsReady)) -> Scene {
    let mut rules = WaitForPodsReady {
        timeout: SignedDuration::from_secs(300),
        recovery_timeout: None,
        unscheduled_timeout: None,
        block_admission: true,
        requeuing: Requeuing { backoff_limit_count: Some(2), backoff_base_seconds: 30, ..Requeuing::default() },
    };
    change(&mut rules);
    let member = |name: &str| queue(name).within_cohort("all").has("cpu=5");
    Scene::with(Settings { wait_for_pods_ready: Some(rules), ..Settings::default() })
        .queues([member("prod"), member("dev")])
}

fn set_pods_ready(scene: &mut Scene, name: &str) {
    let now = timestamp(scene.now);
    let update = condition::ConditionUpdate {
        type_: names::PODS_READY,
        status: true,
        reason: names::pods_ready_reason::STARTED.into(),
        message: String::new(),
        observed_generation: None,
    };
    scene.update(name, |workload| {
        condition::set(&mut workload.status.get_or_insert_default().conditions, now, update);
    });
}

fn requeue_state(scene: &Scene, name: &str) -> Option<RequeueState> {
    scene.workloads[&object_key(name)].status.clone().and_then(|status| status.requeue_state)
}

fn exceed_pods_ready_timeout(scene: &mut Scene) -> CycleDecisions {
    scene.now += 300;
    scene.decide()
}

/// Integration "Should unblock admission of new workloads …": by readiness, by deletion, by time.
#[rstest]
#[case::workload_is_ready(set_pods_ready)]
#[case::workload_is_deleted(|scene: &mut Scene, name: &str| scene.delete(name))]
#[case::workload_times_out(|scene: &mut Scene, name: &str| {
    exceed_pods_ready_timeout(scene);
    scene.run_until_stable();
    scene.release_quota(name);
})]
fn b52_admission_is_blocked_until_admitted_workload_is_ready(#[case] unblock: fn(&mut Scene, &str)) {
    let mut scene = scene_with_pods_ready_timeout(|_| {}).pending("prod", "p cpu=2 t=1").pending("dev", "d cpu=2 t=2");
    assert_eq!(scene.run_until_stable(), ["p"]);
    assert_eq!(scene.reason_and_message("d", names::QUOTA_RESERVED).0, "WaitingForPodsReady");

    unblock(&mut scene, "p");

    assert_eq!(scene.run_until_stable(), ["d"]);
}

/// Integration "Should block admission of one new workload if two are considered in the same
/// scheduling cycle", and its counterpart without blocking.
#[rstest]
#[case::blocking(true, &["p"])]
#[case::not_blocking(false, &["p", "d"])]
fn b52_blocking_admits_one_of_two_fitting_workloads(#[case] block: bool, #[case] admitted: &[&str]) {
    let mut scene = scene_with_pods_ready_timeout(|rules| rules.block_admission = block)
        .pending("prod", "p cpu=11 t=1")
        .pending("dev", "d cpu=11 t=2");
    assert_eq!(scene.run_until_stable(), [""; 0]);

    scene.put_queue(queue("lender").within_cohort("all").has("cpu=25+0"));

    assert_eq!(scene.run_until_stable(), admitted);
}

/// Integration "Should requeue a workload which exceeded the timeout to reach PodsReady=True".
#[test]
fn b53_workload_exceeding_pods_ready_timeout_is_evicted_and_requeued_later() {
    let mut scene = scene_with_pods_ready_timeout(|_| {}).pending("prod", "p1 cpu=2 p=100; p2 cpu=2");
    assert_eq!(scene.run_until_stable(), ["p1"]);

    assert_eq!(exceed_pods_ready_timeout(&mut scene).evicted, ["p1 PodsReadyTimeout"]);
    scene.run_until_stable();
    let state = requeue_state(&scene, "p1").unwrap_or_default();
    assert_eq!(state.count, Some(1));
    assert!(state.requeue_at.is_some());
    scene.release_quota("p1");

    assert_eq!(scene.decide().admitted, ["p2@default"], "p1 is in backoff");
}

/// Integration "Should re-admit a timed out workload and deactivate a workload exceeded the
/// re-queue count limit. After that re-activating a workload".
#[test]
fn b53_workload_exceeding_requeue_limit_is_deactivated_and_restarts_on_activation() {
    let mut scene = scene_with_pods_ready_timeout(|_| {}).pending("prod", "p cpu=2");
    for count in 1..=2 {
        assert_eq!(scene.run_until_stable(), ["p"]);
        assert_eq!(exceed_pods_ready_timeout(&mut scene).evicted, ["p PodsReadyTimeout"]);
        scene.run_until_stable();
        assert_eq!(requeue_state(&scene, "p").and_then(|state| state.count), Some(count));
        scene.release_quota("p");
        scene.now += 100;
    }
    assert_eq!(scene.run_until_stable(), ["p"]);
    exceed_pods_ready_timeout(&mut scene);
    scene.run_until_stable();
    assert_eq!(scene.workloads[&object_key("p")].spec.active, Some(false));
    assert_eq!(scene.reason_and_message("p", names::EVICTED).0, "DeactivatedDueToRequeuingLimitExceeded");
    assert_eq!(requeue_state(&scene, "p"), None);
    scene.release_quota("p");
    assert_eq!(scene.run_until_stable(), [""; 0]);

    scene.update("p", |workload| workload.spec.active = Some(true));
    assert_eq!(scene.run_until_stable(), ["p"]);
    assert_eq!(exceed_pods_ready_timeout(&mut scene).evicted, ["p PodsReadyTimeout"]);
    scene.run_until_stable();
    assert_eq!(requeue_state(&scene, "p").and_then(|state| state.count), Some(1));
}

/// Integration "Should move the evicted workload at the end of the queue", "Should prioritize
/// workloads submitted earlier".
#[rstest]
#[case::by_eviction(RequeuingTimestamp::Eviction, ["w1", "w2", "w3", "w1"])]
#[case::by_creation(RequeuingTimestamp::Creation, ["w1", "w2", "w1", "w2"])]
fn b54_requeuing_timestamp_determines_position_of_evicted_workload(
    #[case] timestamp: RequeuingTimestamp,
    #[case] order: [&str; 4],
) {
    let mut scene = scene_with_pods_ready_timeout(|rules| {
        (rules.requeuing.timestamp, rules.requeuing.backoff_limit_count) = (timestamp, None);
    });
    scene.put_queue(queue("alone").has("cpu=1"));
    scene.submit_to("alone", "w1 cpu=1 t=1; w2 cpu=1 t=2; w3 cpu=1 t=3");
    for expected in order {
        assert_eq!(scene.run_until_stable(), [expected]);
        // The backoff is shorter than the timeout of the next workload.
        exceed_pods_ready_timeout(&mut scene);
        scene.run_until_stable();
        scene.release_quota(expected);
    }
}

/// A workload whose pods request nothing needs no quota, and neither does one without pods.
#[test]
fn workload_requesting_nothing_is_admitted() {
    let mut scene = Scene::new().queues([queue("q").has("cpu=0")]).pending("q", "none n=0 cpu=1");
    let mut workload = scene.workload("free", &[]);
    workload.spec.queue_name = Some("q".into());
    workload.spec.pod_sets = vec![pod_set("main", 3, &json!({}))];
    scene.put(workload);

    let mut admitted = scene.run_until_stable();
    admitted.sort();
    assert_eq!(admitted, ["free", "none"]);
}

/// As in Kueue (`test/integration/singlecluster/scheduler/scheduler_test.go`, "Should admit workloads as
/// they fit in their ClusterQueue").
#[rstest]
#[case::quota(&[], &[("cpu", "one", "0")])]
#[case::first_flavor_does_not_match(&["one"], &[("cpu", "two", "0")])]
#[case::no_flavor_matches(&["one", "two"], &[])]
fn pod_set_without_pods_gets_flavors_and_uses_nothing(
    #[case] tainted: &[&str],
    #[case] expected: &[(&str, &str, &str)],
) {
    // Given two flavors, the first one without quota,
    let mut scene = Scene::new().queues([queue("q").quota("one", "cpu=0").quota("two", "cpu=9")]);
    for flavor in tainted {
        scene.put_flavor_with(flavor, json!({"nodeTaints": [{"key": "spot", "effect": "NoSchedule"}]}));
    }

    // when a workload without pods is submitted,
    scene.submit_to("q", "none n=0 cpu=1");

    // then it is admitted, to the first flavor that its pods would match.
    assert_eq!(scene.run_until_stable(), ["none"]);
    let status = scene.workloads[&object_key("none")].status.clone().unwrap_or_default();
    let assignment = &status.admission.expect("an admission").pod_set_assignments[0];
    let used = assignment
        .flavors
        .iter()
        .map(|(resource, flavor)| (resource.as_str(), flavor.as_str(), assignment.resource_usage[resource].0.as_str()));
    assert_eq!(used.collect::<Vec<_>>(), expected);
    assert_eq!((assignment.count, assignment.resource_usage.len()), (Some(0), expected.len()));
}
