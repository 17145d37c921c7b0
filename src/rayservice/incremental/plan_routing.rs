//! Plans the Gateway, the HTTPRoute and the backend Services of an incremental upgrade, with the
//! traffic share of each cluster.

use kube_core::ResourceExt;

use super::state_machine::{FULL, Percent, RolloutAction};
use super::{Rollout, directive, effective_options, gateway, http_route};
use crate::clusters::ServiceCluster;
use crate::ray_clusters::namespaced_name;
use crate::services::serve_service_name;
use crate::upgrade::UpgradeAction;
use crate::{ObservedService, ServiceContext, upgrade_failure};
use sluice_api::gateway_api::{BackendRef, HTTPRoute};
use sluice_api::ray::RayService;
use sluice_api::ray::incremental_annotations::{UPGRADE_DIRECTIVE_ANNOTATION, UpgradeDirective};
use sluice_api::ray::routing_annotations::{self, ADOPTED_ROUTE_ANNOTATION};
use sluice_plan::{EventRecord, ObjectRef, Plan, Write};

/// Plans the Gateway, the HTTPRoute and the backend Services of the clusters.
pub(crate) fn plan_routing(context: &ServiceContext<'_>, plan: &mut Plan) {
    let observed = context.observed;
    let Some(options) = effective_options(observed.service) else { return release_routes(observed, plan) };
    if let Some(class) = options.gateway_class.as_ref().filter(|_| gateway::manages_gateway(observed.service)) {
        plan_gateway(context, class, plan);
    }
    plan_backends(context, plan);
    observed.routing.previous_routes.iter().for_each(|route| point_at_serve_service(observed, route, plan));
    if record_adopted_route(observed, http_route::user_provided(observed.service), plan) {
        plan_route(context, plan);
    }
    wake_for_next_step(context, plan);
    remove_finished_promotion(context, plan);
}

/// Points all routes at the serve Service: those of a RayService that is deleted or no longer
/// upgraded incrementally.
pub(crate) fn release_routes(observed: &ObservedService<'_>, plan: &mut Plan) {
    observed
        .routing
        .route
        .iter()
        .chain(&observed.routing.previous_routes)
        .for_each(|route| point_at_serve_service(observed, route, plan));
    record_adopted_route(observed, None, plan);
}

/// Points a route at the serve Service, if it was created for the RayService or adopted by it.
fn point_at_serve_service(observed: &ObservedService<'_>, route: &HTTPRoute, plan: &mut Plan) {
    let (service, name) = (observed.service, serve_service_name(observed.service));
    let recorded = routing_annotations::adopted_http_route_name(&service.metadata);
    let is_ours = recorded == Some(route.name_any().as_str()) || http_route::is_owned_by_service(service, route);
    let Some(serve) = observed.services.iter().find(|there| there.name_any() == name).filter(|_| is_ours) else {
        return;
    };
    if observed.routing.backends.routes_to_clusters(route) {
        let backends = vec![http_route::backend_ref(serve, FULL)];
        let next = observed.routing.backends.split_weights(route, &backends);
        write_route(service, &next, Some(route), &backends, vec![ObjectRef::of(*serve)], plan);
    }
}

/// Records the user-provided route on the RayService before its backends are changed, and removes
/// the record only once they are restored. Returns true if the record is up to date.
fn record_adopted_route(observed: &ObservedService<'_>, wanted: Option<&str>, plan: &mut Plan) -> bool {
    let service = observed.service;
    let recorded = routing_annotations::adopted_http_route_name(&service.metadata);
    if recorded == wanted {
        return true;
    }
    let mut routes = observed.routing.route.into_iter().chain(observed.routing.previous_routes.iter().copied());
    let previous = recorded.and_then(|recorded| routes.find(|route| route.name_any() == recorded));
    if !previous.is_some_and(|route| observed.routing.backends.routes_to_clusters(route)) {
        let mut next = service.clone();
        match wanted {
            Some(route) => next.annotations_mut().insert(ADOPTED_ROUTE_ANNOTATION.to_owned(), route.to_owned()),
            None => next.annotations_mut().remove(ADOPTED_ROUTE_ANNOTATION),
        };
        plan.write(Write::patch(service, &next));
    }
    false
}

fn plan_gateway(context: &ServiceContext<'_>, class: &str, plan: &mut Plan) {
    let (service, current) = (context.observed.service, context.observed.routing.gateway);
    let wanted = gateway::desired_gateway(service, class, current);
    match current {
        None => {
            let text = format!("Created Gateway {}", namespaced_name(&wanted));
            plan.events
                .push(EventRecord::normal(service, "CreatedGateway", text).only_if_written(&ObjectRef::of(&wanted)));
            plan.write(Write::create(&wanted));
        }
        Some(current) => {
            let write = Write::patch(current, &wanted);
            if write.is_some() {
                let text = format!("Updated Gateway {}: class {class}, HTTP listener", namespaced_name(current));
                plan.events.push(
                    EventRecord::normal(service, "UpdatedGateway", text).only_if_written(&ObjectRef::of(current)),
                );
            }
            plan.write(write);
        }
    }
}

