//! Interface between reconciliation and a kind of job.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, ObjectMeta};
use kube_core::{Resource, ResourceExt};
use serde::Serialize;
use sluice_api::kueue::names;
use sluice_plan::{EventRecord, ObjectRef, Write, WriteOp};

use super::slice_record::MemberShare;
use super::types::{Gate, JobResult, Member, PodAssignment};

/// Adapter of a kind of job: the reads and writes that reconciliation needs.
pub trait GenericJob {
    /// Returns the reference to the job.
    fn reference(&self) -> ObjectRef;
    /// Returns the metadata of the job.
    fn meta(&self) -> &ObjectMeta;
    /// Returns true if the job should run: it is not being deleted, and its owner has neither
    /// suspended it nor scaled it to zero.
    fn wants_to_run(&self) -> bool;
    /// Returns the result of a finished job; `None` while it is not finished.
    fn finished(&self) -> Option<JobResult> {
        None
    }
    /// Returns true if the job creates no more pods for good, and has to be resumed to become finished.
    fn is_finishing(&self) -> bool {
        false
    }
    /// Returns the kind of the job's members.
    fn member_kind(&self) -> &'static str {
        "RayCluster"
    }
    /// Returns the members of the job, oldest first.
    fn members(&self) -> Vec<Member>;
    /// Returns the write that makes every member created from now on start suspended; `None` if the
    /// template already does.
    fn suspend_template(&self) -> Option<Write> {
        None
    }
    /// Opens or closes the gate of the member named `member`; `None` if nothing has to be written.
    fn set_gate(&self, member: &str, gate: Gate) -> Option<Write>;
    /// Explains why pods of an open member run, or could run, beyond `_share`. `None` if pods that
    /// are not covered cannot start: their creator holds them, or they are created with a
    /// scheduling gate.
    fn ungated_overrun(&self, _member: &Member, _share: &MemberShare) -> Option<String> {
        None
    }
    /// Returns true if Kubernetes itself creates the pods, exactly as the templates say. An operator of
    /// another process may add what they lack, such as the image of the submitter of a RayJob.
    fn has_complete_templates(&self) -> bool {
        false
    }
    /// Returns true if a member may start with the part of its pods that its slice covers, because each
    /// other pod waits for quota behind its own scheduling gate.
    fn starts_in_part(&self) -> bool {
        false
    }
    /// Describes work that is lost if the job is suspended now; `None` if it continues later.
    fn suspension_consequence(&self) -> Option<String> {
        None
    }
    /// Returns the uid of the member that replaces the active one, as the operator of the job
    /// reports it; `None` without an upgrade.
    fn pending_member(&self) -> Option<String> {
        None
    }
    /// Returns true if the active member always stops before the pending member starts.
    fn recreates(&self) -> bool {
        false
    }
    /// Returns the objects that route requests to the members.
    fn routing_objects(&self) -> Vec<ObjectRef> {
        Vec::new()
    }
    /// Returns true if the job retains its quota while its members are exchanged, because another
    /// member requests next what one member releases.
    fn retains_quota(&self) -> bool {
        false
    }
    /// Removes the scheduling gate of a pod of `member`, places the pod on nodes of its assigned
    /// flavors and labels it with its shape and PodSet.
    fn ungate_pod(&self, member: &str, pod: &str, leave: &PodAssignment) -> Option<Write>;
    /// Removes from a job that is in no queue the gates that the queue put on: the scheduling gates of its
    /// pods and of the pod templates that may change, and the suspension of its template.
    fn remove_gates(&self) -> Vec<Write> {
        Vec::new()
    }
    /// Submits the job to LocalQueue `queue`.
    fn assign_queue(&self, queue: &str) -> Option<Write>;
    /// Returns the conditions that the job has now.
    fn conditions(&self) -> &[Condition];
    /// Sets `conditions` and removes those of the types in `gone`, in one write; `None` if nothing
    /// changes.
    fn set_conditions(&self, conditions: Vec<Condition>, gone: &[&str]) -> Option<Write>;

    /// Returns the LocalQueue that the job is submitted to; `None` if it names none.
    fn queue_name(&self) -> Option<String> {
        queue_name(self.meta()).map(str::to_owned)
    }
}

impl dyn GenericJob + '_ {
    /// Returns the write that deletes the job, and its dependents in the background.
    pub fn delete(&self) -> Write {
        let uid = self.meta().uid.clone().unwrap_or_default();
        Write::new(self.reference(), WriteOp::Delete { uid, foreground: false })
    }

    /// Returns a Normal Event about the job.
    pub fn event(&self, reason: &str, message: &str) -> EventRecord {
        EventRecord {
            regarding: self.reference(),
            uid: self.meta().uid.clone().unwrap_or_default(),
            warning: false,
            reason: reason.to_owned(),
            message: message.to_owned(),
            only_if_written: None,
        }
    }
}

/// Returns the LocalQueue that a job with this metadata is submitted to; `None` if it names none.
pub fn queue_name(meta: &ObjectMeta) -> Option<&str> {
    let name = meta.labels.as_ref()?.get(names::QUEUE_NAME_LABEL)?;
    Some(name.as_str()).filter(|name| !name.is_empty())
}

/// Sets the queue name label of a job; `None` if it already has that value.
pub(super) fn patch_queue_name<K>(job: &K, queue: &str) -> Option<Write>
where
    K: Resource<DynamicType = ()> + Clone + PartialEq + Serialize,
{
    let mut joined = job.clone();
    joined.labels_mut().insert(names::QUEUE_NAME_LABEL.to_owned(), queue.to_owned());
    Write::patch(job, &joined)
}
