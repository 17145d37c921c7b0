//! Expectations for pods whose creation or ungating is in flight: until the result is known, they
//! count as if they ran.
//!
//! A cluster may be deleted or suspended while the creation of one of its pods is in flight. That
//! pod then appears after the last observed pod is gone, and its quota must not have been released
//! before.

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;
use kube_core::ResourceExt;
use serde::Deserialize;
use serde_json::Value;

use super::in_flight::WriteId;
use super::{PodOwnerId, UNANSWERED_WRITE_TIMEOUT};
use crate::store::numeric_resource_version;
use sluice_api::kueue::names::JOB_UID_LABEL;
use sluice_api::kueue::scheduling_gate::{self, is_gated};
use sluice_plan::{ObjectRef, Write, WriteOp};

/// Pods that may exist or run without having been observed, by write.
#[derive(Debug, Clone, Default)]
pub(super) struct PodExpectations {
    by_write: BTreeMap<WriteId, PodExpectation>,
}

#[derive(Debug, Clone)]
struct PodExpectation {
    pod: ObjectRef,
    owner: PodOwnerId,
    /// The pod after the write.
    expected_pod: Pod,
    /// Resource version of the pod that the write ungates; `None` if the write creates the pod.
    gated_version: Option<u64>,
    /// Time at which an unobserved pod stops counting; `None` while the response may still arrive.
    expires_at: Option<Timestamp>,
    /// True while a pod of this name exists: the creation creates none, unless that pod is deleted first.
    is_observed: bool,
}

impl PodExpectations {
    /// Records a write if it creates or ungates a pod. `known` is the observed pod it targets.
    pub(super) fn record(&mut self, id: WriteId, write: &Write, known: Option<&Pod>) {
        let pod = match (&write.op, known) {
            (WriteOp::Create(object), _) if write.target.kind == "Pod" => Pod::deserialize(object).ok(),
            (WriteOp::Patch(body), Some(pod)) if body.pointer("/spec/schedulingGates").is_some() => {
                Some(ungated_by(pod, body))
            }
            _ => None,
        };
        let member = |pod: &Pod| PodOwnerId::ungated_for(pod).or_else(|| PodOwnerId::of_pod(pod));
        let Some((pod, cluster)) = pod.and_then(|pod| member(&pod).map(|cluster| (pod, cluster))) else {
            return;
        };
        let gated_at = known.map(numeric_resource_version);
        let expectation = PodExpectation {
            pod: write.target.clone(),
            owner: cluster,
            expected_pod: pod,
            gated_version: gated_at,
            expires_at: None,
            is_observed: false,
        };
        self.by_write.insert(id, expectation);
    }

    /// Records the result of a write. `known` is false if the response was lost: the expectation
    /// then expires after [`UNANSWERED_WRITE_TIMEOUT`]. Returns the owner of the pod.
    pub(super) fn on_result(&mut self, id: WriteId, known: bool, now: Timestamp) -> Option<PodOwnerId> {
        if known {
            return self.by_write.remove(&id).map(|expectation| expectation.owner);
        }
        let expectation = self.by_write.get_mut(&id)?;
        expectation.expires_at = Some(now.saturating_add(UNANSWERED_WRITE_TIMEOUT).unwrap_or(Timestamp::MAX));
        Some(expectation.owner.clone())
    }

    /// Settles the expectations of an observed pod: a created pod counts as observed from now on, and a
    /// newer version of a gated pod means that the ungating either succeeded or can only fail with a
    /// conflict. A creation that is sent again may still create the pod once it is deleted.
    pub(super) fn on_observed(&mut self, reference: &ObjectRef, pod: &Pod) {
        self.by_write.retain(|_, expectation| {
            if expectation.pod != *reference {
                return true;
            }
            expectation.is_observed = expectation.gated_version.is_none();
            expectation.gated_version.is_none_or(|version| version >= numeric_resource_version(pod))
        });
    }

    /// Drops the ungatings of a deleted pod: they fail even if another pod gets its name. A creation
    /// is not resolved, because it may create the pod after the deletion.
    pub(super) fn on_deleted(&mut self, reference: &ObjectRef) {
        self.by_write.retain(|_, expectation| {
            if expectation.pod != *reference {
                return true;
            }
            expectation.is_observed = false;
            expectation.gated_version.is_none()
        });
    }

    /// Returns the expected pods of the cluster with this uid that may run.
    pub(super) fn expected_running(&self, cluster: &str) -> Vec<&Pod> {
        self.expected(cluster).into_iter().filter(|pod| !is_gated(pod)).collect()
    }

