//! Serve applications of a RayCluster: selects the configuration to apply, and plans the calls to
//! the Ray dashboard and the Serve proxy.

use jiff::SignedDuration;
use kube_core::ResourceExt;

use super::clusters::ServiceCluster;
use super::incremental::{self, TargetCapacity};
use super::ray_clusters::namespaced_name;
use super::serve_observation::QueryPace;
use super::spec_hash::SpecMatch;
use super::upgrade::{BlockReason, UpgradeAction};
use super::{ServiceContext, serve_config_history, status};
use sluice_api::condition;
use sluice_api::ray::names;
use sluice_plan::ServeConfig;
use sluice_plan::{EventRecord, Plan, ServeCall, ServeRequest, Write};
use sluice_raycluster::auth::Auth;
use sluice_raycluster::names::head_service;
use sluice_raycluster::services::head_ports;

/// Delay after which an unanswered call is repeated.
const CALL_RETRY_DELAY: SignedDuration = SignedDuration::from_secs(2);
/// Dashboard port if the head container names none.
const DEFAULT_DASHBOARD_PORT: u16 = 8265;
/// Serve proxy port if the head container names none.
const DEFAULT_SERVE_PORT: u16 = 8000;

/// Returns the configuration of the spec if the active cluster should have it. A configuration that
/// comes with a new cluster spec is for the new cluster only and never reaches the active one.
fn config_of_active<'a>(context: &'a ServiceContext<'_>, active: &ServiceCluster<'_>) -> Option<&'a ServeConfig> {
    let config = &context.desired.as_ref().ok()?.serve_config;
    let is_sole_target = matches!(
        context.action,
        UpgradeAction::Keep
            | UpgradeAction::UpdateActive
            | UpgradeAction::Block { reason: BlockReason::UpgradesDisabled, .. }
    );
    let is_reverted = matches!(context.action, UpgradeAction::RollBack(_)) && matches_spec(context, active);
    (is_sole_target || is_reverted || active.applied_config_hash() == Some(config.hash())).then_some(config)
}

/// Returns true if the cluster was created from the current spec.
pub(super) fn matches_spec(context: &ServiceContext<'_>, child: &ServiceCluster<'_>) -> bool {
    let spec = &context.observed.service.spec.ray_cluster_config;
    context.desired.as_ref().is_ok_and(|desired| child.compare(spec, &desired.cluster_spec_hash) == SpecMatch::Same)
}

/// Returns the configuration of the spec if the pending cluster should have it.
fn config_of_pending<'a>(context: &'a ServiceContext<'_>) -> Option<&'a ServeConfig> {
    let config = &context.desired.as_ref().ok()?.serve_config;
    matches!(context.action, UpgradeAction::UsePending(_) | UpgradeAction::UpdatePending(_)).then_some(config)
}

/// Plans the Serve configuration, calls and head pod label of the active and the pending cluster.
pub(super) fn plan_all(context: &ServiceContext<'_>, plan: &mut Plan) {
    let active = context.clusters.active.as_ref().map(|active| (active, config_of_active(context, active)));
    let pending = context.pending_cluster().map(|pending| (pending, config_of_pending(context)));
    for (child, desired) in active.into_iter().chain(pending) {
        if let Some(config) = desired {
            serve_config_history::plan_storage(context, child, config, plan);
        }
        self::plan_calls(context, child, config_for(context, child, desired), plan);
        plan_head_label(context, child, plan);
    }
}

/// Returns the configuration to apply to a cluster: the one from the spec if there is one for it,
/// else the previous one. A head that lost its applications gets the previous one too while Serve
/// rejects the new one.
fn config_for<'a>(
    context: &ServiceContext<'a>,
    child: &ServiceCluster<'a>,
    desired: Option<&'a ServeConfig>,
) -> Option<&'a ServeConfig> {
    let previous = || serve_config_history::last_applied(context.observed, child);
    match desired {
        Some(desired) if has_no_applications(child) && child.serve.rejection(desired.hash()).is_some() => {
            previous().or(Some(desired))
        }
        Some(desired) => Some(desired),
        None => previous(),
    }
}

