//! Quota on a real control plane: cohorts, edits under load, stop policies and preemption. B1, B2
//! ... are the portable behaviors of Kueue's scheduler tests
//! (`test/integration/singlecluster/scheduler`).

use kube::ResourceExt;
use kube::api::{DeleteParams, ListParams, Patch, PatchParams};
use serde_json::{Value, json};
use sluice_api::condition;

use sluice_testkit::history::Recorder;
use sluice_testkit::quotas::{FLAVOR, cluster_queue, cohort, cpu_quota, local_queue, resource_flavor, workload};
use sluice_testkit::{TestEnv, eventually, eventually_or_err, invariants};

/// Returns an empty object: no additional fields.
fn no_fields() -> Value {
    json!({})
}

async fn check_invariants(recorder: &Recorder) {
    let breaches = invariants::violations(&recorder.history().await);
    assert!(breaches.is_empty(), "{}", breaches.join("\n"));
}

/// B20. The workload needs the cohort's quota, so that every one of the objects is required.
#[tokio::test]
async fn objects_may_be_created_in_any_order() {
    let env = TestEnv::start().await;
    let recorder = Recorder::start(env.client.clone(), None).await;
    let _manager = env.manager().await;
    let objects = [
        resource_flavor(),
        cohort("all", None, cpu_quota("1", no_fields())),
        cluster_queue("team", Some("all"), cpu_quota("1", no_fields()), no_fields()),
        local_queue("team"),
        workload("job", "team", "2", 0),
    ];
    let orders = permutations(objects.len());

    for (n, order) in orders.iter().enumerate() {
        for index in order {
            let text = [FLAVOR, "all", "team", "job"].iter().fold(objects[*index].to_string(), |text, name| {
                text.replace(&format!("\"{name}\""), &format!("\"{name}-{n}\""))
            });
            env.apply(&text).await.unwrap_or_else(|error| panic!("{text}: {error}"));
        }
    }

    assert_eq!(orders.len(), 120);
    for n in 0..orders.len() {
        env.wait_until_admitted(&format!("job-{n}")).await;
    }
    check_invariants(&recorder).await;
}

/// Returns all permutations of the indexes below `count`.
fn permutations(count: usize) -> Vec<Vec<usize>> {
    (0..count).fold(vec![Vec::new()], |orders, next| {
        orders
            .iter()
            .flat_map(|order: &Vec<usize>| {
                (0..=order.len()).map(move |place| {
                    let mut longer = order.clone();
                    longer.insert(place, next);
                    longer
                })
            })
            .collect()
    })
}

#[tokio::test]
async fn unused_quota_is_lent_across_the_tree_within_its_limits() {
    let env = TestEnv::start().await;
    let recorder = Recorder::start(env.client.clone(), None).await;
    let _manager = env.manager().await;
    env.apply_object(resource_flavor()).await;

    // B1: a peer's quota admits a workload that exceeds the nominal quota of its queue.
    env.apply_queue("b1-small", Some("b1"), cpu_quota("5", no_fields()), no_fields()).await;
    env.apply_object(workload("b1-large", "b1-small", "10", 0)).await;
    env.wait_until_pending("b1-large").await;
    env.apply_queue("b1-peer", Some("b1"), cpu_quota("5", no_fields()), no_fields()).await;
    env.wait_until_admitted("b1-large").await;

    // B2: two borrow from a third.
    let limited = json!({"borrowingLimit": "10"});
    for name in ["b2-one", "b2-two"] {
        env.apply_queue(name, Some("b2"), cpu_quota("5", limited.clone()), no_fields()).await;
        env.apply_object(workload(&format!("{name}-job"), name, "11", 0)).await;
    }
    env.wait_until_pending("b2-one-job").await;
    env.wait_until_pending("b2-two-job").await;
    env.apply_queue("b2-lender", Some("b2"), cpu_quota("15", no_fields()), no_fields()).await;
    env.wait_until_admitted("b2-one-job").await;
    env.wait_until_admitted("b2-two-job").await;

    // B7: raising a lending limit admits a workload without any other change.
    env.apply_queue("b7-borrower", Some("b7"), cpu_quota("0", no_fields()), no_fields()).await;
    env.apply_queue("b7-lender", Some("b7"), cpu_quota("5", json!({"lendingLimit": "0"})), no_fields()).await;
    env.apply_object(workload("b7-job", "b7-borrower", "5", 0)).await;
    env.wait_until_pending("b7-job").await;
    env.patch_queue("b7-lender", json!({"resourceGroups": cpu_quota("5", json!({"lendingLimit": "5"}))})).await;
    env.wait_until_admitted("b7-job").await;

    // B8: a cohort lends up to its limit.
    env.apply_object(cohort("b8-sibling", Some("b8"), cpu_quota("1", json!({"lendingLimit": "500m"})))).await;
    env.apply_queue("b8-queue", Some("b8"), cpu_quota("0", no_fields()), no_fields()).await;
    env.apply_object(workload("b8-first", "b8-queue", "500m", 1)).await;
    env.wait_until_admitted("b8-first").await;
    env.apply_object(workload("b8-second", "b8-queue", "500m", 0)).await;
    env.wait_until_pending("b8-second").await;

    // B9: one child may borrow nothing, the other everything.
    env.apply_object(cohort("b9", None, cpu_quota("1500m", no_fields()))).await;
    env.apply_object(cohort("b9-research", Some("b9"), cpu_quota("1", json!({"borrowingLimit": "0"})))).await;
    env.apply_queue("b9-research", Some("b9-research"), cpu_quota("0", no_fields()), no_fields()).await;
    env.apply_queue("b9-production", Some("b9"), cpu_quota("0", no_fields()), no_fields()).await;
    for n in 0..3 {
        env.apply_object(workload(&format!("b9-research-{n}"), "b9-research", "500m", -n)).await;
    }
    env.wait_until_admitted("b9-research-0").await;
    env.wait_until_admitted("b9-research-1").await;
    env.wait_until_pending("b9-research-2").await;
    env.apply_object(workload("b9-production", "b9-production", "1500m", 0)).await;
    env.wait_until_admitted("b9-production").await;

    // B10: from a distant branch.
    for (name, parent) in
        [("b10-near", "b10-left"), ("b10-left", "b10"), ("b10-far", "b10-right"), ("b10-right", "b10")]
    {
        env.apply_object(cohort(name, Some(parent), json!([]))).await;
    }
    env.apply_queue("b10-queue", Some("b10-near"), cpu_quota("0", no_fields()), no_fields()).await;
    env.apply_queue("b10-lender", Some("b10-far"), cpu_quota("5", no_fields()), no_fields()).await;
    env.apply_object(workload("b10-job", "b10-queue", "5", 0)).await;
    env.wait_until_admitted("b10-job").await;
    check_invariants(&recorder).await;
}

