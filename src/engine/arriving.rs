//! Pods that were asked for, or let go from behind their scheduling gates, and may run already: until the answer is in, they count
//! as if they did.
//!
//! A cluster may be deleted or suspended while the creation of one of its pods is on its way. The pod then comes to be after
//! the last one that was seen is gone, and its quota must not have been given away by then.

use std::collections::{BTreeMap, BTreeSet};

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::Pod;
use kube_core::ResourceExt;
use serde::Deserialize;
use serde_json::Value;

use super::in_flight::WriteId;
use super::store::version_of;
use super::world::MemberId;
use sluice_api::kueue::names::JOB_UID_LABEL;
use sluice_api::kueue::scheduling_gate::{self, is_gated};
use sluice_plan::{ObjectRef, Write, WriteOp};

/// After this long a write that was never answered has either been seen or has not been carried out: the API server gives a
/// request up after a minute (`kube-apiserver --request-timeout`).
pub(super) const UNANSWERED: SignedDuration = SignedDuration::from_secs(60);

/// The pods that may be there already.
#[derive(Debug, Default)]
pub(super) struct Arriving {
    by_write: BTreeMap<WriteId, Arrival>,
}

#[derive(Debug)]
struct Arrival {
    pod: ObjectRef,
    cluster: MemberId,
    /// What it looks like.
    is: Pod,
    /// The version of the pod that is let go; `None` for one that is made.
    gated_at: Option<u64>,
    /// When it no longer counts if nothing is heard of it; `None` while its answer may still come.
    until: Option<Timestamp>,
}

impl Arriving {
    /// A write is sent; `known` is the pod that it is about, if it is about one that is there.
    pub(super) fn sent(&mut self, id: WriteId, write: &Write, known: Option<&Pod>) {
        let pod = match (&write.op, known) {
            (WriteOp::Create(object), _) if write.target.kind == "Pod" => Pod::deserialize(object).ok(),
            (WriteOp::Patch(body), Some(pod)) if body.pointer("/spec/schedulingGates").is_some() => {
                Some(let_go(pod, body))
            }
            _ => None,
        };
        let member = |pod: &Pod| MemberId::let_go_for(pod).or_else(|| MemberId::of_pod(pod));
        let Some((pod, cluster)) = pod.and_then(|pod| member(&pod).map(|cluster| (pod, cluster))) else {
            return;
        };
        let gated_at = known.map(version_of);
        let arrival = Arrival { pod: write.target.clone(), cluster, is: pod, gated_at, until: None };
        self.by_write.insert(id, arrival);
    }

    /// A write was answered; `known` unless the answer was lost. Returns the cluster whose pod that was.
    pub(super) fn answered(&mut self, id: WriteId, known: bool, now: Timestamp) -> Option<MemberId> {
        if known {
            return self.by_write.remove(&id).map(|arrival| arrival.cluster);
        }
        let arrival = self.by_write.get_mut(&id)?;
        arrival.until = now.checked_add(UNANSWERED).ok();
        Some(arrival.cluster.clone())
    }

    /// A pod is there, and counts by itself from now on; or it was changed by others while it was gated, and what was to let go
    /// an older version of it can't do that any more.
    pub(super) fn seen(&mut self, reference: &ObjectRef, pod: &Pod) {
        let is_settled = |arrival: &Arrival| arrival.gated_at.is_none_or(|version| version < version_of(pod));
        self.by_write.retain(|_, arrival| arrival.pod != *reference || !is_settled(arrival));
    }

    /// The pods of the cluster with this uid that may run already.
    pub(super) fn of(&self, cluster: &str) -> Vec<&Pod> {
        self.made(cluster).into_iter().filter(|pod| !is_gated(pod)).collect()
    }

    /// The same, and those that were asked for behind a scheduling gate and may be there already. A pod that was asked for twice is one:
    /// as what it was asked for first, since then it is there already when it is asked for again; but for one that runs rather than
    /// for one that waits.
    pub(super) fn made(&self, cluster: &str) -> Vec<&Pod> {
        let mut pods: BTreeMap<&ObjectRef, &Pod> = BTreeMap::new();
        for Arrival { pod, is, .. } in self.by_write.values().filter(|arrival| arrival.cluster.uid == *cluster) {
            let first = pods.entry(pod).or_insert(is);
            if is_gated(first) && !is_gated(is) {
                *first = is;
            }
        }
        pods.into_values().collect()
    }

    /// Forgets what no longer counts; returns the clusters whose pods that would have been.
    pub(super) fn expire(&mut self, now: Timestamp) -> BTreeSet<MemberId> {
        let expired = self.by_write.extract_if(.., |_, arrival| arrival.until.is_some_and(|until| until <= now));
        expired.map(|(_, arrival)| arrival.cluster).collect()
    }

    /// When the next of them no longer counts.
    pub(super) fn next(&self) -> Option<Timestamp> {
        self.by_write.values().filter_map(|arrival| arrival.until).min()
    }
}