/// Returns the clusters that can receive traffic, each with its share in percent.
fn traffic_shares<'s>(context: &'s ServiceContext<'_>) -> Vec<(&'s ServiceCluster<'s>, Percent)> {
    let Some(active) = &context.clusters.active else { return Vec::new() };
    match (&context.rollout, context.pending_cluster()) {
        (Some(transition), Some(pending)) => {
            let (active_share, pending_share) = transition.shares_after_next_action();
            vec![(active, active_share.traffic), (pending, pending_share.traffic)]
        }
        _ => vec![(active, FULL)],
    }
}

fn plan_backends(context: &ServiceContext<'_>, plan: &mut Plan) {
    for (child, _) in traffic_shares(context) {
        let wanted = gateway::desired_backend_service(child.cluster);
        let routing = &context.observed.routing;
        match routing.backend_service(child.cluster) {
            // A Service of this name that the cluster does not own is left alone.
            None if routing.conflicting_service(child.cluster).is_some() => {}
            None => plan.write(Write::create(&wanted)),
            Some(current) => {
                let mut next = current.clone();
                let spec = next.spec.get_or_insert_default();
                spec.selector = wanted.spec.and_then(|wanted| wanted.selector);
                plan.write(Write::patch(current, &next));
            }
        }
    }
}

/// Plans the route once its Gateway exists and every share has a backend Service.
fn plan_route(context: &ServiceContext<'_>, plan: &mut Plan) {
    let (service, routing) = (context.observed.service, &context.observed.routing);
    let shares = traffic_shares(context);
    let backends = shares.iter().filter_map(|(child, share)| {
        let backend = routing.backend_service(child.cluster)?;
        Some(http_route::backend_ref(backend, *share))
    });
    let backends: Vec<BackendRef> = backends.collect();
    if backends.iter().filter_map(|backend| backend.weight).sum::<i32>() != i32::from(FULL) {
        return;
    }
    let next = match (http_route::user_provided(service), routing.route) {
        (Some(_), None) => return,
        // A route whose weights cannot be split keeps pointing at the serve Service.
        (Some(_), Some(route)) if backends.len() > 1 && routing.backends.split_obstacle(route).is_some() => return,
        (Some(_), Some(route)) => routing.backends.split_weights(route, &backends),
        (None, _) if routing.gateway.is_none() => return,
        (None, current) => http_route::desired_route(service, &routing.backends, &backends, current),
    };
    let blockers = shares.iter().map(|(child, _)| ObjectRef::of(child.cluster)).collect();
    write_route(service, &next, routing.route, &backends, blockers, plan);
}

fn write_route(
    service: &RayService,
    next: &HTTPRoute,
    current: Option<&HTTPRoute>,
    backends: &[BackendRef],
    blockers: Vec<ObjectRef>,
    plan: &mut Plan,
) {
    let text = backends.iter().map(|backend| format!("{}% to {}", backend.weight.unwrap_or(1), backend.name));
    let text = text.collect::<Vec<_>>().join(", ");
    let (reason, write) = match current {
        None => ("CreatedHTTPRoute", Some(Write::create(next))),
        Some(current) => ("UpdatedHTTPRoute", Write::patch(current, next)),
    };
    if let Some(write) = write {
        let text = format!("HTTPRoute {} routes {text}", namespaced_name(next));
        plan.events.push(EventRecord::normal(service, reason, text).only_if_written(&write.target));
        plan.write(write.blocked_while_in_flight(blockers));
    }
}

/// Removes the Promote directive once its upgrade has finished or failed, so that it does not apply
/// to the next one.
fn remove_finished_promotion(context: &ServiceContext<'_>, plan: &mut Plan) {
    let service = context.observed.service;
    let has_finished = context.clusters.active.is_some()
        && matches!(context.action, UpgradeAction::Keep | UpgradeAction::UpdateActive);
    let has_failed =
        context.desired.as_ref().is_ok_and(|desired| upgrade_failure::failure_reason(service, desired).is_some());
    if (has_finished || has_failed) && directive(service) == UpgradeDirective::Promote {
        let mut next = service.clone();
        next.annotations_mut().remove(UPGRADE_DIRECTIVE_ANNOTATION);
        plan.write(Write::patch(service, &next));
    }
}

/// Schedules the next plan for when the next step is due.
fn wake_for_next_step(context: &ServiceContext<'_>, plan: &mut Plan) {
    let next = context.rollout.as_ref().map(|Rollout { next_action: next, .. }| next);
    if let Some(Ok(RolloutAction::Wait(super::state_machine::WaitReason::Until(due)))) = next {
        plan.wake_by(*due);
    }
}