    /// Returns all expected pods of the cluster with this uid, gated ones included. A pod requested
    /// twice counts once: as requested first, because the second creation then finds it existing,
    /// but as running if either request is ungated.
    pub(super) fn expected(&self, cluster: &str) -> Vec<&Pod> {
        let mut pods: BTreeMap<&ObjectRef, &Pod> = BTreeMap::new();
        for PodExpectation { pod, expected_pod: is, .. } in
            self.by_write.values().filter(|expectation| expectation.owner.uid == *cluster && !expectation.is_observed)
        {
            let first = pods.entry(pod).or_insert(is);
            if is_gated(first) && !is_gated(is) {
                *first = is;
            }
        }
        pods.into_values().collect()
    }

    /// Returns the names of the pods of the cluster with this uid whose last ungating got no response:
    /// it can be repeated, while the pod is still expected to run.
    pub(super) fn unanswered_ungatings(&self, cluster: &str) -> BTreeSet<&str> {
        let of_cluster = || self.by_write.values().filter(|expectation| expectation.owner.uid == *cluster);
        let in_flight: BTreeSet<&ObjectRef> = of_cluster()
            .filter(|expectation| expectation.expires_at.is_none())
            .map(|expectation| &expectation.pod)
            .collect();
        let ungatings = of_cluster().filter(|expectation| expectation.gated_version.is_some());
        let pods = ungatings.map(|expectation| &expectation.pod).filter(|pod| !in_flight.contains(pod));
        pods.map(|pod| pod.name.as_str()).collect()
    }

    /// Drops expired expectations; returns the owners of their pods.
    pub(super) fn expire(&mut self, now: Timestamp) -> BTreeSet<PodOwnerId> {
        let expired =
            self.by_write.extract_if(.., |_, expectation| expectation.expires_at.is_some_and(|until| until <= now));
        expired.map(|(_, expectation)| expectation.owner).collect()
    }

    /// Returns the earliest time at which an expectation expires; `None` if none does.
    pub(super) fn next_deadline(&self) -> Option<Timestamp> {
        self.by_write.values().filter_map(|expectation| expectation.expires_at).min()
    }

    /// Returns the number of expectations.
    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.by_write.len()
    }
}

/// Returns the pod after `patch` ungates it, with the label that assigns it to a RayJob.
fn ungated_by(pod: &Pod, patch: &Value) -> Pod {
    let mut pod = pod.clone();
    scheduling_gate::remove(pod.spec.get_or_insert_default());
    let job = patch.pointer("/metadata/labels").and_then(|labels| labels.get(JOB_UID_LABEL)?.as_str());
    pod.labels_mut().extend(job.map(|job| (JOB_UID_LABEL.to_owned(), job.to_owned())));
    pod
}

#[cfg(test)]
mod tests {
    use rstest::rstest;
    use serde_json::json;

