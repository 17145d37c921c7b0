//! What is planned on its own, and what each planner gets to see.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::Pod;
use kube::{Resource, ResourceExt};

use super::plan::{Note, ObjectRef, Plan, Write};
use super::priorities;
use super::store::Key;
use super::world::{self, MemberId, Runner, World, owned_by};
use super::{Engine, WriteError, in_use};
use crate::api::kueue::Workload;
use crate::api::ray::{RayCluster, RayService, names};
use crate::jobframework::batch_job::{self, BatchJobJob};
use crate::jobframework::census::Molds;
use crate::jobframework::managed::{Hold, Managed};
use crate::jobframework::members::{Pods, is_live, outlived};
use crate::jobframework::ray_cluster::{RayClusterJob, member};
use crate::jobframework::ray_service::RayServiceJob;
use crate::jobframework::record::{MemberShare, Record};
use crate::jobframework::{self, Groups, Job, JobView, Member, slices};
use crate::queue::Part;
use crate::raycluster::{self, Grant, Mark, Placement};
use crate::rayservice;
use crate::rayservice::services::{leads_to, serve_service_name};

/// After what time it is looked again whether an outdated slice is brought in line; its own change is seen at once.
const UNTIL_IN_LINE: SignedDuration = SignedDuration::from_secs(1);

/// One thing that is planned on its own; those that are due at once in this order, the quota before what rests on it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Planner {
    /// The quota side of a Workload: what its status says, and whether it may go.
    Workload(Key),
    /// The gate and the slices of a job.
    Job(JobKey),
    /// The status of a ClusterQueue.
    ClusterQueue(String),
    /// The status of a Cohort.
    Cohort(String),
    /// Whether a ResourceFlavor may go.
    ResourceFlavor(String),
    /// The status of a LocalQueue.
    LocalQueue(Key),
    /// The operator's work on a RayService.
    RayService(Key),
    /// The operator's work on a RayCluster.
    RayCluster(Key),
}

/// A job, by kind.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum JobKey {
    RayService(Key),
    RayCluster(Key),
    BatchJob(Key),
}

/// The RayService that a RayCluster belongs to.
pub(super) fn service_of_cluster(world: &World, cluster: &Key) -> Option<Key> {
    world.ray_clusters.get(cluster).and_then(|cluster| controller(cluster.as_ref(), "RayService"))
}

/// The object of a cluster, unless it is gone.
pub(super) fn existing_cluster<'a>(world: &'a World, cluster: &MemberId) -> Option<&'a Arc<RayCluster>> {
    world.ray_clusters.get(&cluster.key).filter(|known| known.metadata.uid.as_ref() == Some(&cluster.uid))
}

fn cluster_of(namespace: &str, member: &MemberShare) -> MemberId {
    MemberId { runner: Runner::RayCluster, key: Key::new(namespace, &member.name), uid: member.uid.clone() }
}

pub(super) fn job_of(workload: &Workload) -> Option<JobKey> {
    let of = |kind| controller(workload, kind);
    let ray = of("RayService").map(JobKey::RayService).or_else(|| of("RayCluster").map(JobKey::RayCluster));
    ray.or_else(|| of("Job").map(JobKey::BatchJob))
}

/// The controlling owner of this kind, by its name.
pub(super) fn controller<K: Resource>(object: &K, kind: &str) -> Option<Key> {
    let owner = world::controller(object, kind)?;
    Some(Key::new(object.meta().namespace.clone().unwrap_or_default(), owner.name.clone()))
}

pub(super) fn is_standalone(cluster: &RayCluster) -> bool {
    !cluster.owner_references().iter().any(|owner| owner.controller == Some(true))
}

/// What the queue says of the pods of a cluster.
struct Quota {
    grant: Grant,
    marks: BTreeMap<String, Mark>,
    payer: Option<ObjectRef>,
}

/// What is known of a job of any kind.
struct Known<'a> {
    job: &'a dyn Job,
    managed: Managed,
    workloads: Vec<&'a Workload>,
    outlived: Vec<Member>,
    /// The PriorityClass of its pods.
    pod_class: Option<&'a str>,
    makes_pods: bool,
}

impl Engine {
    pub(super) fn plan(&mut self, planner: &Planner, now: Timestamp) -> Plan {
        match planner {
            Planner::Job(job) => self.plan_job(job, now),
            Planner::Workload(key) => self.plan_workload(key, now),
            Planner::ClusterQueue(name) => self.queueing.plan_cluster_queue(&self.world, name, now),
            Planner::Cohort(name) => self.queueing.plan_cohort(&self.world, name),
            Planner::ResourceFlavor(name) => in_use::plan_flavor(&self.world, name),
            Planner::LocalQueue(key) => self.queueing.plan_local_queue(&self.world, key, now),
            Planner::RayService(key) => self.plan_ray_service(key, now),
            Planner::RayCluster(key) => self.plan_ray_cluster(key, now),
        }
    }

