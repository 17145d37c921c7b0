//! Quota on a real control plane: cohorts, edits under load, stop policies and preemption. B1, B2
//! ... are the portable behaviors of Kueue's scheduler tests
//! (`test/integration/singlecluster/scheduler`).

use kube::ResourceExt;
use kube::api::{DeleteParams, ListParams, Patch, PatchParams};
use serde_json::{Value, json};
use sluice_api::condition;

use sluice_testkit::history::Recorder;
use sluice_testkit::quotas::{FLAVOR, cluster_queue, cohort, cpu, flavor, local_queue, workload};
use sluice_testkit::{TestEnv, eventually, eventually_or_tell, invariants};

/// Returns an empty object: no additional fields.
fn none() -> Value {
    json!({})
}

async fn no_breaches(recorder: &Recorder) {
    let breaches = invariants::breaches(&recorder.history().await);
    assert!(breaches.is_empty(), "{}", breaches.join("\n"));
}

/// B20. The workload needs the cohort's quota, so that every one of the objects is required.
#[tokio::test]
async fn objects_may_be_created_in_any_order() {
    let env = TestEnv::start().await;
    let recorder = Recorder::start(env.client.clone(), None).await;
    let _manager = env.manager().await;
    let objects = [
        flavor(),
        cohort("all", None, cpu("1", none())),
        cluster_queue("team", Some("all"), cpu("1", none()), none()),
        local_queue("team"),
        workload("job", "team", "2", 0),
    ];
    let orders = orders(objects.len());

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
        env.is_admitted(&format!("job-{n}")).await;
    }
    no_breaches(&recorder).await;
}

/// Returns all permutations of the indexes below `count`.
fn orders(count: usize) -> Vec<Vec<usize>> {
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
    env.put(flavor()).await;

    // B1: a peer's quota admits a workload that exceeds the nominal quota of its queue.
    env.put_queue("b1-small", Some("b1"), cpu("5", none()), none()).await;
    env.put(workload("b1-large", "b1-small", "10", 0)).await;
    env.is_short("b1-large").await;
    env.put_queue("b1-peer", Some("b1"), cpu("5", none()), none()).await;
    env.is_admitted("b1-large").await;

    // B2: two borrow from a third.
    let limited = json!({"borrowingLimit": "10"});
    for name in ["b2-one", "b2-two"] {
        env.put_queue(name, Some("b2"), cpu("5", limited.clone()), none()).await;
        env.put(workload(&format!("{name}-job"), name, "11", 0)).await;
    }
    env.is_short("b2-one-job").await;
    env.is_short("b2-two-job").await;
    env.put_queue("b2-lender", Some("b2"), cpu("15", none()), none()).await;
    env.is_admitted("b2-one-job").await;
    env.is_admitted("b2-two-job").await;

    // B7: raising a lending limit admits a workload without any other change.
    env.put_queue("b7-borrower", Some("b7"), cpu("0", none()), none()).await;
    env.put_queue("b7-lender", Some("b7"), cpu("5", json!({"lendingLimit": "0"})), none()).await;
    env.put(workload("b7-job", "b7-borrower", "5", 0)).await;
    env.is_short("b7-job").await;
    env.change_queue("b7-lender", json!({"resourceGroups": cpu("5", json!({"lendingLimit": "5"}))})).await;
    env.is_admitted("b7-job").await;

    // B8: a cohort lends up to its limit.
    env.put(cohort("b8-sibling", Some("b8"), cpu("1", json!({"lendingLimit": "500m"})))).await;
    env.put_queue("b8-queue", Some("b8"), cpu("0", none()), none()).await;
    env.put(workload("b8-first", "b8-queue", "500m", 1)).await;
    env.is_admitted("b8-first").await;
    env.put(workload("b8-second", "b8-queue", "500m", 0)).await;
    env.is_short("b8-second").await;

    // B9: one child may borrow nothing, the other everything.
    env.put(cohort("b9", None, cpu("1500m", none()))).await;
    env.put(cohort("b9-research", Some("b9"), cpu("1", json!({"borrowingLimit": "0"})))).await;
    env.put_queue("b9-research", Some("b9-research"), cpu("0", none()), none()).await;
    env.put_queue("b9-production", Some("b9"), cpu("0", none()), none()).await;
    for n in 0..3 {
        env.put(workload(&format!("b9-research-{n}"), "b9-research", "500m", -n)).await;
    }
    env.is_admitted("b9-research-0").await;
    env.is_admitted("b9-research-1").await;
    env.is_short("b9-research-2").await;
    env.put(workload("b9-production", "b9-production", "1500m", 0)).await;
    env.is_admitted("b9-production").await;

    // B10: from a distant branch.
    for (name, parent) in
        [("b10-near", "b10-left"), ("b10-left", "b10"), ("b10-far", "b10-right"), ("b10-right", "b10")]
    {
        env.put(cohort(name, Some(parent), json!([]))).await;
    }
    env.put_queue("b10-queue", Some("b10-near"), cpu("0", none()), none()).await;
    env.put_queue("b10-lender", Some("b10-far"), cpu("5", none()), none()).await;
    env.put(workload("b10-job", "b10-queue", "5", 0)).await;
    env.is_admitted("b10-job").await;
    no_breaches(&recorder).await;
}

