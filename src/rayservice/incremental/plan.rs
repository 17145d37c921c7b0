//! Plans the ways in, and the shares that they give to each cluster.

use kube_core::ResourceExt;

use super::machine::{Move, Percent, WHOLE};
use super::{Transition, options, routes, ways, wish};
use sluice_api::gateway::{BackendRef, HTTPRoute};
use sluice_api::ray::RayService;
use sluice_api::ray::step_choices::{UPGRADE_ANNOTATION, Wish};
use sluice_api::ray::way_choices::{self, ADOPTED_ROUTE_ANNOTATION};
use sluice_plan::{Note, ObjectRef, Plan, Write};
use crate::children::place;
use crate::family::Child;
use crate::services::serve_service_name;
use crate::upgrade::Step;
use crate::{Scene, View, failed};

/// Plans the Gateway, the route and the Services of the clusters.
pub(crate) fn plan(scene: &Scene<'_>, plan: &mut Plan) {
    let view = scene.view;
    let Some(options) = options(view.service) else { return release(view, plan) };
    if let Some(class) = options.gateway_class.as_ref().filter(|_| ways::makes_gateway(view.service)) {
        plan_gateway(scene, class, plan);
    }
    plan_backends(scene, plan);
    view.ways.former.iter().for_each(|route| hand_over(view, route, plan));
    if note_adopted(view, routes::adopted(view.service), plan) {
        plan_route(scene, plan);
    }
    wake(scene, plan);
    forget_promotion(scene, plan);
}

/// Has all routes lead to wherever the serve Service leads to: those of a service that isn't upgraded in steps any more, or is deleted.
pub(crate) fn release(view: &View<'_>, plan: &mut Plan) {
    view.ways.route.iter().chain(&view.ways.former).for_each(|route| hand_over(view, route, plan));
    note_adopted(view, None, plan);
}

/// Has a route lead to wherever the serve Service leads to, if it was made for the service, or its clusters were put into it.
fn hand_over(view: &View<'_>, route: &HTTPRoute, plan: &mut Plan) {
    let (service, name) = (view.service, serve_service_name(view.service));
    let noted = way_choices::adopted_route(&service.metadata);
    let is_ours = noted == Some(route.name_any().as_str()) || routes::is_made_for(service, route);
    let Some(serve) = view.services.iter().find(|there| there.name_any() == name).filter(|_| is_ours) else { return };
    if view.ways.own.leads(route) {
        let backends = vec![routes::backend_ref(serve, WHOLE)];
        let next = view.ways.own.divide(route, &backends);
        write_route(service, &next, Some(route), &backends, vec![ObjectRef::of(*serve)], plan);
    }
}

/// Notes on a service into which route of others its clusters are put, before they are, and until they are taken out of it again.
/// Returns whether that is noted.
fn note_adopted(view: &View<'_>, wanted: Option<&str>, plan: &mut Plan) -> bool {
    let service = view.service;
    let noted = way_choices::adopted_route(&service.metadata);
    if noted == wanted {
        return true;
    }
    let mut routes = view.ways.route.into_iter().chain(view.ways.former.iter().copied());
    let before = noted.and_then(|noted| routes.find(|route| route.name_any() == noted));
    if !before.is_some_and(|route| view.ways.own.leads(route)) {
        let mut next = service.clone();
        match wanted {
            Some(route) => next.annotations_mut().insert(ADOPTED_ROUTE_ANNOTATION.to_owned(), route.to_owned()),
            None => next.annotations_mut().remove(ADOPTED_ROUTE_ANNOTATION),
        };
        plan.write(Write::patch(service, &next));
    }
    false
}

fn plan_gateway(scene: &Scene<'_>, class: &str, plan: &mut Plan) {
    let (service, there) = (scene.view.service, scene.view.ways.gateway);
    let wanted = ways::gateway(service, class, there);
    match there {
        None => {
            let text = format!("Gateway {} is made", place(&wanted));
            plan.notes.push(Note::normal(service, "CreatedGateway", text).of_write(&ObjectRef::of(&wanted)));
            plan.write(Write::create(&wanted));
        }
        Some(there) => {
            let write = Write::patch(there, &wanted);
            if write.is_some() {
                let text = format!("Gateway {} is of class {class}, and has its listener", place(there));
                plan.notes.push(Note::normal(service, "UpdatedGateway", text).of_write(&ObjectRef::of(there)));
            }
            plan.write(write);
        }
    }
}

