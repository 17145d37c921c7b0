//! The desired state after a script.

use std::collections::BTreeMap;

use super::cluster_step::{RayAction, RayKind};
use super::job_step::{BatchJob, JobAction};
use super::setup::{Quota, ResourceAmounts, Setup};
use super::step::{Cluster, Delay, Pods, Script, ScriptStep, Service, StopPolicy, UserAction};

/// Desired state, if quota sufficed.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct DesiredState {
    /// Services that were not deleted, with their last spec.
    pub(crate) services: BTreeMap<String, Service>,
    /// Standalone clusters that were not deleted.
    pub(crate) clusters: BTreeMap<String, Cluster>,
    /// Jobs that were not deleted, with their last spec unless the API server refused a change.
    pub(crate) jobs: BTreeMap<String, BatchJob>,
    /// Quota of each queue.
    pub(crate) quotas: BTreeMap<String, Vec<Quota>>,
    /// Stop policies of each ClusterQueue and its LocalQueue.
    pub(crate) stop_policies: BTreeMap<String, StopPolicies>,
    /// Desired state at the time of the backup.
    backup: Option<Box<Self>>,
}

/// Stop policies of a queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct StopPolicies {
    /// Stop policy of the ClusterQueue.
    pub(crate) queue: StopPolicy,
    /// Stop policy of the LocalQueue.
    pub(crate) local: StopPolicy,
}

impl StopPolicies {
    /// Neither queue is stopped.
    pub(crate) const NONE: Self = Self { queue: StopPolicy::None, local: StopPolicy::None };
}

impl DesiredState {
    /// Returns the desired state before the first action.
    pub(crate) fn new(scene: &Setup) -> Self {
        Self {
            quotas: scene.queues.iter().map(|queue| (queue.name.clone(), queue.quotas.clone())).collect(),
            stop_policies: scene.queues.iter().map(|queue| (queue.name.clone(), StopPolicies::NONE)).collect(),
            ..Self::default()
        }
    }

    /// Returns the desired state after a script.
    pub(crate) fn after_script(script: &Script) -> Self {
        let mut wishes = Self::new(&script.setup);
        script.steps.iter().for_each(|step| wishes.apply(&step.act));
        wishes
    }

    /// Applies an action. An action on an object that does not exist has no effect.
    pub(crate) fn apply(&mut self, act: &UserAction) {
        match act {
            UserAction::LimitPods { .. } => {}
            UserAction::BackUp => self.backup = Some(Box::new(Self { backup: None, ..self.clone() })),
            UserAction::Restore => {
                if let Some(backup) = self.backup.take() {
                    *self = Self { backup: Some(backup.clone()), ..*backup };
                }
            }
            UserAction::PutService(service) => {
                self.services.insert(service.name.clone(), service.clone());
            }
            UserAction::SetVersion { service, version } => {
                self.change(service, |service| service.pods.version = *version);
            }
            UserAction::Resize { service, group, size } => self.change(service, |of| {
                of.pods.groups.get_mut(*group).into_iter().for_each(|group| group.size = *size);
            }),
            UserAction::Scale { service, group, replicas } => {
                self.change(service, |service| scale(&mut service.pods, *group, *replicas));
            }
            UserAction::EditServeConfig { service, edition } => {
                self.change(service, |service| service.edition = *edition);
            }
            UserAction::Suspend { service, suspend } => self.change(service, |service| service.suspend = *suspend),
            UserAction::SetPriority { service, priority } => {
                self.change(service, |service| service.priority = priority.clone());
            }
            UserAction::RetryUpgrade { service } => self.change(service, |service| service.admission_timeout = None),
            UserAction::DeleteService { service, .. } => {
                self.services.remove(service);
            }
            UserAction::PutCluster(cluster) => {
                self.clusters.insert(cluster.name.clone(), cluster.clone());
            }
            UserAction::ScaleCluster { cluster, group, replicas } => {
                self.clusters.get_mut(cluster).into_iter().for_each(|of| scale(&mut of.pods, *group, *replicas));
            }
            UserAction::DeleteCluster { cluster, .. } => {
                self.clusters.remove(cluster);
            }
            UserAction::DeleteOrphans { .. } | UserAction::DeleteWorkloads { .. } => {}
            UserAction::Job(act) => self.apply_to_job(act),
            UserAction::Ray(act) => self.apply_to_ray(act),
            UserAction::SetQuota { queue, quotas } => {
                self.quotas.get_mut(queue).into_iter().for_each(|of| of.clone_from(quotas));
            }
            UserAction::StopQueue { queue, policy } => {
                self.stop_policies.get_mut(queue).into_iter().for_each(|of| of.queue = *policy);
            }
            UserAction::StopLocalQueue { queue, policy } => {
                self.stop_policies.get_mut(queue).into_iter().for_each(|of| of.local = *policy);
            }
        }
    }

