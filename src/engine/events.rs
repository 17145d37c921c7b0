//! Kubernetes Events for scheduling decisions about Workloads, with Kueue's reasons (kueue v0.19.2
//! `pkg/workload/evict/evict.go`, `pkg/scheduler/preemption/preemption.go`). The jobframework emits
//! the Events of the job.

use sluice_api::condition;
use sluice_api::kueue::{Workload, names};
use sluice_plan::{Note, ObjectRef};
use sluice_queue::parts::PARTLY_PREEMPTED;
use sluice_queue::{Effect, EvictReason, Preemption};

/// Returns the Events for `effect`, which changes `workload` into `decided`.
pub(super) fn of(workload: &Workload, decided: &Workload, effect: &Effect) -> Vec<Note> {
    let reason_and_message = |workload: &Workload, kind: &str| {
        let conditions = workload.status.as_ref().map(|status| status.conditions.as_slice()).unwrap_or_default();
        condition::get(conditions, kind).map(|found| (found.reason.clone(), found.message.clone()))
    };
    let holds_quota = workload.status.as_ref().is_some_and(|status| status.admission.is_some());
    match effect {
        // A workload without quota has no pods to stop.
        Effect::Evict { reason, .. } if holds_quota => {
            let (cause, message) = reason_and_message(decided, names::EVICTED).unwrap_or_default();
            let mut notes = vec![Note::normal(workload, &format!("EvictedDueTo{cause}"), message)];
            if let EvictReason::Preempted(preemption) = reason {
                notes.push(Note::normal(workload, names::PREEMPTED, preemption.to_string()));
                notes.push(to_preemptor(workload, preemption));
            }
            notes
        }
        Effect::GiveBack { preemption, .. } => {
            let (_, message) = reason_and_message(decided, PARTLY_PREEMPTED).unwrap_or_default();
            vec![Note::normal(workload, "PartiallyPreempted", message), to_preemptor(workload, preemption)]
        }
        Effect::Deactivate { cause, .. } => {
            let (_, message) = reason_and_message(decided, names::DEACTIVATION_TARGET).unwrap_or_default();
            vec![Note::warning(workload, cause.as_str(), format!("The workload will be deactivated due to {message}"))]
        }
        _ => Vec::new(),
    }
}

/// Returns the Event on the preemptor that names its victim.
fn to_preemptor(victim: &Workload, preemption: &Preemption) -> Note {
    let victim = ObjectRef::of(victim);
    let (namespace, name) = (victim.namespace.clone().unwrap_or_default(), victim.name.clone());
    Note {
        regarding: ObjectRef {
            namespace: Some(preemption.by.namespace.clone()),
            name: preemption.by.name.clone(),
            ..victim
        },
        uid: preemption.by_uid.clone(),
        warning: false,
        reason: "PreemptedWorkload".to_owned(),
        message: format!("Preempted workload {namespace}/{name}; preemptee path: {}", preemption.victim_path),
        tells_of: None,
    }
}
