//! Expectations for slices that were created but not observed yet. The next slice of a job is
//! created only after the last one is observed: a slice is numbered after the newest existing one,
//! so two concurrent creations would get different numbers.

use std::collections::BTreeMap;

use kube_core::{Resource, ResourceExt};
use serde_json::Value;

use sluice_api::kueue::Workload;
use sluice_plan::{ObjectRef, Write, WriteOp};

/// The last slice created for each job and not observed yet, by the uid of the job.
#[derive(Debug, Clone, Default)]
pub(super) struct SliceExpectations {
    last_by_job: BTreeMap<String, ObjectRef>,
}

impl SliceExpectations {
    /// Blocks the creation of a slice while the creation of the last one of its job is in flight.
    pub(super) fn serialize_after_last(&self, mut write: Write) -> Write {
        let last = job_of_create(&write).and_then(|job| self.last_by_job.get(job));
        write.blocked_by.extend(last.filter(|last| **last != write.target).cloned());
        write
    }

    /// Records a write if it creates a slice.
    pub(super) fn record(&mut self, write: &Write) {
        if let Some(job) = job_of_create(write) {
            self.last_by_job.insert(job.to_owned(), write.target.clone());
        }
    }

    /// Keeps the expectations of slices whose creation `is_open`: it is in flight or unacknowledged.
    pub(super) fn retain(&mut self, is_open: impl Fn(&ObjectRef) -> bool) {
        self.last_by_job.retain(|_, slice| is_open(slice));
    }

    /// Returns the number of expectations.
    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.last_by_job.len()
    }

    /// Drops the expectation that an observed slice fulfills.
    pub(super) fn on_observed(&mut self, slice: &Workload) {
        let jobs = slice.owner_references().iter().map(|owner| &owner.uid);
        let reference = ObjectRef::of(slice);
        for job in jobs {
            if self.last_by_job.get(job) == Some(&reference) {
                self.last_by_job.remove(job);
            }
        }
    }
}

/// Returns the uid of the job for which a write creates a slice; `None` for any other write.
pub(super) fn job_of_create(write: &Write) -> Option<&str> {
    let WriteOp::Create(object) = &write.op else { return None };
    if write.target.kind != Workload::kind(&()) {
        return None;
    }
    let owners = object.pointer("/metadata/ownerReferences").and_then(Value::as_array)?;
    owners.iter().find(|owner| owner["controller"] == true)?["uid"].as_str()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn slice(name: &str, job: &str) -> Workload {
        let owner =
            json!({"apiVersion": "ray.io/v1", "kind": "RayService", "name": job, "uid": job, "controller": true});
        let metadata = json!({"name": name, "namespace": "ns", "ownerReferences": [owner]});
        serde_json::from_value(json!({"metadata": metadata, "spec": {"podSets": []}})).expect("a Workload")
    }

    #[test]
    fn creation_of_a_slice_is_blocked_by_the_last_one_of_its_job() {
        let mut expectations = SliceExpectations::default();
        expectations.record(&Write::create(&slice("chat-3", "chat")));
        let blockers = |expectations: &SliceExpectations, name, job| {
            expectations.serialize_after_last(Write::create(&slice(name, job))).blocked_by
        };

        assert_eq!(blockers(&expectations, "chat-2", "chat"), [ObjectRef::of(&slice("chat-3", "chat"))]);
        assert_eq!(blockers(&expectations, "chat-3", "chat"), [], "a retry does not block itself");
        assert_eq!(blockers(&expectations, "mail-1", "mail"), []);

        expectations.on_observed(&slice("chat-3", "chat"));
        assert_eq!(blockers(&expectations, "chat-4", "chat"), []);
    }
}
