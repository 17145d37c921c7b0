//! Liveness and readiness probes of the containers that run Ray
//! (KubeRay 1.7 `ray-operator/controllers/ray/common/pod.go`, `initLivenessAndReadinessProbe`).

use k8s_openapi::api::core::v1::{Container, ExecAction, HTTPGetAction, Probe};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;

use super::groups::RayNodeType;
use super::template::TemplateContext;
use sluice_api::ray::options::StringMap;

/// Lowest Ray version in which `/api/healthz` of the dashboard agent covers all processes of a
/// node.
const UNIFIED_HEALTH_CHECK_MIN_VERSION: (u64, u64) = (2, 53);
/// Default port of the dashboard agent.
const AGENT_PORT: i32 = 52365;
/// Default port of the dashboard.
const DASHBOARD_PORT: i32 = 8265;
/// Default port of the Serve proxy.
const SERVE_PORT: i32 = 8000;

/// Adds the probes that the user has not set.
pub(super) fn apply_to(common: &TemplateContext<'_>, role: RayNodeType, params: &StringMap, ray: &mut Container) {
    let timeout = if role == RayNodeType::Head { 5 } else { 2 };
    let check = HealthCheck::of(common, role, params);
    if ray.liveness_probe.is_none() {
        ray.liveness_probe =
            Some(Probe { initial_delay_seconds: Some(30), failure_threshold: Some(120), ..check.probe(timeout) });
    }
    if ray.readiness_probe.is_none() {
        let mut probe = Probe { initial_delay_seconds: Some(10), failure_threshold: Some(10), ..check.probe(timeout) };
        if common.belongs_to_ray_service() && role == RayNodeType::Worker {
            // A worker gets requests only while its Serve proxy responds: one failure removes it.
            let mut commands = check.commands;
            commands.push(wget(container_port(ray, "serve").unwrap_or(SERVE_PORT), "-/healthz"));
            probe.http_get = None;
            probe.exec = Some(exec(&commands));
            probe.failure_threshold = Some(1);
        }
        ray.readiness_probe = Some(probe);
    }
}

/// Health check of a Ray node.
struct HealthCheck {
    /// Port of the endpoint that covers the whole node; `None` if the Ray version lacks it.
    http_port: Option<i32>,
    /// Commands that check each process of the node.
    commands: Vec<String>,
}

impl HealthCheck {
    fn of(common: &TemplateContext<'_>, role: RayNodeType, params: &StringMap) -> Self {
        let port = |flag: &str, default| params.get(flag).and_then(|port| port.parse().ok()).unwrap_or(default);
        let agent = port("dashboard-agent-listen-port", AGENT_PORT);
        let mut commands = vec![wget(agent, "api/local_raylet_healthz")];
        if role == RayNodeType::Head {
            commands.push(wget(port("dashboard-port", DASHBOARD_PORT), "api/gcs_healthz"));
        }
        let version = common.cluster.spec.ray_version.as_deref().and_then(parse_ray_version);
        Self {
            http_port: version.filter(|version| *version >= UNIFIED_HEALTH_CHECK_MIN_VERSION).map(|_| agent),
            commands,
        }
    }

    fn probe(&self, timeout: i32) -> Probe {
        let path = "/api/healthz".to_owned();
        let get = |port| HTTPGetAction { path: Some(path), port: IntOrString::Int(port), ..HTTPGetAction::default() };
        Probe {
            timeout_seconds: Some(timeout),
            period_seconds: Some(5),
            success_threshold: Some(1),
            http_get: self.http_port.map(get),
            exec: self.http_port.is_none().then(|| exec(&self.commands)),
            ..Probe::default()
        }
    }
}

fn exec(commands: &[String]) -> ExecAction {
    ExecAction { command: Some(vec!["bash".to_owned(), "-c".to_owned(), commands.join(" && ")]) }
}

fn wget(port: i32, path: &str) -> String {
    format!("wget --tries=1 --timeout=2 -qO- http://localhost:{port}/{path} | grep success")
}

/// Returns the container port of this name.
pub(super) fn container_port(container: &Container, name: &str) -> Option<i32> {
    let ports = container.ports.iter().flatten();
    ports.filter(|port| port.name.as_deref() == Some(name)).map(|port| port.container_port).next()
}

/// Parses major and minor of a Ray version, like `2.53.0` or `v2.53.0rc1`; `None` for anything
/// else.
pub(super) fn parse_ray_version(text: &str) -> Option<(u64, u64)> {
    let mut parts = text.trim().trim_start_matches('v').split('.');
    let major = parts.next()?.parse().ok()?;
    let minor = parts.next()?;
    let digits = minor.find(|c: char| !c.is_ascii_digit()).unwrap_or(minor.len());
    Some((major, minor[..digits].parse().ok()?))
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case("2.53.0", Some((2, 53)))]
    #[case("v2.9", Some((2, 9)))]
    #[case("2.54rc1", Some((2, 54)))]
    #[case("nightly", None)]
    #[case("2", None)]
    #[case("", None)]
    fn ray_versions_are_parsed(#[case] text: &str, #[case] expected: Option<(u64, u64)>) {
        assert_eq!(parse_ray_version(text), expected);
    }
}
