//! Properties of the whole tracker, for any interleaving of plans, results, watch events, other
//! clients and time.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::Pod;
use kube_core::{Resource, ResourceExt};
use proptest::prelude::*;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use super::{Released, WriteId, WriteTracker};
use crate::cluster_state::{Change, ClusterState, Object};
use crate::planner_key::{JobKey, PlannerKey};
use crate::{ApiServerLoad, WriteError, WriteOutcome};
use sluice_api::kueue::Workload;
use sluice_api::kueue::scheduling_gate::{self, is_gated};
use sluice_api::ray::RayCluster;
use sluice_plan::{EventRecord, ObjectKey, ObjectRef, Write, WriteOp, WriteRank};

/// The objects that are written: a cluster, pods of it, and slices of one job.
const OBJECTS: [(&str, &str); 5] =
    [("RayCluster", "a"), ("Pod", "a-1"), ("Pod", "a-2"), ("Workload", "chat-1"), ("Workload", "chat-2")];

/// A step of a history. Numbers are indexes, taken modulo the number of choices.
#[derive(Debug, Clone)]
enum Step {
    /// A planner plans a write to an object, or nothing.
    Plan { planner: usize, object: Option<usize>, change: Planned, depends_on: Option<usize>, rank: WriteRank },
    /// The API server processes a write in flight.
    Process { write: usize, fate: Fate },
    /// The response to a write in flight arrives.
    Respond { write: usize },
    /// The next watch event arrives.
    Watch,
    /// The watch is interrupted: only the last version of each object arrives.
    Relist,
    /// Another client creates or changes an object.
    Edit { object: usize },
    /// Another client deletes an object.
    Remove { object: usize },
    /// Time passes.
    Advance { millis: i64 },
}

/// The change that a planner plans to an object that exists. One that does not is created.
#[derive(Debug, Clone, Copy)]
enum Planned {
    Patch,
    PatchStatus,
    Ungate,
    Delete { foreground: bool },
}

/// Fate of a request.
#[derive(Debug, Clone, Copy)]
enum Fate {
    Processed,
    /// The API server answers with this status code instead.
    Refused(u16),
    /// The request takes effect or not, and the response is lost.
    Lost {
        takes_effect: bool,
    },
}

fn histories() -> impl Strategy<Value = Vec<Step>> {
    let change = prop_oneof![
        3 => Just(Planned::Patch),
        1 => Just(Planned::PatchStatus),
        2 => Just(Planned::Ungate),
        3 => any::<bool>().prop_map(|foreground| Planned::Delete { foreground }),
    ];
    let fate = prop_oneof![
        4 => Just(Fate::Processed),
        2 => prop::sample::select(vec![403, 404, 409, 422, 429, 500]).prop_map(Fate::Refused),
        3 => any::<bool>().prop_map(|takes_effect| Fate::Lost { takes_effect }),
    ];
    let object = 0..OBJECTS.len();
    let rank = prop::sample::select(vec![
        WriteRank::Decision,
        WriteRank::Admission,
        WriteRank::QuotaRequest,
        WriteRank::QueueStatus,
        WriteRank::Progress,
        WriteRank::PendingCondition,
        WriteRank::PendingMessage,
        WriteRank::Cleanup,
    ]);
    let plan =
        (0..3_usize, prop::option::weighted(0.9, object.clone()), change, prop::option::of(object.clone()), rank);
    let plan = plan.prop_map(|(planner, object, change, depends_on, rank)| Step::Plan {
        planner,
        object,
        change,
        depends_on,
        rank,
    });
    let step = prop_oneof![
        6 => plan,
        3 => (0..8_usize, fate).prop_map(|(write, fate)| Step::Process { write, fate }),
        3 => (0..8_usize).prop_map(|write| Step::Respond { write }),
        4 => Just(Step::Watch),
        1 => Just(Step::Relist),
        1 => object.clone().prop_map(|object| Step::Edit { object }),
        1 => object.prop_map(|object| Step::Remove { object }),
        2 => prop_oneof![0..200_i64, 0..90_000_i64, 0..900_000_i64].prop_map(|millis| Step::Advance { millis }),
    ];
    prop::collection::vec(step, 0..60)
}