#[tokio::test]
async fn cohorts_may_be_moved_deleted_and_form_a_cycle() {
    let env = TestEnv::start().await;
    let recorder = Recorder::start(env.client.clone(), None).await;
    let _manager = env.manager().await;
    env.apply_object(resource_flavor()).await;

    // B11: moved under a larger root, the workload fits.
    env.apply_object(cohort("small", None, cpu_quota("1", no_fields()))).await;
    env.apply_object(cohort("large", None, cpu_quota("5", no_fields()))).await;
    env.apply_object(cohort("child", Some("small"), json!([]))).await;
    env.apply_queue("team", Some("child"), cpu_quota("5", no_fields()), no_fields()).await;
    env.apply_object(workload("overflow", "team", "10", 0)).await;
    env.wait_until_pending("overflow").await;
    env.apply_object(cohort("child", Some("large"), json!([]))).await;
    env.wait_until_admitted("overflow").await;
    // Moved back, running workloads continue, and nothing more is admitted.
    env.apply_object(cohort("child", Some("small"), json!([]))).await;
    env.apply_object(workload("after", "team", "1", 0)).await;
    env.wait_until_pending("after").await;
    env.wait_until_admitted("overflow").await;
    env.mark_finished("overflow").await;
    env.wait_until_admitted("after").await;

    // B12: deleting a cohort removes its quota, also in the middle of the tree.
    env.apply_object(cohort("middle", Some("root"), cpu_quota("4", no_fields()))).await;
    env.apply_object(cohort("sibling", Some("middle"), cpu_quota("6", no_fields()))).await;
    env.apply_queue("user", Some("root"), cpu_quota("0", no_fields()), no_fields()).await;
    env.apply_object(workload("all-of-it", "user", "10", 0)).await;
    env.wait_until_admitted("all-of-it").await;
    env.cohorts().delete("sibling", &DeleteParams::default()).await.expect("the sibling is deleted");
    env.apply_object(workload("late", "user", "5", 0)).await;
    env.wait_until_pending("late").await;
    env.mark_finished("all-of-it").await;
    let message =
        env.wait_for_condition("late", "QuotaReserved", "False", &["ExceedsMaxQuota", "maximum capacity (4)"]).await;
    assert!(message.contains("cpu"), "{message}");
    env.cohorts().delete("middle", &DeleteParams::default()).await.expect("the middle is deleted");
    env.wait_for_condition("late", "QuotaReserved", "False", &["ExceedsMaxQuota", "maximum capacity (0)"]).await;
    env.apply_object(cohort("middle", Some("root"), cpu_quota("4", no_fields()))).await;
    env.apply_object(cohort("sibling", Some("middle"), cpu_quota("1", no_fields()))).await;
    env.wait_until_admitted("late").await;

    // A cycle is reported, stops only the queues below it, and is resolved as soon as it is broken.
    env.apply_queue("knotted", Some("knot-a"), cpu_quota("1", no_fields()), no_fields()).await;
    env.apply_object(cohort("knot-a", Some("knot-b"), json!([]))).await;
    env.apply_object(cohort("knot-b", Some("knot-a"), json!([]))).await;
    let message = wait_for_active_condition(&env, "knotted", "False", "cycle").await;
    assert!(message.contains("knot-a") || message.contains("knot-b"), "{message}");
    env.apply_object(workload("in-a-knot", "knotted", "1", 0)).await;
    env.wait_for_condition("in-a-knot", "QuotaReserved", "False", &["knotted", "cycle"]).await;
    env.apply_object(cohort("knot-b", None, json!([]))).await;
    env.wait_until_admitted("in-a-knot").await;
    wait_for_active_condition(&env, "knotted", "True", "Ready").await;
    check_invariants(&recorder).await;
}

