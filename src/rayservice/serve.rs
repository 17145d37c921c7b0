//! Serve applications of a RayCluster: selects the configuration to apply, and plans the calls to
//! the Ray dashboard and the Serve proxy.

use jiff::SignedDuration;
use kube_core::ResourceExt;

use super::children::place;
use super::family::Child;
use super::hash::Fit;
use super::incremental::{self, Told};
use super::upgrade::{Reason, Step};
use super::{Scene, kept, status};
use sluice_api::condition;
use sluice_api::ray::names;
use sluice_plan::ServeConfig;
use sluice_plan::{Note, Plan, ServeCall, ServeRequest, Write};
use sluice_raycluster::auth::Auth;
use sluice_raycluster::names::head_service;
use sluice_raycluster::services::head_ports;

/// Delay after which an unanswered call is repeated.
const PATIENCE: SignedDuration = SignedDuration::from_secs(2);
/// Dashboard port if the head container names none.
const DASHBOARD_PORT: u16 = 8265;
/// Serve proxy port if the head container names none.
const SERVE_PORT: u16 = 8000;

/// Returns the configuration of the spec if the active cluster should have it. A configuration that
/// comes with a new cluster spec is for the new cluster only and never reaches the active one.
fn goal_of_active<'a>(context: &'a Scene<'_>, active: &Child<'_>) -> Option<&'a ServeConfig> {
    let config = &context.goal.as_ref().ok()?.config;
    let is_sole_target = matches!(context.step, Step::Keep | Step::UpdateActive | Step::Hold(Reason::NoUpgrades, _));
    let is_reverted = matches!(context.step, Step::Return(_)) && is_made_from_spec(context, active);
    (is_sole_target || is_reverted || active.applied_config() == Some(config.hash())).then_some(config)
}

/// Returns true if the cluster was created from the current spec.
pub(super) fn is_made_from_spec(context: &Scene<'_>, child: &Child<'_>) -> bool {
    let spec = &context.view.service.spec.ray_cluster_config;
    context.goal.as_ref().is_ok_and(|desired| child.fit(spec, &desired.hash) == Fit::Same)
}

/// Returns the configuration of the spec if the pending cluster should have it.
fn goal_of_pending<'a>(context: &'a Scene<'_>) -> Option<&'a ServeConfig> {
    let config = &context.goal.as_ref().ok()?.config;
    matches!(context.step, Step::Continue(_) | Step::UpdatePending(_)).then_some(config)
}

/// Plans the Serve configuration, calls and head pod label of the active and the pending cluster.
pub(super) fn plan_all(context: &Scene<'_>, plan: &mut Plan) {
    let active = context.family.active.as_ref().map(|active| (active, goal_of_active(context, active)));
    let pending = context.pending().map(|pending| (pending, goal_of_pending(context)));
    for (child, desired) in active.into_iter().chain(pending) {
        if let Some(config) = desired {
            kept::plan(context, child, config, plan);
        }
        self::plan(context, child, to_have(context, child, desired), plan);
        plan_head_label(context, child, plan);
    }
}

/// Returns the configuration to apply to a cluster: the one from the spec if there is one for it,
/// else the previous one. A head that lost its applications gets the previous one too while Serve
/// rejects the new one.
fn to_have<'a>(context: &Scene<'a>, child: &Child<'a>, desired: Option<&'a ServeConfig>) -> Option<&'a ServeConfig> {
    let previous = || kept::applied(context.view, child);
    match desired {
        Some(desired) if has_lost(child) && child.serve.refusal(desired.hash()).is_some() => {
            previous().or(Some(desired))
        }
        Some(desired) => Some(desired),
        None => previous(),
    }
}

/// Returns true if the head reports no applications, as it does after a restart.
fn has_lost(child: &Child<'_>) -> bool {
    child.current_status().is_some_and(|status| status.applications.is_empty())
}

/// Plans the calls to a cluster. `config` is the configuration that it should have; None if
/// unknown.
fn plan(context: &Scene<'_>, child: &Child<'_>, config: Option<&ServeConfig>, plan: &mut Plan) {
    let Some(ready_since) = child.head_ready_since() else { return };
    let now = context.view.now;
    if let Some(config) = config.and_then(|config| to_apply(context, child, config)) {
        let at = child.serve.may_apply_at(config.hash());
        if at <= now {
            plan.serve_calls.push(call(child, ServeRequest::Put(config)));
        } else {
            plan.wake(at);
        }
    }
    record_events(context, child, config, plan);
    let at = child.serve.ask_at(ready_since, child.head_uid(), context.transition.is_some());
    if at <= now {
        plan.serve_calls.push(call(child, ServeRequest::Get));
        plan.wake(now.saturating_add(PATIENCE).unwrap_or(now));
    } else {
        plan.wake(at);
    }
}

/// Returns the configuration to apply, because the cluster has a different one, or a different
/// capacity, or lost it in a head restart; None if nothing is to be applied or the current head has
/// not reported its status yet.
fn to_apply(context: &Scene<'_>, child: &Child<'_>, config: &ServeConfig) -> Option<ServeConfig> {
    let status = child.current_status()?;
    let wanted = match incremental::capacity(context, child) {
        Told::Nothing => return None,
        Told::Whole => config.clone(),
        Told::Share(percent) => config.at_capacity(Some(percent)),
    };
    let is_lost = status.applications.is_empty() && config.has_applications();
    let is_applied = child.applied_config() == Some(config.hash()) && status.target_capacity == wanted.capacity();
    (is_lost || !is_applied).then_some(wanted)
}