/// A write in flight.
struct Request {
    id: WriteId,
    write: Write,
    object: usize,
    /// Result on its way back; `None` while the API server has not processed the write.
    result: Option<Result<WriteOutcome, WriteError>>,
}

/// The tracker, and an API server that writes are sent to.
struct Harness {
    tracker: WriteTracker,
    observed: ClusterState,
    now: Timestamp,
    objects: BTreeMap<usize, Value>,
    version: u64,
    watch: VecDeque<(Object, bool)>,
    requests: Vec<Request>,
    /// The planners that wait to be released.
    blocked: BTreeSet<PlannerKey>,
}

impl Harness {
    fn new() -> Self {
        Self {
            tracker: WriteTracker::default(),
            observed: ClusterState::default(),
            now: Timestamp::UNIX_EPOCH,
            objects: BTreeMap::new(),
            version: 0,
            watch: VecDeque::new(),
            requests: Vec::new(),
            blocked: BTreeSet::new(),
        }
    }

    fn run(&mut self, step: Step) {
        match step {
            Step::Plan { planner, object, change, depends_on, rank } => {
                self.plan(planner, object, change, depends_on, rank);
            }
            Step::Process { write, fate } => {
                let count = self.requests.len().max(1);
                self.process(write % count, fate);
            }
            Step::Respond { write } => {
                let count = self.requests.len().max(1);
                self.respond(write % count);
            }
            Step::Watch => {
                let event = self.watch.pop_front();
                event.into_iter().for_each(|(object, is_deleted)| self.observe(object, is_deleted));
            }
            Step::Relist => self.relist(),
            Step::Edit { object } => self.edit(object),
            Step::Remove { object } => self.remove(object),
            Step::Advance { millis } => self.advance(SignedDuration::from_millis(millis)),
        }
    }

    fn plan(
        &mut self,
        planner: usize,
        object: Option<usize>,
        change: Planned,
        depends_on: Option<usize>,
        rank: WriteRank,
    ) {
        let key = ObjectKey::new("ns", "a");
        let planner = [
            PlannerKey::RayCluster(key.clone()),
            PlannerKey::Job(JobKey::RayService(key.clone())),
            PlannerKey::Workload(key),
        ][planner]
            .clone();
        let write = object.map(|object| (object, self.planned_write(object, change)));
        let events = write.iter().map(|(_, write)| event(&write.target)).collect();
        let blockers = depends_on.map(|object| decode(object, manifest(object)).reference());
        let writes: Vec<Write> = write
            .iter()
            .map(|(_, write)| write.clone().blocked_while_in_flight(blockers.clone()).ranked(rank))
            .collect();
        let is_planned = !writes.is_empty();
        // A new plan replaces the last one, and what that one waited for.
        self.blocked.remove(&planner);
        let begun = self.tracker.begin(&planner, writes, events, &self.observed, self.now);

        if is_planned && begun.sent.is_empty() && begun.retry_at.is_none() {
            self.blocked.insert(planner);
        }
        for (id, write) in begun.sent {
            let object = object.expect("only what was planned is sent");
            self.requests.push(Request { id, write, object, result: None });
        }
    }

    /// Plans a change of an observed object, or the creation of one that was not observed.
    fn planned_write(&self, object: usize, change: Planned) -> Write {
        let (kind, name) = OBJECTS[object];
        let key = ObjectKey::new("ns", name);
        match kind {
            "RayCluster" => write_of::<RayCluster>(self.observed.ray_clusters.get(&key), object, change),
            "Workload" => write_of::<Workload>(self.observed.workloads.get(&key), object, change),
            _ => {
                let observed = self.observed.pods.get(&key);
                match (observed, change) {
                    (Some(pod), Planned::Ungate) if is_gated(pod) => {
                        let mut ungated = Pod::clone(pod);
                        scheduling_gate::remove(ungated.spec.get_or_insert_default());
                        Write::patch(pod.as_ref(), &ungated).expect("a difference")
                    }
                    _ => write_of::<Pod>(observed, object, change),
                }
            }
        }
    }

