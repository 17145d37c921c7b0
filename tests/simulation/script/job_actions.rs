//! Manifests of batch/v1 Jobs, and the execution of actions on them.

use kube::ResourceExt;
use kube::api::{DynamicObject, ListParams, PropagationPolicy};
use serde_json::{Value, json};
use sluice_jobframework::managed::ManagementState;
use sluice_testkit::invariants::OPENED_BY_HAND_ANNOTATION;
use sluice_webhook::mutate::{self, MutationContext};

use super::executor::Executor;
use super::job_step::{BatchJob, Completions, Creation, JobAction, PodState, Propagation};
use super::manifests::{ScriptNamespace, resources};

impl ScriptNamespace {
    /// Returns a Job as the API server gets it, after the webhook.
    pub(crate) fn job(&self, job: &BatchJob) -> Value {
        let mut metadata = self.metadata(&job.name, job.queue.as_deref(), job.priority.as_deref());
        if let Some(fewest) = job.min_parallelism {
            metadata["annotations"]["kueue.x-k8s.io/job-min-parallelism"] = fewest.to_string().into();
        }
        let mut annotations = json!({"simulation.sluice.dev/fails-percent": job.fails_percent.to_string()});
        if let Some(millis) = job.runs_for {
            annotations["simulation.sluice.dev/runs-for"] = format!("{millis}ms").into();
        }
        let container = json!({"name": "work", "image": "work", "resources": resources(job.size)});
        let mut spec = json!({
            "parallelism": job.parallelism,
            "backoffLimit": job.backoff_limit,
            "template": {
                "metadata": {"annotations": annotations},
                "spec": {"restartPolicy": "Never", "containers": [container]},
            },
        });
        match job.completions {
            Completions::WorkQueue => {}
            Completions::Count(count) => spec["completions"] = count.into(),
            Completions::Indexed(count) => {
                spec["completions"] = count.into();
                spec["completionMode"] = "Indexed".into();
            }
        }
        if job.replaces_failed_only {
            spec["podReplacementPolicy"] = "Failed".into();
        }
        if job.creation == Creation::Suspended {
            spec["suspend"] = true.into();
        }
        let object = json!({"apiVersion": "batch/v1", "kind": "Job", "metadata": metadata, "spec": spec});
        if job.creation == Creation::Webhook { mutated(object, job) } else { object }
    }
}

/// Returns a new Job with the changes of the webhook.
fn mutated(mut object: Value, job: &BatchJob) -> Value {
    let managed = if job.queue.is_some() { ManagementState::InQueue } else { ManagementState::NotQueued };
    let context = MutationContext { external_ray_operator: false, managed, uses_existing_cluster: false };
    if let Some(patch) = mutate::patch(&object, None, context) {
        let patch: json_patch::Patch = serde_json::from_value(patch).expect("a JSON patch");
        json_patch::patch(&mut object, &patch).expect("the webhook's patch applies");
    }
    object
}

impl Executor<'_> {
    /// Executes an action on a Job.
    ///
    /// # Errors
    /// If the API server rejects a request, except if the object does not exist.
    pub(super) async fn execute_on_job(&self, act: &JobAction) -> Result<(), kube::Error> {
        match act {
            JobAction::Put(job) => self.put_job(job).await,
            JobAction::Scale { job, parallelism } => self.scale_job(job, *parallelism).await,
            JobAction::Suspend { job, suspend } => {
                // The mark tells the invariants that Sluice did not open this gate.
                let mark = json!({OPENED_BY_HAND_ANNOTATION: (!suspend).then_some("true")});
                let change = json!({"metadata": {"annotations": mark}, "spec": {"suspend": suspend}});
                self.merge("Job", job, change).await
            }
            JobAction::SetQueue { job, queue, suspend } => {
                let mark = json!({OPENED_BY_HAND_ANNOTATION: null});
                let labels = json!({"kueue.x-k8s.io/queue-name": queue});
                let mut change = json!({"metadata": {"labels": labels, "annotations": mark}});
                if *suspend {
                    change["spec"]["suspend"] = true.into();
                }
                self.merge("Job", job, change).await
            }
            JobAction::Delete { job, propagation } => {
                let policy = match propagation {
                    Propagation::Background => PropagationPolicy::Background,
                    Propagation::Foreground => PropagationPolicy::Foreground,
                    Propagation::Orphan => PropagationPolicy::Orphan,
                };
                self.delete("Job", job, policy).await
            }
            JobAction::DeletePods { job, state, count } => self.delete_job_pods(job, *state, *count).await,
        }
    }

    /// Creates a Job unless it exists: most of its spec is immutable, and the webhook changes new
    /// Jobs only.
    async fn put_job(&self, job: &BatchJob) -> Result<(), kube::Error> {
        loop {
            match self.api("Job").get_opt(&job.name).await? {
                None => return self.apply_until_live(self.place.job(job)).await,
                Some(found) if found.metadata.deletion_timestamp.is_none() => return Ok(()),
                Some(_) => Self::wait_for_deletion().await,
            }
        }
    }

    async fn scale_job(&self, job: &str, parallelism: u32) -> Result<(), kube::Error> {
        let Some(found) = self.api("Job").get_opt(job).await? else { return Ok(()) };
        let spec = &found.data["spec"];
        let mut change = json!({"spec": {"parallelism": parallelism}});
        if spec["completionMode"] == "Indexed" && spec["completions"] == spec["parallelism"] {
            change["spec"]["completions"] = parallelism.into();
        }
        self.merge("Job", job, change).await
    }

    async fn delete_job_pods(&self, job: &str, state: PodState, count: usize) -> Result<(), kube::Error> {
        let of_job = ListParams::default().labels(&format!("batch.kubernetes.io/job-name={job}"));
        let pods = self.api("Pod").list(&of_job).await?;
        let is_meant = |pod: &&DynamicObject| pod.metadata.deletion_timestamp.is_none() && pod_state(pod) == state;
        for pod in pods.iter().filter(is_meant).take(count) {
            self.delete("Pod", &pod.name_any(), PropagationPolicy::Background).await?;
        }
        Ok(())
    }
}

fn pod_state(pod: &DynamicObject) -> PodState {
    match pod.data["status"]["phase"].as_str() {
        Some("Succeeded" | "Failed") => PodState::Ended,
        _ if pod.data["spec"]["nodeName"].is_string() => PodState::Bound,
        _ => PodState::Unbound,
    }
}
