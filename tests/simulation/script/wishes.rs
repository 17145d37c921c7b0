//! What people have asked for in all.

use std::collections::BTreeMap;

use super::scene::{Quota, Scene, Size};
use super::step::{Act, Cluster, Pause, Pods, Script, Service, Step, StopPolicy};

/// What there should be, were there quota for it.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Wishes {
    /// Services that aren't deleted, as they were last asked for.
    pub(crate) services: BTreeMap<String, Service>,
    /// Clusters of their own that aren't deleted.
    pub(crate) clusters: BTreeMap<String, Cluster>,
    /// The quota of each queue.
    pub(crate) quotas: BTreeMap<String, Vec<Quota>>,
    /// Whether each queue is stopped, and its LocalQueue.
    pub(crate) stopped: BTreeMap<String, Stops>,
}

/// How a queue is stopped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Stops {
    /// The ClusterQueue.
    pub(crate) queue: StopPolicy,
    /// The LocalQueue.
    pub(crate) local: StopPolicy,
}

impl Stops {
    /// Neither is.
    pub(crate) const NONE: Self = Self { queue: StopPolicy::None, local: StopPolicy::None };
}

impl Wishes {
    /// What there is at the beginning.
    pub(crate) fn new(scene: &Scene) -> Self {
        Self {
            quotas: scene.queues.iter().map(|queue| (queue.name.clone(), queue.quotas.clone())).collect(),
            stopped: scene.queues.iter().map(|queue| (queue.name.clone(), Stops::NONE)).collect(),
            ..Self::default()
        }
    }

    /// What was asked for in a script, all in all.
    pub(crate) fn of(script: &Script) -> Self {
        let mut wishes = Self::new(&script.scene);
        script.steps.iter().for_each(|step| wishes.heed(&step.act));
        wishes
    }

    /// Takes note of what is asked for now. What is done to something that isn't there changes nothing.
    pub(crate) fn heed(&mut self, act: &Act) {
        match act {
            Act::PutService(service) => drop(self.services.insert(service.name.clone(), service.clone())),
            Act::SetVersion { service, version } => self.change(service, |of| of.pods.version = *version),
            Act::Resize { service, group, size } => self.change(service, |of| {
                of.pods.groups.get_mut(*group).into_iter().for_each(|group| group.size = *size);
            }),
            Act::Scale { service, group, replicas } => {
                self.change(service, |of| scale(&mut of.pods, *group, *replicas))
            }
            Act::EditServeConfig { service, edition } => self.change(service, |of| of.edition = *edition),
            Act::Suspend { service, suspend } => self.change(service, |of| of.suspend = *suspend),
            Act::SetPriority { service, priority } => self.change(service, |of| of.priority.clone_from(priority)),
            Act::TryAgain { service } => self.change(service, |of| of.patience = None),
            Act::DeleteService { service, .. } => drop(self.services.remove(service)),
            Act::PutCluster(cluster) => drop(self.clusters.insert(cluster.name.clone(), cluster.clone())),
            Act::ScaleCluster { cluster, group, replicas } => {
                self.clusters.get_mut(cluster).into_iter().for_each(|of| scale(&mut of.pods, *group, *replicas));
            }
            Act::DeleteCluster { cluster } => drop(self.clusters.remove(cluster)),
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

    /// What all pods that are wanted in a queue ask for together.
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
    /// What lets everything that was asked for happen: no queue is stopped, nobody gives up, and each has quota for all services,
    /// the clusters that they leave and those that they go to.
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

    /// The script with what unblocks it at its end.
    pub(crate) fn unblocked(&self) -> Self {
        let mut whole = self.clone();
        whole.steps.extend(self.unblock().into_iter().map(|act| Step { after: Pause::Rest, act }));
        whole
    }

    /// More than all that was ever wanted at once: what is on its way out can't hold more than that, nor a cluster that had its
    /// workers counted by a scaler and keeps their number, while another is wanted in its place.
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

    /// Seed 85674: workers with GPUs keep the number that a scaler gave them when the service did without GPUs.
    #[test]
    fn there_is_quota_for_workers_that_were_scaled_while_others_were_wanted() {
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
