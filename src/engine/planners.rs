//! What is planned on its own, and what each planner gets to see.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::batch::v1::Job as BatchJob;
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kube_core::{Resource, ResourceExt};

use super::jobs::cluster_of;
use super::priorities;
use super::renewals::Footing;
use super::specs::Makeup;
use super::world::{self, MemberId, World, owned_by};
use super::{Engine, WriteError, in_use};
use sluice_api::gateway::HTTPRoute;
use sluice_api::kueue::Workload;
use sluice_api::ray::{RayCluster, RayService, is_managed_elsewhere, names};
use sluice_jobframework::census::Molds;
use sluice_jobframework::managed::{Hold, Managed};
use sluice_jobframework::members::{Pods, is_live};
use sluice_jobframework::ray_cluster::member;
use sluice_jobframework::record::Record;
use sluice_jobframework::{self as jobframework, Groups, slices};
use sluice_plan::ObjectKey;
use sluice_plan::{Note, ObjectRef, Plan, Write};
use sluice_queue::Part;
use sluice_raycluster::access::Access;
use sluice_raycluster::auth::Token;
use sluice_raycluster::{self as raycluster, Grant, Mark, Placement, Problem, fault_tolerance, revision};
use sluice_rayservice as rayservice;
use sluice_rayservice::incremental::routes::{self, Own, route_name, route_names};
use sluice_rayservice::incremental::ways::{self, Ways};
use sluice_rayservice::kept::Kept;
use sluice_rayservice::services::serve_service_name;

/// After what time it is looked again whether an outdated slice is brought in line; its own change is seen at once.
const UNTIL_IN_LINE: SignedDuration = SignedDuration::from_secs(1);

/// One thing that is planned on its own; those that are due at once in this order, the quota before what rests on it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Planner {
    /// The quota side of a Workload: what its status says, and whether it may go.
    Workload(ObjectKey),
    /// The gate and the slices of a job.
    Job(JobKey),
    /// The status of a ClusterQueue.
    ClusterQueue(String),
    /// The status of a Cohort.
    Cohort(String),
    /// Whether a ResourceFlavor may go.
    ResourceFlavor(String),
    /// The status of a LocalQueue.
    LocalQueue(ObjectKey),
    /// The operator's work on a RayService.
    RayService(ObjectKey),
    /// The operator's work on a RayCluster.
    RayCluster(ObjectKey),
}

/// A job, by kind.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum JobKey {
    RayService(ObjectKey),
    RayCluster(ObjectKey),
    RayJob(ObjectKey),
    BatchJob(ObjectKey),
}

impl Planner {
    /// The cluster that the operator's work is on, if it is on one.
    pub(super) fn ray_cluster(&self) -> Option<&ObjectKey> {
        match self {
            Self::RayCluster(key) => Some(key),
            _ => None,
        }
    }
}

impl JobKey {
    /// The job of this kind with this key; `None` if there are no jobs of that kind.
    pub(super) fn of_kind(kind: &str, key: ObjectKey) -> Option<Self> {
        match kind {
            "RayService" => Some(Self::RayService(key)),
            "RayCluster" => Some(Self::RayCluster(key)),
            "RayJob" => Some(Self::RayJob(key)),
            "Job" => Some(Self::BatchJob(key)),
            _ => None,
        }
    }
}

/// The RayService that a RayCluster belongs to.
pub(super) fn service_of_cluster(world: &World, cluster: &ObjectKey) -> Option<ObjectKey> {
    world.ray_clusters.get(cluster).and_then(|cluster| controller(cluster.as_ref(), "RayService"))
}

/// The object of a cluster, unless it is gone.
pub(super) fn existing_cluster<'a>(world: &'a World, cluster: &MemberId) -> Option<&'a Arc<RayCluster>> {
    world.ray_clusters.get(&cluster.key).filter(|known| known.metadata.uid.as_ref() == Some(&cluster.uid))
}

