//! Pods of Jobs: what happens to them, and their counts.

use serde_json::{Value, json};

use super::{ControlPlane, is_gated, name_of};

impl ControlPlane {
    /// Completes all ungated pods of a Job.
    pub(in crate::tests) fn complete_pods(&mut self, job: &str) {
        self.complete_some_pods(job, usize::MAX);
    }

    /// Completes at most this number of ungated pods of a Job.
    pub(in crate::tests) fn complete_some_pods(&mut self, job: &str, most: usize) {
        let names: Vec<String> = self.pods_of_job(job).filter(|pod| !is_gated(pod)).map(name_of).collect();
        for name in names.into_iter().take(most) {
            self.apply("Pod", json!({"metadata": {"name": name}, "status": {"phase": "Succeeded"}}));
        }
    }

    /// Ungates the pods of a Job, as if they were created before its template had a gate.
    pub(in crate::tests) fn ungate_pods(&mut self, job: &str) {
        let names: Vec<String> = self.pods_of_job(job).filter(|pod| is_gated(pod)).map(name_of).collect();
        for name in names {
            self.apply("Pod", json!({"metadata": {"name": name}, "spec": {"schedulingGates": null}}));
        }
    }

    /// Counts the ungated and the gated active pods of a Job.
    pub(in crate::tests) fn running_and_gated(&self, job: &str) -> (usize, usize) {
        let active = self.pods_of_job(job).filter(|pod| pod["status"]["phase"] != "Succeeded");
        let (gated, running): (Vec<_>, Vec<_>) = active.partition(|pod| is_gated(pod));
        (running.len(), gated.len())
    }

    /// Iterates over the pods of a Job.
    pub(in crate::tests) fn pods_of_job(&self, job: &str) -> impl Iterator<Item = &Value> {
        self.of_kind("Pod").filter(move |pod| pod["metadata"]["labels"]["batch.kubernetes.io/job-name"] == job)
    }
}
