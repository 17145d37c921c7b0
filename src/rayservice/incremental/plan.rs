//! Plans the Gateway, the HTTPRoute and the backend Services of an incremental upgrade, with the
//! traffic share of each cluster.

use kube_core::ResourceExt;

use super::machine::{Move, Percent, WHOLE};
use super::{Transition, options, routes, ways, wish};
use crate::children::place;
use crate::family::Child;
use crate::services::serve_service_name;
use crate::upgrade::Step;
use crate::{Scene, View, failed};
use sluice_api::gateway::{BackendRef, HTTPRoute};
use sluice_api::ray::RayService;
use sluice_api::ray::step_choices::{UPGRADE_ANNOTATION, Wish};
use sluice_api::ray::way_choices::{self, ADOPTED_ROUTE_ANNOTATION};
use sluice_plan::{Note, ObjectRef, Plan, Write};

/// Plans the Gateway, the HTTPRoute and the backend Services of the clusters.
pub(crate) fn plan(context: &Scene<'_>, plan: &mut Plan) {
    let observed = context.view;
    let Some(options) = options(observed.service) else { return release(observed, plan) };
    if let Some(class) = options.gateway_class.as_ref().filter(|_| ways::makes_gateway(observed.service)) {
        plan_gateway(context, class, plan);
    }
    plan_backends(context, plan);
    observed.ways.former.iter().for_each(|route| hand_over(observed, route, plan));
    if note_adopted(observed, routes::adopted(observed.service), plan) {
        plan_route(context, plan);
    }
    wake(context, plan);
    forget_promotion(context, plan);
}

/// Points all routes at the serve Service: those of a RayService that is deleted or no longer
/// upgraded incrementally.
pub(crate) fn release(observed: &View<'_>, plan: &mut Plan) {
    observed.ways.route.iter().chain(&observed.ways.former).for_each(|route| hand_over(observed, route, plan));
    note_adopted(observed, None, plan);
}

/// Points a route at the serve Service, if it was created for the RayService or adopted by it.
fn hand_over(observed: &View<'_>, route: &HTTPRoute, plan: &mut Plan) {
    let (service, name) = (observed.service, serve_service_name(observed.service));
    let recorded = way_choices::adopted_route(&service.metadata);
    let is_ours = recorded == Some(route.name_any().as_str()) || routes::is_made_for(service, route);
    let Some(serve) = observed.services.iter().find(|there| there.name_any() == name).filter(|_| is_ours) else {
        return;
    };
    if observed.ways.own.leads(route) {
        let backends = vec![routes::backend_ref(serve, WHOLE)];
        let next = observed.ways.own.divide(route, &backends);
        write_route(service, &next, Some(route), &backends, vec![ObjectRef::of(*serve)], plan);
    }
}

/// Records the user-provided route on the RayService before its backends are changed, and removes
/// the record only once they are restored. Returns true if the record is up to date.
fn note_adopted(observed: &View<'_>, wanted: Option<&str>, plan: &mut Plan) -> bool {
    let service = observed.service;
    let recorded = way_choices::adopted_route(&service.metadata);
    if recorded == wanted {
        return true;
    }
    let mut routes = observed.ways.route.into_iter().chain(observed.ways.former.iter().copied());
    let previous = recorded.and_then(|recorded| routes.find(|route| route.name_any() == recorded));
    if !previous.is_some_and(|route| observed.ways.own.leads(route)) {
        let mut next = service.clone();
        match wanted {
            Some(route) => next.annotations_mut().insert(ADOPTED_ROUTE_ANNOTATION.to_owned(), route.to_owned()),
            None => next.annotations_mut().remove(ADOPTED_ROUTE_ANNOTATION),
        };
        plan.write(Write::patch(service, &next));
    }
    false
}

fn plan_gateway(context: &Scene<'_>, class: &str, plan: &mut Plan) {
    let (service, current) = (context.view.service, context.view.ways.gateway);
    let wanted = ways::gateway(service, class, current);
    match current {
        None => {
            let text = format!("Created Gateway {}", place(&wanted));
            plan.notes.push(Note::normal(service, "CreatedGateway", text).of_write(&ObjectRef::of(&wanted)));
            plan.write(Write::create(&wanted));
        }
        Some(current) => {
            let write = Write::patch(current, &wanted);
            if write.is_some() {
                let text = format!("Updated Gateway {}: class {class}, HTTP listener", place(current));
                plan.notes.push(Note::normal(service, "UpdatedGateway", text).of_write(&ObjectRef::of(current)));
            }
            plan.write(write);
        }
    }
}

/// Returns the clusters that can receive traffic, each with its share in percent.
fn shares<'s>(context: &'s Scene<'_>) -> Vec<(&'s Child<'s>, Percent)> {
    let Some(active) = &context.family.active else { return Vec::new() };
    match (&context.transition, context.pending()) {
        (Some(transition), Some(pending)) => {
            let (active_share, pending_share) = transition.after();
            vec![(active, active_share.traffic), (pending, pending_share.traffic)]
        }
        _ => vec![(active, WHOLE)],
    }
}

fn plan_backends(context: &Scene<'_>, plan: &mut Plan) {
    for (child, _) in shares(context) {
        let wanted = ways::backend(child.cluster);
        let routing = &context.view.ways;
        match routing.backend(child.cluster) {
            // A Service of this name that the cluster does not own is left alone.
            None if routing.stranger(child.cluster).is_some() => {}
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
fn plan_route(context: &Scene<'_>, plan: &mut Plan) {
    let (service, routing) = (context.view.service, &context.view.ways);
    let shares = shares(context);
    let backends = shares.iter().filter_map(|(child, share)| {
        let backend = routing.backend(child.cluster)?;
        Some(routes::backend_ref(backend, *share))
    });
    let backends: Vec<BackendRef> = backends.collect();
    if backends.iter().filter_map(|backend| backend.weight).sum::<i32>() != i32::from(WHOLE) {
        return;
    }
    let next = match (routes::adopted(service), routing.route) {
        (Some(_), None) => return,
        // A route whose weights cannot be split keeps pointing at the serve Service.
        (Some(_), Some(route)) if backends.len() > 1 && routing.own.obstacle(route).is_some() => return,
        (Some(_), Some(route)) => routing.own.divide(route, &backends),
        (None, _) if routing.gateway.is_none() => return,
        (None, current) => routes::made(service, &routing.own, &backends, current),
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
        let text = format!("HTTPRoute {} routes {text}", place(next));
        plan.notes.push(Note::normal(service, reason, text).of_write(&write.target));
        plan.write(write.while_quiet(blockers));
    }
}

/// Removes the Promote directive once its upgrade has finished or failed, so that it does not apply
/// to the next one.
fn forget_promotion(context: &Scene<'_>, plan: &mut Plan) {
    let service = context.view.service;
    let has_finished = context.family.active.is_some() && matches!(context.step, Step::Keep | Step::UpdateActive);
    let has_failed = context.goal.as_ref().is_ok_and(|desired| failed::reason(service, desired).is_some());
    if (has_finished || has_failed) && wish(service) == Wish::Promote {
        let mut next = service.clone();
        next.annotations_mut().remove(UPGRADE_ANNOTATION);
        plan.write(Write::patch(service, &next));
    }
}

/// Schedules the next plan for when the next step is due.
fn wake(context: &Scene<'_>, plan: &mut Plan) {
    let next = context.transition.as_ref().map(|Transition { next, .. }| next);
    if let Some(Ok(Move::Wait(super::machine::Wait::Until(due)))) = next {
        plan.wake(*due);
    }
}