    fn apply_to_job(&mut self, act: &JobAction) {
        match act {
            JobAction::Put(job) => {
                self.jobs.entry(job.name.clone()).or_insert_with(|| job.clone());
            }
            JobAction::Scale { job, parallelism } => {
                self.jobs.get_mut(job).into_iter().for_each(|job| job.parallelism = *parallelism);
            }
            JobAction::SetQueue { job, queue, .. } => {
                self.jobs.get_mut(job).into_iter().for_each(|job| job.queue.clone_from(queue));
            }
            JobAction::Delete { job, .. } => {
                self.jobs.remove(job);
            }
            // The queue manager decides whether a queued Job is suspended.
            JobAction::Suspend { .. } | JobAction::DeletePods { .. } => {}
        }
    }

    /// Applies an action on a Ray object. The queue manager decides whether a queued RayCluster is
    /// suspended, and the API server may refuse another queue.
    fn apply_to_ray(&mut self, act: &RayAction) {
        match act {
            RayAction::SetQueue { kind: RayKind::RayService, name, queue, suspend } => self.change(name, |service| {
                service.queue.clone_from(queue);
                service.suspend |= suspend;
            }),
            RayAction::SetQueue { kind: RayKind::RayCluster, name, queue, .. } => {
                self.clusters.get_mut(name).into_iter().for_each(|cluster| cluster.queue.clone_from(queue));
            }
            RayAction::SetOwner { cluster, owned } => {
                self.clusters.get_mut(cluster).into_iter().for_each(|cluster| cluster.owned = *owned);
            }
            RayAction::Suspend { .. } | RayAction::DeletePods { .. } => {}
        }
    }

    fn change(&mut self, service: &str, change: impl FnOnce(&mut Service)) {
        if let Some(service) = self.services.get_mut(service) {
            change(service);
        }
    }

    /// Returns the requests of all desired pods in a queue.
    pub(crate) fn demand(&self, queue: &str) -> ResourceAmounts {
        let services = self.services.values().map(|service| (&service.queue, &service.pods));
        let clusters = self.clusters.values().map(|cluster| (&cluster.queue, &cluster.pods));
        let ray = services.chain(clusters).map(|(queue, pods)| (queue, pods.total_requests()));
        let jobs = self.jobs.values().map(|job| (&job.queue, job.total_requests()));
        let own = ray.chain(jobs).filter(|(of, _)| of.as_deref() == Some(queue));
        own.fold(ResourceAmounts::default(), |sum, (_, requests)| sum.plus(requests))
    }
}

fn scale(pods: &mut Pods, group: usize, replicas: u32) {
    pods.groups.get_mut(group).into_iter().for_each(|group| group.replicas = replicas);
}