    /// Who is told that a write failed: the object that the planner is about.
    pub(super) fn failure_note(&self, planner: &Planner, write: &Write, error: &WriteError) -> Option<Note> {
        let message = format!("{} of {} failed: {}", write.op.name(), write.target, error.message);
        let reason = format!("FailedTo{}{}", write.op.verb(), write.target.kind);
        match planner {
            Planner::RayService(key) | Planner::Job(JobKey::RayService(key)) => {
                Some(Note::warning(self.world.ray_services.get(key)?.as_ref(), &reason, message))
            }
            Planner::RayCluster(key) | Planner::Job(JobKey::RayCluster(key)) => {
                Some(Note::warning(self.world.ray_clusters.get(key)?.as_ref(), &reason, message))
            }
            Planner::Job(JobKey::BatchJob(key)) => {
                Some(Note::warning(self.world.batch_jobs.get(key)?.as_ref(), &reason, message))
            }
            Planner::Workload(key) => Some(Note::warning(self.world.workloads.get(key)?.as_ref(), &reason, message)),
            Planner::ClusterQueue(_) | Planner::Cohort(_) | Planner::ResourceFlavor(_) | Planner::LocalQueue(_) => None,
        }
    }

    fn plan_job(&self, job: &JobKey, now: Timestamp) -> Plan {
        match job {
            JobKey::RayService(key) => {
                let Some(service) = self.world.ray_services.get(key) else { return Plan::default() };
                let uid = service.uid().unwrap_or_default();
                let workloads = self.workloads_of(&uid);
                let molds = Molds::of(workloads.iter().copied());
                let children = self.world.ray_clusters.under(&owned_by(&uid));
                let children = children.map(|child| self.cluster_job(child, &molds)).collect();
                self.plan_any_job(
                    Known {
                        job: &RayServiceJob { service, children, serving: self.serving(service) },
                        managed: self.managed_service(service),
                        outlived: self.outlived(&key.namespace, &workloads, &molds),
                        workloads,
                        pod_class: priorities::pod_class(&service.spec.ray_cluster_config),
                        makes_pods: self.halves.ray_operator,
                    },
                    now,
                )
            }
            JobKey::RayCluster(key) => {
                let Some(cluster) = self.world.ray_clusters.get(key).filter(|cluster| is_standalone(cluster)) else {
                    return Plan::default();
                };
                let workloads = self.workloads_of(&cluster.uid().unwrap_or_default());
                let molds = Molds::of(workloads.iter().copied());
                self.plan_any_job(
                    Known {
                        job: &self.cluster_job(cluster, &molds),
                        managed: self.managed_cluster(cluster),
                        outlived: self.outlived(&key.namespace, &workloads, &molds),
                        workloads,
                        pod_class: priorities::pod_class(&cluster.spec),
                        makes_pods: self.halves.ray_operator,
                    },
                    now,
                )
            }
            JobKey::BatchJob(key) => {
                let Some(job) = self.world.batch_jobs.get(key).filter(|job| !batch_job::is_of_ray(job)) else {
                    return Plan::default();
                };
                let uid = job.uid().unwrap_or_default();
                let workloads = self.workloads_of(&uid);
                let molds = Molds::of(workloads.iter().copied());
                self.plan_any_job(
                    Known {
                        job: &BatchJobJob::new(job, self.all_pods(&uid), &molds),
                        managed: self.managed_batch_job(job),
                        // Its pods are its own: there is nothing of it without it.
                        outlived: Vec::new(),
                        workloads,
                        pod_class: batch_job::pod_class(job),
                        makes_pods: false,
                    },
                    now,
                )
            }
        }
    }

    fn workloads_of(&self, job: &str) -> Vec<&Workload> {
        self.world.workloads.under(&owned_by(job)).map(AsRef::as_ref).collect()
    }

    /// The child that requests to a service are sent to.
    fn serving(&self, service: &RayService) -> Option<&str> {
        let serve_service = serve_service_name(service);
        let owned = owned_by(service.metadata.uid.as_deref().unwrap_or_default());
        leads_to(self.world.services.under(&owned).find(|service| service.name_any() == serve_service)?)
    }

