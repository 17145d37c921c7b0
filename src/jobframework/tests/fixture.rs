//! Fixtures: a fake job with given members, its slices and its plan.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::sync::Arc;

use k8s_openapi::api::core::v1::{Container, PodSpec, ResourceRequirements};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use serde_json::Value;

use super::super::*;
use sluice_api::kueue::{Admission, PodSetAssignment, WorkloadStatus};
use sluice_plan::WriteOp;

pub(super) const NAMESPACE: &str = "ns";

/// Job that records the writes to its gates and conditions.
pub(super) struct FakeJob {
    pub(super) meta: ObjectMeta,
    pub(super) members: Vec<Member>,
    pub(super) runs: bool,
    /// True if the job retains its quota while its members are exchanged.
    pub(super) keeps: bool,
    pub(super) next: Option<String>,
    pub(super) queue: queue::Engine,
    pub(super) gates: RefCell<Vec<(String, bool)>>,
    pub(super) template_is_open: bool,
    pub(super) known: Vec<Condition>,
    pub(super) shown: RefCell<Vec<Condition>>,
}

impl FakeJob {
    /// Returns the last condition of this type that was set.
    pub(super) fn said(&self, kind: &str) -> Option<Condition> {
        self.shown.borrow().iter().rev().find(|shown| shown.type_ == kind).cloned()
    }
}

impl Job for FakeJob {
    fn reference(&self) -> ObjectRef {
        ObjectRef {
            api_version: "ray.io/v1".into(),
            kind: "RayService".into(),
            plural: "rayservices".into(),
            namespace: Some(NAMESPACE.into()),
            name: "svc".into(),
        }
    }
    fn meta(&self) -> &ObjectMeta {
        &self.meta
    }
    fn join(&self, _: &str) -> Option<Write> {
        None
    }
    fn wants_to_run(&self) -> bool {
        self.runs
    }
    fn members(&self) -> Vec<Member> {
        self.members.clone()
    }
    fn hold_template_gate(&self) -> Option<Write> {
        let write = Write { target: self.reference(), op: WriteOp::Patch(Value::Null), quiet: Vec::new() };
        self.template_is_open.then_some(write)
    }
    fn set_open(&self, member: &str, open: bool) -> Option<Write> {
        self.gates.borrow_mut().push((member.to_owned(), open));
        Some(Write { target: self.reference(), op: WriteOp::Patch(Value::Null), quiet: Vec::new() })
    }
    fn next(&self) -> Option<String> {
        self.members.iter().find(|member| Some(&member.name) == self.next.as_ref()).map(|member| member.uid.clone())
    }
    fn routed_by(&self) -> Vec<ObjectRef> {
        vec![ObjectRef { kind: "Service".into(), ..self.reference() }]
    }
    fn keeps_what_it_holds(&self) -> bool {
        self.keeps
    }
    fn release(&self, member: &str, pod: &str, _: &Leave) -> Option<Write> {
        let target = ObjectRef { kind: "Pod".into(), name: format!("{member}/{pod}"), ..self.reference() };
        Some(Write { target, op: WriteOp::Patch(Value::Null), quiet: Vec::new() })
    }
    fn conditions(&self) -> &[Condition] {
        &self.known
    }
    fn show(&self, conditions: Vec<Condition>, _: &[&str]) -> Option<Write> {
        self.shown.borrow_mut().extend(conditions);
        None
    }
}

pub(super) fn job(members: Vec<Member>) -> FakeJob {
    let labels = [(names::QUEUE_NAME_LABEL.to_owned(), "lq".to_owned())];
    let meta = ObjectMeta {
        name: Some("svc".into()),
        namespace: Some(NAMESPACE.into()),
        uid: Some("job-uid".into()),
        labels: Some(labels.into()),
        ..ObjectMeta::default()
    };
    FakeJob {
        meta,
        members,
        runs: true,
        keeps: false,
        next: None,
        queue: queue::Engine::default(),
        gates: RefCell::default(),
        template_is_open: false,
        known: Vec::new(),
        shown: RefCell::default(),
    }
}

/// A member with a head and workers, each requesting `cpu`.
pub(super) fn cluster(name: &str, workers: u32, cpu: &str) -> Member {
    let group = |group: &str, pod_set: &str, count: u32| {
        let requests = BTreeMap::from([("cpu".to_owned(), Quantity(cpu.into()))]);
        let resources = ResourceRequirements { requests: Some(requests), ..ResourceRequirements::default() };
        let container = Container { name: "ray".into(), resources: Some(resources), ..Container::default() };
        let spec = PodSpec { containers: vec![container], ..PodSpec::default() };
        Group {
            name: group.into(),
            pod_set: pod_set.into(),
            shape: pod_sets::shape_of(&spec).expect("a shape"),
            count,
            min_count: None,
            fewest: count,
            hosts: 1,
            template: Arc::new(PodTemplateSpec { spec: Some(spec), ..PodTemplateSpec::default() }),
        }
    };
    Member {
        name: name.into(),
        uid: format!("{name}-uid"),
        groups: Arc::new(Ok(vec![group("headgroup", "head", 1), group("small", "small", workers)])),
        open: false,
        going: false,
        surge: false,
        preempted: false,
        live_pods: BTreeMap::new(),
        gated: Vec::new(),
        ready_pods: BTreeMap::new(),
        strangers: BTreeMap::new(),
    }
}

