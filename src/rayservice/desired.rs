//! Desired state of a RayService: parses and validates its spec
//! (KubeRay 1.7 `ray-operator/controllers/ray/utils/validation.go`, `ValidateRayServiceSpec`).

use k8s_openapi::api::core::v1::Service;
use kube_core::ResourceExt;

use super::incremental::options::IncrementalOptions;
use super::{initializing_timeout, ray_clusters, services, spec_hash};
use sluice_api::ray::{
    AnnotationError, RayCluster, RayService, UpgradeType, admission_annotations, incremental_annotations, names,
    routing_annotations,
};
use sluice_plan::ServeConfig;
use sluice_raycluster::{self as raycluster, FieldError};

/// Maximum length of a RayService name, in characters. Names of RayClusters and Services and label
/// values are derived from it.
const MAX_NAME_LENGTH: usize = 47;
/// Name of the RayCluster that is built for validation only and never created.
const DRAFT_CLUSTER_NAME: &str = "draft";

/// Desired state of a RayService with a valid spec.
#[derive(Debug, Clone, PartialEq)]
pub struct DesiredService {
    /// Hash of the RayCluster spec; see [`spec_hash::compute`].
    pub(super) cluster_spec_hash: String,
    /// Serve configuration of its RayClusters.
    pub(super) serve_config: ServeConfig,
}

impl DesiredService {
    /// Reads and validates the desired state of a RayService.
    ///
    /// # Errors
    /// Returns all validation errors; a RayService with any must not be acted on.
    pub fn from_service(service: &RayService) -> Result<Self, Vec<FieldError>> {
        let mut problems = Vec::new();
        validate_name(service, &mut problems);
        let config = parse_serve_config(service, &mut problems);
        let draft = ray_clusters::build_cluster(service, DRAFT_CLUSTER_NAME);
        validate_cluster(&draft, &mut problems);
        validate_serve_service(service, &draft, &mut problems);
        if let Some(UpgradeType::Unknown(unknown)) = spec_strategy(service) {
            let message = format!(
                "unsupported value {unknown:?}; supported values: NewCluster, NewClusterWithIncrementalUpgrade, None"
            );
            push_error(&mut problems, "spec.upgradeStrategy.type", message);
        }
        if let Err(found) = IncrementalOptions::from_service(service) {
            problems.extend(found);
        }
        if let Err(message) = initializing_timeout::initializing_timeout(service) {
            push_error(
                &mut problems,
                &format!("metadata.annotations[{}]", names::INITIALIZING_TIMEOUT_ANNOTATION),
                message,
            );
        }
        if let Some(seconds) = service.spec.ray_cluster_deletion_delay_seconds.filter(|seconds| *seconds < 0) {
            push_error(&mut problems, "spec.rayClusterDeletionDelaySeconds", format!("{seconds} must not be negative"));
        }
        match config {
            Some(config) if problems.is_empty() => Ok(Self {
                cluster_spec_hash: spec_hash::compute(&service.spec.ray_cluster_config),
                serve_config: config,
            }),
            _ => Err(problems),
        }
    }
}

/// Returns the upgrade strategy. If the spec sets none, the operator default applies: NewCluster if
/// `upgrades` is true, None otherwise.
pub(super) fn effective_strategy(service: &RayService, upgrades: bool) -> &UpgradeType {
    let default = if upgrades { &UpgradeType::NewCluster } else { &UpgradeType::None };
    spec_strategy(service).unwrap_or(default)
}

/// Returns the upgrade strategy set in the spec; None if it sets none.
pub(super) fn spec_strategy(service: &RayService) -> Option<&UpgradeType> {
    service.spec.upgrade_strategy.as_ref()?.type_.as_ref()
}

/// Returns fields and annotations that are set but have no effect, each with an explanation.
pub(super) fn unsupported_fields(service: &RayService) -> Vec<String> {
    let cluster_fields =
        raycluster::unsupported::unsupported_fields(&ray_clusters::build_cluster(service, DRAFT_CLUSTER_NAME));
    let cluster_fields = cluster_fields.iter().map(|field| service_field_path(field));
    invalid_annotations(service).map(|error| error.to_string()).chain(cluster_fields).collect()
}