#[tokio::test]
async fn cohorts_may_be_moved_deleted_and_form_a_cycle() {
    let env = TestEnv::start().await;
    let recorder = Recorder::start(env.client.clone(), None).await;
    let _manager = env.manager().await;
    env.put(flavor()).await;

    // B11: moved under a larger root, the workload fits.
    env.put(cohort("small", None, cpu("1", none()))).await;
    env.put(cohort("large", None, cpu("5", none()))).await;
    env.put(cohort("child", Some("small"), json!([]))).await;
    env.put_queue("team", Some("child"), cpu("5", none()), none()).await;
    env.put(workload("overflow", "team", "10", 0)).await;
    env.is_short("overflow").await;
    env.put(cohort("child", Some("large"), json!([]))).await;
    env.is_admitted("overflow").await;
    // Moved back, running workloads continue, and nothing more is admitted.
    env.put(cohort("child", Some("small"), json!([]))).await;
    env.put(workload("after", "team", "1", 0)).await;
    env.is_short("after").await;
    env.is_admitted("overflow").await;
    env.finish("overflow").await;
    env.is_admitted("after").await;

    // B12: deleting a cohort removes its quota, also in the middle of the tree.
    env.put(cohort("middle", Some("root"), cpu("4", none()))).await;
    env.put(cohort("sibling", Some("middle"), cpu("6", none()))).await;
    env.put_queue("user", Some("root"), cpu("0", none()), none()).await;
    env.put(workload("all-of-it", "user", "10", 0)).await;
    env.is_admitted("all-of-it").await;
    env.cohorts().delete("sibling", &DeleteParams::default()).await.expect("the sibling is deleted");
    env.put(workload("late", "user", "5", 0)).await;
    env.is_short("late").await;
    env.finish("all-of-it").await;
    let message = env.has_condition("late", "QuotaReserved", "False", &["ExceedsMaxQuota", "maximum capacity 4"]).await;
    assert!(message.contains("cpu"), "{message}");
    env.cohorts().delete("middle", &DeleteParams::default()).await.expect("the middle is deleted");
    env.has_condition("late", "QuotaReserved", "False", &["ExceedsMaxQuota", "maximum capacity 0"]).await;
    env.put(cohort("middle", Some("root"), cpu("4", none()))).await;
    env.put(cohort("sibling", Some("middle"), cpu("1", none()))).await;
    env.is_admitted("late").await;

    // A cycle is reported, stops only the queues below it, and is resolved as soon as it is broken.
    env.put_queue("knotted", Some("knot-a"), cpu("1", none()), none()).await;
    env.put(cohort("knot-a", Some("knot-b"), json!([]))).await;
    env.put(cohort("knot-b", Some("knot-a"), json!([]))).await;
    let message = queue_says(&env, "knotted", "False", "cycle").await;
    assert!(message.contains("knot-a") || message.contains("knot-b"), "{message}");
    env.put(workload("in-a-knot", "knotted", "1", 0)).await;
    env.has_condition("in-a-knot", "QuotaReserved", "False", &["knotted", "cycle"]).await;
    env.put(cohort("knot-b", None, json!([]))).await;
    env.is_admitted("in-a-knot").await;
    queue_says(&env, "knotted", "True", "Ready").await;
    no_breaches(&recorder).await;
}

