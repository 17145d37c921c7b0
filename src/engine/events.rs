//! What is told of the queue's decisions about a Workload, as Kubernetes Events with Kueue's reasons (kueue v0.19.2
//! `pkg/workload/evict/evict.go`, `pkg/scheduler/preemption/preemption.go`). Its job is told by the jobframework.

use sluice_api::condition;
use sluice_api::kueue::{Workload, names};
use sluice_plan::{Note, ObjectRef};
use sluice_queue::parts::PARTLY_PREEMPTED;
use sluice_queue::{Effect, EvictReason, Preemption};

/// What is told of `effect`, which makes `workload` into `decided`.
pub(super) fn of(workload: &Workload, decided: &Workload, effect: &Effect) -> Vec<Note> {
    let said = |workload: &Workload, kind: &str| {
        let conditions = workload.status.as_ref().map(|status| status.conditions.as_slice()).unwrap_or_default();
        condition::get(conditions, kind).map(|found| (found.reason.clone(), found.message.clone()))
    };
    let holds_quota = workload.status.as_ref().is_some_and(|status| status.admission.is_some());
    match effect {
        // What holds nothing has nothing to stop.
        Effect::Evict { reason, .. } if holds_quota => {
            let evicted = said(decided, names::EVICTED).unwrap_or_default();
            let mut notes = vec![Note::normal(workload, &format!("EvictedDueTo{}", evicted.0), evicted.1)];
            if let EvictReason::Preempted(preemption) = reason {
                notes.push(Note::normal(workload, names::PREEMPTED, preemption.to_string()));
                notes.push(to_preemptor(workload, preemption));
            }
            notes
        }
        Effect::GiveBack { preemption, .. } => {
            let (_, message) = said(decided, PARTLY_PREEMPTED).unwrap_or_default();
            vec![Note::normal(workload, "PartiallyPreempted", message), to_preemptor(workload, preemption)]
        }
        Effect::Deactivate { cause, .. } => {
            let target = said(decided, names::DEACTIVATION_TARGET).unwrap_or_default();
            vec![Note::warning(workload, cause.as_str(), format!("To be deactivated for {}", target.1))]
        }
        _ => Vec::new(),
    }
}

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
        message: format!("Preempted workload {namespace}/{name}, of {}", preemption.victim_path),
        tells_of: None,
    }
}
