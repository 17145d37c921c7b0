//! Fixtures: a fake job with given members, its slices and its plan.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Container, PodSpec, PodTemplateSpec, ResourceRequirements};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, ObjectMeta, Time};
use serde_json::Value;

use super::super::*;
use sluice_api::kueue::{Admission, PodSetAssignment, WorkloadStatus};
use sluice_plan::{ObjectRef, PodVerdict, WriteOp};
use sluice_raycluster::NodePlacement;

pub(super) const NAMESPACE: &str = "ns";

/// Job that records the writes to its gates and conditions.
pub(super) struct FakeJob {
    pub(super) meta: ObjectMeta,
    pub(super) members: Vec<Member>,
    pub(super) wants_to_run: bool,
    /// True if the job creates no more pods, and has to be resumed to become finished.
    pub(super) is_finishing: bool,
    /// True if the job retains its quota while its members are exchanged.
    pub(super) retains_quota: bool,
    pub(super) pending: Option<String>,
    pub(super) queue: sluice_queue::Scheduler,
    pub(super) gate_writes: RefCell<Vec<(String, bool)>>,
    pub(super) template_is_open: bool,
    pub(super) conditions: Vec<Condition>,
    pub(super) written_conditions: RefCell<Vec<Condition>>,
    /// Types of the conditions that the last plan removes.
    pub(super) removed_conditions: RefCell<Vec<String>>,
}

impl FakeJob {
    /// Returns the last condition of this type that was set.
    pub(super) fn last_condition(&self, kind: &str) -> Option<Condition> {
        self.written_conditions.borrow().iter().rev().find(|shown| shown.type_ == kind).cloned()
    }
}

impl GenericJob for FakeJob {
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
    fn assign_queue(&self, _: &str) -> Option<Write> {
        None
    }
    fn wants_to_run(&self) -> bool {
        self.wants_to_run
    }
    fn is_finishing(&self) -> bool {
        self.is_finishing
    }
    fn members(&self) -> Vec<Member> {
        self.members.clone()
    }
    fn suspend_template(&self) -> Option<Write> {
        let write = Write::new(self.reference(), WriteOp::Patch(Value::Null));
        self.template_is_open.then_some(write)
    }
    fn set_gate(&self, member: &str, gate: Gate) -> Option<Write> {
        self.gate_writes.borrow_mut().push((member.to_owned(), gate == Gate::Open));
        Some(Write::new(self.reference(), WriteOp::Patch(Value::Null)))
    }
    fn pending_member(&self) -> Option<String> {
        self.members.iter().find(|member| Some(&member.name) == self.pending.as_ref()).map(|member| member.uid.clone())
    }
    fn routing_objects(&self) -> Vec<ObjectRef> {
        vec![ObjectRef { kind: "Service".into(), ..self.reference() }]
    }
    fn retains_quota(&self) -> bool {
        self.retains_quota
    }
    fn ungate_pod(&self, member: &str, pod: &str, _: &PodAssignment) -> Option<Write> {
        let target = ObjectRef { kind: "Pod".into(), name: format!("{member}/{pod}"), ..self.reference() };
        Some(Write::new(target, WriteOp::Patch(Value::Null)))
    }
    fn conditions(&self) -> &[Condition] {
        &self.conditions
    }
    fn set_conditions(&self, conditions: Vec<Condition>, gone: &[&str]) -> Option<Write> {
        *self.removed_conditions.borrow_mut() = gone.iter().map(|kind| (*kind).to_owned()).collect();
        self.written_conditions.borrow_mut().extend(conditions);
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
        wants_to_run: true,
        is_finishing: false,
        retains_quota: false,
        pending: None,
        queue: sluice_queue::Scheduler::default(),
        gate_writes: RefCell::default(),
        template_is_open: false,
        conditions: Vec::new(),
        written_conditions: RefCell::default(),
        removed_conditions: RefCell::default(),
    }
}

