//! Kubernetes Events for scheduling decisions about Workloads, with Kueue's reasons (kueue v0.19.2
//! `pkg/workload/evict/evict.go`, `pkg/scheduler/preemption/preemption.go`). The jobframework emits
//! the Events of the job.

use sluice_api::condition;
use sluice_api::kueue::{Workload, names};
use sluice_plan::{EventRecord, ObjectRef};
use sluice_queue::partial_preemption::PARTIALLY_PREEMPTED;
use sluice_queue::{Decision, EvictionReason, Preemption};

/// Returns the Events for `effect`, which changes `workload` into `decided`.
pub(super) fn decision_events(workload: &Workload, decided: &Workload, effect: &Decision) -> Vec<EventRecord> {
    let reason_and_message = |workload: &Workload, kind: &str| {
        let conditions = workload.conditions();
        condition::get(conditions, kind).map(|found| (found.reason.clone(), found.message.clone()))
    };
    let holds_quota = workload.status.as_ref().is_some_and(|status| status.admission.is_some());
    match effect {
        // A workload without quota has no pods to stop.
        Decision::Evict { reason, .. } if holds_quota => {
            let (cause, message) = reason_and_message(decided, names::EVICTED).unwrap_or_default();
            let mut notes = vec![EventRecord::normal(workload, &format!("EvictedDueTo{cause}"), message)];
            if let EvictionReason::Preempted(preemption) = reason {
                notes.push(EventRecord::normal(workload, names::PREEMPTED, preemption.to_string()));
                notes.push(preemptor_event(workload, preemption));
            }
            notes
        }
        Decision::PreemptPart { preemption, .. } => {
            let (_, message) = reason_and_message(decided, PARTIALLY_PREEMPTED).unwrap_or_default();
            vec![EventRecord::normal(workload, "PartiallyPreempted", message), preemptor_event(workload, preemption)]
        }
        Decision::Deactivate { cause, .. } => {
            let (_, message) = reason_and_message(decided, names::DEACTIVATION_TARGET).unwrap_or_default();
            vec![EventRecord::warning(
                workload,
                cause.as_str(),
                format!("The workload will be deactivated due to {message}"),
            )]
        }
        _ => Vec::new(),
    }
}

/// Returns the Event on the preemptor that names the preempted workload.
fn preemptor_event(preemptee: &Workload, preemption: &Preemption) -> EventRecord {
    let preemptee = ObjectRef::of(preemptee);
    let (namespace, name) = (preemptee.namespace.clone().unwrap_or_default(), preemptee.name.clone());
    EventRecord {
        regarding: ObjectRef {
            namespace: Some(preemption.preemptor.namespace.clone()),
            name: preemption.preemptor.name.clone(),
            ..preemptee
        },
        uid: preemption.preemptor_uid.clone(),
        warning: false,
        reason: "PreemptedWorkload".to_owned(),
        message: format!("Preempted workload {namespace}/{name}; preemptee path: {}", preemption.preemptee_path),
        only_if_written: None,
    }
}
