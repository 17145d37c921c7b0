//! Planners of the engine, and the observed state that each of them receives.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use jiff::Timestamp;
use k8s_openapi::api::batch::v1::Job as BatchJob;
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kube_core::ResourceExt;

use super::ancestors::JobOfCluster;
use super::cluster_state::{self, owner_key};
use super::owners::{controller_key, is_standalone, owning_job_key};
use super::planner_key::{JobKey, PlannerKey};
use super::priorities;
use super::recreate::RecreateState;
use super::slice_changes::changed_slices;
use super::spec_cache::ClusterSpecInfo;
use super::{Engine, WriteError, finalizers};
use sluice_api::gateway_api::HTTPRoute;
use sluice_api::kueue::Workload;
use sluice_api::ray::{RayCluster, RayService, is_managed_elsewhere, names};
use sluice_jobframework::managed::{HoldReason, ManagementState};
use sluice_jobframework::members::{MemberPods, is_live};
use sluice_jobframework::pod_classifier::KnownTemplates;
use sluice_jobframework::ray_cluster::cluster_member;
use sluice_jobframework::{DemandError, PodGroupDemands, slices};
use sluice_plan::ObjectKey;
use sluice_plan::{EventRecord, ObjectRef, Plan, Write};
use sluice_queue::PreemptiblePart;
use sluice_raycluster::auth::TokenSecret;
use sluice_raycluster::autoscaler_rbac::AutoscalerRbac;
use sluice_raycluster::{self as raycluster, FieldError, Grant, NodePlacement, PodSetInfo, fault_tolerance, revision};
use sluice_rayservice as rayservice;
use sluice_rayservice::incremental::gateway::{self, TrafficRouting};
use sluice_rayservice::incremental::http_route::{self, ServiceBackends, route_name, route_names};
use sluice_rayservice::serve_config_history::StoredServeConfig;
use sluice_rayservice::services::serve_service_name;

/// Pods of a cluster that the queue manager grants, and their scheduling directives.
struct ClusterGrant {
    grant: Grant,
    pod_set_infos: BTreeMap<String, PodSetInfo>,
    covering_slice: Option<ObjectRef>,
}

impl Engine {
    /// Runs one planner.
    pub(super) fn plan(&mut self, planner: &PlannerKey, now: Timestamp) -> Plan {
        match planner {
            PlannerKey::Job(job) => self.plan_job(job, now),
            PlannerKey::Workload(key) => self.plan_workload(key, now),
            PlannerKey::ClusterQueue(name) => self.queue_adapter.plan_cluster_queue(&self.cluster_state, name, now),
            PlannerKey::Cohort(name) => self.queue_adapter.plan_cohort(&self.cluster_state, name),
            PlannerKey::ResourceFlavor(name) => finalizers::plan_resource_flavor(&self.cluster_state, name),
            PlannerKey::LocalQueue(key) => self.queue_adapter.plan_local_queue(&self.cluster_state, key, now),
            PlannerKey::RayService(key) => self.plan_ray_service(key, now),
            PlannerKey::RayCluster(key) => self.plan_ray_cluster(key, now),
        }
    }

    /// Returns the Event about a failed write, on the object of its planner; `None` if that is
    /// deleted or its kind gets no such Events.
    pub(super) fn write_failure_event(
        &self,
        planner: &PlannerKey,
        write: &Write,
        error: &WriteError,
    ) -> Option<EventRecord> {
        let message = format!("{} of {} failed: {}", write.op.operation(), write.target, error.message);
        let reason = format!("FailedTo{}{}", write.op.event_verb(), write.target.kind);
        match planner {
            PlannerKey::RayService(key) | PlannerKey::Job(JobKey::RayService(key)) => {
                Some(EventRecord::warning(self.cluster_state.ray_services.get(key)?.as_ref(), &reason, message))
            }
            PlannerKey::RayCluster(key) | PlannerKey::Job(JobKey::RayCluster(key)) => {
                Some(EventRecord::warning(self.cluster_state.ray_clusters.get(key)?.as_ref(), &reason, message))
            }
            PlannerKey::Job(JobKey::RayJob(key)) => {
                Some(EventRecord::warning(self.cluster_state.ray_jobs.get(key)?.as_ref(), &reason, message))
            }
            PlannerKey::Job(JobKey::BatchJob(key)) => {
                Some(EventRecord::warning(self.cluster_state.batch_jobs.get(key)?.as_ref(), &reason, message))
            }
            PlannerKey::Workload(key) => {
                Some(EventRecord::warning(self.cluster_state.workloads.get(key)?.as_ref(), &reason, message))
            }
            PlannerKey::ClusterQueue(_)
            | PlannerKey::Cohort(_)
            | PlannerKey::ResourceFlavor(_)
            | PlannerKey::LocalQueue(_) => None,
        }
    }