/// Waits until a ClusterQueue's Active condition has this status, and this word in reason or
/// message.
async fn queue_says(env: &TestEnv, name: &str, active: &str, word: &str) -> String {
    eventually_or_tell(&format!("ClusterQueue {name} is active: {active}, {word}"), async || {
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
    env.put(flavor()).await;
    env.put_queue("team", None, cpu("2", none()), none()).await;

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
        env.put(workload(&runs, "team", "1", 0)).await;
        env.is_admitted(&runs).await;

        stop("Hold").await;
        env.put(workload(&waits, "team", "1", 0)).await;
        env.has_condition(&waits, "QuotaReserved", "False", &[kind, "is stopped"]).await;
        env.is_admitted(&runs).await;

        stop("HoldAndDrain").await;
        env.gives_back(&runs, reason).await;
        env.has_condition(&runs, "QuotaReserved", "False", &[kind, "is stopped"]).await;

        stop("None").await;
        env.is_admitted(&runs).await;
        env.is_admitted(&waits).await;
        env.finish(&runs).await;
        env.finish(&waits).await;
    }
    no_breaches(&recorder).await;
}

#[tokio::test]
async fn deleted_queue_remains_until_its_quota_is_released() {
    let env = TestEnv::start().await;
    let recorder = Recorder::start(env.client.clone(), None).await;
    let manager = env.manager().await;
    env.put(flavor()).await;
    env.put_queue("team", None, cpu("1", none()), none()).await;
    eventually("the queue is held", async || {
        let queue = env.cluster_queues().get("team").await.expect("the queue");
        queue.finalizers().iter().any(|finalizer| finalizer == "kueue.x-k8s.io/resource-in-use").then_some(())
    })
    .await;
    env.put(workload("runs", "team", "1", 0)).await;
    env.is_admitted("runs").await;
    env.put(workload("waits", "team", "1", 0)).await;
    env.is_short("waits").await;

    env.cluster_queues().delete("team", &DeleteParams::default()).await.expect("the queue is deleted");
    env.resource_flavors().delete(FLAVOR, &DeleteParams::default()).await.expect("the flavor is deleted");
    queue_says(&env, "team", "False", "Terminating").await;
    env.has_condition("waits", "QuotaReserved", "False", &["ClusterQueue team is being deleted"]).await;
    env.is_admitted("runs").await;

    // A restarted manager knows as much.
    manager.kill().await;
    let _manager = env.manager().await;
    env.finish("runs").await;
    eventually("the queue is deleted", async || {
        env.cluster_queues().get_opt("team").await.expect("an answer").is_none().then_some(())
    })
    .await;
    eventually("the flavor is deleted", async || {
        env.resource_flavors().get_opt(FLAVOR).await.expect("an answer").is_none().then_some(())
    })
    .await;
    env.has_condition("waits", "QuotaReserved", "False", &["ClusterQueue team doesn't exist"]).await;

    env.put(flavor()).await;
    env.put_queue("team", None, cpu("1", none()), none()).await;
    env.is_admitted("waits").await;
    no_breaches(&recorder).await;
}

/// Deterministic pseudorandom numbers.
struct Dice(u64);

impl Dice {
    fn roll(&mut self, sides: u64) -> u64 {
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
    env.put(flavor()).await;
    let preempting = json!({"preemption": {"withinClusterQueue": "LowerPriority", "reclaimWithinCohort": "Any"}});
    for name in ["a", "b", "c"] {
        env.put_queue(name, Some("all"), cpu("3", none()), preempting.clone()).await;
    }
    let mut dice = Dice(7);
    let mut made = 0;
    for _ in 0..200 {
        let queue = ["a", "b", "c"][dice.roll(3) as usize];
        match dice.roll(8) {
            0..=3 => {
                let (size, priority) = (dice.roll(3) + 1, dice.roll(3) as i32);
                env.put(workload(&format!("job-{made}"), queue, &size.to_string(), priority)).await;
                made += 1;
            }
            4 => {
                let parent = ["all", "some"][dice.roll(2) as usize];
                let nominal = dice.roll(6);
                let limits = [none(), json!({"borrowingLimit": "1"}), json!({"lendingLimit": "0"})];
                let quota =
                    cpu(&nominal.to_string(), limits[dice.roll(if nominal > 0 { 3 } else { 2 }) as usize].clone());
                env.change_queue(queue, json!({"resourceGroups": quota, "cohortName": parent})).await;
            }
            5 => {
                env.put(cohort("some", (dice.roll(2) == 0).then_some("all"), cpu(&dice.roll(4).to_string(), none())))
                    .await
            }
            _ => settle(&env, 1).await,
        }
    }
    for name in ["a", "b", "c"] {
        env.change_queue(name, json!({"resourceGroups": cpu("3", none()), "cohortName": "all"})).await;
    }
    eventually("every workload is finished", async || {
        settle(&env, usize::MAX).await;
        let workloads = env.workloads().list(&ListParams::default()).await.expect("the Workloads").items;
        let over = workloads.iter().filter(|workload| {
            workload.status.as_ref().is_some_and(|status| condition::is_true(&status.conditions, "Finished"))
        });
        (over.count() == made).then_some(())
    })
    .await;
    no_breaches(&recorder).await;

    assert!(manager.terminate().await.success());
    let replayed = env.replay(&log).await;
    assert!(replayed["decisions"] > made && replayed["lines cut off"] == 0, "{replayed:?}");
}

/// Plays the part of the jobs: releases the quota of evicted Workloads, and finishes some of the
/// admitted ones.
async fn settle(env: &TestEnv, over: usize) {
    let workloads = env.workloads().list(&ListParams::default()).await.expect("the Workloads").items;
    let mut admitted = Vec::new();
    for workload in workloads {
        let conditions = workload.status.as_ref().map(|status| status.conditions.as_slice()).unwrap_or_default();
        let is = |kind| condition::is_true(conditions, kind);
        if is("Evicted") && is("QuotaReserved") {
            env.gives_back(&workload.name_any(), "").await;
        } else if is("Admitted") && !is("Finished") {
            admitted.push(workload.name_any());
        }
    }
    for name in admitted.iter().take(over) {
        env.finish(name).await;
    }
}
