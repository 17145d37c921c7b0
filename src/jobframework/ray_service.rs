//! RayService as a job: its members are its RayClusters.

use std::collections::BTreeSet;

use k8s_openapi::api::core::v1::Service;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, ObjectMeta};
use kube_core::ResourceExt;

use super::conditions;
use super::generic_job::{GenericJob, queue_name};
use super::ray_cluster::RayClusterAdapter;
use super::types::{Gate, Member, PodAssignment};
use sluice_api::condition;
use sluice_api::gateway_api::HTTPRoute;
use sluice_api::job_conditions::QUOTA_RESERVED;
use sluice_api::ray::RayService;
use sluice_api::ray::names::TEMPLATE_SUSPENDED_ANNOTATION;
use sluice_plan::{ObjectRef, Write};
use sluice_rayservice::incremental::http_route::route_name;
use sluice_rayservice::services::serve_service_name;
use sluice_rayservice::{incremental, initializing_timeout};

/// Adapter of a RayService. Its RayClusters are its members and have no slices themselves.
pub struct RayServiceAdapter<'a> {
    /// The RayService.
    pub service: &'a RayService,
    /// RayClusters of the service.
    pub clusters: Vec<RayClusterAdapter<'a>>,
    /// Names of the RayClusters that requests are routed to.
    pub serving_clusters: BTreeSet<String>,
}

impl GenericJob for RayServiceAdapter<'_> {
    fn reference(&self) -> ObjectRef {
        ObjectRef::of(self.service)
    }

    fn meta(&self) -> &ObjectMeta {
        &self.service.metadata
    }

    fn wants_to_run(&self) -> bool {
        let is_over = initializing_timeout::has_timed_out(self.service);
        self.service.metadata.deletion_timestamp.is_none() && self.service.spec.suspend != Some(true) && !is_over
    }

    fn members(&self) -> Vec<Member> {
        let mut children: Vec<_> = self.clusters.iter().collect();
        children.sort_by_key(|child| (child.cluster.creation_timestamp(), child.cluster.name_any()));
        let mut members: Vec<Member> = children.into_iter().flat_map(GenericJob::members).collect();
        if members.iter().any(|member| self.serving_clusters.contains(&member.name)) {
            members.iter_mut().for_each(|member| member.is_surge = !self.serving_clusters.contains(&member.name));
        }
        members
    }

    /// `spec.rayClusterConfig.suspend` stays true for the life of the service, so that each
    /// RayCluster that KubeRay creates from it starts suspended.
    fn suspend_template(&self) -> Option<Write> {
        if !self.wants_to_run() || self.service.spec.ray_cluster_config.suspend == Some(true) {
            return None;
        }
        let mut gated = self.service.clone();
        gated.spec.ray_cluster_config.suspend = Some(true);
        gated.annotations_mut().insert(TEMPLATE_SUSPENDED_ANNOTATION.to_owned(), "true".to_owned());
        Write::patch(self.service, &gated)
    }

    fn set_gate(&self, member: &str, gate: Gate) -> Option<Write> {
        self.clusters.iter().find(|child| child.cluster.name_any() == member)?.set_gate(member, gate)
    }

    fn pending_member(&self) -> Option<String> {
        let pending = self.service.status.as_ref()?.pending_service_status.as_ref()?;
        let name = pending.ray_cluster_name.as_deref().filter(|name| !name.is_empty())?;
        self.clusters.iter().find(|child| child.cluster.name_any() == name)?.cluster.uid()
    }

    fn routing_objects(&self) -> Vec<ObjectRef> {
        let namespace = self.service.namespace();
        let serve = ObjectRef::named::<Service>(namespace.clone(), serve_service_name(self.service));
        vec![serve, ObjectRef::named::<HTTPRoute>(namespace, route_name(self.service))]
    }

    fn retains_quota(&self) -> bool {
        incremental::is_in_progress(self.service)
    }

    fn ungate_pod(&self, member: &str, pod: &str, leave: &PodAssignment) -> Option<Write> {
        self.clusters.iter().find(|child| child.cluster.name_any() == member)?.ungate_pod(member, pod, leave)
    }

    /// The template of a service that was queued is no longer suspended: nothing would resume the
    /// RayClusters created from it. A service that was queued shows it in the annotation that came with
    /// the suspension, in a condition, or in the label of a RayCluster. RayClusters without a queue follow
    /// the template: they may have been created before it was changed.
    fn remove_gates(&self) -> Vec<Write> {
        let names_queue = |child: &&RayClusterAdapter<'_>| queue_name(&child.cluster.metadata).is_some();
        let was_queued = self.service.annotations().contains_key(TEMPLATE_SUSPENDED_ANNOTATION)
            || condition::get(self.conditions(), QUOTA_RESERVED).is_some()
            || self.clusters.iter().any(|child| names_queue(&child));
        let is_suspended = self.service.spec.ray_cluster_config.suspend == Some(true);
        if is_suspended && !was_queued {
            return Vec::new();
        }
        let mut opened = self.service.clone();
        if let Some(annotations) = &mut opened.metadata.annotations {
            annotations.remove(TEMPLATE_SUSPENDED_ANNOTATION);
        }
        if is_suspended {
            opened.spec.ray_cluster_config.suspend = None;
        }
        let template = Write::patch(self.service, &opened);
        let suspended = self.clusters.iter().filter(|child| child.cluster.spec.suspend == Some(true));
        let unqueued = suspended.filter(|child| !names_queue(child));
        let children = unqueued.filter_map(|child| child.set_gate(&child.cluster.name_any(), Gate::Open));
        template.into_iter().chain(children).collect()
    }

    fn assign_queue(&self, queue: &str) -> Option<Write> {
        super::generic_job::patch_queue_name(self.service, queue)
    }

    fn conditions(&self) -> &[Condition] {
        self.service.conditions()
    }

    fn set_conditions(&self, conditions: Vec<Condition>, gone: &[&str]) -> Option<Write> {
        if conditions::are_current(self.conditions(), &conditions, gone) {
            return None;
        }
        let mut shown = self.service.status.clone().unwrap_or_default();
        conditions::apply_to(&mut shown.conditions, conditions, gone);
        Write::patch_status(self.service, &shown)
    }
}