    fn plan_workload(&mut self, key: &ObjectKey, now: Timestamp) -> Plan {
        let Some(workload) = self.cluster_state.workloads.get(key).cloned() else {
            self.jobs_gone_since.remove(key);
            return Plan::default();
        };
        let workload = workload.as_ref();
        if workload.metadata.deletion_timestamp.is_none() {
            let deadline = self.collection_deadline(workload, now);
            if deadline.is_some_and(|deadline| deadline <= now)
                && let Some(plan) = self.plan_uncollected_workload(workload, now)
            {
                return plan;
            }
            if let Some(plan) = self.plan_orphaned_workload(workload, now) {
                return plan;
            }
            if let Some(plan) = self.plan_finished_workload(workload, now) {
                return plan;
            }
            if let Some(write) = priorities::sync_priority(&self.cluster_state, workload) {
                // The priority orders the queue, so it is written before a decision.
                return Plan { writes: vec![write], ..Plan::default() };
            }
            if self.queue_adapter.admits(key) && self.withhold_if_outdated(workload, now) {
                // It runs again once its job plans no more changes to it.
                return Plan::default();
            }
            let mut plan = self.queue_adapter.plan_workload(&self.cluster_state, workload, now);
            if let Some(deadline) = deadline.filter(|deadline| now < *deadline) {
                plan.wake_by(deadline);
            }
            return plan;
        }
        let release = self.plan_terminating_workload(key, workload);
        if !release.writes.is_empty() {
            return release;
        }
        // Its job may run on it, so the queue may evict it.
        self.queue_adapter.plan_workload(&self.cluster_state, workload, now)
    }

    /// Withholds a slice until the next plan of its job if the job plans to change or delete it;
    /// reports whether the slice is withheld. The demand of such a slice may be obsolete, and its
    /// admission would replace the slice that covers the running pods.
    fn withhold_if_outdated(&mut self, slice: &Workload, now: Timestamp) -> bool {
        let Some(job) = owning_job_key(slice).or_else(|| self.adoptive_job_key(slice)) else { return false };
        let key = ObjectKey::of(slice);
        if self.work_queue.is_enqueued(&PlannerKey::Job(job.clone())) {
            // A backoff holds the job, which has changed since its last plan.
            let is_outdated = changed_slices(&self.plan_job(&job, now).writes).contains(&key);
            if is_outdated {
                self.slice_changes.withhold(job, key);
            }
            return is_outdated;
        }
        self.slice_changes.includes(&job, &key)
    }

