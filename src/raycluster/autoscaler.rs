//! Ray autoscaler, which runs as a sidecar of the head.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{Container, ResourceRequirements};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use serde::de::DeserializeOwned;
use serde_json::Value;

use super::auth;
use super::env_vars::{EnvVars, label_field};
use super::field_error::FieldError;
use super::start_command;
use super::template::TemplateContext;
use sluice_api::ray::{RayClusterSpec, names};

const COMMAND: &str =
    "ray kuberay-autoscaler --cluster-name $(RAY_CLUSTER_NAME) --cluster-namespace $(RAY_CLUSTER_NAMESPACE)";

/// Autoscaler that sets the number of workers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Autoscaler {
    /// Autoscaling is disabled.
    Off,
    /// Autoscaler that the Ray version uses by default.
    Default,
    /// Autoscaler v1.
    V1,
    /// Autoscaler v2, which needs pods with restart policy `Never`.
    V2,
}

impl Autoscaler {
    /// Returns the autoscaler that the spec selects.
    pub(super) fn of(spec: &RayClusterSpec) -> Self {
        if spec.enable_in_tree_autoscaling != Some(true) {
            return Self::Off;
        }
        match spec.autoscaler_options.as_ref().and_then(|options| options.version.as_deref()) {
            Some("v1") => Self::V1,
            Some("v2") => Self::V2,
            _ => Self::Default,
        }
    }
}

/// Returns the autoscaler container, or `None` if autoscaling is disabled. `ray` is the container
/// that runs Ray.
///
/// # Errors
/// Fails when an option does not parse as the Kubernetes type of its field.
pub(super) fn sidecar(common: &TemplateContext<'_>, ray: &Container) -> Result<Option<Container>, FieldError> {
    if common.autoscaler == Autoscaler::Off {
        return Ok(None);
    }
    let options = common.cluster.spec.autoscaler_options.clone().unwrap_or_default();
    let default_amounts = BTreeMap::from([
        ("cpu".to_owned(), Quantity("500m".to_owned())),
        ("memory".to_owned(), Quantity("512Mi".to_owned())),
    ]);
    let resources = ResourceRequirements {
        requests: Some(default_amounts.clone()),
        limits: Some(default_amounts),
        ..ResourceRequirements::default()
    };
    let mut sidecar = Container {
        name: "autoscaler".to_owned(),
        image: options.image.or_else(|| ray.image.clone()),
        image_pull_policy: Some(options.image_pull_policy.unwrap_or_else(|| "IfNotPresent".to_owned())),
        command: Some(
            options.command.filter(|command| !command.is_empty()).unwrap_or_else(start_command::bash_command),
        ),
        args: Some(options.args.filter(|args| !args.is_empty()).unwrap_or_else(|| vec![COMMAND.to_owned()])),
        resources: Some(parse_option("resources", options.resources)?.unwrap_or(resources)),
        security_context: parse_option("securityContext", options.security_context)?,
        env_from: parse_option("envFrom", options.env_from)?,
        volume_mounts: parse_option("volumeMounts", options.volume_mounts)?,
        ..Container::default()
    };
    sidecar.set_env_from("RAY_CLUSTER_NAME", &label_field(names::CLUSTER_LABEL));
    sidecar.set_env_from("RAY_CLUSTER_NAMESPACE", "metadata.namespace");
    sidecar.set_env_from("RAY_HEAD_POD_NAME", "metadata.name");
    sidecar.set_env("KUBERAY_CRD_VER", "v1");
    sidecar.set_env("KUBERAY_GEN_AUTOSCALER_START_CMD", COMMAND);
    auth::apply_to(common.cluster, &mut sidecar);
    sidecar.env.get_or_insert_default().extend(parse_option::<Vec<_>>("env", options.env)?.unwrap_or_default());
    Ok(Some(sidecar))
}

fn parse_option<T: DeserializeOwned>(option: &str, value: Option<Value>) -> Result<Option<T>, FieldError> {
    let Some(value) = value else { return Ok(None) };
    serde_json::from_value(value).map(Some).map_err(|error| {
        FieldError::new(format!("spec.autoscalerOptions.{option}"), format!("can't be parsed: {error}"))
    })
}
