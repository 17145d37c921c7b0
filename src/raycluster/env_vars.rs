//! Environment variables of the containers that run Ray
//! (KubeRay 1.7 `ray-operator/controllers/ray/common/pod.go`, `setContainerEnvVars`).

use k8s_openapi::api::core::v1::{Container, EnvVar, EnvVarSource, ObjectFieldSelector};
use serde_json::Value;

use super::autoscaler::Autoscaler;
use super::groups::RayNodeType;
use super::template::TemplateContext;
use sluice_api::ray::{RayCluster, names};

/// Adds environment variables to a container, in order.
pub(super) trait EnvVars {
    /// Adds a variable. It overrides an earlier one of the same name, since the last one counts.
    fn set_env(&mut self, name: &str, value: &str);
    /// Adds a variable whose value comes from a field of the pod (downward API).
    fn set_env_from(&mut self, name: &str, field: &str);
    /// Adds a variable unless one of that name exists.
    fn default_env(&mut self, name: &str, value: &str);
}

impl EnvVars for Container {
    fn set_env(&mut self, name: &str, value: &str) {
        let variable = EnvVar { name: name.to_owned(), value: Some(value.to_owned()), value_from: None };
        self.env.get_or_insert_default().push(variable);
    }

    fn set_env_from(&mut self, name: &str, field: &str) {
        let field_ref = ObjectFieldSelector { api_version: None, field_path: field.to_owned() };
        let source = EnvVarSource { field_ref: Some(field_ref), ..EnvVarSource::default() };
        let variable = EnvVar { name: name.to_owned(), value: None, value_from: Some(source) };
        self.env.get_or_insert_default().push(variable);
    }

    fn default_env(&mut self, name: &str, value: &str) {
        if !self.env.iter().flatten().any(|variable| variable.name == name) {
            self.set_env(name, value);
        }
    }
}

/// Returns the downward API field path of a pod label.
pub(super) fn label_field(label: &str) -> String {
    format!("metadata.labels['{label}']")
}

/// Sets the address of the head in an init container.
pub(super) fn set_init_container_env(common: &TemplateContext<'_>, container: &mut Container) {
    container.set_env("FQ_RAY_IP", &common.head_address);
    container.set_env("RAY_IP", service_name(&common.head_address));
}

/// Sets the environment of the container that runs Ray. `command` is the `ray start` command line.
pub(super) fn set_ray_env(common: &TemplateContext<'_>, role: RayNodeType, command: &str, ray: &mut Container) {
    match (role, common.autoscaler) {
        (RayNodeType::Head, Autoscaler::V2) => ray.set_env("RAY_enable_autoscaler_v2", "true"),
        (RayNodeType::Head, Autoscaler::V1) => ray.set_env("RAY_enable_autoscaler_v2", "false"),
        _ => {}
    }
    let host = match role {
        RayNodeType::Head => "127.0.0.1",
        RayNodeType::Worker => {
            ray.set_env("FQ_RAY_IP", &common.head_address);
            ray.set_env("RAY_IP", service_name(&common.head_address));
            &common.head_address
        }
    };
    ray.set_env_from("RAY_CLUSTER_NAME", &label_field(names::CLUSTER_LABEL));
    ray.set_env_from("RAY_CLUSTER_NAMESPACE", "metadata.namespace");
    ray.set_env_from("RAY_CLOUD_INSTANCE_ID", "metadata.name");
    ray.set_env_from("RAY_NODE_TYPE_NAME", &label_field(names::GROUP_LABEL));
    ray.set_env("KUBERAY_GEN_RAY_START_CMD", command);
    ray.default_env("RAY_PORT", &common.gcs_port);
    if common.belongs_to_ray_service() {
        // A call to a lost head fails early, so that Serve replicas go on answering requests.
        ray.default_env("RAY_timeout_ms_task_wait_for_death_info", "0");
        ray.default_env("RAY_gcs_server_request_timeout_seconds", "5");
        ray.default_env("RAY_SERVE_KV_TIMEOUT_S", "5");
    }
    ray.default_env("RAY_ADDRESS", &format!("{host}:{}", common.gcs_port));
    ray.default_env("RAY_USAGE_STATS_KUBERAY_IN_USE", "1");
    if role == RayNodeType::Head {
        let tags = format!("kuberay_version=sluice-{};kuberay_crd={}", env!("CARGO_PKG_VERSION"), common.origin_kind);
        ray.set_env("RAY_USAGE_STATS_EXTRA_TAGS", &tags);
    }
    ray.default_env("RAY_DASHBOARD_ENABLE_K8S_DISK_USAGE", "1");
}

/// Returns the name of a Service without its namespace and domain.
fn service_name(address: &str) -> &str {
    address.split('.').next().unwrap_or(address)
}

/// Value of an environment variable in a pod template.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum EnvValue<'a> {
    /// A literal value.
    Literal(&'a str),
    /// A value that only the kubelet knows, such as a reference to a Secret.
    Reference,
}

impl<'a> EnvValue<'a> {
    /// Returns the value if it is a literal.
    pub(super) fn literal(self) -> Option<&'a str> {
        match self {
            Self::Literal(value) => Some(value),
            Self::Reference => None,
        }
    }
}

/// Returns the value of a variable of the head's first container; `None` if the variable is not set.
pub(super) fn head_env_value<'a>(cluster: &'a RayCluster, name: &str) -> Option<EnvValue<'a>> {
    env_value(cluster.spec.head_group_spec.template.0.pointer("/spec/containers/0/env")?, name)
}

/// Returns the value of a variable in an unparsed `env` list; `None` if the variable is not set.
pub(super) fn env_value<'a>(env: &'a Value, name: &str) -> Option<EnvValue<'a>> {
    let variable = env.as_array()?.iter().find(|variable| variable["name"] == name)?;
    Some(variable["value"].as_str().map_or(EnvValue::Reference, EnvValue::Literal))
}