    fn plan_ray_service(&self, key: &ObjectKey, now: Timestamp) -> Plan {
        let Some(service) = self.cluster_state.ray_services.get(key) else { return Plan::default() };
        let Some(desired) = self.spec_cache.desired_service(key) else { return Plan::default() };
        let uid = service.uid().unwrap_or_default();
        let children: Vec<&RayCluster> = self.children_of_service(service).collect();
        let managed = self.managed_service(service);
        if matches!(managed, ManagementState::OnHold(_))
            && children.is_empty()
            && service.metadata.deletion_timestamp.is_none()
        {
            // A service with clusters is reconciled even so: it can no longer join a queue.
            return Plan::default();
        }
        let head_pods = children.iter().flat_map(|child| self.pods_of_cluster(child));
        let head_pods = head_pods
            .filter(|pod| pod.labels().get(names::GROUP_LABEL).is_some_and(|group| group == names::HEAD_GROUP));
        let serve_service = ObjectKey::new(key.namespace.clone(), serve_service_name(service));
        let observed = children
            .iter()
            .filter_map(|child| Some((child.name_any(), self.serve_observations.get(&ObjectKey::of(*child))?)));
        rayservice::plan(&rayservice::ObservedService {
            service,
            desired,
            head_pods: head_pods.collect(),
            services: self.cluster_state.services.by_index(&owner_key(&uid)).map(AsRef::as_ref).collect(),
            endpoint_slices: self.cluster_state.endpoint_slices.by_index(&serve_service).map(AsRef::as_ref).collect(),
            routing: self.traffic_routing(service, &children),
            worker_pods: children.iter().map(|child| (child.name_any(), self.live_worker_pods(child))).collect(),
            serve_observations: observed.collect(),
            stored_configs: children.iter().flat_map(|child| self.stored_serve_configs(child)).collect(),
            is_queued: managed.needs_quota(),
            default_zero_downtime: self.operator_config.default_zero_downtime,
            clusters: children,
            now,
        })
    }