/// A pod as it will be once this patch has let it go, as far as it matters whose it is.
fn let_go(pod: &Pod, patch: &Value) -> Pod {
    let mut pod = pod.clone();
    scheduling_gate::set(pod.spec.get_or_insert_default(), false);
    let job = patch.pointer("/metadata/labels").and_then(|labels| labels.get(JOB_UID_LABEL)?.as_str());
    pod.labels_mut().extend(job.map(|job| (JOB_UID_LABEL.to_owned(), job.to_owned())));
    pod
}

#[cfg(test)]
mod tests {
    use rstest::rstest;
    use serde_json::json;

    use super::super::world::Runner;
    use super::*;
    use sluice_plan::ObjectKey;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).expect("in range")
    }

    fn cluster() -> MemberId {
        MemberId { runner: Runner::RayCluster, key: ObjectKey::new("ns", "chat"), uid: "u1".into() }
    }

    fn pod(version: &str, gated: bool) -> Pod {
        let owner =
            json!({"apiVersion": "ray.io/v1", "kind": "RayCluster", "name": "chat", "uid": "u1", "controller": true});
        let mut pod: Pod = serde_json::from_value(json!({"metadata": {
            "namespace": "ns", "name": "chat-small-1", "resourceVersion": version, "labels": {"ray.io/group": "small"},
            "ownerReferences": [owner],
        }}))
        .expect("a pod");
        scheduling_gate::set(pod.spec.get_or_insert_default(), gated);
        pod
    }

    fn creation(kind: &str) -> Write {
        let creation = Write::create(&pod("7", false));
        Write { target: ObjectRef { kind: kind.into(), ..creation.target }, ..creation }
    }

    #[test]
    fn a_pod_counts_from_when_it_is_asked_for_until_the_answer() {
        let mut arriving = Arriving::default();
        arriving.sent(1, &creation("Pod"), None);
        arriving.sent(2, &creation("Service"), None);
        assert_eq!(arriving.of("u1").len(), 1);

        assert_eq!(arriving.answered(1, true, at(0)), Some(cluster()));

        assert_eq!(arriving.of("u1").len(), 0);
    }

    #[test]
    fn a_pod_whose_creation_was_not_answered_counts_until_it_is_seen_or_can_no_longer_come() {
        let mut arriving = Arriving::default();
        arriving.sent(1, &creation("Pod"), None);
        arriving.answered(1, false, at(0));
        arriving.sent(2, &creation("Pod"), None);
        arriving.answered(2, false, at(10));

        assert_eq!((arriving.expire(at(59)), arriving.next()), (BTreeSet::new(), Some(at(60))));
        assert_eq!(arriving.of("u1").len(), 1);
        assert_eq!(arriving.expire(at(70)), [cluster()].into());
        assert_eq!(arriving.of("u1").len(), 0);

        arriving.sent(3, &creation("Pod"), None);
        arriving.seen(&creation("Pod").target, &pod("7", false));
        assert_eq!(arriving.of("u1").len(), 0);
    }

    #[rstest]
    #[case::both_run(false, false, &["first"])]
    #[case::the_second_would_wait(false, true, &["first"])]
    #[case::the_first_would_wait(true, false, &["second"])]
    #[case::both_would_wait(true, true, &[])]
    fn a_pod_that_was_asked_for_twice_counts_as_what_may_run_already(
        #[case] first: bool,
        #[case] second: bool,
        #[case] expected: &[&str],
    ) {
        let mut arriving = Arriving::default();
        for (id, note, gated) in [(1, "first", first), (2, "second", second)] {
            let mut pod = pod("7", gated);
            pod.annotations_mut().insert("note".to_owned(), note.to_owned());
            arriving.sent(id, &Write::create(&pod), None);
            arriving.answered(id, false, at(0));
        }
        let counted: Vec<&str> = arriving.of("u1").iter().map(|pod| pod.annotations()["note"].as_str()).collect();
        assert_eq!(counted, expected);
    }

    #[test]
    fn a_gated_pod_counts_from_when_it_is_let_go() {
        let mut arriving = Arriving::default();
        let gated = pod("7", true);
        let mut creation = creation("Pod");
        creation.op = WriteOp::Create(serde_json::to_value(&gated).expect("JSON"));
        arriving.sent(1, &creation, None);
        assert_eq!((arriving.of("u1").len(), arriving.made("u1").len()), (0, 1), "it waits for quota");

        let release = Write::patch(&gated, &pod("7", false)).expect("a patch");
        arriving.sent(2, &release, Some(&gated));
        arriving.answered(2, false, at(0));
        arriving.seen(&release.target, &gated);
        assert_eq!(arriving.of("u1").len(), 1, "it may have been let go");

        arriving.seen(&release.target, &pod("8", true));
        assert_eq!(arriving.of("u1").len(), 0, "it has not, and can't be by that any more");
    }
}