    use super::*;
    use crate::cluster_state::PodOwnerKind;
    use sluice_plan::ObjectKey;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).expect("in range")
    }

    fn cluster() -> PodOwnerId {
        PodOwnerId { owner_kind: PodOwnerKind::RayCluster, key: ObjectKey::new("ns", "chat"), uid: "u1".into() }
    }

    fn pod(version: &str, gated: bool) -> Pod {
        let owner =
            json!({"apiVersion": "ray.io/v1", "kind": "RayCluster", "name": "chat", "uid": "u1", "controller": true});
        let mut pod: Pod = serde_json::from_value(json!({"metadata": {
            "namespace": "ns", "name": "chat-small-1", "resourceVersion": version, "labels": {"ray.io/group": "small"},
            "ownerReferences": [owner],
        }}))
        .expect("a pod");
        let spec = pod.spec.get_or_insert_default();
        if gated {
            scheduling_gate::add(spec);
        }
        pod
    }

    fn creation(kind: &str) -> Write {
        let creation = Write::create(&pod("7", false));
        Write { target: ObjectRef { kind: kind.into(), ..creation.target }, ..creation }
    }

    #[test]
    fn deleted_pod_is_not_expected_to_run_after_an_unanswered_ungating() {
        let gated = pod("7", true);
        let ungating = Write::patch(&gated, &pod("7", false)).expect("a patch");
        let mut expectations = PodExpectations::default();
        expectations.record(1, &ungating, Some(&gated));
        expectations.record(2, &creation("Pod"), None);
        expectations.on_result(1, false, at(0));
        expectations.on_result(2, false, at(0));

        expectations.on_deleted(&ungating.target);

        assert_eq!(expectations.len(), 1, "the creation may still take effect");
    }

    #[test]
    fn creation_that_was_sent_again_counts_again_once_the_pod_is_deleted() {
        // Given a pod that is observed while its creation, sent again, is in flight,
        let mut expectations = PodExpectations::default();
        expectations.record(1, &creation("Pod"), None);
        expectations.on_observed(&creation("Pod").target, &pod("7", false));
        assert_eq!(expectations.expected_running("u1").len(), 0);

        // when it is deleted, then the creation may create it once more, until it is answered.
        expectations.on_deleted(&creation("Pod").target);
        assert_eq!(expectations.expected_running("u1").len(), 1);
        expectations.on_result(1, true, at(0));
        assert_eq!(expectations.expected_running("u1").len(), 0);
    }

    #[test]
    fn ungating_can_be_repeated_once_its_response_is_lost() {
        // Given an ungating in flight,
        let gated = pod("7", true);
        let ungating = Write::patch(&gated, &pod("7", false)).expect("a patch");
        let mut expectations = PodExpectations::default();
        expectations.record(1, &ungating, Some(&gated));
        assert!(expectations.unanswered_ungatings("u1").is_empty());

        // when its response is lost, then it can be repeated, and the pod still counts;
        expectations.on_result(1, false, at(0));
        assert_eq!(expectations.unanswered_ungatings("u1"), BTreeSet::from(["chat-small-1"]));
        assert_eq!(expectations.expected_running("u1").len(), 1);

        // but not while it is being repeated, nor once the pod is observed.
        expectations.record(2, &ungating, Some(&gated));
        assert!(expectations.unanswered_ungatings("u1").is_empty());
        expectations.on_result(2, false, at(1));
        expectations.on_observed(&ungating.target, &pod("8", false));
        assert!(expectations.unanswered_ungatings("u1").is_empty());
    }

    #[test]
    fn created_pod_is_expected_until_the_write_completes() {
        let mut expectations = PodExpectations::default();
        expectations.record(1, &creation("Pod"), None);
        expectations.record(2, &creation("Service"), None);
        assert_eq!(expectations.expected_running("u1").len(), 1);

        assert_eq!(expectations.on_result(1, true, at(0)), Some(cluster()));

        assert_eq!(expectations.expected_running("u1").len(), 0);
    }

    #[test]
    fn pod_of_unanswered_creation_is_expected_until_observed_or_expired() {
        let mut expectations = PodExpectations::default();
        expectations.record(1, &creation("Pod"), None);
        expectations.on_result(1, false, at(0));
        expectations.record(2, &creation("Pod"), None);
        expectations.on_result(2, false, at(10));

        assert_eq!((expectations.expire(at(59)), expectations.next_deadline()), (BTreeSet::new(), Some(at(60))));
        assert_eq!(expectations.expected_running("u1").len(), 1);
        assert_eq!(expectations.expire(at(70)), [cluster()].into());
        assert_eq!(expectations.expected_running("u1").len(), 0);

        expectations.record(3, &creation("Pod"), None);
        expectations.on_observed(&creation("Pod").target, &pod("7", false));
        assert_eq!(expectations.expected_running("u1").len(), 0);
    }

    #[rstest]
    #[case::both_ungated(false, false, &["first"])]
    #[case::second_gated(false, true, &["first"])]
    #[case::first_gated(true, false, &["second"])]
    #[case::both_gated(true, true, &[])]
    fn pod_created_twice_is_expected_once_as_the_ungated_one(
        #[case] first: bool,
        #[case] second: bool,
        #[case] expected: &[&str],
    ) {
        let mut expectations = PodExpectations::default();
        for (id, note, gated) in [(1, "first", first), (2, "second", second)] {
            let mut pod = pod("7", gated);
            pod.annotations_mut().insert("note".to_owned(), note.to_owned());
            expectations.record(id, &Write::create(&pod), None);
            expectations.on_result(id, false, at(0));
        }
        let counted: Vec<&str> =
            expectations.expected_running("u1").iter().map(|pod| pod.annotations()["note"].as_str()).collect();
        assert_eq!(counted, expected);
    }

    #[test]
    fn gated_pod_is_expected_to_run_once_ungated() {
        let mut expectations = PodExpectations::default();
        let gated = pod("7", true);
        let mut creation = creation("Pod");
        creation.op = WriteOp::Create(serde_json::to_value(&gated).expect("JSON"));
        expectations.record(1, &creation, None);
        assert_eq!(
            (expectations.expected_running("u1").len(), expectations.expected("u1").len()),
            (0, 1),
            "it is gated"
        );

        let release = Write::patch(&gated, &pod("7", false)).expect("a patch");
        expectations.record(2, &release, Some(&gated));
        expectations.on_result(2, false, at(0));
        expectations.on_observed(&release.target, &gated);
        assert_eq!(expectations.expected_running("u1").len(), 1, "it may have been ungated");

        expectations.on_observed(&release.target, &pod("8", true));
        assert_eq!(expectations.expected_running("u1").len(), 0, "it was not, and that patch can only conflict now");
    }
}
