//! The desired state after a script.

use std::collections::BTreeMap;

use super::scene::{Quota, Scene, Size};
use super::step::{Act, Cluster, Pause, Pods, Script, Service, Step, StopPolicy};

/// Desired state, if quota sufficed.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Wishes {
    /// Services that were not deleted, with their last spec.
    pub(crate) services: BTreeMap<String, Service>,
    /// Standalone clusters that were not deleted.
    pub(crate) clusters: BTreeMap<String, Cluster>,
    /// Quota of each queue.
    pub(crate) quotas: BTreeMap<String, Vec<Quota>>,
    /// Stop policies of each ClusterQueue and its LocalQueue.
    pub(crate) stopped: BTreeMap<String, Stops>,
}

/// Stop policies of a queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Stops {
    /// Stop policy of the ClusterQueue.
    pub(crate) queue: StopPolicy,
    /// Stop policy of the LocalQueue.
    pub(crate) local: StopPolicy,
}

impl Stops {
    /// Neither queue is stopped.
    pub(crate) const NONE: Self = Self { queue: StopPolicy::None, local: StopPolicy::None };
}

impl Wishes {
    /// Returns the desired state before the first action.
    pub(crate) fn new(scene: &Scene) -> Self {
        Self {
            quotas: scene.queues.iter().map(|queue| (queue.name.clone(), queue.quotas.clone())).collect(),
            stopped: scene.queues.iter().map(|queue| (queue.name.clone(), Stops::NONE)).collect(),
            ..Self::default()
        }
    }

    /// Returns the desired state after a script.
    pub(crate) fn of(script: &Script) -> Self {
        let mut wishes = Self::new(&script.scene);
        script.steps.iter().for_each(|step| wishes.heed(&step.act));
        wishes
    }

    /// Applies an action. An action on an object that does not exist has no effect.
    pub(crate) fn heed(&mut self, act: &Act) {
        match act {
            Act::PutService(service) => {
                self.services.insert(service.name.clone(), service.clone());
            }
            Act::SetVersion { service, version } => self.change(service, |service| service.pods.version = *version),
            Act::Resize { service, group, size } => self.change(service, |of| {
                of.pods.groups.get_mut(*group).into_iter().for_each(|group| group.size = *size);
            }),
            Act::Scale { service, group, replicas } => {
                self.change(service, |service| scale(&mut service.pods, *group, *replicas))
            }
            Act::EditServeConfig { service, edition } => self.change(service, |service| service.edition = *edition),
            Act::Suspend { service, suspend } => self.change(service, |service| service.suspend = *suspend),
            Act::SetPriority { service, priority } => {
                self.change(service, |service| service.priority.clone_from(priority))
            }
            Act::TryAgain { service } => self.change(service, |service| service.patience = None),
            Act::DeleteService { service, .. } => {
                self.services.remove(service);
            }
            Act::PutCluster(cluster) => {
                self.clusters.insert(cluster.name.clone(), cluster.clone());
            }
            Act::ScaleCluster { cluster, group, replicas } => {
                self.clusters.get_mut(cluster).into_iter().for_each(|of| scale(&mut of.pods, *group, *replicas));
            }
            Act::DeleteCluster { cluster } => {
                self.clusters.remove(cluster);
            }
            Act::SetQuota { queue, quotas } => {
                self.quotas.get_mut(queue).into_iter().for_each(|of| of.clone_from(quotas));
            }
            Act::StopQueue { queue, policy } => {
                self.stopped.get_mut(queue).into_iter().for_each(|of| of.queue = *policy);
            }
            Act::StopLocalQueue { queue, policy } => {
                self.stopped.get_mut(queue).into_iter().for_each(|of| of.local = *policy);
            }
        }
    }

    fn change(&mut self, service: &str, change: impl FnOnce(&mut Service)) {
        if let Some(service) = self.services.get_mut(service) {
            change(service);
        }
    }

    /// Returns the requests of all desired pods in a queue.
    pub(crate) fn demand(&self, queue: &str) -> Size {
        let services = self.services.values().map(|service| (&service.queue, &service.pods));
        let clusters = self.clusters.values().map(|cluster| (&cluster.queue, &cluster.pods));
        let own = services.chain(clusters).filter(|(of, _)| of.as_deref() == Some(queue));
        own.fold(Size::default(), |sum, (_, pods)| sum.plus(pods.total()))
    }
}