/// Returns true if the head reports no applications, as it does after a restart.
fn has_no_applications(child: &ServiceCluster<'_>) -> bool {
    child.current_status().is_some_and(|status| status.applications.is_empty())
}

/// Plans the calls to a cluster. `config` is the configuration that it should have; None if
/// unknown.
fn plan_calls(context: &ServiceContext<'_>, child: &ServiceCluster<'_>, config: Option<&ServeConfig>, plan: &mut Plan) {
    let Some(ready_since) = child.head_ready_since() else { return };
    let now = context.observed.now;
    if let Some(config) = config.and_then(|config| config_to_apply(context, child, config)) {
        let at = child.serve.apply_not_before(config.hash());
        if at <= now {
            plan.serve_calls.push(serve_call(child, ServeRequest::Put(config)));
        } else {
            plan.wake_by(at);
        }
    }
    record_events(context, child, config, plan);
    let pace = if context.rollout.is_some() { QueryPace::IncrementalUpgrade } else { QueryPace::Usual };
    let at = child.serve.next_query_at(ready_since, child.head_uid(), pace);
    if at <= now {
        plan.serve_calls.push(serve_call(child, ServeRequest::Get));
        plan.wake_by(now.saturating_add(CALL_RETRY_DELAY).unwrap_or(now));
    } else {
        plan.wake_by(at);
    }
}

/// Returns the configuration to apply, because the cluster has a different one, or a different
/// capacity, or lost it in a head restart; None if nothing is to be applied or the current head has
/// not reported its status yet.
fn config_to_apply(
    context: &ServiceContext<'_>,
    child: &ServiceCluster<'_>,
    config: &ServeConfig,
) -> Option<ServeConfig> {
    let status = child.current_status()?;
    let wanted = match incremental::target_capacity(context, child) {
        TargetCapacity::Unchanged => return None,
        TargetCapacity::Unlimited => config.clone(),
        TargetCapacity::Limited(percent) => config.with_target_capacity(Some(percent)),
    };
    let is_lost = status.applications.is_empty() && config.has_applications();
    let is_applied =
        child.applied_config_hash() == Some(config.hash()) && status.target_capacity == wanted.target_capacity();
    (is_lost || !is_applied).then_some(wanted)
}

/// Records Events for a rejected configuration and for applications that were lost.
fn record_events(
    context: &ServiceContext<'_>,
    child: &ServiceCluster<'_>,
    config: Option<&ServeConfig>,
    plan: &mut Plan,
) {
    let service = context.observed.service;
    if let Some(error) = config.and_then(|config| child.serve.rejection(config.hash())) {
        let text = error.to_string();
        plan.events.push(EventRecord::warning(service, "FailedToUpdateServeApplications", text));
    }
    if has_no_applications(child)
        && config.is_none()
        && (child.applied_config_hash().is_some() || status::had_applications(context, child))
    {
        let text = format!(
            "RayCluster {} lost its Serve applications, and their configuration is neither in the spec nor stored; \
             revert the spec, or wait for the pending RayCluster to take over",
            child.name()
        );
        plan.events.push(EventRecord::warning(service, "ServeApplicationsLost", text));
    }
}

/// Plans the head pod label by which the serve Service selects the pod
/// (KubeRay 1.7 `ray-operator/controllers/ray/rayservice_controller.go`,
/// `updateHeadPodServeLabel`).
fn plan_head_label(context: &ServiceContext<'_>, child: &ServiceCluster<'_>, plan: &mut Plan) {
    let Some(head) = child.head_pod else { return };
    let serves = head.labels().get(names::SERVE_LABEL).is_some_and(|serves| serves == "true");
    let wanted = match context.observed.service.spec.exclude_head_pod_from_serve_svc {
        Some(true) => false,
        _ => {
            check_health(context, child, serves, plan);
            child.serve.is_proxy_healthy(&head.name_any()).unwrap_or(serves)
        }
    };
    if wanted == serves {
        return;
    }
    let mut labeled = head.clone();
    labeled.labels_mut().insert(names::SERVE_LABEL.to_owned(), wanted.to_string());
    let text = format!(
        "Head pod {} {} receives Serve requests",
        namespaced_name(head),
        if wanted { "now" } else { "no longer" }
    );
    plan.events.push(EventRecord::normal(context.observed.service, "UpdatedHeadPodServeLabel", text));
    plan.write(Write::patch(head, &labeled));
}

