//! RayService as a job: its members are its RayClusters.

use std::collections::BTreeSet;

use k8s_openapi::api::core::v1::Service;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, ObjectMeta};
use kube_core::ResourceExt;

use super::ray_cluster::RayClusterJob;
use super::{Job, Leave, Member, report};
use sluice_api::gateway::HTTPRoute;
use sluice_api::ray::RayService;
use sluice_plan::{ObjectRef, Write};
use sluice_rayservice::incremental::routes::route_name;
use sluice_rayservice::services::serve_service_name;
use sluice_rayservice::{incremental, initializing};

/// Adapter of a RayService. Its RayClusters are its members and have no slices themselves.
pub struct RayServiceJob<'a> {
    /// The RayService.
    pub service: &'a RayService,
    /// RayClusters of the service.
    pub children: Vec<RayClusterJob<'a>>,
    /// Names of the RayClusters that requests are routed to.
    pub serving: BTreeSet<String>,
}

impl Job for RayServiceJob<'_> {
    fn reference(&self) -> ObjectRef {
        ObjectRef::of(self.service)
    }

    fn meta(&self) -> &ObjectMeta {
        &self.service.metadata
    }

    fn wants_to_run(&self) -> bool {
        let is_over = initializing::is_over(self.service);
        self.service.metadata.deletion_timestamp.is_none() && self.service.spec.suspend != Some(true) && !is_over
    }

    fn members(&self) -> Vec<Member> {
        let mut children: Vec<_> = self.children.iter().collect();
        children.sort_by_key(|child| (child.cluster.creation_timestamp(), child.cluster.name_any()));
        let mut members: Vec<Member> = children.into_iter().flat_map(Job::members).collect();
        if members.iter().any(|member| self.serving.contains(&member.name)) {
            members.iter_mut().for_each(|member| member.surge = !self.serving.contains(&member.name));
        }
        members
    }

    /// `spec.rayClusterConfig.suspend` stays true for the life of the service, so that each
    /// RayCluster that KubeRay creates from it starts suspended.
    fn hold_template_gate(&self) -> Option<Write> {
        if !self.wants_to_run() || self.service.spec.ray_cluster_config.suspend == Some(true) {
            return None;
        }
        let mut gated = self.service.clone();
        gated.spec.ray_cluster_config.suspend = Some(true);
        Write::patch(self.service, &gated)
    }

    fn set_open(&self, member: &str, open: bool) -> Option<Write> {
        self.children.iter().find(|child| child.cluster.name_any() == member)?.set_open(member, open)
    }

    fn next(&self) -> Option<String> {
        let pending = self.service.status.as_ref()?.pending_service_status.as_ref()?;
        let name = pending.ray_cluster_name.as_deref().filter(|name| !name.is_empty())?;
        self.children.iter().find(|child| child.cluster.name_any() == name)?.cluster.uid()
    }

    fn routed_by(&self) -> Vec<ObjectRef> {
        let namespace = self.service.namespace();
        let serve = ObjectRef::named::<Service>(namespace.clone(), serve_service_name(self.service));
        vec![serve, ObjectRef::named::<HTTPRoute>(namespace, route_name(self.service))]
    }

    fn keeps_what_it_holds(&self) -> bool {
        incremental::is_under_way(self.service)
    }

    fn release(&self, member: &str, pod: &str, leave: &Leave) -> Option<Write> {
        self.children.iter().find(|child| child.cluster.name_any() == member)?.release(member, pod, leave)
    }

    fn join(&self, queue: &str) -> Option<Write> {
        super::joined(self.service, queue)
    }

    fn conditions(&self) -> &[Condition] {
        self.service.status.as_ref().map(|status| status.conditions.as_slice()).unwrap_or_default()
    }

    fn show(&self, conditions: Vec<Condition>, gone: &[&str]) -> Option<Write> {
        if report::shows(self.conditions(), &conditions, gone) {
            return None;
        }
        let mut shown = self.service.status.clone().unwrap_or_default();
        report::show_in(&mut shown.conditions, conditions, gone);
        Write::patch_status(self.service, &shown)
    }
}