/// A member with a head and workers, each requesting `cpu`.
pub(super) fn cluster(name: &str, workers: u32, cpu: &str) -> Member {
    let group = |group: &str, pod_set: &str, count: u32| {
        let requests = BTreeMap::from([("cpu".to_owned(), Quantity(cpu.into()))]);
        let resources = ResourceRequirements { requests: Some(requests), ..ResourceRequirements::default() };
        let container = Container { name: "ray".into(), resources: Some(resources), ..Container::default() };
        let spec = PodSpec { containers: vec![container], ..PodSpec::default() };
        PodGroupDemand {
            name: group.into(),
            pod_set: pod_set.into(),
            shape: shape::shape_of(&spec).expect("a shape"),
            count,
            min_count: None,
            min_pods: count,
            hosts_per_replica: 1,
            template: Arc::new(PodTemplateSpec { spec: Some(spec), ..PodTemplateSpec::default() }),
        }
    };
    Member {
        name: name.into(),
        uid: format!("{name}-uid"),
        groups: Arc::new(Ok(vec![group("headgroup", "head", 1), group("small", "small", workers)])),
        is_open: false,
        is_terminating: false,
        is_surge: false,
        is_preempted: false,
        live_pods: BTreeMap::new(),
        gated_pods: Vec::new(),
        ready_pods: BTreeMap::new(),
        scheduled_pods: BTreeMap::new(),
        unknown_kinds: BTreeMap::new(),
    }
}

/// Groups `g0`, `g1`, ... with the worker template of a member.
pub(super) fn numbered_groups(count: usize, like: &Member) -> Arc<PodGroupDemands> {
    let workers = like.groups.as_ref().as_ref().expect("groups")[1].clone();
    let numbered = |number: usize| {
        let name = format!("g{number}");
        PodGroupDemand { pod_set: name.clone(), name, ..workers.clone() }
    };
    Arc::new(Ok((0..count).map(numbered).collect()))
}

pub(super) fn running(member: Member) -> Member {
    let live_pods = member.groups.iter().flatten().map(|group| (group.kind(), group.count)).collect();
    Member { is_open: true, live_pods, ..member }
}

/// The member with these numbers of remaining pods by group, and none in other groups.
pub(super) fn with_remaining_pods(member: Member, pods: &[(&str, u32)]) -> Member {
    let left = |group: &str| pods.iter().find(|(name, _)| *name == group).map_or(0, |(_, count)| *count);
    let live_pods =
        member.live_pods.keys().map(|kind| (kind.clone(), left(&kind.group))).filter(|(_, count)| *count > 0);
    Member { live_pods: live_pods.collect(), ..member }
}

pub(super) fn terminating(member: Member) -> Member {
    Member { is_terminating: true, ..member }
}

/// State of a job that has these slices.
pub(super) fn context<'a>(job: &'a FakeJob, slices: &[&'a Workload]) -> ReconcileContext<'a> {
    ReconcileContext {
        job,
        managed: if job.queue_name().is_some() { ManagementState::InQueue } else { ManagementState::Unmanaged },
        workloads: slices.to_vec(),
        orphaned_members: Vec::new(),
        scheduler: &job.queue,
        priority: Ok(Priority::default()),
        placement: &|_| NodePlacement::default(),
        flavor_bound_pod_sets: &|_| BTreeSet::new(),
        pod_verdict: &|_| PodVerdict::Accepted,
        creates_pods: true,
        consecutive_failures: 0,
        pods_ready_reports: PodsReadyReports::Nothing,
        retention: retention::RetentionPolicy::default(),
        now: Timestamp::UNIX_EPOCH,
    }
}

/// Plans for a job that has these slices.
pub(super) fn plan_for(job: &FakeJob, slices: &[&Workload]) -> Plan {
    plan(&context(job, slices))
}

/// Returns the slice that a plan creates, as the API server would store it.
pub(super) fn created_slice(plan: &Plan) -> Option<Workload> {
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
pub(super) fn patched_slice(plan: &Plan, slice: &Workload) -> Option<Workload> {
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

pub(super) fn deleted_names(plan: &Plan) -> Vec<String> {
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
    with_condition(with_condition(slice, names::QUOTA_RESERVED), names::ADMITTED)
}

pub(super) fn with_condition(mut slice: Workload, condition: &str) -> Workload {
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

pub(super) fn gate_writes(job: &FakeJob) -> Vec<(String, bool)> {
    job.gate_writes.borrow().clone()
}

/// Returns reason and message of the last condition Admitted, which must be False.
pub(super) fn not_admitted_message(job: &FakeJob) -> String {
    let said = job
        .last_condition(sluice_api::job_conditions::ADMITTED)
        .filter(|said| said.status == "False")
        .expect("a job that is not admitted");
    format!("{}: {}", said.reason, said.message)
}

/// A running cluster and the admitted slice of its job.
pub(super) fn serving() -> (Member, Workload) {
    let active = cluster("a", 2, "1");
    let slice = created_slice(&plan_for(&job(vec![active.clone()]), &[])).expect("a first slice");
    (running(active), admitted(slice))
}