/// Waits until a ClusterQueue's Active condition has this status, and this word in reason or
/// message.
async fn wait_for_active_condition(env: &TestEnv, name: &str, active: &str, word: &str) -> String {
    eventually_or_err(&format!("ClusterQueue {name} is active: {active}, {word}"), async || {
        let status = env.cluster_queues().get(name).await.expect("the queue").status.unwrap_or_default();
        let Some(found) = condition::get(&status.conditions, "Active") else { return Err("no".to_owned()) };
        let text = format!("{} {}: {}", found.status, found.reason, found.message);
        if found.status == active && text.contains(word) { Ok(text) } else { Err(format!("but {text}")) }
    })
    .await
}

/// B17, for both kinds of queues.
#[tokio::test]
async fn stopped_queue_admits_nothing_and_drains_on_hold_and_drain() {
    let env = TestEnv::start().await;
    let recorder = Recorder::start(env.client.clone(), None).await;
    let _manager = env.manager().await;
    env.apply_object(resource_flavor()).await;
    env.apply_queue("team", None, cpu_quota("2", no_fields()), no_fields()).await;

    for (kind, reason) in [("ClusterQueue", "ClusterQueueStopped"), ("LocalQueue", "LocalQueueStopped")] {
        let stop = async |policy: &str| {
            let patch = Patch::Merge(json!({"spec": {"stopPolicy": policy}}));
            let params = PatchParams::default();
            match kind {
                "ClusterQueue" => drop(env.cluster_queues().patch("team", &params, &patch).await.expect("the policy")),
                _ => drop(env.local_queues().patch("team", &params, &patch).await.expect("the policy")),
            }
        };
        let (runs, waits) = (format!("runs-{}", kind.to_lowercase()), format!("waits-{}", kind.to_lowercase()));
        env.apply_object(workload(&runs, "team", "1", 0)).await;
        env.wait_until_admitted(&runs).await;

        stop("Hold").await;
        env.apply_object(workload(&waits, "team", "1", 0)).await;
        env.wait_for_condition(&waits, "QuotaReserved", "False", &[kind, "is stopped"]).await;
        env.wait_until_admitted(&runs).await;

        stop("HoldAndDrain").await;
        env.release_evicted(&runs, reason).await;
        env.wait_for_condition(&runs, "QuotaReserved", "False", &[kind, "is stopped"]).await;

        stop("None").await;
        env.wait_until_admitted(&runs).await;
        env.wait_until_admitted(&waits).await;
        env.mark_finished(&runs).await;
        env.mark_finished(&waits).await;
    }
    check_invariants(&recorder).await;
}

#[tokio::test]
async fn deleted_queue_remains_until_its_quota_is_released() {
    let env = TestEnv::start().await;
    let recorder = Recorder::start(env.client.clone(), None).await;
    let manager = env.manager().await;
    env.apply_object(resource_flavor()).await;
    env.apply_queue("team", None, cpu_quota("1", no_fields()), no_fields()).await;
    eventually("the queue is held", async || {
        let queue = env.cluster_queues().get("team").await.expect("the queue");
        queue.finalizers().iter().any(|finalizer| finalizer == "kueue.x-k8s.io/resource-in-use").then_some(())
    })
    .await;
    env.apply_object(workload("runs", "team", "1", 0)).await;
    env.wait_until_admitted("runs").await;
    env.apply_object(workload("waits", "team", "1", 0)).await;
    env.wait_until_pending("waits").await;

    env.cluster_queues().delete("team", &DeleteParams::default()).await.expect("the queue is deleted");
    env.resource_flavors().delete(FLAVOR, &DeleteParams::default()).await.expect("the flavor is deleted");
    wait_for_active_condition(&env, "team", "False", "Terminating").await;
    env.wait_for_condition("waits", "QuotaReserved", "False", &["ClusterQueue team is inactive: it is being deleted"])
        .await;
    env.wait_until_admitted("runs").await;

    // A restarted manager knows as much.
    manager.kill().await;
    let _manager = env.manager().await;
    env.mark_finished("runs").await;
    eventually("the queue is deleted", async || {
        env.cluster_queues().get_opt("team").await.expect("an answer").is_none().then_some(())
    })
    .await;
    eventually("the flavor is deleted", async || {
        env.resource_flavors().get_opt(FLAVOR).await.expect("an answer").is_none().then_some(())
    })
    .await;
    env.wait_for_condition("waits", "QuotaReserved", "False", &["ClusterQueue team doesn't exist"]).await;

    env.apply_object(resource_flavor()).await;
    env.apply_queue("team", None, cpu_quota("1", no_fields()), no_fields()).await;
    env.wait_until_admitted("waits").await;
    check_invariants(&recorder).await;
}