impl Script {
    /// Returns actions that unblock everything: they start all queues, remove all admission
    /// timeouts, and give each queue quota for all services, including both clusters of each
    /// upgrade.
    pub(crate) fn unblocking_actions(&self) -> Vec<UserAction> {
        let wishes = DesiredState::after_script(self);
        let all = wishes.quotas.keys().fold(ResourceAmounts::default(), |sum, queue| sum.plus(wishes.demand(queue)));
        let plenty = all.plus(self.max_requests()).times(3);
        let mut acts = Vec::new();
        for (queue, quotas) in &wishes.quotas {
            let enough = |quota: &Quota| Quota { nominal: plenty, borrowing: None, lending: None, ..quota.clone() };
            acts.push(UserAction::SetQuota { queue: queue.clone(), quotas: quotas.iter().map(enough).collect() });
        }
        for (queue, stops) in &wishes.stop_policies {
            if stops.queue != StopPolicy::None {
                acts.push(UserAction::StopQueue { queue: queue.clone(), policy: StopPolicy::None });
            }
            if stops.local != StopPolicy::None {
                acts.push(UserAction::StopLocalQueue { queue: queue.clone(), policy: StopPolicy::None });
            }
        }
        let gives_up = |service: &&Service| service.admission_timeout.is_some() || service.incremental.is_some();
        acts.extend(
            wishes
                .services
                .values()
                .filter(gives_up)
                .map(|service| UserAction::RetryUpgrade { service: service.name.clone() }),
        );
        acts
    }

    /// Returns the script followed by the actions that unblock it.
    pub(crate) fn with_unblocking(&self) -> Self {
        let mut whole = self.clone();
        whole
            .steps
            .extend(self.unblocking_actions().into_iter().map(|act| ScriptStep { after: Delay::UntilQuiescent, act }));
        whole
    }

    /// Returns an upper bound of the requests of all clusters that were ever desired. Terminating
    /// clusters hold no more than that, nor does a cluster that keeps the replicas set by an
    /// autoscaler while it is being replaced.
    fn max_requests(&self) -> ResourceAmounts {
        let mut wishes = DesiredState::new(&self.setup);
        let mut largest: BTreeMap<String, Pods> = BTreeMap::new();
        let mut largest_jobs: BTreeMap<String, ResourceAmounts> = BTreeMap::new();
        for ScriptStep { act, .. } in &self.steps {
            wishes.apply(act);
            let services = wishes.services.iter().map(|(name, service)| (name, &service.pods));
            let clusters = wishes.clusters.iter().map(|(name, cluster)| (name, &cluster.pods));
            for (name, pods) in services.chain(clusters) {
                largest.entry(name.clone()).or_default().raise_to(pods);
            }
            for (name, job) in &wishes.jobs {
                let most = largest_jobs.entry(name.clone()).or_default();
                *most = most.component_max(job.total_requests());
            }
        }
        let ray = largest.values().map(Pods::total_requests);
        ray.chain(largest_jobs.into_values()).fold(ResourceAmounts::default(), ResourceAmounts::plus)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::script::step::Group;

    fn pods(replicas: u32, gpu: u32) -> Pods {
        let size = ResourceAmounts { cpu: 200, memory: 256, gpu };
        let group = Group { name: "small".into(), replicas, hosts: 1, size };
        Pods { version: 52, head: ResourceAmounts { gpu: 0, ..size }, groups: vec![group] }
    }

    /// Seed 85674: GPU workers keep the replicas that were set while the service used no GPUs.
    #[test]
    fn unblock_grants_quota_for_workers_scaled_during_a_replacement() {
        let put = |pods: Pods| {
            UserAction::PutService(Service {
                name: "fruit".into(),
                queue: Some("team".into()),
                pods,
                ..Service::default()
            })
        };
        let scale = UserAction::Scale { service: "fruit".into(), group: 0, replicas: 3 };
        let acts = [put(pods(0, 1)), put(pods(2, 0)), scale, put(pods(0, 1))];
        let steps = acts.into_iter().map(|act| ScriptStep { after: Delay::UntilQuiescent, act }).collect();
        let script = Script { setup: Setup::with_one_queue("team", ResourceAmounts::default()), steps };

        let acts = script.unblocking_actions();

        let UserAction::SetQuota { quotas, .. } = &acts[0] else { panic!("{acts:?}") };
        assert!(quotas[0].nominal.gpu >= 3, "{quotas:?}");
    }
}
