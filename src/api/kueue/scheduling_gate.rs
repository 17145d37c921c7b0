//! Scheduling gate of a pod that no admitted slice covers yet. While the pod has it, the scheduler
//! ignores the pod.

use k8s_openapi::api::core::v1::{Pod, PodSchedulingGate, PodSpec};

use super::names::ELASTIC_JOB_GATE;

/// Returns whether the pod has the gate.
pub fn is_gated(pod: &Pod) -> bool {
    pod.spec.as_ref().is_some_and(has_gate)
}

/// Returns whether a pod created from this spec has the gate.
pub fn has_gate(pod: &PodSpec) -> bool {
    pod.scheduling_gates.iter().flatten().any(|gate| gate.name == ELASTIC_JOB_GATE)
}

/// Adds the gate, as the last one.
pub fn add(pod: &mut PodSpec) {
    remove(pod);
    let gate = PodSchedulingGate { name: ELASTIC_JOB_GATE.to_owned() };
    pod.scheduling_gates.get_or_insert_default().push(gate);
}

/// Removes the gate. Gates of other controllers are kept.
pub fn remove(pod: &mut PodSpec) {
    let mut gates = pod.scheduling_gates.take().unwrap_or_default();
    gates.retain(|gate| gate.name != ELASTIC_JOB_GATE);
    pod.scheduling_gates = (!gates.is_empty()).then_some(gates);
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    fn pod(gates: &[&str]) -> PodSpec {
        let gates = gates.iter().map(|name| PodSchedulingGate { name: (*name).to_owned() });
        PodSpec { scheduling_gates: Some(gates.collect()), ..PodSpec::default() }
    }

    #[rstest]
    #[case::added(add, &[], &[ELASTIC_JOB_GATE])]
    #[case::added_already(add, &[ELASTIC_JOB_GATE], &[ELASTIC_JOB_GATE])]
    #[case::added_to_another_gate(add, &["topology"], &["topology", ELASTIC_JOB_GATE])]
    #[case::removed(remove, &[ELASTIC_JOB_GATE], &[])]
    #[case::removed_next_to_another_gate(remove, &["topology", ELASTIC_JOB_GATE], &["topology"])]
    fn only_the_elastic_job_gate_changes(
        #[case] change: fn(&mut PodSpec),
        #[case] before: &[&str],
        #[case] after: &[&str],
    ) {
        let mut spec = pod(before);
        change(&mut spec);

        let gates: Vec<&str> = spec.scheduling_gates.iter().flatten().map(|gate| gate.name.as_str()).collect();
        assert_eq!(gates, after);
        assert_eq!(is_gated(&Pod { spec: Some(spec), ..Pod::default() }), after.contains(&ELASTIC_JOB_GATE));
    }
}