/// Deterministic pseudorandom numbers.
struct PseudoRandom(u64);

impl PseudoRandom {
    fn below(&mut self, sides: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % sides
    }
}

#[tokio::test]
async fn quotas_edited_under_load_are_never_exceeded_and_every_workload_is_admitted() {
    let env = TestEnv::start().await;
    let recorder = Recorder::start(env.client.clone(), None).await;
    let log = env.dir.join("decisions.jsonl");
    let manager = env.manager_with(&[&format!("--decision-log={}", log.display())]).await;
    env.apply_object(resource_flavor()).await;
    let preempting = json!({"preemption": {"withinClusterQueue": "LowerPriority", "reclaimWithinCohort": "Any"}});
    for name in ["a", "b", "c"] {
        env.apply_queue(name, Some("all"), cpu_quota("3", no_fields()), preempting.clone()).await;
    }
    let mut dice = PseudoRandom(7);
    let mut made = 0;
    for _ in 0..200 {
        let queue = ["a", "b", "c"][dice.below(3) as usize];
        match dice.below(8) {
            0..=3 => {
                let (size, priority) = (dice.below(3) + 1, dice.below(3) as i32);
                env.apply_object(workload(&format!("job-{made}"), queue, &size.to_string(), priority)).await;
                made += 1;
            }
            4 => {
                let parent = ["all", "some"][dice.below(2) as usize];
                let nominal = dice.below(6);
                let limits = [no_fields(), json!({"borrowingLimit": "1"}), json!({"lendingLimit": "0"})];
                let quota = cpu_quota(
                    &nominal.to_string(),
                    limits[dice.below(if nominal > 0 { 3 } else { 2 }) as usize].clone(),
                );
                env.patch_queue(queue, json!({"resourceGroups": quota, "cohortName": parent})).await;
            }
            5 => {
                env.apply_object(cohort(
                    "some",
                    (dice.below(2) == 0).then_some("all"),
                    cpu_quota(&dice.below(4).to_string(), no_fields()),
                ))
                .await;
            }
            _ => run_jobs(&env, 1).await,
        }
    }
    for name in ["a", "b", "c"] {
        env.patch_queue(name, json!({"resourceGroups": cpu_quota("3", no_fields()), "cohortName": "all"})).await;
    }
    eventually("every workload is finished", async || {
        run_jobs(&env, usize::MAX).await;
        let workloads = env.workloads().list(&ListParams::default()).await.expect("the Workloads").items;
        let over = workloads.iter().filter(|workload| {
            workload.status.as_ref().is_some_and(|status| condition::is_true(&status.conditions, "Finished"))
        });
        (over.count() == made).then_some(())
    })
    .await;
    check_invariants(&recorder).await;

    assert!(manager.terminate().await.success());
    let replayed = env.replay(&log).await;
    assert!(replayed["decisions"] > made && replayed["lines cut off"] == 0, "{replayed:?}");
}

/// Plays the part of the jobs: releases the quota of evicted Workloads, and finishes some of the
/// admitted ones.
async fn run_jobs(env: &TestEnv, over: usize) {
    let workloads = env.workloads().list(&ListParams::default()).await.expect("the Workloads").items;
    let mut admitted = Vec::new();
    for workload in workloads {
        let conditions = workload.status.as_ref().map(|status| status.conditions.as_slice()).unwrap_or_default();
        let is = |kind| condition::is_true(conditions, kind);
        if is("Evicted") && is("QuotaReserved") {
            env.release_evicted(&workload.name_any(), "").await;
        } else if is("Admitted") && !is("Finished") {
            admitted.push(workload.name_any());
        }
    }
    for name in admitted.iter().take(over) {
        env.mark_finished(name).await;
    }
}