    fn process(&mut self, request: usize, fate: Fate) {
        let Some(Request { write, object, result: None, .. }) = self.requests.get(request) else { return };
        let (write, object) = (write.clone(), *object);
        let result = match fate {
            Fate::Processed => self.execute(object, &write),
            Fate::Refused(code) => Err(refused(code)),
            Fate::Lost { takes_effect } => {
                if takes_effect {
                    drop(self.execute(object, &write));
                }
                Err(WriteError::unanswered("the connection is gone".to_owned()))
            }
        };
        self.requests[request].result = Some(result);
    }

    fn execute(&mut self, object: usize, write: &Write) -> Result<WriteOutcome, WriteError> {
        let not_found = || Err(WriteError { target_not_found: true, ..refused(404) });
        match (&write.op, self.objects.get(&object).cloned()) {
            (WriteOp::Create(_), Some(_)) => Err(refused(409)),
            (WriteOp::Create(manifest), None) => Ok(WriteOutcome::Object(self.store(object, manifest.clone()))),
            (_, None) => not_found(),
            (WriteOp::Patch(body) | WriteOp::PatchStatus(body), Some(mut held)) => {
                if body["metadata"]["resourceVersion"] != held["metadata"]["resourceVersion"] {
                    return Err(refused(409));
                }
                json_patch::merge(&mut held, body);
                Ok(WriteOutcome::Object(self.store(object, held)))
            }
            (WriteOp::Delete { uid, .. }, Some(held)) if held["metadata"]["uid"] != **uid => Err(refused(409)),
            (WriteOp::Delete { foreground: true, .. }, Some(mut held)) => {
                held["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
                Ok(WriteOutcome::Object(self.store(object, held)))
            }
            (WriteOp::Delete { foreground: false, .. }, Some(_)) => {
                self.remove(object);
                Ok(WriteOutcome::Deleted)
            }
        }
    }

    fn store(&mut self, object: usize, mut manifest: Value) -> Object {
        self.version += 1;
        let metadata = &mut manifest["metadata"];
        metadata["resourceVersion"] = json!(self.version.to_string());
        if metadata["uid"].is_null() {
            metadata["uid"] = json!(format!("uid-{}", self.version));
        }
        self.objects.insert(object, manifest.clone());
        let stored = decode(object, manifest);
        self.watch.push_back((stored.clone(), false));
        stored
    }

    fn edit(&mut self, object: usize) {
        let mut manifest = self.objects.get(&object).cloned().unwrap_or_else(|| manifest(object));
        manifest["metadata"]["annotations"] = json!({"edited": self.version.to_string()});
        self.store(object, manifest);
    }

    fn remove(&mut self, object: usize) {
        let Some(mut last) = self.objects.remove(&object) else { return };
        self.version += 1;
        last["metadata"]["resourceVersion"] = json!(self.version.to_string());
        self.watch.push_back((decode(object, last), true));
    }

    /// Delivers a result, as the engine does.
    fn respond(&mut self, request: usize) {
        self.process(request, Fate::Processed);
        if request >= self.requests.len() {
            return;
        }
        let Request { id, write, result, .. } = self.requests.remove(request);
        let result = result.expect("a processed write");
        let is_overloaded = matches!(&result, Err(WriteError { code: None | Some(429), .. }));
        self.tracker.on_response(if is_overloaded { ApiServerLoad::High } else { ApiServerLoad::Low });
        let settled = self.tracker.on_result(id, &write, &result, &self.observed, self.now);
        self.release(&settled.released);
        match result {
            Ok(WriteOutcome::Object(object)) => self.observe(object, false),
            Ok(_) => {}
            Err(error) if error.target_not_found => {
                let change = self.observed.on_not_found(&write);
                self.on_changed(change);
            }
            Err(_) => {}
        }
    }

    fn observe(&mut self, object: Object, is_deleted: bool) {
        let change = if is_deleted { self.observed.remove(&object) } else { self.observed.apply(object) };
        self.on_changed(change);
    }

    fn on_changed(&mut self, change: Option<Change>) {
        if let Some(change) = change {
            let released = self.tracker.on_observed(&change, self.now);
            self.release(&released);
        }
    }

    fn relist(&mut self) {
        let mut last = BTreeMap::new();
        for (object, is_deleted) in self.watch.drain(..) {
            last.insert(object.reference(), (object, is_deleted));
        }
        for (object, is_deleted) in last.into_values() {
            self.observe(object, is_deleted);
        }
    }

    /// Runs the released planners, which plan nothing more.
    fn release(&mut self, released: &Released) {
        self.blocked.retain(|planner| !released.planners.contains(planner));
        for planner in &released.planners {
            self.tracker.budget.take_grant(planner, &[]);
        }
    }

    /// Advances time; nothing expires before the deadline that the tracker reported.
    fn advance(&mut self, by: SignedDuration) {
        let end = self.now + by;
        while let Some(deadline) = self.tracker.next_deadline().filter(|deadline| *deadline <= end) {
            let before = deadline.max(self.now) - SignedDuration::from_nanos(1);
            if before >= self.now {
                self.expects_nothing_expired(before);
            }
            self.now = deadline.max(self.now);
            let released = self.tracker.expire(self.now);
            self.release(&released);
            assert!(self.tracker.next_deadline().is_none_or(|next| next > self.now), "a deadline passes once");
        }
        self.now = end;
        self.expects_nothing_expired(end);
    }

    fn expects_nothing_expired(&mut self, now: Timestamp) {
        let before = tracked(&self.tracker);
        assert_eq!(self.tracker.expire(now), Released::default(), "nothing is released before its deadline");
        assert_eq!(tracked(&self.tracker), before, "nothing is dropped before its deadline");
    }

    /// Delivers all results and watch events, finishes all deletions, and lets time pass.
    fn settle(&mut self) {
        while !self.requests.is_empty() {
            self.respond(0);
        }
        let terminating = |object: &Value| !object["metadata"]["deletionTimestamp"].is_null();
        let all: Vec<usize> = self.objects.iter().filter(|(_, it)| terminating(it)).map(|(index, _)| *index).collect();
        all.into_iter().for_each(|object| self.remove(object));
        while let Some((object, is_deleted)) = self.watch.pop_front() {
            self.observe(object, is_deleted);
        }
        self.advance(SignedDuration::from_hours(1));
    }
}

fn write_of<K>(observed: Option<&Arc<K>>, object: usize, change: Planned) -> Write
where
    K: Resource<DynamicType = ()> + Clone + Serialize + DeserializeOwned + PartialEq,
{
    let Some(observed) = observed.map(AsRef::as_ref) else {
        return Write::create(&serde_json::from_value::<K>(manifest(object)).expect("an object"));
    };
    if let Planned::Delete { foreground } = change {
        return if foreground { Write::delete_in_foreground(observed) } else { Write::delete(observed) };
    }
    let mut changed = observed.clone();
    let version = observed.resource_version().unwrap_or_default();
    changed.annotations_mut().insert("changed".to_owned(), version);
    let mut write = Write::patch(observed, &changed).expect("a difference");
    if let (Planned::PatchStatus, WriteOp::Patch(body)) = (change, &write.op) {
        write.op = WriteOp::PatchStatus(body.clone());
    }
    write
}

fn manifest(object: usize) -> Value {
    let (kind, name) = OBJECTS[object];
    let owner = |kind, name, uid| json!([{"apiVersion": "ray.io/v1", "kind": kind, "name": name, "uid": uid, "controller": true}]);
    let metadata = |owners| json!({"namespace": "ns", "name": name, "ownerReferences": owners});
    match kind {
        "RayCluster" => json!({"metadata": metadata(owner("RayService", "chat", "j")),
            "spec": {"headGroupSpec": {"rayStartParams": {}, "template": {"spec": {"containers": []}}}}}),
        "Workload" => json!({"metadata": metadata(owner("RayService", "chat", "j")), "spec": {"podSets": []}}),
        _ => {
            let mut metadata = metadata(owner("RayCluster", "a", "c"));
            metadata["labels"] = json!({"ray.io/node-type": "worker"});
            json!({"metadata": metadata,
                "spec": {"containers": [], "schedulingGates": [{"name": "kueue.x-k8s.io/elastic-job"}]}})
        }
    }
}

fn decode(object: usize, manifest: Value) -> Object {
    fn typed<K: DeserializeOwned>(manifest: Value) -> Arc<K> {
        Arc::new(serde_json::from_value(manifest).expect("an object"))
    }
    match OBJECTS[object].0 {
        "RayCluster" => Object::RayCluster(typed(manifest)),
        "Workload" => Object::Workload(typed(manifest)),
        _ => Object::Pod(typed(manifest)),
    }
}

fn event(target: &ObjectRef) -> EventRecord {
    EventRecord {
        regarding: target.clone(),
        uid: String::new(),
        warning: false,
        reason: "Written".to_owned(),
        message: String::new(),
        only_if_written: None,
    }
}

fn refused(code: u16) -> WriteError {
    WriteError { code: Some(code), message: "refused".to_owned(), target_not_found: false, retry_after: None }
}

/// Returns the number of entries of each part of the tracker.
fn tracked(tracker: &WriteTracker) -> [(&'static str, usize); 8] {
    [
        ("in flight", tracker.in_flight.len()),
        ("unacknowledged", tracker.unacknowledged.len()),
        ("slice expectations", tracker.slice_expectations.len()),
        ("pod expectations", tracker.pod_expectations.len()),
        ("pod write failures", tracker.pod_write_failures.len()),
        ("planner backoffs", tracker.planner_backoffs.len()),
        ("deferred Events", tracker.deferred_events.len()),
        ("write budget", tracker.budget.len()),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn nothing_is_tracked_and_no_planner_is_blocked_once_all_writes_have_settled(history in histories()) {
        let mut harness = Harness::new();
        for step in history {
            harness.run(step);
        }
        harness.settle();
        prop_assert_eq!(tracked(&harness.tracker).map(|(_, count)| count), [0; 8], "{:?}", harness.tracker);
        prop_assert_eq!(harness.tracker.next_deadline(), None);
        prop_assert_eq!(harness.blocked, BTreeSet::new());
    }
}

/// A deletion that an interrupted watch hides: the next version is another object of that name.
#[test]
fn deletion_is_settled_by_a_new_object_of_the_same_name() {
    let mut harness = Harness::new();
    harness.edit(0);
    harness.relist();
    harness.plan(1, Some(0), Planned::Delete { foreground: false }, None, WriteRank::Decision);
    harness.process(0, Fate::Processed);
    harness.edit(0);
    harness.relist();

    harness.respond(0);

    assert_eq!(harness.tracker.in_flight.len(), 0, "the new object can be written");
}

/// An HTTP 404 about the namespace or the kind does not report that the object is gone.
#[test]
fn deletion_that_is_not_found_for_another_reason_is_planned_again() {
    let mut harness = Harness::new();
    harness.edit(1);
    harness.relist();
    harness.plan(0, Some(1), Planned::Delete { foreground: false }, None, WriteRank::Decision);
    harness.process(0, Fate::Refused(404));

    harness.respond(0);

    assert_eq!(harness.tracker.in_flight.len(), 0, "no watch event of a deletion follows");
}
