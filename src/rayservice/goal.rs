//! Desired state of a RayService: parses and validates its spec
//! (KubeRay 1.7 `ray-operator/controllers/ray/utils/validation.go`, `ValidateRayServiceSpec`).

use k8s_openapi::api::core::v1::Service;
use kube_core::ResourceExt;

use super::incremental::options::Options;
use super::{children, hash, initializing, services};
use sluice_api::ray::{RayCluster, RayService, UpgradeType, names, step_choices, upgrade_choices, way_choices};
use sluice_plan::ServeConfig;
use sluice_raycluster::{self as raycluster, Problem};

/// Maximum length of a RayService name, in characters. Names of RayClusters and Services and label
/// values are derived from it.
const LONGEST_NAME: usize = 47;
/// Name of the RayCluster that is built for validation only and never created.
const DRAFT: &str = "draft";

/// Desired state of a RayService with a valid spec.
#[derive(Debug, Clone, PartialEq)]
pub struct Goal {
    /// Hash of the RayCluster spec; see [`hash::of`].
    pub(super) hash: String,
    /// Serve configuration of its RayClusters.
    pub(super) config: ServeConfig,
}

impl Goal {
    /// Reads and validates the desired state of a RayService.
    ///
    /// # Errors
    /// Returns all validation errors; a RayService with any must not be acted on.
    pub fn of(service: &RayService) -> Result<Self, Vec<Problem>> {
        let mut problems = Vec::new();
        name(service, &mut problems);
        let config = config(service, &mut problems);
        let draft = children::draft(service, DRAFT);
        cluster(&draft, &mut problems);
        serve_service(service, &draft, &mut problems);
        if let Some(UpgradeType::Other(unknown)) = own_strategy(service) {
            let message = format!(
                "unsupported value {unknown:?}; supported values: NewCluster, NewClusterWithIncrementalUpgrade, None"
            );
            problem(&mut problems, "spec.upgradeStrategy.type", message);
        }
        if let Err(found) = Options::of(service) {
            problems.extend(found);
        }
        if let Err(message) = initializing::limit(service) {
            problem(
                &mut problems,
                &format!("metadata.annotations[{}]", names::INITIALIZING_TIMEOUT_ANNOTATION),
                message,
            );
        }
        if let Some(seconds) = service.spec.ray_cluster_deletion_delay_seconds.filter(|seconds| *seconds < 0) {
            problem(&mut problems, "spec.rayClusterDeletionDelaySeconds", format!("{seconds} must not be negative"));
        }
        match config {
            Some(config) if problems.is_empty() => {
                Ok(Self { hash: hash::of(&service.spec.ray_cluster_config), config })
            }
            _ => Err(problems),
        }
    }
}

/// Returns the upgrade strategy. If the spec sets none, the operator default applies: NewCluster if
/// `upgrades` is true, None otherwise.
pub(super) fn strategy(service: &RayService, upgrades: bool) -> &UpgradeType {
    let default = if upgrades { &UpgradeType::NewCluster } else { &UpgradeType::None };
    own_strategy(service).unwrap_or(default)
}

/// Returns the upgrade strategy set in the spec; None if it sets none.
pub(super) fn own_strategy(service: &RayService) -> Option<&UpgradeType> {
    service.spec.upgrade_strategy.as_ref()?.type_.as_ref()
}

/// Returns fields and annotations that are set but have no effect, each with an explanation.
pub(super) fn unsupported(service: &RayService) -> Vec<String> {
    let cluster_fields = raycluster::unsupported::fields(&children::draft(service, DRAFT));
    let cluster_fields = cluster_fields.iter().map(|field| in_service(field));
    misread(service).chain(cluster_fields).collect()
}

/// Returns a message for each invalid annotation, with the allowed values.
pub(super) fn misread(service: &RayService) -> impl Iterator<Item = String> {
    let meta = &service.metadata;
    let upgrade_errors = upgrade_choices::misread(meta).into_iter().chain(step_choices::misread(meta));
    upgrade_errors.chain(way_choices::misread(meta))
}

/// Returns the path of a RayCluster field within the RayService.
fn in_service(field: &str) -> String {
    field.strip_prefix("spec.").map_or_else(|| field.to_owned(), |rest| format!("spec.rayClusterConfig.{rest}"))
}

fn problem(problems: &mut Vec<Problem>, field: &str, message: impl ToString) {
    problems.push(Problem { field: field.to_owned(), message: message.to_string() });
}

fn name(service: &RayService, problems: &mut Vec<Problem>) {
    let name = service.name_any();
    let field = "metadata.name";
    if name.chars().count() > LONGEST_NAME {
        let message = format!("{name:?} has {} characters; at most {LONGEST_NAME} are allowed", name.chars().count());
        problem(problems, field, message);
    }
    let starts_with_letter = name.starts_with(|first: char| first.is_ascii_lowercase());
    let is_label =
        name.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-') && !name.ends_with('-');
    if !starts_with_letter || !is_label {
        let message = format!(
            "{name:?} is used in Service names: it must consist of a-z, 0-9 and '-', start with a letter and not end with '-'"
        );
        problem(problems, field, message);
    }
}

fn config(service: &RayService, problems: &mut Vec<Problem>) -> Option<ServeConfig> {
    match ServeConfig::from_yaml(service.spec.serve_config_v2.as_deref().unwrap_or_default()) {
        Ok(config) if config.sets_capacity() && is_in_steps(service) => {
            let message = "target_capacity must not be set when spec.upgradeStrategy.type is \
                 NewClusterWithIncrementalUpgrade: Sluice sets it during an upgrade";
            problem(problems, "spec.serveConfigV2", message);
            None
        }
        Ok(config) => Some(config),
        Err(error) => {
            problem(problems, "spec.serveConfigV2", error);
            None
        }
    }
}

fn is_in_steps(service: &RayService) -> bool {
    own_strategy(service) == Some(&UpgradeType::NewClusterWithIncrementalUpgrade)
}

/// Validates the RayCluster that would be created for the RayService.
fn cluster(draft: &RayCluster, problems: &mut Vec<Problem>) {
    if let Err(found) = raycluster::validate::groups(draft) {
        let found = found.into_iter();
        problems.extend(found.map(|problem| Problem { field: in_service(&problem.field), message: problem.message }));
    }
    let head = &draft.spec.head_group_spec;
    let head_service_name = head.head_service.as_ref().and_then(|service| service.pointer("/metadata/name")?.as_str());
    if let Some(name) = head_service_name.filter(|name| !name.is_empty()) {
        let message =
            format!("{name:?} must not be set: during an upgrade two RayClusters would share this head Service");
        problem(problems, "spec.rayClusterConfig.headGroupSpec.headService.metadata.name", message);
    }
}

fn serve_service(service: &RayService, draft: &RayCluster, problems: &mut Vec<Problem>) {
    let field = "spec.serveService";
    let own = service.spec.serve_service.clone().map(serde_json::from_value::<Service>).transpose();
    match own {
        Err(error) => problem(problems, field, error),
        Ok(_) if services::serve_ports(service, draft).is_empty() => {
            let field = "spec.rayClusterConfig.headGroupSpec.template.spec.containers[0].ports";
            problem(problems, field, "no port is named \"serve\" or \"serve-...\", so no request could reach Serve");
        }
        Ok(_) => {}
    }
}
