//! Slices that were asked for and have not been seen. Another one of the same job is not asked for before it is known what became of
//! the last: a slice is numbered after the newest that is there, and while that goes, two would have numbers of their own.

use std::collections::BTreeMap;

use kube_core::{Resource, ResourceExt};
use serde_json::Value;

use sluice_api::kueue::Workload;
use sluice_plan::{ObjectRef, Write, WriteOp};

/// The slice that was asked for last, by the uid of its job.
#[derive(Debug, Default)]
pub(super) struct Making {
    by_job: BTreeMap<String, ObjectRef>,
}

impl Making {
    /// Lets a slice that is asked for wait for the last one of its job.
    pub(super) fn in_turn(&self, mut write: Write) -> Write {
        let last = made_for(&write).and_then(|job| self.by_job.get(job));
        write.quiet.extend(last.filter(|last| **last != write.target).cloned());
        write
    }

    /// A write is sent.
    pub(super) fn sent(&mut self, write: &Write) {
        if let Some(job) = made_for(write) {
            self.by_job.insert(job.to_owned(), write.target.clone());
        }
    }

    /// A slice is there.
    pub(super) fn seen(&mut self, slice: &Workload) {
        let jobs = slice.owner_references().iter().map(|owner| &owner.uid);
        let reference = ObjectRef::of(slice);
        for job in jobs {
            if self.by_job.get(job) == Some(&reference) {
                self.by_job.remove(job);
            }
        }
    }
}

/// The uid of the job that a write makes a slice for.
pub(super) fn made_for(write: &Write) -> Option<&str> {
    let WriteOp::Create(object) = &write.op else { return None };
    let owners = object.pointer("/metadata/ownerReferences").and_then(Value::as_array);
    let mut owners = owners.into_iter().flatten().filter(|_| write.target.kind == Workload::kind(&()));
    owners.find(|owner| owner["controller"] == true)?["uid"].as_str()
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
    fn a_slice_waits_for_the_last_one_of_its_job() {
        let mut making = Making::default();
        making.sent(&Write::create(&slice("chat-3", "chat")));
        let quiet = |making: &Making, name, job| making.in_turn(Write::create(&slice(name, job))).quiet;

        assert_eq!(quiet(&making, "chat-2", "chat"), [ObjectRef::of(&slice("chat-3", "chat"))]);
        assert_eq!(quiet(&making, "chat-3", "chat"), [], "it is asked for again");
        assert_eq!(quiet(&making, "mail-1", "mail"), []);

        making.seen(&slice("chat-3", "chat"));
        assert_eq!(quiet(&making, "chat-4", "chat"), []);
    }
}
