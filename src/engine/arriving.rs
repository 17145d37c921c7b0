//! Pods that were asked for and may be there already: until the answer is in, they count as if they were.
//!
//! A cluster may be deleted or suspended while the creation of one of its pods is on its way. The pod then comes to be after
//! the last one that was seen is gone, and its quota must not have been given away by then.

use std::collections::{BTreeMap, BTreeSet};

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;
use serde::Deserialize;

use super::in_flight::WriteId;
use super::plan::{ObjectRef, Write, WriteOp};
use super::world::ClusterId;
use crate::api::ray::names;

/// After this long a creation that was never answered has either been seen or has not been carried out: the API server gives a
/// request up after a minute (`kube-apiserver --request-timeout`).
const UNANSWERED: SignedDuration = SignedDuration::from_secs(60);

/// The pods that may be there already.
#[derive(Debug, Default)]
pub(super) struct Arriving {
    by_write: BTreeMap<WriteId, Arrival>,
}

#[derive(Debug)]
struct Arrival {
    pod: ObjectRef,
    cluster: ClusterId,
    group: String,
    /// When it no longer counts if nothing is heard of it; `None` while its answer may still come.
    until: Option<Timestamp>,
}

impl Arriving {
    /// A write is sent.
    pub(super) fn sent(&mut self, id: WriteId, write: &Write) {
        let WriteOp::Create(object) = &write.op else { return };
        let pod = if write.target.kind == "Pod" { Pod::deserialize(object).ok() } else { None };
        let Some((pod, cluster)) = pod.and_then(|pod| ClusterId::of_pod(&pod).map(|cluster| (pod, cluster))) else {
            return;
        };
        let group = pod.labels().get(names::GROUP_LABEL).cloned().unwrap_or_default();
        let arrival = Arrival { pod: write.target.clone(), cluster, group, until: None };
        self.by_write.insert(id, arrival);
    }

    /// A write was answered; `known` unless the answer was lost. Returns the cluster whose pod that was.
    pub(super) fn answered(&mut self, id: WriteId, known: bool, now: Timestamp) -> Option<ClusterId> {
        if known {
            return self.by_write.remove(&id).map(|arrival| arrival.cluster);
        }
        let arrival = self.by_write.get_mut(&id)?;
        arrival.until = now.checked_add(UNANSWERED).ok();
        Some(arrival.cluster.clone())
    }

    /// A pod is there, and counts by itself from now on.
    pub(super) fn seen(&mut self, pod: &ObjectRef) {
        self.by_write.retain(|_, arrival| arrival.pod != *pod);
    }

    /// How many pods of the cluster with this uid are arriving, by group.
    pub(super) fn of(&self, cluster: &str) -> BTreeMap<String, u32> {
        let of_cluster = self.by_write.values().filter(|arrival| arrival.cluster.uid == *cluster);
        // A pod that was asked for twice is one.
        let pods: BTreeMap<&ObjectRef, &String> = of_cluster.map(|arrival| (&arrival.pod, &arrival.group)).collect();
        let mut groups = BTreeMap::new();
        for group in pods.into_values() {
            *groups.entry(group.clone()).or_default() += 1;
        }
        groups
    }

    /// Forgets what no longer counts; returns the clusters whose pods that would have been.
    pub(super) fn expire(&mut self, now: Timestamp) -> BTreeSet<ClusterId> {
        let expired = self.by_write.extract_if(.., |_, arrival| arrival.until.is_some_and(|until| until <= now));
        expired.map(|(_, arrival)| arrival.cluster).collect()
    }

    /// When the next of them no longer counts.
    pub(super) fn next(&self) -> Option<Timestamp> {
        self.by_write.values().filter_map(|arrival| arrival.until).min()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::store::Key;
    use super::*;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).expect("in range")
    }

    fn cluster() -> ClusterId {
        ClusterId { key: Key::new("ns", "chat"), uid: "u1".into() }
    }

    fn creation(kind: &str) -> Write {
        let owner =
            json!({"apiVersion": "ray.io/v1", "kind": "RayCluster", "name": "chat", "uid": "u1", "controller": true});
        let metadata = json!({"namespace": "ns", "labels": {"ray.io/group": "small"}, "ownerReferences": [owner]});
        let target = ObjectRef {
            api_version: "v1".into(),
            kind: kind.into(),
            plural: "pods".into(),
            namespace: Some("ns".into()),
            name: "chat-small-1".into(),
        };
        Write { target, op: WriteOp::Create(json!({"metadata": metadata})), quiet: Vec::new() }
    }

    fn one_small() -> BTreeMap<String, u32> {
        [("small".to_owned(), 1)].into()
    }

    #[test]
    fn a_pod_counts_from_when_it_is_asked_for_until_the_answer() {
        let mut arriving = Arriving::default();
        arriving.sent(1, &creation("Pod"));
        arriving.sent(2, &creation("Service"));
        assert_eq!(arriving.of("u1"), one_small());

        assert_eq!(arriving.answered(1, true, at(0)), Some(cluster()));

        assert_eq!(arriving.of("u1"), BTreeMap::new());
    }

    #[test]
    fn a_pod_whose_creation_was_not_answered_counts_until_it_is_seen_or_can_no_longer_come() {
        let mut arriving = Arriving::default();
        arriving.sent(1, &creation("Pod"));
        arriving.answered(1, false, at(0));
        arriving.sent(2, &creation("Pod"));
        arriving.answered(2, false, at(10));

        assert_eq!((arriving.expire(at(59)), arriving.next()), (BTreeSet::new(), Some(at(60))));
        assert_eq!(arriving.of("u1"), one_small());
        assert_eq!(arriving.expire(at(70)), [cluster()].into());
        assert_eq!(arriving.of("u1"), BTreeMap::new());

        arriving.sent(3, &creation("Pod"));
        arriving.seen(&creation("Pod").target);
        assert_eq!(arriving.of("u1"), BTreeMap::new());
    }
}