/// Records Events for a rejected configuration and for applications that were lost.
fn record_events(context: &Scene<'_>, child: &Child<'_>, config: Option<&ServeConfig>, plan: &mut Plan) {
    let service = context.view.service;
    if let Some(error) = config.and_then(|config| child.serve.refusal(config.hash())) {
        let text = error.to_string();
        plan.notes.push(Note::warning(service, "FailedToUpdateServeApplications", text));
    }
    if has_lost(child)
        && config.is_none()
        && (child.applied_config().is_some() || status::had_applications(context, child))
    {
        let text = format!(
            "RayCluster {} lost its Serve applications, and their configuration is neither in the spec nor stored; \
             revert the spec, or wait for the pending RayCluster to take over",
            child.name()
        );
        plan.notes.push(Note::warning(service, "ServeApplicationsLost", text));
    }
}

/// Plans the head pod label by which the serve Service selects the pod
/// (KubeRay 1.7 `ray-operator/controllers/ray/rayservice_controller.go`,
/// `updateHeadPodServeLabel`).
fn plan_head_label(context: &Scene<'_>, child: &Child<'_>, plan: &mut Plan) {
    let Some(head) = child.head else { return };
    let serves = head.labels().get(names::SERVE_LABEL).is_some_and(|serves| serves == "true");
    let wanted = match context.view.service.spec.exclude_head_pod_from_serve_svc {
        Some(true) => false,
        _ => {
            check_health(context, child, serves, plan);
            child.serve.is_healthy(&head.name_any()).unwrap_or(serves)
        }
    };
    if wanted == serves {
        return;
    }
    let mut labeled = head.clone();
    labeled.labels_mut().insert(names::SERVE_LABEL.to_owned(), wanted.to_string());
    let text = format!("Head pod {} {} receives Serve requests", place(head), if wanted { "now" } else { "no longer" });
    plan.notes.push(Note::normal(context.view.service, "UpdatedHeadPodServeLabel", text));
    plan.write(Write::patch(head, &labeled));
}

/// Plans a health check of the Serve proxy on the head pod, if the pod receives requests or could.
fn check_health(context: &Scene<'_>, child: &Child<'_>, serves: bool, plan: &mut Plan) {
    let runs = child.current_status().is_some_and(|status| status.is_running());
    let Some(head) = child.head.filter(|_| child.head_ready_since().is_some() && (serves || runs)) else { return };
    let ip = head.status.as_ref().and_then(|status| status.pod_ip.clone()).unwrap_or_default();
    let pod = head.name_any();
    let (at, now) = (child.serve.check_health_at(&pod), context.view.now);
    if at > now {
        return plan.wake(at);
    }
    let port = port(child, "serve", SERVE_PORT);
    plan.serve_calls.push(call(child, ServeRequest::Healthz { pod, ip, port }));
    plan.wake(now.saturating_add(PATIENCE).unwrap_or(now));
}

fn call(child: &Child<'_>, request: ServeRequest) -> ServeCall {
    ServeCall {
        namespace: child.cluster.namespace().unwrap_or_default(),
        cluster: child.name(),
        uid: child.cluster.uid().unwrap_or_default(),
        head: child.head_uid().map(str::to_owned),
        head_service: head_service(child.cluster),
        dashboard_port: port(child, "dashboard", DASHBOARD_PORT),
        token_secret: match Auth::of(child.cluster) {
            Auth::Secret(name) => Some(name),
            Auth::Off | Auth::Kubernetes => None,
        },
        request,
    }
}

fn port(child: &Child<'_>, name: &str, default: u16) -> u16 {
    head_ports(child.cluster).get(name).and_then(|port| u16::try_from(*port).ok()).unwrap_or(default)
}

/// Returns why a cluster cannot serve requests with this configuration yet; None if it can.
pub(super) fn waits_for(context: &Scene<'_>, child: &Child<'_>, config: &ServeConfig) -> Option<String> {
    if child.is_suspended() {
        let queued = "it is suspended (spec.suspend) until quota is reserved for it";
        return Some(if context.view.gated { queued } else { "it is suspended (spec.suspend)" }.to_owned());
    }
    if child.head_ready_since().is_none() {
        return Some(format!("its head pod is not ready{}", head_trouble(child)));
    }
    if let Some(error) = child.serve.silence() {
        return Some(error.to_string());
    }
    let Some(status) = child.current_status() else {
        return Some("its Serve status has not been queried yet".to_owned());
    };
    if child.applied_config() != Some(config.hash()) {
        let refusal = child.serve.refusal(config.hash());
        return Some(
            refusal.map_or_else(|| "its Serve configuration is being applied".to_owned(), ToString::to_string),
        );
    }
    if status.applications.is_empty() {
        return Some("Serve has no applications".to_owned());
    }
    if let Some((name, application)) = status.applications.iter().find(|(_, application)| !application.is_running()) {
        let message = Some(application.told()).filter(|message| !message.is_empty());
        let message = message.map_or_else(String::new, |message| format!(": {message}"));
        return Some(format!("application {name} is {}{message}", application.status));
    }
    (!child.has_serve_pods()).then(|| "none of its pods can receive requests yet".to_owned())
}

/// Returns why the head pod is not ready according to the RayCluster's conditions; a failure to
/// create the pod takes precedence.
fn head_trouble(child: &Child<'_>) -> String {
    let conditions = child.cluster.status.as_ref().map(|status| status.conditions.as_slice()).unwrap_or_default();
    let create_failure = condition::get(conditions, names::REPLICA_FAILURE);
    let Some(condition) = create_failure.or_else(|| condition::get(conditions, names::HEAD_POD_READY)) else {
        return String::new();
    };
    match condition.message.is_empty() {
        true => format!(" ({})", condition.reason),
        false => format!(" ({}: {})", condition.reason, condition.message),
    }
}