/// Groups `g0`, `g1`, ... with the worker template of a member.
pub(super) fn numbered_groups(count: usize, like: &Member) -> Arc<Groups> {
    let workers = like.groups.as_ref().as_ref().expect("groups")[1].clone();
    let numbered = |number: usize| {
        let name = format!("g{number}");
        Group { pod_set: name.clone(), name, ..workers.clone() }
    };
    Arc::new(Ok((0..count).map(numbered).collect()))
}

pub(super) fn running(member: Member) -> Member {
    let live_pods = member.groups.iter().flatten().map(|group| (group.kind(), group.count)).collect();
    Member { open: true, live_pods, ..member }
}

/// The member with these numbers of remaining pods by group, and none in other groups.
pub(super) fn left(member: Member, pods: &[(&str, u32)]) -> Member {
    let left = |group: &str| pods.iter().find(|(name, _)| *name == group).map_or(0, |(_, count)| *count);
    let live_pods =
        member.live_pods.keys().map(|kind| (kind.clone(), left(&kind.group))).filter(|(_, count)| *count > 0);
    Member { live_pods: live_pods.collect(), ..member }
}

pub(super) fn going(member: Member) -> Member {
    Member { going: true, ..member }
}

/// State of a job that has these slices.
pub(super) fn view<'a>(job: &'a FakeJob, slices: &[&'a Workload]) -> JobView<'a> {
    JobView {
        job,
        managed: if job.queue_name().is_some() { Managed::InQueue } else { Managed::No },
        workloads: slices.to_vec(),
        outlived: Vec::new(),
        queue: &job.queue,
        priority: Ok(Priority::default()),
        placement: &|_| Placement::default(),
        pinned: &|_| BTreeSet::new(),
        makes_pods: true,
        failures: 0,
        watches_readiness: false,
        now: Timestamp::UNIX_EPOCH,
    }
}

/// Plans for a job that has these slices.
pub(super) fn planned(job: &FakeJob, slices: &[&Workload]) -> Plan {
    plan(&view(job, slices))
}

/// Returns the slice that a plan creates, as the API server would store it.
pub(super) fn created(plan: &Plan) -> Option<Workload> {
    plan.writes.iter().find_map(|write| match &write.op {
        WriteOp::Create(object) => {
            let mut slice: Workload = serde_json::from_value(object.clone()).expect("a Workload");
            slice.metadata.uid = slice.metadata.name.clone();
            slice.metadata.resource_version = Some("1".into());
            Some(slice)
        }
        _ => None,
    })
}

/// Returns the slice with the plan's patch applied; `None` if the plan does not patch it.
pub(super) fn patched(plan: &Plan, slice: &Workload) -> Option<Workload> {
    plan.writes.iter().find_map(|write| match &write.op {
        WriteOp::Patch(patch)
            if write.target.kind == "Workload" && Some(&write.target.name) == slice.metadata.name.as_ref() =>
        {
            let mut object = serde_json::to_value(slice).expect("JSON");
            merge(&mut object, patch);
            Some(serde_json::from_value(object).expect("a Workload"))
        }
        _ => None,
    })
}

pub(super) fn merge(object: &mut Value, patch: &Value) {
    let (Some(fields), Some(changes)) = (object.as_object_mut(), patch.as_object()) else {
        *object = patch.clone();
        return;
    };
    for (name, change) in changes {
        if change.is_null() {
            fields.remove(name);
        } else {
            merge(fields.entry(name.clone()).or_insert(Value::Null), change);
        }
    }
}

pub(super) fn deleted(plan: &Plan) -> Vec<String> {
    let deletions = plan.writes.iter().filter(|write| matches!(write.op, WriteOp::Delete { .. }));
    deletions.map(|write| write.target.name.clone()).collect()
}

pub(super) fn admitted(mut slice: Workload) -> Workload {
    let assignments = slice.spec.pod_sets.iter().map(|set| PodSetAssignment {
        name: set.name.clone(),
        count: Some(set.count),
        ..PodSetAssignment::default()
    });
    let status = WorkloadStatus {
        admission: Some(Admission { cluster_queue: "cq".into(), pod_set_assignments: assignments.collect() }),
        ..WorkloadStatus::default()
    };
    slice.status = Some(status);
    with(with(slice, names::QUOTA_RESERVED), names::ADMITTED)
}

pub(super) fn with(mut slice: Workload, condition: &str) -> Workload {
    let condition = Condition {
        type_: condition.into(),
        status: "True".into(),
        reason: "Test".into(),
        message: "for the test".into(),
        observed_generation: None,
        last_transition_time: Time(Timestamp::UNIX_EPOCH),
    };
    slice.status.get_or_insert_default().conditions.push(condition);
    slice
}

pub(super) fn counts(slice: &Workload) -> Vec<(String, i32)> {
    slice.spec.pod_sets.iter().map(|set| (set.name.clone(), set.count)).collect()
}

pub(super) fn gates(job: &FakeJob) -> Vec<(String, bool)> {
    job.gates.borrow().clone()
}

/// Returns reason and message of the last condition Admitted, which must be False.
pub(super) fn says(job: &FakeJob) -> String {
    let said = job
        .said(sluice_api::sluice::ADMITTED)
        .filter(|said| said.status == "False")
        .expect("a job that is not admitted");
    format!("{}: {}", said.reason, said.message)
}

/// A running cluster and the admitted slice of its job.
pub(super) fn serving() -> (Member, Workload) {
    let active = cluster("a", 2, "1");
    let slice = created(&planned(&job(vec![active.clone()]), &[])).expect("a first slice");
    (running(active), admitted(slice))
}