    fn plan_any_job(&self, known: Known<'_>, now: Timestamp) -> Plan {
        let Known { job, managed, workloads, outlived, pod_class, makes_pods } = known;
        let priority = priorities::of_job(&self.world, job, pod_class);
        let placement = &|flavors: &BTreeSet<String>| self.placement(flavors);
        let watches_readiness = self.queueing.watches_readiness();
        let pinned = &|slice: &Workload| self.queueing.pinned(slice);
        let queue = self.queueing.queue();
        let view = JobView {
            job,
            managed,
            workloads,
            outlived,
            queue,
            priority,
            placement,
            pinned,
            makes_pods,
            watches_readiness,
            now,
        };
        jobframework::plan(&view)
    }

    /// The clusters that are gone, of which pods are left that a slice paid for.
    fn outlived(&self, namespace: &str, workloads: &[&Workload], molds: &Molds<'_>) -> Vec<Member> {
        let records = workloads.iter().filter_map(|workload| Record::of(workload));
        let members = records.flat_map(|record| record.members);
        let clusters: BTreeSet<MemberId> = members.map(|member| cluster_of(namespace, &member)).collect();
        let gone = clusters.into_iter().filter(|cluster| existing_cluster(&self.world, cluster).is_none());
        let left = gone.map(|cluster| outlived(&cluster.key.name, &cluster.uid, &self.all_pods(&cluster.uid), molds));
        left.filter(|member| !member.live_pods.is_empty()).collect()
    }

    fn plan_workload(&mut self, key: &Key, now: Timestamp) -> Plan {
        let Some(workload) = self.world.workloads.get(key) else { return Plan::default() };
        if workload.metadata.deletion_timestamp.is_none() {
            if let Some(write) = priorities::refresh(&self.world, workload) {
                // The decision is written once its order is right.
                return Plan { writes: vec![write], ..Plan::default() };
            }
            if self.queueing.admits(key) && self.is_outdated(workload, now) {
                let wake_at = now.checked_add(UNTIL_IN_LINE).ok();
                return Plan { wake_at, ..Plan::default() };
            }
            return self.queueing.plan_workload(&self.world, workload, now);
        }
        let members = Record::of(workload).unwrap_or_default().members;
        let has_pods = members.iter().any(|member| self.has_pods(&member.uid));
        jobframework::release(workload, has_pods)
    }

    /// Whether its job is about to change a slice, or to delete it: what it was made for may be gone, and it would take the place
    /// of the slice that pays for what runs.
    fn is_outdated(&self, slice: &Workload, now: Timestamp) -> bool {
        let writes = job_of(slice).map(|job| self.plan_job(&job, now).writes).unwrap_or_default();
        writes.iter().any(|write| write.target == ObjectRef::of(slice))
    }

    fn plan_ray_service(&self, key: &Key, now: Timestamp) -> Plan {
        let Some(service) = self.world.ray_services.get(key) else { return Plan::default() };
        let Some(goal) = self.specs.goal(key) else { return Plan::default() };
        let uid = service.uid().unwrap_or_default();
        let children: Vec<&RayCluster> = self.world.ray_clusters.under(&owned_by(&uid)).map(AsRef::as_ref).collect();
        let managed = self.managed_service(service);
        if matches!(managed, Managed::Held(_)) && children.is_empty() && service.metadata.deletion_timestamp.is_none() {
            // A service that has clusters can't come into a queue any more.
            return Plan::default();
        }
        let head_pods = children.iter().flat_map(|child| self.pods_of(child));
        let head_pods = head_pods
            .filter(|pod| pod.labels().get(names::GROUP_LABEL).is_some_and(|group| group == names::HEAD_GROUP));
        let serve_service = Key::new(key.namespace.clone(), serve_service_name(service));
        let observed = children.iter().filter_map(|child| Some((child.name_any(), self.serve.get(&Key::of(*child))?)));
        rayservice::plan(&rayservice::View {
            service,
            goal,
            head_pods: head_pods.collect(),
            services: self.world.services.under(&owned_by(&uid)).map(AsRef::as_ref).collect(),
            endpoint_slices: self.world.endpoint_slices.under(&serve_service).map(AsRef::as_ref).collect(),
            serve: observed.collect(),
            gated: managed != Managed::No,
            children,
            now,
        })
    }

