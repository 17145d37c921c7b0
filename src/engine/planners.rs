//! Planner keys, and the observed state that each planner receives.

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

/// Interval at which the admission of an outdated slice is rechecked. A change of the slice itself
/// triggers its planner immediately.
const UNTIL_IN_LINE: SignedDuration = SignedDuration::from_secs(1);

/// Identifies one planner run. Planners due at the same time run in this order: quota before the
/// objects that depend on it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Planner {
    /// Status and finalizer of a Workload.
    Workload(ObjectKey),
    /// Suspension and slices of a job.
    Job(JobKey),
    /// Status and finalizer of a ClusterQueue.
    ClusterQueue(String),
    /// Status of a Cohort.
    Cohort(String),
    /// Finalizer of a ResourceFlavor.
    ResourceFlavor(String),
    /// Status of a LocalQueue.
    LocalQueue(ObjectKey),
    /// Operator reconciliation of a RayService.
    RayService(ObjectKey),
    /// Operator reconciliation of a RayCluster.
    RayCluster(ObjectKey),
}

/// Kind and key of a job.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum JobKey {
    RayService(ObjectKey),
    RayCluster(ObjectKey),
    RayJob(ObjectKey),
    BatchJob(ObjectKey),
}

impl Planner {
    /// Returns the RayCluster that this planner reconciles; `None` for any other planner.
    pub(super) fn ray_cluster(&self) -> Option<&ObjectKey> {
        match self {
            Self::RayCluster(key) => Some(key),
            _ => None,
        }
    }
}

impl JobKey {
    /// Returns the job of this kind with this key; `None` if `kind` is not a supported job kind.
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

/// Returns the RayService that owns a RayCluster.
pub(super) fn service_of_cluster(world: &World, cluster: &ObjectKey) -> Option<ObjectKey> {
    world.ray_clusters.get(cluster).and_then(|cluster| controller(cluster.as_ref(), "RayService"))
}

/// Returns the RayCluster with this identity; `None` if it is deleted.
pub(super) fn existing_cluster<'a>(world: &'a World, cluster: &MemberId) -> Option<&'a Arc<RayCluster>> {
    world.ray_clusters.get(&cluster.key).filter(|known| known.metadata.uid.as_ref() == Some(&cluster.uid))
}

/// Returns the job that owns a Workload; `None` if its controller is of an unsupported kind.
pub(super) fn job_of(workload: &Workload) -> Option<JobKey> {
    let owner = workload.owner_references().iter().find(|owner| owner.controller == Some(true))?;
    JobKey::of_kind(&owner.kind, ObjectKey::new(workload.namespace().unwrap_or_default(), owner.name.clone()))
}

/// Returns the key of the controlling owner of this kind.
pub(super) fn controller<K: Resource>(object: &K, kind: &str) -> Option<ObjectKey> {
    let owner = world::controller(object, kind)?;
    Some(ObjectKey::new(object.meta().namespace.clone().unwrap_or_default(), owner.name.clone()))
}

/// Reports whether a RayCluster has no controlling owner.
pub(super) fn is_standalone(cluster: &RayCluster) -> bool {
    !cluster.owner_references().iter().any(|owner| owner.controller == Some(true))
}

/// Pods of a cluster that the queue manager grants, and their scheduling directives.
struct Quota {
    grant: Grant,
    marks: BTreeMap<String, Mark>,
    payer: Option<ObjectRef>,
}

impl Engine {
    /// Runs one planner.
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