/// The clusters that can get traffic, each with its share.
fn shares<'s>(scene: &'s Scene<'_>) -> Vec<(&'s Child<'s>, Percent)> {
    let Some(active) = &scene.family.active else { return Vec::new() };
    match (&scene.transition, scene.pending()) {
        (Some(transition), Some(pending)) => {
            let (of_active, of_pending) = transition.after();
            vec![(active, of_active.traffic), (pending, of_pending.traffic)]
        }
        _ => vec![(active, WHOLE)],
    }
}

fn plan_backends(scene: &Scene<'_>, plan: &mut Plan) {
    for (child, _) in shares(scene) {
        let wanted = ways::backend(child.cluster);
        let ways = &scene.view.ways;
        match ways.backend(child.cluster) {
            None if ways.stranger(child.cluster).is_some() => {}
            None => plan.write(Write::create(&wanted)),
            Some(there) => {
                let mut next = there.clone();
                let spec = next.spec.get_or_insert_default();
                spec.selector = wanted.spec.and_then(|wanted| wanted.selector);
                plan.write(Write::patch(there, &next));
            }
        }
    }
}

/// Plans the route, once there is somebody who lets requests in, and somewhere to send them.
fn plan_route(scene: &Scene<'_>, plan: &mut Plan) {
    let (service, ways) = (scene.view.service, &scene.view.ways);
    let shares = shares(scene);
    let known = shares.iter().filter_map(|(child, share)| {
        let backend = ways.backend(child.cluster)?;
        Some(routes::backend_ref(backend, *share))
    });
    let backends: Vec<BackendRef> = known.collect();
    if backends.iter().filter_map(|backend| backend.weight).sum::<i32>() != i32::from(WHOLE) {
        return;
    }
    let next = match (routes::adopted(service), ways.route) {
        (Some(_), None) => return,
        // What can't be divided goes on leading to the serve Service.
        (Some(_), Some(route)) if backends.len() > 1 && ways.own.obstacle(route).is_some() => return,
        (Some(_), Some(route)) => ways.own.divide(route, &backends),
        (None, _) if ways.gateway.is_none() => return,
        (None, there) => routes::made(service, &ways.own, &backends, there),
    };
    let steady = shares.iter().map(|(child, _)| ObjectRef::of(child.cluster)).collect();
    write_route(service, &next, ways.route, &backends, steady, plan);
}

fn write_route(
    service: &RayService,
    next: &HTTPRoute,
    there: Option<&HTTPRoute>,
    backends: &[BackendRef],
    steady: Vec<ObjectRef>,
    plan: &mut Plan,
) {
    let text = backends.iter().map(|backend| format!("{} % to {}", backend.weight.unwrap_or(1), backend.name));
    let text = text.collect::<Vec<_>>().join(", ");
    let (reason, write) = match there {
        None => ("CreatedHTTPRoute", Some(Write::create(next))),
        Some(there) => ("UpdatedHTTPRoute", Write::patch(there, next)),
    };
    if let Some(write) = write {
        let text = format!("HTTPRoute {} sends {text}", place(next));
        plan.notes.push(Note::normal(service, reason, text).of_write(&write.target));
        plan.write(write.while_quiet(steady));
    }
}

/// An upgrade that was to be promoted is over, or has failed: the next one is not meant.
fn forget_promotion(scene: &Scene<'_>, plan: &mut Plan) {
    let service = scene.view.service;
    let is_over = scene.family.active.is_some() && matches!(scene.step, Step::Keep | Step::UpdateActive);
    let has_failed = scene.goal.as_ref().is_ok_and(|goal| failed::reason(service, goal).is_some());
    if (is_over || has_failed) && wish(service) == Wish::Promote {
        let mut next = service.clone();
        next.annotations_mut().remove(UPGRADE_ANNOTATION);
        plan.write(Write::patch(service, &next));
    }
}

/// Asks to be planned again when the next step is due.
fn wake(scene: &Scene<'_>, plan: &mut Plan) {
    let next = scene.transition.as_ref().map(|Transition { next, .. }| next);
    if let Some(Ok(Move::Wait(super::machine::Wait::Until(due)))) = next {
        plan.wake(*due);
    }
}