/// Plans a health check of the Serve proxy on the head pod, if the pod receives requests or could.
fn check_health(context: &ServiceContext<'_>, child: &ServiceCluster<'_>, serves: bool, plan: &mut Plan) {
    let runs = child.current_status().is_some_and(sluice_plan::ServeStatus::is_running);
    let Some(head) = child.head_pod.filter(|_| child.head_ready_since().is_some() && (serves || runs)) else { return };
    let ip = head.status.as_ref().and_then(|status| status.pod_ip.clone()).unwrap_or_default();
    let pod = head.name_any();
    let (at, now) = (child.serve.next_health_check_at(&pod), context.observed.now);
    if at > now {
        return plan.wake_by(at);
    }
    let port = head_port_or_default(child, "serve", DEFAULT_SERVE_PORT);
    plan.serve_calls.push(serve_call(child, ServeRequest::Healthz { pod, ip, port }));
    plan.wake_by(now.saturating_add(CALL_RETRY_DELAY).unwrap_or(now));
}

fn serve_call(child: &ServiceCluster<'_>, request: ServeRequest) -> ServeCall {
    ServeCall {
        namespace: child.cluster.namespace().unwrap_or_default(),
        cluster: child.name(),
        uid: child.cluster.uid().unwrap_or_default(),
        head_uid: child.head_uid().map(str::to_owned),
        head_service: head_service(child.cluster),
        dashboard_port: head_port_or_default(child, "dashboard", DEFAULT_DASHBOARD_PORT),
        token_secret: match Auth::of(child.cluster) {
            Auth::Secret(name) => Some(name),
            Auth::Off | Auth::Kubernetes => None,
        },
        request,
    }
}

fn head_port_or_default(child: &ServiceCluster<'_>, name: &str, default: u16) -> u16 {
    head_ports(child.cluster).get(name).and_then(|port| u16::try_from(*port).ok()).unwrap_or(default)
}

/// Returns why a cluster cannot serve requests with this configuration yet; None if it can.
pub(super) fn not_serving_reason(
    context: &ServiceContext<'_>,
    child: &ServiceCluster<'_>,
    config: &ServeConfig,
) -> Option<String> {
    if child.is_suspended() {
        let queued = "it is suspended (spec.suspend) until quota is reserved for it";
        return Some(if context.observed.is_queued { queued } else { "it is suspended (spec.suspend)" }.to_owned());
    }
    if child.head_ready_since().is_none() {
        return Some(format!("its head pod is not ready{}", head_not_ready_reason(child)));
    }
    if let Some(error) = child.serve.query_error() {
        return Some(error.to_string());
    }
    let Some(status) = child.current_status() else {
        return Some("its Serve status has not been queried yet".to_owned());
    };
    if child.applied_config_hash() != Some(config.hash()) {
        let refusal = child.serve.rejection(config.hash());
        return Some(
            refusal.map_or_else(|| "its Serve configuration is being applied".to_owned(), ToString::to_string),
        );
    }
    if status.applications.is_empty() {
        return Some("Serve has no applications".to_owned());
    }
    if let Some((name, application)) = status.applications.iter().find(|(_, application)| !application.is_running()) {
        let message = Some(application.error_message()).filter(|message| !message.is_empty());
        let message = message.map_or_else(String::new, |message| format!(": {message}"));
        return Some(format!("application {name} is {}{message}", application.status));
    }
    (!child.has_serving_pods()).then(|| "none of its pods can receive requests yet".to_owned())
}

/// Returns why the head pod is not ready according to the RayCluster's conditions; a failure to
/// create the pod takes precedence.
fn head_not_ready_reason(child: &ServiceCluster<'_>) -> String {
    let conditions = child.cluster.conditions();
    let create_failure = condition::get(conditions, names::REPLICA_FAILURE);
    let Some(condition) = create_failure.or_else(|| condition::get(conditions, names::HEAD_POD_READY)) else {
        return String::new();
    };
    match condition.message.is_empty() {
        true => format!(" ({})", condition.reason),
        false => format!(" ({}: {})", condition.reason, condition.message),
    }
}