    fn plan_ray_cluster(&self, key: &Key, now: Timestamp) -> Plan {
        let Some(cluster) = self.world.ray_clusters.get(key) else { return Plan::default() };
        let Some(makeup) = self.specs.makeup(key) else { return Plan::default() };
        if is_standalone(cluster) && self.managed_cluster(cluster) == Managed::Held(Hold::Default) {
            // With a status it would count as begun, and come into no queue if the name of that can't be written just now.
            return Plan::default();
        }
        let uid = cluster.uid().unwrap_or_default();
        let Quota { grant, marks, payer } = self.quota(cluster);
        raycluster::plan(&raycluster::View {
            cluster,
            groups: &makeup.groups,
            pods: self.pods_of(cluster),
            services: self.world.services.under(&owned_by(&uid)).map(AsRef::as_ref).collect(),
            grant,
            marks,
            payer,
            now,
        })
    }

    /// How many pods of a cluster are paid for, and what they are to be told, by group. The operator asks here and not only the
    /// cluster's own gate, so that a gate that somebody opened by hand lets no pod through.
    fn quota(&self, cluster: &RayCluster) -> Quota {
        let service = controller(cluster, "RayService").and_then(|key| self.world.ray_services.get(&key));
        let (job_uid, managed) = match service {
            Some(service) => (service.uid(), self.managed_service(service)),
            None if is_standalone(cluster) => (cluster.uid(), self.managed_cluster(cluster)),
            None => (None, Managed::No),
        };
        if managed == Managed::No {
            return Quota { grant: Grant::Ungated, marks: BTreeMap::new(), payer: None };
        }
        let slices = slices::slices_of(self.workloads_of(&job_uid.unwrap_or_default()));
        let slice = slices::covering(&slices);
        let member = member(cluster, &Pods::default(), self.wants(cluster), &Molds::default());
        let earlier = slice.map(|slice| slice.earlier(&member)).unwrap_or_default();
        let marks = member.groups.iter().flatten().map(|group| {
            let share = slice.and_then(|slice| Some((slice, slice.record.member(&member.uid)?)));
            let paid = share.and_then(|(slice, share)| Some((slice, share.pod_set_of(&group.kind())?)));
            let mark = Mark {
                shape: group.shape.clone(),
                pod_set: paid.map(|(_, pod_set)| pod_set.to_owned()),
                placement: paid.map(|(slice, name)| self.placement(&slice.flavors(name))).unwrap_or_default(),
                earlier: earlier.get(&group.name).copied().unwrap_or(0),
            };
            (group.name.clone(), mark)
        });
        let granted = slice.map(|slice| slice.grant(&member)).unwrap_or_default();
        let takes_back = slice.is_some_and(|slice| slice.gives_back == Some(Part::Replicas));
        Quota {
            grant: if takes_back { Grant::DownTo(granted) } else { Grant::UpTo(granted) },
            marks: marks.collect(),
            payer: slice.map(|slice| ObjectRef::of(slice.workload)),
        }
    }

    fn placement(&self, flavors: &BTreeSet<String>) -> Placement {
        let mut placement = Placement::default();
        let known = flavors.iter().filter_map(|name| self.world.resource_flavors.get(&Key::global(name)));
        for flavor in known {
            placement.node_labels.extend(flavor.spec.node_labels.clone());
            placement.tolerations.extend(flavor.spec.tolerations.clone());
        }
        placement
    }

    fn cluster_job<'a>(&'a self, cluster: &'a RayCluster, molds: &'a Molds<'a>) -> RayClusterJob<'a> {
        let pods = self.all_pods(cluster.metadata.uid.as_deref().unwrap_or_default());
        RayClusterJob { cluster, pods, groups: self.wants(cluster), molds }
    }

    /// Whether the cluster with this uid has pods that run or may run, or may have by now.
    fn has_pods(&self, cluster: &str) -> bool {
        self.pods_under(cluster).into_iter().any(is_live) || !self.arriving.of(cluster).is_empty()
    }

    /// The groups of pods that a cluster wants.
    fn wants(&self, cluster: &RayCluster) -> Arc<Groups> {
        let unseen = || Arc::new(Err(format!("RayCluster {} was not seen yet", cluster.name_any())));
        self.specs.makeup(&Key::of(cluster)).map_or_else(unseen, |makeup| makeup.wanted.clone())
    }

    fn pods_of(&self, cluster: &RayCluster) -> Vec<&Pod> {
        self.pods_under(cluster.metadata.uid.as_deref().unwrap_or_default())
    }

    /// The pods of the member with this uid, and those that may be there by now.
    fn all_pods(&self, member: &str) -> Pods<'_> {
        Pods { seen: self.pods_under(member), arriving: self.arriving.of(member) }
    }

    /// The pods of the cluster with this uid.
    fn pods_under(&self, cluster: &str) -> Vec<&Pod> {
        self.world.pods.under(&owned_by(cluster)).map(AsRef::as_ref).collect()
    }
}