/// Returns the error of each invalid annotation.
pub(super) fn invalid_annotations(service: &RayService) -> impl Iterator<Item = AnnotationError> {
    let meta = &service.metadata;
    let upgrade_errors = admission_annotations::invalid_annotations(meta)
        .into_iter()
        .chain(incremental_annotations::invalid_annotations(meta));
    upgrade_errors.chain(routing_annotations::invalid_annotations(meta))
}

/// Returns the path of a RayCluster field within the RayService.
fn service_field_path(field: &str) -> String {
    field.strip_prefix("spec.").map_or_else(|| field.to_owned(), |rest| format!("spec.rayClusterConfig.{rest}"))
}

fn push_error(problems: &mut Vec<FieldError>, field: &str, message: impl ToString) {
    problems.push(FieldError { field: field.to_owned(), message: message.to_string() });
}

fn validate_name(service: &RayService, problems: &mut Vec<FieldError>) {
    let name = service.name_any();
    let field = "metadata.name";
    if name.chars().count() > MAX_NAME_LENGTH {
        let message =
            format!("{name:?} has {} characters; at most {MAX_NAME_LENGTH} are allowed", name.chars().count());
        push_error(problems, field, message);
    }
    let starts_with_letter = name.starts_with(|first: char| first.is_ascii_lowercase());
    let is_label =
        name.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-') && !name.ends_with('-');
    if !starts_with_letter || !is_label {
        let message = format!(
            "{name:?} is used in Service names: it must consist of a-z, 0-9 and '-', start with a letter and not end with '-'"
        );
        push_error(problems, field, message);
    }
}

fn parse_serve_config(service: &RayService, problems: &mut Vec<FieldError>) -> Option<ServeConfig> {
    match ServeConfig::from_yaml(service.spec.serve_config_v2.as_deref().unwrap_or_default()) {
        Ok(config) if config.has_target_capacity() && is_incremental(service) => {
            let message = "target_capacity must not be set when spec.upgradeStrategy.type is \
                 NewClusterWithIncrementalUpgrade: Sluice sets it during an upgrade";
            push_error(problems, "spec.serveConfigV2", message);
            None
        }
        Ok(config) => Some(config),
        Err(error) => {
            push_error(problems, "spec.serveConfigV2", error);
            None
        }
    }
}

fn is_incremental(service: &RayService) -> bool {
    spec_strategy(service) == Some(&UpgradeType::NewClusterWithIncrementalUpgrade)
}

/// Validates the RayCluster that would be created for the RayService.
fn validate_cluster(draft: &RayCluster, problems: &mut Vec<FieldError>) {
    if let Err(found) = raycluster::validate::validated_groups(draft) {
        let found = found.into_iter();
        problems.extend(
            found.map(|problem| FieldError { field: service_field_path(&problem.field), message: problem.message }),
        );
    }
    let head = &draft.spec.head_group_spec;
    let head_service_name = head.head_service.as_ref().and_then(|service| service.pointer("/metadata/name")?.as_str());
    if let Some(name) = head_service_name.filter(|name| !name.is_empty()) {
        let message =
            format!("{name:?} must not be set: during an upgrade two RayClusters would share this head Service");
        push_error(problems, "spec.rayClusterConfig.headGroupSpec.headService.metadata.name", message);
    }
}

fn validate_serve_service(service: &RayService, draft: &RayCluster, problems: &mut Vec<FieldError>) {
    let field = "spec.serveService";
    let own = service.spec.serve_service.clone().map(serde_json::from_value::<Service>).transpose();
    match own {
        Err(error) => push_error(problems, field, error),
        Ok(_) if services::serve_ports(service, draft).is_empty() => {
            let field = "spec.rayClusterConfig.headGroupSpec.template.spec.containers[0].ports";
            push_error(problems, field, "no port is named \"serve\" or \"serve-...\", so no request could reach Serve");
        }
        Ok(_) => {}
    }
}