fn scale(pods: &mut Pods, group: usize, replicas: u32) {
    pods.groups.get_mut(group).into_iter().for_each(|group| group.replicas = replicas);
}

impl Script {
    /// Returns actions that unblock everything: they start all queues, remove all admission
    /// timeouts, and give each queue quota for all services, including both clusters of each
    /// upgrade.
    pub(crate) fn unblock(&self) -> Vec<Act> {
        let wishes = Wishes::of(self);
        let all = wishes.quotas.keys().fold(Size::default(), |sum, queue| sum.plus(wishes.demand(queue)));
        let plenty = all.plus(self.largest_held()).times(3);
        let mut acts = Vec::new();
        for (queue, quotas) in &wishes.quotas {
            let enough = |quota: &Quota| Quota { nominal: plenty, borrowing: None, lending: None, ..quota.clone() };
            acts.push(Act::SetQuota { queue: queue.clone(), quotas: quotas.iter().map(enough).collect() });
        }
        for (queue, stops) in &wishes.stopped {
            if stops.queue != StopPolicy::None {
                acts.push(Act::StopQueue { queue: queue.clone(), policy: StopPolicy::None });
            }
            if stops.local != StopPolicy::None {
                acts.push(Act::StopLocalQueue { queue: queue.clone(), policy: StopPolicy::None });
            }
        }
        let gives_up = |service: &&Service| service.patience.is_some() || service.steps.is_some();
        acts.extend(
            wishes.services.values().filter(gives_up).map(|service| Act::TryAgain { service: service.name.clone() }),
        );
        acts
    }

    /// Returns the script followed by the actions that unblock it.
    pub(crate) fn unblocked(&self) -> Self {
        let mut whole = self.clone();
        whole.steps.extend(self.unblock().into_iter().map(|act| Step { after: Pause::Rest, act }));
        whole
    }

    /// Returns an upper bound of the requests of all clusters that were ever desired. Terminating
    /// clusters hold no more than that, nor does a cluster that keeps the replicas set by an
    /// autoscaler while it is being replaced.
    fn largest_held(&self) -> Size {
        let mut wishes = Wishes::new(&self.scene);
        let mut largest: BTreeMap<String, Pods> = BTreeMap::new();
        for Step { act, .. } in &self.steps {
            wishes.heed(act);
            let services = wishes.services.iter().map(|(name, service)| (name, &service.pods));
            let clusters = wishes.clusters.iter().map(|(name, cluster)| (name, &cluster.pods));
            for (name, pods) in services.chain(clusters) {
                largest.entry(name.clone()).or_default().grow_to(pods);
            }
        }
        largest.values().fold(Size::default(), |sum, pods| sum.plus(pods.total()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::script::step::Group;

    fn pods(replicas: u32, gpu: u32) -> Pods {
        let size = Size { cpu: 200, memory: 256, gpu };
        let group = Group { name: "small".into(), replicas, hosts: 1, size };
        Pods { version: 52, head: Size { gpu: 0, ..size }, groups: vec![group] }
    }

    /// Seed 85674: GPU workers keep the replicas that were set while the service used no GPUs.
    #[test]
    fn unblock_grants_quota_for_workers_scaled_during_a_replacement() {
        let put = |pods: Pods| {
            Act::PutService(Service { name: "fruit".into(), queue: Some("team".into()), pods, ..Service::default() })
        };
        let scale = Act::Scale { service: "fruit".into(), group: 0, replicas: 3 };
        let acts = [put(pods(0, 1)), put(pods(2, 0)), scale, put(pods(0, 1))];
        let steps = acts.into_iter().map(|act| Step { after: Pause::Rest, act }).collect();
        let script = Script { scene: Scene::of_one_queue("team", Size::default()), steps };

        let acts = script.unblock();

        let Act::SetQuota { quotas, .. } = &acts[0] else { panic!("{acts:?}") };
        assert!(quotas[0].nominal.gpu >= 3, "{quotas:?}");
    }
}
