//! What a service asks for, if that makes sense
//! (KubeRay 1.7 `ray-operator/controllers/ray/utils/validation.go`, `ValidateRayServiceSpec`).

use k8s_openapi::api::core::v1::Service;
use kube_core::ResourceExt;

use super::incremental::options::Options;
use super::{children, hash, initializing, services};
use sluice_api::ray::{RayCluster, RayService, UpgradeType, names, step_choices, upgrade_choices, way_choices};
use sluice_plan::ServeConfig;
use sluice_raycluster::{self as raycluster, Problem};

/// The longest name of a service, in characters; names of children, Services and labels are made from it.
const LONGEST_NAME: usize = 47;
/// A name for a cluster that is only looked at.
const DRAFT: &str = "draft";

/// What a service asks for.
#[derive(Debug, Clone, PartialEq)]
pub struct Goal {
    /// What tells its cluster from others.
    pub(super) hash: String,
    /// What its clusters are to serve.
    pub(super) config: ServeConfig,
}

impl Goal {
    /// Reads what a service asks for.
    ///
    /// # Errors
    /// Everything that is wrong with it; nothing in a service that has a problem may be acted on.
    pub fn of(service: &RayService) -> Result<Self, Vec<Problem>> {
        let mut problems = Vec::new();
        name(service, &mut problems);
        let config = config(service, &mut problems);
        let draft = children::draft(service, DRAFT);
        cluster(&draft, &mut problems);
        serve_service(service, &draft, &mut problems);
        if let Some(UpgradeType::Other(unknown)) = own_strategy(service) {
            let message = format!("{unknown:?}; NewCluster, NewClusterWithIncrementalUpgrade and None are allowed");
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
            problem(&mut problems, "spec.rayClusterDeletionDelaySeconds", format!("{seconds} is below 0"));
        }
        match config {
            Some(config) if problems.is_empty() => {
                Ok(Self { hash: hash::of(&service.spec.ray_cluster_config), config })
            }
            _ => Err(problems),
        }
    }
}

/// How a change of the cluster is to be brought about. If the spec doesn't say, `upgrades` tells whether another is made.
pub(super) fn strategy(service: &RayService, upgrades: bool) -> &UpgradeType {
    let usual = if upgrades { &UpgradeType::NewCluster } else { &UpgradeType::None };
    own_strategy(service).unwrap_or(usual)
}

/// What the spec itself says of that.
pub(super) fn own_strategy(service: &RayService) -> Option<&UpgradeType> {
    service.spec.upgrade_strategy.as_ref()?.type_.as_ref()
}

/// What is set and has no effect, each with what is missing.
pub(super) fn unsupported(service: &RayService) -> Vec<String> {
    let of_cluster = raycluster::unsupported::fields(&children::draft(service, DRAFT));
    let of_cluster = of_cluster.iter().map(|field| in_service(field));
    misread(service).chain(of_cluster).collect()
}

/// Annotations that make no sense, each with what is allowed.
pub(super) fn misread(service: &RayService) -> impl Iterator<Item = String> {
    let meta = &service.metadata;
    let of_upgrades = upgrade_choices::misread(meta).into_iter().chain(step_choices::misread(meta));
    of_upgrades.chain(way_choices::misread(meta))
}

/// A field of a cluster as the service has it.
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
        let message = format!("{name:?} has {} characters; up to {LONGEST_NAME} are allowed", name.chars().count());
        problem(problems, field, message);
    }
    let starts_well = name.starts_with(|first: char| first.is_ascii_lowercase());
    let is_label =
        name.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-') && !name.ends_with('-');
    if !starts_well || !is_label {
        let message = format!("{name:?} becomes the name of Services: a-z, 0-9 and '-', from a letter on, to no '-'");
        problem(problems, field, message);
    }
}

fn config(service: &RayService, problems: &mut Vec<Problem>) -> Option<ServeConfig> {
    match ServeConfig::from_yaml(service.spec.serve_config_v2.as_deref().unwrap_or_default()) {
        Ok(config) if config.sets_capacity() && is_in_steps(service) => {
            let message = "target_capacity is set by Sluice itself, step by step, where upgradeStrategy.type is \
                 NewClusterWithIncrementalUpgrade; leave it out";
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

/// The cluster is judged as the child that it would become.
fn cluster(draft: &RayCluster, problems: &mut Vec<Problem>) {
    if let Err(found) = raycluster::validate::groups(draft) {
        let found = found.into_iter();
        problems.extend(found.map(|problem| Problem { field: in_service(&problem.field), message: problem.message }));
    }
    let head = &draft.spec.head_group_spec;
    let named = head.head_service.as_ref().and_then(|service| service.pointer("/metadata/name")?.as_str());
    if let Some(name) = named.filter(|name| !name.is_empty()) {
        let message =
            format!("{name:?} would be the name of the head Service of two clusters during an upgrade; leave it out");
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
            problem(problems, field, "there is no port named \"serve\" or \"serve-…\", so nobody could send requests");
        }
        Ok(_) => {}
    }
}
