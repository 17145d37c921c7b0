//! Plans the ways in, and the shares that they give to each cluster.

use kube::ResourceExt;

use super::machine::{Move, Percent, WHOLE};
use super::{Transition, options, ways, wish};
use crate::api::gateway::BackendRef;
use crate::api::ray::RayService;
use crate::api::ray::step_choices::{UPGRADE_ANNOTATION, Wish};
use crate::engine::plan::{Note, ObjectRef, Plan, Write};
use crate::rayservice::Scene;
use crate::rayservice::children::{owner, place};
use crate::rayservice::family::Child;
use crate::rayservice::services::serve_service_name;
use crate::rayservice::upgrade::Step;

/// Plans the Gateway, the route and the Services of the clusters.
pub(in crate::rayservice) fn plan(scene: &Scene<'_>, plan: &mut Plan) {
    match options(scene.view.service) {
        Some(options) => {
            if let Some(class) = &options.gateway_class {
                plan_gateway(scene, class, plan);
            }
            plan_backends(scene, plan);
            plan_route(scene, plan);
            wake(scene, plan);
            forget_promotion(scene, plan);
        }
        None => hand_over(scene, plan),
    }
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
        match scene.view.ways.backend(child.cluster) {
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
    if scene.view.ways.gateway.is_none() {
        return;
    }
    let shares = shares(scene);
    let known = shares.iter().filter_map(|(child, share)| {
        let backend = scene.view.ways.backend(child.cluster)?;
        Some(ways::backend_ref(backend, *share))
    });
    let backends: Vec<BackendRef> = known.collect();
    let is_whole = backends.iter().filter_map(|backend| backend.weight).sum::<i32>() == i32::from(WHOLE);
    if is_whole {
        let steady = shares.iter().map(|(child, _)| ObjectRef::of(child.cluster)).collect();
        write_route(scene, backends, steady, plan);
    }
}

fn write_route(scene: &Scene<'_>, backends: Vec<BackendRef>, steady: Vec<ObjectRef>, plan: &mut Plan) {
    let (service, there) = (scene.view.service, scene.view.ways.route);
    let text = backends.iter().map(|backend| format!("{} % to {}", backend.weight.unwrap_or(1), backend.name));
    let text = text.collect::<Vec<_>>().join(", ");
    let wanted = ways::route(service, backends, there);
    let (reason, write) = match there {
        None => ("CreatedHTTPRoute", Some(Write::create(&wanted))),
        Some(there) => ("UpdatedHTTPRoute", Write::patch(there, &wanted)),
    };
    if let Some(write) = write {
        let text = format!("HTTPRoute {} sends {text}", place(&wanted));
        plan.notes.push(Note::normal(service, reason, text).of_write(&write.target));
        plan.write(write.while_quiet(steady));
    }
}

/// A route of a service that isn't upgraded in steps any more leads to wherever its serve Service leads to.
fn hand_over(scene: &Scene<'_>, plan: &mut Plan) {
    let service = scene.view.service;
    let name = serve_service_name(service);
    let Some(serve) = scene.view.services.iter().find(|there| there.name_any() == name) else { return };
    if scene.view.ways.route.is_some_and(|route| is_of(service, route.owner_references())) {
        write_route(scene, vec![ways::backend_ref(serve, WHOLE)], vec![ObjectRef::of(*serve)], plan);
    }
}

fn is_of(service: &RayService, owners: &[k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference]) -> bool {
    owners.iter().any(|other| other.uid == owner(service).uid)
}

/// An upgrade that was to be promoted is over: the next one is not meant.
fn forget_promotion(scene: &Scene<'_>, plan: &mut Plan) {
    let service = scene.view.service;
    let is_over = scene.family.active.is_some() && matches!(scene.step, Step::Keep | Step::UpdateActive);
    if is_over && wish(service) == Wish::Promote {
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
