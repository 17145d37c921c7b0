//! Simulated cluster components: scheduler, kubelets, Job, EndpointSlice, Gateway and garbage
//! collection controllers, and Ray Serve on head pods.
//!
//! The components are plain data and act on observed changes: [`Cluster::see`] observes a change
//! and schedules tasks, [`Cluster::act`] runs the due ones. Like real components they lag behind
//! the API server, by latencies from a seed.

mod endpoint_slices;
mod garbage_collector;
mod gateways;
mod job_controller;
mod kubelet;
mod label_index;
mod latencies;
mod nodes;
mod object_view;
mod pod_faults;
mod pod_gc;
mod pod_status;
mod proxy;
mod ray_dashboard;
mod scheduler;
#[cfg(test)]
mod tests;
mod timer_queue;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::Response;
use jiff::Timestamp;

use crate::api::{ApiServer, ObjectChange, ProxyRequest};
use endpoint_slices::EndpointSliceController;
use garbage_collector::GarbageCollector;
use gateways::{GatewayController, GatewayObjectKey};
pub use job_controller::MAX_BACKOFF;
use job_controller::{JobController, JobSnapshot};
use kubelet::Kubelet;
pub use latencies::Latencies;
use latencies::saturating_add;
pub use nodes::{Node, Nodes};
use object_view::{PodId, namespaced_name, text, uid};
pub use pod_faults::{DashboardFault, FaultList, FaultOdds, PodFault, PodFaultInjector};
pub use proxy::NoResponse;
use proxy::Proxy;
use ray_dashboard::RayDashboards;
use scheduler::Scheduler;
use timer_queue::TimerQueue;

/// All cluster components except the API server and Sluice.
#[derive(Debug)]
pub struct SimulatedCluster {
    latencies: Latencies,
    faults: PodFaultInjector,
    timers: TimerQueue<Task>,
    /// Existing pods by uid.
    pods: BTreeMap<String, Arc<PodId>>,
    /// Number of pods created so far.
    created_pods: u64,
    scheduler: Scheduler,
    kubelet: Kubelet,
    endpoints: EndpointSliceController,
    garbage: GarbageCollector,
    gateways: GatewayController,
    jobs: JobController,
    dashboards: RayDashboards,
}

/// Scheduled task of a component.
#[derive(Debug)]
enum Task {
    /// Create the nodes.
    CreateNodes,
    /// Bind a new pod.
    Schedule(Arc<PodId>),
    /// Retry the unschedulable pods.
    RetryScheduling,
    /// Execute the plan with this number for a pod.
    ExecutePodPlan(Arc<PodId>, u64),
    /// Trigger the fault of a pod.
    TriggerFault(Arc<PodId>),
    /// End a terminating pod.
    FinishTermination(Arc<PodId>),
    /// Sync the EndpointSlice of a Service.
    SyncEndpoints((String, String)),
    /// Write the status of a Gateway or an HTTPRoute.
    SyncGatewayStatus(GatewayObjectKey),
    /// Process the object with this uid in the garbage collector.
    CollectGarbage(String),
    /// Read the Job with this uid, to sync it.
    ReadJob(String),
    /// Write what a sync of a Job decides.
    SyncJob(JobSnapshot),
    /// Release a pod that its Job no longer tracks.
    ReleaseJobPod(Arc<PodId>),
    /// End a deleted pod that was never bound.
    CollectPod(Arc<PodId>),
}

/// Context shared by the components while they observe a change.
struct ControllerContext<'a> {
    now: Timestamp,
    latencies: &'a Latencies,
    faults: &'a mut PodFaultInjector,
    timers: &'a mut TimerQueue<Task>,
}

impl ControllerContext<'_> {
    fn schedule_after(&mut self, delay: Duration, task: Task) {
        self.timers.schedule(saturating_add(self.now, delay), task);
    }
}

impl SimulatedCluster {
    /// Creates a cluster. The nodes are created by the first call of [`Self::act`].
    pub fn new(capacity: Nodes, latencies: Latencies, faults: PodFaultInjector) -> Self {
        let mut timers = TimerQueue::default();
        timers.schedule(Timestamp::UNIX_EPOCH, Task::CreateNodes);
        Self {
            latencies,
            faults,
            timers,
            pods: BTreeMap::new(),
            created_pods: 0,
            scheduler: Scheduler::new(capacity),
            kubelet: Kubelet::default(),
            endpoints: EndpointSliceController::default(),
            garbage: GarbageCollector::default(),
            gateways: GatewayController::default(),
            jobs: JobController::default(),
            dashboards: RayDashboards::default(),
        }
    }

    /// Observes a change of an object and schedules the resulting tasks. All changes have to be
    /// observed in order, including those that the cluster itself makes.
    pub fn observe(&mut self, now: Timestamp, change: &ObjectChange) {
        let context = &mut ControllerContext {
            now,
            latencies: &self.latencies,
            faults: &mut self.faults,
            timers: &mut self.timers,
        };
        match change.kind.kind.as_str() {
            // Events are frequent and no component reacts to them.
            "Event" => return,
            "Pod" => {
                self.endpoints.observe_pod(context, &change.object, change.before.as_deref(), change.deleted);
                self.observe_pod(now, change);
            }
            "Job" => self.jobs.observe_job(context, change),
            "Service" => self.endpoints.observe_service(context, &change.object, change.deleted),
            "EndpointSlice" => self.endpoints.observe_slice(context, &change.object, change.deleted),
            _ => {}
        }
        let context = &mut ControllerContext {
            now,
            latencies: &self.latencies,
            faults: &mut self.faults,
            timers: &mut self.timers,
        };
        self.garbage.observe(context, change);
        self.gateways.observe(context, change);
    }