    /// Returns the Event about a failed write, on the object of its planner; `None` if that is
    /// deleted or its kind gets no such Events.
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
                // The priority orders the queue, so it is written before a decision.
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
        // A write in flight may be unsuspending a cluster on this quota: the release waits for it.
        let clusters = clusters.iter().filter_map(|cluster| existing_cluster(&self.world, cluster));
        let clusters: Vec<ObjectRef> = clusters.map(|cluster| ObjectRef::of(cluster.as_ref())).collect();
        plan.writes = plan.writes.into_iter().map(|write| write.while_quiet(clusters.clone())).collect();
        plan
    }

    /// Reports whether a cluster may run pods that no slice other than `slice` covers. Such a
    /// cluster is suspended before its slice is released.
    fn has_nothing_but(&self, slice: &Workload, cluster: &MemberId) -> bool {
        let Some(cluster) = existing_cluster(&self.world, cluster) else { return false };
        let (_, managed) = self.charged(cluster);
        let is_terminating = cluster.metadata.deletion_timestamp.is_some();
        let may_run = cluster.spec.suspend != Some(true) && !is_terminating && managed != Managed::No;
        let job = slice.owner_references().iter().find(|owner| owner.controller == Some(true));
        let of_job = self.workloads_of(job.map(|job| job.uid.as_str()).unwrap_or_default());
        may_run && slices::covering(&slices::slices_of(of_job)).is_none()
    }

    /// Reports whether the job of a slice plans to change or delete it. The demand of such a slice
    /// may be obsolete, and its admission would replace the slice that covers the running pods.
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
            // A service with clusters is reconciled even so: it can no longer join a queue.
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

    /// Returns the gateway objects that split the traffic of a service between its clusters.
    pub(super) fn ways(&self, service: &RayService, children: &[&RayCluster]) -> Ways<'_> {
        let namespace = service.namespace().unwrap_or_default();
        let key = |name: String| ObjectKey::new(namespace.clone(), name);
        let class = ways::class_name(service);
        let backends = || children.iter().map(|child| key(raycluster::names::serve_service(child)));
        let (of_gateway, gateway) = ways::gateway_place(service);
        let named = route_name(service);
        let route = |name: String| self.world.http_routes.get(&key(name)).map(AsRef::as_ref);
        let routes: Vec<&HTTPRoute> = route_names(service).into_iter().filter_map(route).collect();
        // Existing Services that belong to no cluster of this RayService are user-provided
        // backends.
        let is_user_provided = |name: &String| {
            let service = self.world.services.get(&key(name.clone()));
            let owner = service.and_then(|service| controller(service.as_ref(), "RayCluster"));
            service.is_some() && !children.iter().any(|child| owner == Some(ObjectKey::of(*child)))
        };
        let mentioned = routes.iter().flat_map(|route| routes::backends(route)).map(|backend| backend.name.clone());
        Ways {
            gateway: self.world.gateways.get(&ObjectKey::new(of_gateway, gateway)).map(AsRef::as_ref),
            gateway_class: class
                .and_then(|class| self.world.gateway_classes.get(&ObjectKey::global(class)))
                .map(AsRef::as_ref),
            own: Own::of(service, children, mentioned.filter(is_user_provided).collect()),
            route: route(named.clone()),
            former: routes.into_iter().filter(|route| route.name_any() != named).collect(),
            services: backends().filter_map(|key| self.world.services.get(&key)).map(AsRef::as_ref).collect(),
            endpoint_slices: backends()
                .flat_map(|key| self.world.endpoint_slices.under(&key).map(AsRef::as_ref).collect::<Vec<_>>())
                .collect(),
        }
    }

    /// Returns the worker pods of a cluster, without ended and gated ones.
    fn worker_pods(&self, cluster: &RayCluster) -> Vec<&Pod> {
        let is_head = |pod: &Pod| pod.labels().get(names::GROUP_LABEL).is_some_and(|group| group == names::HEAD_GROUP);
        self.pods_of(cluster).into_iter().filter(|pod| is_live(pod) && !is_head(pod)).collect()
    }

    /// Iterates over the Serve configurations stored for a cluster.
    fn kept_configs(&self, cluster: &RayCluster) -> impl Iterator<Item = Kept<'_>> {
        let uid = cluster.metadata.uid.as_deref().unwrap_or_default();
        let objects = self.world.controller_revisions.under(&owned_by(uid)).map(AsRef::as_ref);
        objects.filter_map(|object| Some(Kept { object, config: self.specs.serve_config(&ObjectKey::of(object))? }))
    }

    fn plan_ray_cluster(&self, key: &ObjectKey, now: Timestamp) -> Plan {
        let Some(cluster) = self.world.ray_clusters.get(key) else { return Plan::default() };
        let Some(makeup) = self.specs.makeup(key) else { return Plan::default() };
        if is_standalone(cluster) && self.managed_cluster(cluster) == Managed::Held(Hold::Default) {
            // A status marks the cluster as started. If the write of the default queue name failed,
            // a started cluster would never join that queue.
            return Plan::default();
        }
        let footing = self.footing(cluster);
        // Under an invalid spec, running pods are reconciled by the last valid revision.
        let last_valid =
            || self.history(cluster).in_effect(cluster, footing.revision()).filter(|_| makeup.groups.is_err());
        let mut plan = match footing.looked_after_as().cloned().or_else(last_valid) {
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

    /// Returns the Job that deletes the state of a cluster from Redis.
    fn cleanup(&self, cluster: &RayCluster) -> Option<&BatchJob> {
        let name = raycluster::names::redis_cleanup(cluster);
        let mut jobs = self.world.batch_jobs.under(&owned_by(cluster.metadata.uid.as_deref().unwrap_or_default()));
        jobs.find(|job| job.name_any() == name).map(AsRef::as_ref)
    }

    /// Returns the key of another live cluster that may store its state at the same place in Redis
    /// as this terminating one; `None` if there is none, or if this one is not terminating.
    fn shares_storage_with(&self, cluster: &RayCluster) -> Option<String> {
        cluster.metadata.deletion_timestamp.as_ref()?;
        let mut living =
            self.world.ray_clusters.iter().filter(|(_, other)| other.metadata.deletion_timestamp.is_none());
        let has_state =
            |other: &RayCluster| other.finalizers().iter().any(|finalizer| finalizer == names::REDIS_CLEANUP_FINALIZER);
        let sharing = living.find(|(_, other)| has_state(other) && fault_tolerance::share_storage(cluster, other));
        sharing.map(|(key, _)| key.to_string())
    }

    /// Returns the state of the auth token Secret of a cluster.
    fn token(&self, cluster: &RayCluster) -> Token {
        let uid = cluster.metadata.uid.as_deref().unwrap_or_default();
        let Some(name) = raycluster::auth::own_secret(cluster) else { return Token::Kept };
        match self.world.secrets.get(&ObjectKey::new(cluster.namespace().unwrap_or_default(), name)) {
            None => Token::Missing(self.tokens.token(uid)),
            Some(secret) => match world::controller(secret.as_ref(), "RayCluster") {
                // Another live cluster whose name truncates to the same Secret name shares it, as
                // in KubeRay.
                Some(owner) if owner.uid != uid && !self.lives(cluster, owner) => Token::Taken,
                _ => Token::Kept,
            },
        }
    }

    /// Reports whether the RayCluster that `owner` references, in the namespace of `cluster`,
    /// exists.
    fn lives(&self, cluster: &RayCluster, owner: &OwnerReference) -> bool {
        let key = ObjectKey::new(cluster.namespace().unwrap_or_default(), owner.name.clone());
        self.world.ray_clusters.get(&key).is_some_and(|known| known.metadata.uid.as_ref() == Some(&owner.uid))
    }

    /// Returns which RBAC objects of the autoscaler exist.
    fn access(&self, cluster: &RayCluster) -> Access {
        let key = |name: String| ObjectKey::new(cluster.namespace().unwrap_or_default(), name);
        let by_name = key(raycluster::names::access(cluster));
        Access {
            account: self.world.service_accounts.get(&key(raycluster::names::head_account(cluster))).is_some(),
            role: self.world.roles.get(&by_name).is_some(),
            binding: self.world.role_bindings.get(&by_name).is_some(),
        }
    }

    /// Returns the uid of the job that owns a cluster, and whether that job is managed. The uid is
    /// `None` for a cluster that belongs to neither a RayService nor itself.
    fn charged(&self, cluster: &RayCluster) -> (Option<String>, Managed) {
        let service = controller(cluster, "RayService").and_then(|key| self.world.ray_services.get(&key));
        match service {
            Some(service) => (service.uid(), self.managed_service(service)),
            None if is_standalone(cluster) => (cluster.uid(), self.managed_cluster(cluster)),
            None => (None, Managed::No),
        }
    }

    /// Returns the pods of a cluster that quota covers, and their scheduling directives, by group.
    /// The operator checks this in addition to `spec.suspend`, so that a cluster unsuspended by
    /// hand starts no pods.
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
            let covered = share.and_then(|(slice, share)| Some((slice, share.pod_set_of(&group.kind())?)));
            let mark = Mark {
                shape: group.shape.clone(),
                pod_set: covered.map(|(_, pod_set)| pod_set.to_owned()),
                placement: covered.map(|(slice, name)| self.placement(&slice.flavors(name))).unwrap_or_default(),
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

    /// Merges the node labels and tolerations of the assigned flavors.
    pub(super) fn placement(&self, flavors: &BTreeSet<String>) -> Placement {
        let mut placement = Placement::default();
        let known = flavors.iter().filter_map(|name| self.world.resource_flavors.get(&ObjectKey::global(name)));
        for flavor in known {
            placement.node_labels.extend(flavor.spec.node_labels.clone());
            placement.tolerations.extend(flavor.spec.tolerations.clone());
        }
        placement
    }

    /// Reports whether the member with this uid has live or expected running pods.
    fn has_pods(&self, member: &str) -> bool {
        let has_pods =
            |owner: &str| self.pods_under(owner).into_iter().any(is_live) || !self.arriving.of(owner).is_empty();
        has_pods(member) || self.makers_under(&owned_by(member)).any(has_pods)
    }

    /// Returns the pod groups that the spec of a cluster requests quota for.
    pub(super) fn wants(&self, cluster: &RayCluster) -> Arc<Groups> {
        let unobserved = || Arc::new(Err(format!("RayCluster {} has not been observed yet", cluster.name_any())));
        self.specs.makeup(&ObjectKey::of(cluster)).map_or_else(unobserved, |makeup| makeup.wanted.clone())
    }

    fn pods_of(&self, cluster: &RayCluster) -> Vec<&Pod> {
        self.pods_under(cluster.metadata.uid.as_deref().unwrap_or_default())
    }

    /// Returns the observed pods of the member with this uid, and those expected to run.
    pub(super) fn all_pods(&self, member: &str) -> Pods<'_> {
        Pods { seen: self.pods_under(member), arriving: self.arriving.of(member) }
    }

    /// Returns the observed pods of the owner with this uid.
    fn pods_under(&self, cluster: &str) -> Vec<&Pod> {
        self.world.pods.under(&owned_by(cluster)).map(AsRef::as_ref).collect()
    }
}