    /// Returns the gateway objects that split the traffic of a service between its clusters.
    pub(super) fn traffic_routing(&self, service: &RayService, children: &[&RayCluster]) -> TrafficRouting<'_> {
        let namespace = service.namespace().unwrap_or_default();
        let key = |name: String| ObjectKey::new(namespace.clone(), name);
        let class = gateway::gateway_class_name(service);
        let backends = || children.iter().map(|child| key(raycluster::names::serve_service(child)));
        let (of_gateway, gateway) = gateway::gateway_namespaced_name(service);
        let named = route_name(service);
        let route = |name: String| self.cluster_state.http_routes.get(&key(name)).map(AsRef::as_ref);
        let routes: Vec<&HTTPRoute> = route_names(service).into_iter().filter_map(route).collect();
        // Existing Services that belong to no cluster of this RayService are user-provided
        // backends.
        let is_user_provided = |name: &String| {
            let service = self.cluster_state.services.get(&key(name.clone()));
            let owner = service.and_then(|service| controller_key(service.as_ref(), "RayCluster"));
            service.is_some() && !children.iter().any(|child| owner == Some(ObjectKey::of(*child)))
        };
        let mentioned =
            routes.iter().flat_map(|route| http_route::backend_refs(route)).map(|backend| backend.name.clone());
        TrafficRouting {
            gateway: self.cluster_state.gateways.get(&ObjectKey::new(of_gateway, gateway)).map(AsRef::as_ref),
            gateway_class: class
                .and_then(|class| self.cluster_state.gateway_classes.get(&ObjectKey::global(class)))
                .map(AsRef::as_ref),
            backends: ServiceBackends::new(service, children, mentioned.filter(is_user_provided).collect()),
            route: route(named.clone()),
            previous_routes: routes.into_iter().filter(|route| route.name_any() != named).collect(),
            backend_services: backends()
                .filter_map(|key| self.cluster_state.services.get(&key))
                .map(AsRef::as_ref)
                .collect(),
            backend_endpoint_slices: backends()
                .flat_map(|key| {
                    self.cluster_state.endpoint_slices.by_index(&key).map(AsRef::as_ref).collect::<Vec<_>>()
                })
                .collect(),
        }
    }

    /// Returns the worker pods of a cluster, without ended and gated ones.
    fn live_worker_pods(&self, cluster: &RayCluster) -> Vec<&Pod> {
        let is_head = |pod: &Pod| pod.labels().get(names::GROUP_LABEL).is_some_and(|group| group == names::HEAD_GROUP);
        self.pods_of_cluster(cluster).into_iter().filter(|pod| is_live(pod) && !is_head(pod)).collect()
    }

    /// Iterates over the Serve configurations stored for a cluster.
    fn stored_serve_configs(&self, cluster: &RayCluster) -> impl Iterator<Item = StoredServeConfig<'_>> {
        let uid = cluster.metadata.uid.as_deref().unwrap_or_default();
        let objects = self.cluster_state.controller_revisions.by_index(&owner_key(uid)).map(AsRef::as_ref);
        objects.filter_map(|object| {
            Some(StoredServeConfig { revision: object, config: self.spec_cache.serve_config(&ObjectKey::of(object))? })
        })
    }

    fn plan_ray_cluster(&self, key: &ObjectKey, now: Timestamp) -> Plan {
        let Some(cluster) = self.cluster_state.ray_clusters.get(key) else { return Plan::default() };
        let Some(spec_info) = self.spec_cache.cluster_info(key) else { return Plan::default() };
        if matches!(self.job_of_cluster(cluster), JobOfCluster::Itself)
            && self.managed_cluster(cluster) == ManagementState::OnHold(HoldReason::AssignDefaultQueue)
            && cluster.status.is_none()
        {
            // A status marks the cluster as started. If the write of the default queue name failed,
            // a started cluster would never join that queue.
            return Plan::default();
        }
        let state = self.recreate_state(cluster);
        // Under an invalid spec, running pods are reconciled by the last valid revision.
        let last_valid = || {
            self.revision_history(cluster)
                .effective_cluster(cluster, state.current_revision())
                .filter(|_| spec_info.pod_groups.is_err())
        };
        let mut plan = match state.effective_cluster().cloned().or_else(last_valid) {
            Some(earlier) => {
                let as_earlier = ClusterSpecInfo::from_cluster(&earlier, self.components.ray_operator);
                let rejected = spec_info.pod_groups.as_ref().err().map(Vec::as_slice).unwrap_or_default();
                self.plan_pods(&earlier, &as_earlier, rejected, &state, now)
            }
            None => self.plan_pods(cluster, spec_info, &[], &state, now),
        };
        let is_ours = is_standalone(cluster) && !is_managed_elsewhere(cluster.spec.managed_by.as_deref());
        if is_ours && spec_info.pod_groups.is_ok() && cluster.metadata.deletion_timestamp.is_none() {
            self.revision_history(cluster).plan(
                cluster,
                &spec_info.pod_affecting_spec,
                &self.pods_of_cluster(cluster),
                &mut plan,
            );
        }
        plan
    }

    fn plan_pods(
        &self,
        cluster: &RayCluster,
        spec_info: &ClusterSpecInfo,
        rejected: &[FieldError],
        state: &RecreateState,
        now: Timestamp,
    ) -> Plan {
        let uid = cluster.uid().unwrap_or_default();
        let namespace = cluster.namespace().unwrap_or_default();
        let ClusterGrant { grant, pod_set_infos, covering_slice } =
            self.cluster_grant(cluster, &spec_info.quota_groups, state);
        raycluster::plan(&raycluster::ClusterContext {
            cluster,
            groups: &spec_info.pod_groups,
            rejected_spec_errors: rejected,
            pod_policy: state.pod_policy(),
            revision: state.current_revision().clone(),
            pods: self.pods_of_cluster(cluster),
            expected_pods: self.writes.expected_pods(&uid),
            replica_failure: self.writes.reported_failure(&ObjectKey::of(cluster)),
            random_pod_delete: self.operator_config.random_pod_delete,
            services: self.cluster_state.services.by_index(&owner_key(&uid)).map(AsRef::as_ref).collect(),
            ingress: self
                .cluster_state
                .ingresses
                .get(&ObjectKey::new(namespace, raycluster::names::ingress(cluster)))
                .map(AsRef::as_ref),
            autoscaler_rbac: self.autoscaler_rbac(cluster),
            token_secret: self.auth_token(cluster),
            redis_cleanup_job: self.redis_cleanup_job(cluster),
            shares_storage_with: self.cluster_sharing_storage(cluster),
            grant,
            pod_set_infos,
            covering_slice,
            now,
        })
    }

    /// Returns the Job that deletes the state of a cluster from Redis.
    fn redis_cleanup_job(&self, cluster: &RayCluster) -> Option<&BatchJob> {
        let name = raycluster::names::redis_cleanup(cluster);
        let mut jobs =
            self.cluster_state.batch_jobs.by_index(&owner_key(cluster.metadata.uid.as_deref().unwrap_or_default()));
        jobs.find(|job| job.name_any() == name).map(AsRef::as_ref)
    }

    /// Returns the key of another live cluster that may store its state at the same place in Redis
    /// as this terminating one; `None` if there is none, or if this one is not terminating.
    fn cluster_sharing_storage(&self, cluster: &RayCluster) -> Option<String> {
        cluster.metadata.deletion_timestamp.as_ref()?;
        let mut living =
            self.cluster_state.ray_clusters.iter().filter(|(_, other)| other.metadata.deletion_timestamp.is_none());
        let has_state =
            |other: &RayCluster| other.finalizers().iter().any(|finalizer| finalizer == names::REDIS_CLEANUP_FINALIZER);
        let sharing = living.find(|(_, other)| has_state(other) && fault_tolerance::may_share_storage(cluster, other));
        sharing.map(|(key, _)| key.to_string())
    }

    /// Returns the state of the auth token Secret of a cluster.
    fn auth_token(&self, cluster: &RayCluster) -> TokenSecret {
        let uid = cluster.metadata.uid.as_deref().unwrap_or_default();
        let Some(name) = raycluster::auth::generated_secret(cluster) else { return TokenSecret::Available };
        match self.cluster_state.secrets.get(&ObjectKey::new(cluster.namespace().unwrap_or_default(), name)) {
            None => TokenSecret::Missing(self.token_key.token(uid)),
            Some(secret) => match cluster_state::controller_reference(secret.as_ref(), "RayCluster") {
                // Another live cluster whose name truncates to the same Secret name shares it, as
                // in KubeRay.
                Some(owner) if owner.uid != uid && !self.owner_exists(cluster, owner) => {
                    TokenSecret::OwnedByPredecessor
                }
                _ => TokenSecret::Available,
            },
        }
    }

    /// Reports whether the RayCluster that `owner` references, in the namespace of `cluster`,
    /// exists.
    fn owner_exists(&self, cluster: &RayCluster, owner: &OwnerReference) -> bool {
        let key = ObjectKey::new(cluster.namespace().unwrap_or_default(), owner.name.clone());
        self.cluster_state.ray_clusters.get(&key).is_some_and(|known| known.metadata.uid.as_ref() == Some(&owner.uid))
    }

    /// Returns which RBAC objects of the autoscaler exist.
    fn autoscaler_rbac(&self, cluster: &RayCluster) -> AutoscalerRbac {
        let key = |name: String| ObjectKey::new(cluster.namespace().unwrap_or_default(), name);
        let by_name = key(raycluster::names::autoscaler_rbac(cluster));
        AutoscalerRbac {
            service_account: self
                .cluster_state
                .service_accounts
                .get(&key(raycluster::names::head_service_account(cluster)))
                .is_some(),
            role: self.cluster_state.roles.get(&by_name).is_some(),
            role_binding: self.cluster_state.role_bindings.get(&by_name).is_some(),
        }
    }

    /// Returns the uid of the job whose slices cover a cluster, and whether that job is managed.
    pub(super) fn covering_job(&self, cluster: &RayCluster) -> (Option<String>, ManagementState) {
        match self.job_of_cluster(cluster) {
            JobOfCluster::Itself => (cluster.uid(), self.managed_cluster(cluster)),
            JobOfCluster::RayService(service) => (service.uid(), self.managed_service(service)),
            JobOfCluster::RayJob(job) => (job.uid(), self.managed_ray_job(job)),
            JobOfCluster::Former(uid) => (Some(uid.to_owned()), ManagementState::InQueue),
        }
    }

    /// Returns the pods of a cluster that quota covers, and their scheduling directives, by group.
    /// The operator checks this in addition to `spec.suspend`, so that a cluster unsuspended by
    /// hand starts no pods.
    fn cluster_grant(
        &self,
        cluster: &RayCluster,
        wanted: &Arc<PodGroupDemands>,
        state: &RecreateState,
    ) -> ClusterGrant {
        let (job_uid, managed) = self.covering_job(cluster);
        if !managed.needs_quota() {
            return ClusterGrant { grant: Grant::Ungated, pod_set_infos: BTreeMap::new(), covering_slice: None };
        }
        let slices = slices::slices_of(self.workloads_of(&job_uid.unwrap_or_default()));
        let slice = slices::covering(&slices);
        let share = revision::member_uid(cluster.metadata.uid.as_deref().unwrap_or_default(), state.current_revision());
        let member = cluster_member(cluster, share, &MemberPods::default(), wanted.clone(), &KnownTemplates::default());
        let earlier = slice.map(|slice| slice.outdated_pods(&member)).unwrap_or_default();
        let pod_set_infos = member.groups.iter().flatten().map(|group| {
            let share = slice.and_then(|slice| Some((slice, slice.record.member(&member.uid)?)));
            let covered = share.and_then(|(slice, share)| Some((slice, share.pod_set_of(&group.kind())?)));
            let info = PodSetInfo {
                shape: group.shape.clone(),
                pod_set: covered.map(|(_, pod_set)| pod_set.to_owned()),
                placement: covered.map(|(slice, name)| self.pod_set_info(&slice.flavors(name))).unwrap_or_default(),
                earlier_pods: earlier.get(&group.name).copied().unwrap_or(0),
            };
            (group.name.clone(), info)
        });
        let granted = slice.map(|slice| slice.granted_pods(&member)).unwrap_or_default();
        let takes_back = slice.is_some_and(|slice| slice.preempted_part == Some(PreemptiblePart::Replicas));
        ClusterGrant {
            grant: if takes_back { Grant::Reclaim(granted) } else { Grant::UpTo(granted) },
            pod_set_infos: pod_set_infos.collect(),
            covering_slice: slice.map(|slice| ObjectRef::of(slice.workload)),
        }
    }

    /// Merges the node labels and tolerations of the assigned flavors.
    pub(super) fn pod_set_info(&self, flavors: &BTreeSet<String>) -> NodePlacement {
        let mut placement = NodePlacement::default();
        let known = flavors.iter().filter_map(|name| self.cluster_state.resource_flavors.get(&ObjectKey::global(name)));
        for flavor in known {
            placement.node_labels.extend(flavor.spec.node_labels.clone());
            placement.tolerations.extend(flavor.spec.tolerations.clone());
        }
        placement
    }

    /// Reports whether the member with this uid has live or expected running pods.
    pub(super) fn may_run_pods(&self, member: &str) -> bool {
        let has_pods = |owner: &str| {
            self.observed_pods(owner).into_iter().any(is_live) || !self.writes.expected_running_pods(owner).is_empty()
        };
        has_pods(member) || self.pod_owner_uids(&owner_key(member)).any(has_pods)
    }

    /// Returns the pod groups that the spec of a cluster requests quota for.
    pub(super) fn spec_groups(&self, cluster: &RayCluster) -> Arc<PodGroupDemands> {
        let unobserved = || Arc::new(Err(DemandError::ClusterNotObserved { cluster: cluster.name_any() }));
        self.spec_cache
            .cluster_info(&ObjectKey::of(cluster))
            .map_or_else(unobserved, |spec_info| spec_info.quota_groups.clone())
    }

    fn pods_of_cluster(&self, cluster: &RayCluster) -> Vec<&Pod> {
        self.observed_pods(cluster.metadata.uid.as_deref().unwrap_or_default())
    }

    /// Returns the observed pods of the member with this uid, and those expected to run.
    pub(super) fn observed_and_expected_pods(&self, member: &str) -> MemberPods<'_> {
        MemberPods {
            observed: self.observed_pods(member),
            expected: self.writes.expected_running_pods(member),
            unanswered_ungatings: self.writes.unanswered_ungatings(member),
        }
    }

    /// Returns the observed pods of the owner with this uid.
    fn observed_pods(&self, cluster: &str) -> Vec<&Pod> {
        self.cluster_state.pods.by_index(&owner_key(cluster)).map(AsRef::as_ref).collect()
    }
}