    /// Observes the changes by which a backup was restored. The controllers start again: what they have
    /// read before is no longer true.
    pub fn observe_restore(&mut self, now: Timestamp, api: &ApiServer, changes: &[ObjectChange]) {
        changes.iter().for_each(|change| self.observe(now, change));
        let (latencies, faults, timers) = (&self.latencies, &mut self.faults, &mut self.timers);
        timers.cancel(|task| matches!(task, Task::ReadJob(_) | Task::SyncJob(_)));
        let context = &mut ControllerContext { now, latencies, faults, timers };
        self.jobs.restart(context);
        self.garbage.restart(context, api);
    }

    fn observe_pod(&mut self, now: Timestamp, change: &ObjectChange) {
        let context = &mut ControllerContext {
            now,
            latencies: &self.latencies,
            faults: &mut self.faults,
            timers: &mut self.timers,
        };
        let pod = &change.object;
        let id = self.pods.entry(uid(pod).to_owned()).or_insert_with(|| {
            let (namespace, name) = namespaced_name(pod);
            self.created_pods += 1;
            Arc::new(PodId { ordinal: self.created_pods - 1, namespace, name, uid: uid(pod).to_owned() })
        });
        let id = id.clone();
        self.scheduler.observe(context, &id, pod, change.deleted);
        self.jobs.observe_pod(context, &id, pod, change.deleted);
        if !change.deleted {
            pod_gc::observe(context, &id, pod);
        }
        if change.deleted {
            self.pods.remove(&id.uid);
            self.kubelet.remove(&id);
        } else if let Some(number) = self.scheduler.node_index(text(pod, "/spec/nodeName")) {
            self.kubelet.observe(context, &id, pod, nodes::host_ip(number));
        }
    }

    /// Returns the due time of the next task; `None` if there is none.
    pub fn next_deadline(&self) -> Option<Timestamp> {
        self.timers.next_deadline()
    }

    /// Returns when the first Job that waits to be synced is due, such as after failed pods; `None` if none
    /// waits.
    pub fn next_job_sync(&self) -> Option<Timestamp> {
        self.timers.next_deadline_of(|task| matches!(task, Task::ReadJob(_)))
    }

    /// Runs all due tasks.
    pub fn run_due(&mut self, now: Timestamp, api: &mut ApiServer) {
        while let Some(task) = self.timers.pop_due(now) {
            match task {
                Task::CreateNodes => self.scheduler.create_nodes(now, api),
                Task::Schedule(pod) => self.scheduler.schedule(now, api, &pod),
                Task::RetryScheduling => self.scheduler.retry_unschedulable(now, api),
                Task::ExecutePodPlan(pod, plan) => self.kubelet.execute_plan(now, api, &pod, plan),
                Task::TriggerFault(pod) => self.kubelet.trigger_fault(now, &mut self.faults, api, &pod),
                Task::FinishTermination(pod) => {
                    let (latencies, faults, timers) = (&self.latencies, &mut self.faults, &mut self.timers);
                    self.kubelet.finish_termination(
                        &mut ControllerContext { now, latencies, faults, timers },
                        api,
                        &pod,
                    );
                }
                Task::SyncEndpoints(service) => self.endpoints.sync(now, api, &service),
                Task::SyncGatewayStatus(way) => self.gateways.sync_status(now, api, &way),
                Task::CollectGarbage(uid) => self.garbage.process(now, api, &uid),
                Task::ReleaseJobPod(pod) => self.jobs.release_pod(now, api, &pod),
                Task::CollectPod(pod) => pod_gc::collect(now, api, &pod),
                Task::ReadJob(uid) => {
                    let (latencies, faults, timers) = (&self.latencies, &mut self.faults, &mut self.timers);
                    self.jobs.read(&mut ControllerContext { now, latencies, faults, timers }, api, &uid);
                }
                Task::SyncJob(snapshot) => {
                    let (latencies, faults, timers) = (&self.latencies, &mut self.faults, &mut self.timers);
                    self.jobs.sync(&mut ControllerContext { now, latencies, faults, timers }, api, &snapshot);
                }
            }
        }
    }

    /// Responds to a proxied request to a Service or a pod.
    pub fn handle_proxy_request(&mut self, now: Timestamp, api: &ApiServer, call: &ProxyRequest) -> Response<Bytes> {
        let mut proxy = Proxy {
            now,
            api,
            latencies: &self.latencies,
            faults: &mut self.faults,
            endpoints: &self.endpoints,
            kubelet: &self.kubelet,
            dashboards: &mut self.dashboards,
        };
        proxy.answer(call)
    }

    /// Disables faults from now on: pods with a lasting fault become ready, and Ray dashboards
    /// respond.
    pub fn disable_faults(&mut self, now: Timestamp) {
        self.faults.disable();
        self.timers.cancel(|task| matches!(task, Task::TriggerFault(_)));
        let context = &mut ControllerContext {
            now,
            latencies: &self.latencies,
            faults: &mut self.faults,
            timers: &mut self.timers,
        };
        self.kubelet.disable_faults(context);
    }

    /// Returns the faults triggered so far.
    pub fn triggered_faults(&self) -> &FaultList {
        self.faults.triggered()
    }
}
