//! Tests of the Job controller.

use rstest::rstest;
use serde_json::{Value, json};

use super::ClusterFixture;
use crate::api::Propagation;

const RUNS_FOR: &str = "simulation.sluice.dev/runs-for";
const FAILS: &str = "simulation.sluice.dev/fails-percent";

/// Builds a Job whose pods run until they are deleted.
fn job(spec: Value) -> Value {
    let container = json!({"name": "work", "image": "work", "resources": {"requests": {"cpu": "1"}}});
    let mut job = json!({"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "sum"}, "spec": spec});
    job["spec"]["template"] = json!({"spec": {"restartPolicy": "Never", "containers": [container]}});
    job
}

/// Builds a Job whose pods end after a second. This share of them fails.
fn ending_job(spec: Value, fails_percent: u32) -> Value {
    let mut job = job(spec);
    job["spec"]["template"]["metadata"] =
        json!({"annotations": {(RUNS_FOR): "1000ms", (FAILS): fails_percent.to_string()}});
    job
}

impl ClusterFixture {
    fn job(&self) -> &Value {
        self.find("Job", "sum").expect("the Job exists")
    }

    fn pods(&self) -> Vec<&Value> {
        self.api.list("Pod").map(|pod| &**pod).collect()
    }

    fn active_pods(&self) -> usize {
        let is_active = |pod: &&&Value| {
            let ended = matches!(super::super::object_view::text(pod, "/status/phase"), "Succeeded" | "Failed");
            !ended && pod["metadata"].get("deletionTimestamp").is_none()
        };
        self.pods().iter().filter(is_active).count()
    }

    fn status(&self, field: &str) -> i64 {
        self.job()["status"][field].as_i64().unwrap_or(0)
    }

    fn is_true(&self, condition: &str) -> bool {
        super::super::object_view::condition_status(self.job(), condition) == "True"
    }

    fn patch_spec(&mut self, field: &str, value: Value) {
        self.change("Job", "sum", |job| job["spec"][field] = value);
    }

    /// Deletes the pod at this position.
    fn delete_pod(&mut self, position: usize) {
        let name = super::super::object_view::text(self.pods()[position], "/metadata/name").to_owned();
        self.delete("Pod", &name, Propagation::Background);
    }
}

#[rstest]
#[case::single(json!({}), 1)]
#[case::work_queue(json!({"parallelism": 3}), 3)]
#[case::fewer_completions(json!({"parallelism": 3, "completions": 2}), 2)]
#[case::indexed(json!({"parallelism": 2, "completions": 3, "completionMode": "Indexed"}), 2)]
#[case::scaled_to_zero(json!({"parallelism": 0}), 0)]
#[case::suspended(json!({"parallelism": 3, "suspend": true}), 0)]
fn job_creates_as_many_pods_as_it_wants(#[case] spec: Value, #[case] wanted: usize) {
    let mut cluster = ClusterFixture::new();

    cluster.create(job(spec));
    cluster.run(2_000);

    assert_eq!(cluster.pods().len(), wanted);
    let count = i64::try_from(wanted).expect("a small number");
    assert_eq!((cluster.status("active"), cluster.status("ready")), (count, count));
    for pod in cluster.pods() {
        assert_eq!(pod["metadata"]["labels"]["batch.kubernetes.io/job-name"], "sum");
        assert_eq!(pod["metadata"]["finalizers"], json!(["batch.kubernetes.io/job-tracking"]));
    }
}

#[rstest]
#[case::single(json!({}), 1)]
#[case::completions(json!({"parallelism": 2, "completions": 5}), 5)]
#[case::work_queue(json!({"parallelism": 3}), 3)]
#[case::indexed(json!({"parallelism": 2, "completions": 4, "completionMode": "Indexed"}), 4)]
fn job_is_complete_with_its_last_pod(#[case] spec: Value, #[case] succeeded: i64) {
    let mut cluster = ClusterFixture::new();

    cluster.create(ending_job(spec, 0));
    cluster.run(20_000);

    assert!(cluster.is_true("Complete") && cluster.is_true("SuccessCriteriaMet"), "{}", cluster.job()["status"]);
    assert_eq!((cluster.status("succeeded"), cluster.status("active")), (succeeded, 0));
    assert!(cluster.job()["status"]["completionTime"].is_string());
    assert!(cluster.pods().iter().all(|pod| pod["metadata"].get("finalizers").is_none_or(|of| *of == json!([]))));
}

#[test]
fn suspended_job_without_completions_to_reach_is_complete() {
    let mut cluster = ClusterFixture::new();

    cluster.create(job(json!({"suspend": true, "parallelism": 0, "completions": 0, "completionMode": "Indexed"})));
    cluster.run(2_000);

    assert!(cluster.is_true("Complete"), "{}", cluster.job()["status"]);
}

#[test]
fn ended_pods_are_recorded_before_they_are_counted() {
    let latencies =
        super::Latencies { job_counting: 500..=500, ..super::Latencies::fixed(super::SeededRandom::new(0)) };
    let mut cluster = ClusterFixture::with(super::Nodes::uniform(4), latencies, super::PodFaultInjector::none());
    cluster.create(ending_job(json!({}), 0));
    let recorded =
        |cluster: &ClusterFixture| cluster.job()["status"]["uncountedTerminatedPods"]["succeeded"].is_array();

    let was_recorded = (0..500).any(|_| {
        cluster.run(10);
        recorded(&cluster) && cluster.status("succeeded") == 0
    });
    cluster.run(5_000);

    assert!(was_recorded && !recorded(&cluster));
    assert!(cluster.is_true("Complete") && cluster.status("succeeded") == 1, "{}", cluster.job()["status"]);
}

#[test]
fn work_queue_creates_no_pod_once_one_has_succeeded() {
    let mut cluster = ClusterFixture::new();
    cluster.create(job(json!({"parallelism": 3})));
    cluster.run(2_000);
    let name = cluster.pods()[0]["metadata"]["name"].as_str().expect("a name").to_owned();

    cluster.change("Pod", &name, |pod| {
        pod["metadata"]["annotations"]["testenv.sluice.dev/phase"] = json!("succeeded");
    });
    cluster.run(2_000);
    assert_eq!((cluster.status("succeeded"), cluster.status("active")), (1, 2));

    // A pod that fails or is deleted is not replaced.
    let other = cluster.pods().iter().position(|pod| pod["status"]["phase"] == "Running").expect("a running pod");
    cluster.delete_pod(other);
    cluster.run(60_000);

    assert_eq!((cluster.active_pods(), cluster.status("active"), cluster.status("failed")), (1, 1, 1));
}

#[test]
fn failed_pods_are_replaced_until_the_backoff_limit_is_exceeded() {
    let mut cluster = ClusterFixture::new();

    cluster.create(ending_job(json!({"backoffLimit": 1}), 100));
    cluster.run(5_000);
    // The Job waits for 10 s after the first failure.
    assert_eq!((cluster.pods().len(), cluster.status("failed")), (1, 1));
    cluster.run(20_000);

    assert_eq!((cluster.pods().len(), cluster.status("failed")), (2, 2));
    assert!(cluster.is_true("Failed") && cluster.is_true("FailureTarget"), "{}", cluster.job()["status"]);
}

#[test]
fn suspended_job_deletes_its_pods_and_resets_its_start_time() {
    let mut cluster = ClusterFixture::new();
    cluster.create(job(json!({"parallelism": 2})));
    cluster.run(2_000);
    assert!(cluster.job()["status"]["startTime"].is_string());

    cluster.patch_spec("suspend", json!(true));
    cluster.run(3_000);

    assert_eq!((cluster.pods().len(), cluster.status("active"), cluster.status("failed")), (0, 0, 0));
    assert!(cluster.is_true("Suspended"));
    assert!(cluster.job()["status"].get("startTime").is_none());

    cluster.patch_spec("suspend", json!(false));
    cluster.run(3_000);

    assert_eq!(cluster.status("active"), 2);
    assert!(!cluster.is_true("Suspended") && cluster.job()["status"]["startTime"].is_string());
}

#[rstest]
#[case::work_queue(json!({"parallelism": 3}))]
#[case::indexed(json!({"parallelism": 3, "completions": 3, "completionMode": "Indexed"}))]
fn job_follows_its_parallelism_to_zero_and_back(#[case] spec: Value) {
    let mut cluster = ClusterFixture::new();
    cluster.create(job(spec));
    cluster.run(2_000);

    for (parallelism, pods) in [(1, 1), (0, 0), (3, 3)] {
        cluster.patch_spec("parallelism", json!(parallelism));
        cluster.run(3_000);

        assert_eq!((cluster.pods().len(), cluster.status("active")), (pods, parallelism));
    }
    // Pods that were not wanted any more have not failed.
    assert_eq!(cluster.status("failed"), 0);
}

#[test]
fn each_index_has_one_pod() {
    let mut cluster = ClusterFixture::new();
    cluster.create(job(json!({"parallelism": 3, "completions": 3, "completionMode": "Indexed"})));
    cluster.run(2_000);

    cluster.delete_pod(1);
    cluster.run(30_000);

    let index = |pod: &&Value| pod["metadata"]["annotations"]["batch.kubernetes.io/job-completion-index"].clone();
    let mut indexes: Vec<Value> = cluster.pods().iter().map(index).collect();
    indexes.sort_by_key(ToString::to_string);
    assert_eq!(indexes, [json!("0"), json!("1"), json!("2")]);
    assert_eq!(cluster.status("failed"), 1);
}

#[test]
fn replacement_policy_failed_waits_for_the_end_of_a_deleted_pod() {
    let mut latencies = super::Latencies::fixed(super::SeededRandom::new(0));
    latencies.termination = 5_000..=5_000;
    let faults = super::PodFaultInjector::none();
    let mut cluster = ClusterFixture::with(super::Nodes::uniform(4), latencies, faults);
    cluster.create(job(json!({"podReplacementPolicy": "Failed"})));
    cluster.run(2_000);

    cluster.delete_pod(0);
    cluster.run(2_000);
    assert_eq!((cluster.pods().len(), cluster.status("terminating"), cluster.status("active")), (1, 1, 0));

    cluster.run(20_000);
    assert_eq!((cluster.active_pods(), cluster.status("failed")), (1, 1));
}

#[rstest]
#[case::background(Propagation::Background, 0)]
#[case::foreground(Propagation::Foreground, 0)]
#[case::orphan(Propagation::Orphan, 2)]
fn pods_of_a_deleted_job_lose_their_finalizer(#[case] propagation: Propagation, #[case] left: usize) {
    let mut cluster = ClusterFixture::new();
    cluster.create(job(json!({"parallelism": 2})));
    cluster.run(2_000);

    cluster.delete("Job", "sum", propagation);
    cluster.run(5_000);

    assert!(cluster.find("Job", "sum").is_none());
    assert_eq!(cluster.pods().len(), left);
    for pod in cluster.pods() {
        assert!(pod["metadata"].get("ownerReferences").is_none_or(|owners| *owners == json!([])));
        assert!(pod["metadata"].get("finalizers").is_none_or(|finalizers| *finalizers == json!([])));
    }
}

#[test]
fn deleted_pod_that_was_never_bound_ends() {
    let mut cluster = ClusterFixture::new();
    let mut gated = job(json!({"podReplacementPolicy": "Failed"}));
    gated["spec"]["template"]["spec"]["schedulingGates"] = json!([{"name": "kueue.x-k8s.io/elastic-job"}]);
    cluster.create(gated);
    cluster.run(1_000);

    cluster.delete_pod(0);
    cluster.run(20_000);

    assert_eq!((cluster.pods().len(), cluster.active_pods(), cluster.status("failed")), (1, 1, 1));
}