pub(super) fn job_of(workload: &Workload) -> Option<JobKey> {
    let owner = workload.owner_references().iter().find(|owner| owner.controller == Some(true))?;
    JobKey::of_kind(&owner.kind, ObjectKey::new(workload.namespace().unwrap_or_default(), owner.name.clone()))
}

/// The controlling owner of this kind, by its name.
pub(super) fn controller<K: Resource>(object: &K, kind: &str) -> Option<ObjectKey> {
    let owner = world::controller(object, kind)?;
    Some(ObjectKey::new(object.meta().namespace.clone().unwrap_or_default(), owner.name.clone()))
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
            Planner::Job(JobKey::RayJob(key)) => {
                Some(Note::warning(self.world.ray_jobs.get(key)?.as_ref(), &reason, message))
            }
            Planner::Job(JobKey::BatchJob(key)) => {
                Some(Note::warning(self.world.batch_jobs.get(key)?.as_ref(), &reason, message))
            }
            Planner::Workload(key) => Some(Note::warning(self.world.workloads.get(key)?.as_ref(), &reason, message)),
            Planner::ClusterQueue(_) | Planner::Cohort(_) | Planner::ResourceFlavor(_) | Planner::LocalQueue(_) => None,
        }
    }

    fn plan_workload(&mut self, key: &ObjectKey, now: Timestamp) -> Plan {
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
        let clusters: Vec<MemberId> = members.iter().map(|member| cluster_of(&key.namespace, member)).collect();
        let is_used = clusters.iter().any(|cluster| self.has_pods(&cluster.uid))
            || clusters.iter().any(|cluster| self.has_nothing_but(workload, cluster));
        let mut plan = jobframework::release(workload, is_used);
        // A gate that is being opened just now counts as open.
        let opened = clusters.iter().filter_map(|cluster| existing_cluster(&self.world, cluster));
        let opened: Vec<ObjectRef> = opened.map(|cluster| ObjectRef::of(cluster.as_ref())).collect();
        plan.writes = plan.writes.into_iter().map(|write| write.while_quiet(opened.clone())).collect();
        plan
    }

    /// Whether a cluster may run pods, and no other slice than this pays for them. Its gate is closed before the slice goes.
    fn has_nothing_but(&self, slice: &Workload, cluster: &MemberId) -> bool {
        let Some(cluster) = existing_cluster(&self.world, cluster) else { return false };
        let (_, managed) = self.charged(cluster);
        let is_going = cluster.metadata.deletion_timestamp.is_some();
        let is_open = cluster.spec.suspend != Some(true) && !is_going && managed != Managed::No;
        let job = slice.owner_references().iter().find(|owner| owner.controller == Some(true));
        let of_job = self.workloads_of(job.map(|job| job.uid.as_str()).unwrap_or_default());
        is_open && slices::covering(&slices::slices_of(of_job)).is_none()
    }

    /// Whether its job is about to change a slice, or to delete it: what it was made for may be gone, and it would take the place
    /// of the slice that pays for what runs.
    fn is_outdated(&self, slice: &Workload, now: Timestamp) -> bool {
        let writes = job_of(slice).map(|job| self.plan_job(&job, now).writes).unwrap_or_default();
        writes.iter().any(|write| write.target == ObjectRef::of(slice))
    }

    fn plan_ray_service(&self, key: &ObjectKey, now: Timestamp) -> Plan {
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
        let serve_service = ObjectKey::new(key.namespace.clone(), serve_service_name(service));
        let observed =
            children.iter().filter_map(|child| Some((child.name_any(), self.serve.get(&ObjectKey::of(*child))?)));
        rayservice::plan(&rayservice::View {
            service,
            goal,
            head_pods: head_pods.collect(),
            services: self.world.services.under(&owned_by(&uid)).map(AsRef::as_ref).collect(),
            endpoint_slices: self.world.endpoint_slices.under(&serve_service).map(AsRef::as_ref).collect(),
            ways: self.ways(service, &children),
            worker_pods: children.iter().map(|child| (child.name_any(), self.worker_pods(child))).collect(),
            serve: observed.collect(),
            kept: children.iter().flat_map(|child| self.kept_configs(child)).collect(),
            gated: managed != Managed::No,
            upgrades: self.habits.upgrades,
            children,
            now,
        })
    }

    /// The ways in by which the clusters of a service get traffic in shares.
    pub(super) fn ways(&self, service: &RayService, children: &[&RayCluster]) -> Ways<'_> {
        let namespace = service.namespace().unwrap_or_default();
        let key = |name: String| ObjectKey::new(namespace.clone(), name);
        let class = ways::class_name(service);
        let backends = || children.iter().map(|child| key(raycluster::names::serve_service(child)));
        let (of_gateway, gateway) = ways::gateway_place(service);
        let named = route_name(service);
        let route = |name: String| self.world.http_routes.get(&key(name)).map(AsRef::as_ref);
        let routes: Vec<&HTTPRoute> = route_names(service).into_iter().filter_map(route).collect();
        let is_of_others = |name: &String| {
            let there = self.world.services.get(&key(name.clone()));
            let owner = there.and_then(|there| controller(there.as_ref(), "RayCluster"));
            there.is_some() && !children.iter().any(|child| owner == Some(ObjectKey::of(*child)))
        };
        let mentioned = routes.iter().flat_map(|route| routes::backends(route)).map(|backend| backend.name.clone());
        Ways {
            gateway: self.world.gateways.get(&ObjectKey::new(of_gateway, gateway)).map(AsRef::as_ref),
            gateway_class: class
                .and_then(|class| self.world.gateway_classes.get(&ObjectKey::global(class)))
                .map(AsRef::as_ref),
            own: Own::of(service, children, mentioned.filter(is_of_others).collect()),
            route: route(named.clone()),
            former: routes.into_iter().filter(|route| route.name_any() != named).collect(),
            services: backends().filter_map(|key| self.world.services.get(&key)).map(AsRef::as_ref).collect(),
            endpoint_slices: backends()
                .flat_map(|key| self.world.endpoint_slices.under(&key).map(AsRef::as_ref).collect::<Vec<_>>())
                .collect(),
        }
    }

    /// The worker pods of a cluster; those that have ended, or wait for quota, don't count.
    fn worker_pods(&self, cluster: &RayCluster) -> Vec<&Pod> {
        let is_head = |pod: &Pod| pod.labels().get(names::GROUP_LABEL).is_some_and(|group| group == names::HEAD_GROUP);
        self.pods_of(cluster).into_iter().filter(|pod| is_live(pod) && !is_head(pod)).collect()
    }

    /// The Serve configurations that are kept for a cluster.
    fn kept_configs(&self, cluster: &RayCluster) -> impl Iterator<Item = Kept<'_>> {
        let uid = cluster.metadata.uid.as_deref().unwrap_or_default();
        let objects = self.world.controller_revisions.under(&owned_by(uid)).map(AsRef::as_ref);
        objects.filter_map(|object| Some(Kept { object, config: self.specs.serve_config(&ObjectKey::of(object))? }))
    }

    fn plan_ray_cluster(&self, key: &ObjectKey, now: Timestamp) -> Plan {
        let Some(cluster) = self.world.ray_clusters.get(key) else { return Plan::default() };
        let Some(makeup) = self.specs.makeup(key) else { return Plan::default() };
        if is_standalone(cluster) && self.managed_cluster(cluster) == Managed::Held(Hold::Default) {
            // With a status it would count as begun, and come into no queue if the name of that can't be written just now.
            return Plan::default();
        }
        let footing = self.footing(cluster);
        // So that what runs is looked after though the spec makes no sense.
        let last_good =
            || self.history(cluster).in_effect(cluster, footing.revision()).filter(|_| makeup.groups.is_err());
        let mut plan = match footing.looked_after_as().cloned().or_else(last_good) {
            Some(earlier) => {
                let as_earlier = Makeup::of(&earlier, self.halves.ray_operator);
                let rejected = makeup.groups.as_ref().err().map(Vec::as_slice).unwrap_or_default();
                self.plan_pods(&earlier, &as_earlier, rejected, &footing, now)
            }
            None => self.plan_pods(cluster, makeup, &[], &footing, now),
        };
        let is_ours = is_standalone(cluster) && !is_managed_elsewhere(cluster.spec.managed_by.as_deref());
        if is_ours && makeup.groups.is_ok() && cluster.metadata.deletion_timestamp.is_none() {
            self.history(cluster).plan(cluster, &makeup.essence, &self.pods_of(cluster), &mut plan);
        }
        plan
    }

    fn plan_pods(
        &self,
        cluster: &RayCluster,
        makeup: &Makeup,
        rejected: &[Problem],
        footing: &Footing,
        now: Timestamp,
    ) -> Plan {
        let uid = cluster.uid().unwrap_or_default();
        let namespace = cluster.namespace().unwrap_or_default();
        let Quota { grant, marks, payer } = self.quota(cluster, &makeup.wanted, footing);
        raycluster::plan(&raycluster::View {
            cluster,
            groups: &makeup.groups,
            rejected,
            task: footing.task(),
            revision: footing.revision().clone(),
            pods: self.pods_of(cluster),
            arriving: self.arriving.made(&uid),
            setback: self.setbacks.of(&ObjectKey::of(cluster)),
            trims_autoscaled: self.habits.trims_autoscaled,
            services: self.world.services.under(&owned_by(&uid)).map(AsRef::as_ref).collect(),
            ingress: self
                .world
                .ingresses
                .get(&ObjectKey::new(namespace, raycluster::names::ingress(cluster)))
                .map(AsRef::as_ref),
            access: self.access(cluster),
            token: self.token(cluster),
            cleanup: self.cleanup(cluster),
            shares_storage_with: self.shares_storage_with(cluster),
            grant,
            marks,
            payer,
            now,
        })
    }

    /// The Job that deletes what a cluster has kept in a Redis.
    fn cleanup(&self, cluster: &RayCluster) -> Option<&BatchJob> {
        let name = raycluster::names::redis_cleanup(cluster);
        let mut own = self.world.batch_jobs.under(&owned_by(cluster.metadata.uid.as_deref().unwrap_or_default()));
        own.find(|job| job.name_any() == name).map(AsRef::as_ref)
    }

    /// A cluster that lives on and may keep its state where this one, which is to be deleted, does.
    fn shares_storage_with(&self, cluster: &RayCluster) -> Option<String> {
        cluster.metadata.deletion_timestamp.as_ref()?;
        let mut living =
            self.world.ray_clusters.iter().filter(|(_, other)| other.metadata.deletion_timestamp.is_none());
        let may_keep =
            |other: &RayCluster| other.finalizers().iter().any(|held| held == names::REDIS_CLEANUP_FINALIZER);
        let shares = living.find(|(_, other)| may_keep(other) && fault_tolerance::share_storage(cluster, other));
        shares.map(|(key, _)| key.to_string())
    }

    /// What is known of the Secret that is made for the token of a cluster.
    fn token(&self, cluster: &RayCluster) -> Token {
        let uid = cluster.metadata.uid.as_deref().unwrap_or_default();
        let Some(name) = raycluster::auth::own_secret(cluster) else { return Token::Kept };
        match self.world.secrets.get(&ObjectKey::new(cluster.namespace().unwrap_or_default(), name)) {
            None => Token::Missing(self.tokens.token(uid)),
            Some(secret) => match world::controller(secret.as_ref(), "RayCluster") {
                // One of a cluster that lives has a name that was clipped to the same: they share it, as KubeRay's would.
                Some(owner) if owner.uid != uid && !self.lives(cluster, owner) => Token::Taken,
                _ => Token::Kept,
            },
        }
    }

    /// Whether the owner of something beside a cluster is there.
    fn lives(&self, cluster: &RayCluster, owner: &OwnerReference) -> bool {
        let key = ObjectKey::new(cluster.namespace().unwrap_or_default(), owner.name.clone());
        self.world.ray_clusters.get(&key).is_some_and(|known| known.metadata.uid.as_ref() == Some(&owner.uid))
    }

    fn access(&self, cluster: &RayCluster) -> Access {
        let key = |name: String| ObjectKey::new(cluster.namespace().unwrap_or_default(), name);
        let by_name = key(raycluster::names::access(cluster));
        Access {
            account: self.world.service_accounts.get(&key(raycluster::names::head_account(cluster))).is_some(),
            role: self.world.roles.get(&by_name).is_some(),
            binding: self.world.role_bindings.get(&by_name).is_some(),
        }
    }

    /// The uid of the job that a cluster is a part of, and whether that is the queue's to manage.
    fn charged(&self, cluster: &RayCluster) -> (Option<String>, Managed) {
        let service = controller(cluster, "RayService").and_then(|key| self.world.ray_services.get(&key));
        match service {
            Some(service) => (service.uid(), self.managed_service(service)),
            None if is_standalone(cluster) => (cluster.uid(), self.managed_cluster(cluster)),
            None => (None, Managed::No),
        }
    }

    /// How many pods of a cluster are paid for, and what they are to be told, by group. The operator asks here and not only the
    /// cluster's own gate, so that a gate that somebody opened by hand lets no pod through.
    fn quota(&self, cluster: &RayCluster, wanted: &Arc<Groups>, footing: &Footing) -> Quota {
        let (job_uid, managed) = self.charged(cluster);
        if managed == Managed::No {
            return Quota { grant: Grant::Ungated, marks: BTreeMap::new(), payer: None };
        }
        let slices = slices::slices_of(self.workloads_of(&job_uid.unwrap_or_default()));
        let slice = slices::covering(&slices);
        let share = revision::share(cluster.metadata.uid.as_deref().unwrap_or_default(), footing.revision());
        let member = member(cluster, share, &Pods::default(), wanted.clone(), &Molds::default());
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

    pub(super) fn placement(&self, flavors: &BTreeSet<String>) -> Placement {
        let mut placement = Placement::default();
        let known = flavors.iter().filter_map(|name| self.world.resource_flavors.get(&ObjectKey::global(name)));
        for flavor in known {
            placement.node_labels.extend(flavor.spec.node_labels.clone());
            placement.tolerations.extend(flavor.spec.tolerations.clone());
        }
        placement
    }

    /// Whether the member with this uid has pods that run or may run, or may have by now.
    fn has_pods(&self, member: &str) -> bool {
        let has = |maker: &str| self.pods_under(maker).into_iter().any(is_live) || !self.arriving.of(maker).is_empty();
        has(member) || self.makers_under(&owned_by(member)).any(has)
    }

    /// The groups of pods that a cluster wants.
    pub(super) fn wants(&self, cluster: &RayCluster) -> Arc<Groups> {
        let unseen = || Arc::new(Err(format!("RayCluster {} was not seen yet", cluster.name_any())));
        self.specs.makeup(&ObjectKey::of(cluster)).map_or_else(unseen, |makeup| makeup.wanted.clone())
    }

    fn pods_of(&self, cluster: &RayCluster) -> Vec<&Pod> {
        self.pods_under(cluster.metadata.uid.as_deref().unwrap_or_default())
    }

    /// The pods of the member with this uid, and those that may be there by now.
    pub(super) fn all_pods(&self, member: &str) -> Pods<'_> {
        Pods { seen: self.pods_under(member), arriving: self.arriving.of(member) }
    }

    /// The pods of the cluster with this uid.
    fn pods_under(&self, cluster: &str) -> Vec<&Pod> {
        self.world.pods.under(&owned_by(cluster)).map(AsRef::as_ref).collect()
    }
}
