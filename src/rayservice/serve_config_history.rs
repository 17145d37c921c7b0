//! Serve configurations applied to a RayCluster, stored in ControllerRevisions. The spec holds only
//! the configuration of the next cluster: a head that restarts during an upgrade, or while the spec
//! is invalid, gets its previous configuration from here.

use k8s_openapi::api::apps::v1::ControllerRevision;
use k8s_openapi::apimachinery::pkg::runtime::RawExtension;
use kube_core::ObjectMeta;
use kube_core::ResourceExt;
use serde_json::json;

use super::clusters::ServiceCluster;
use super::{ObservedService, ServiceContext};
use sluice_api::ray::names;
use sluice_plan::ServeConfig;
use sluice_plan::{Plan, Write};
use sluice_raycluster::{names as naming, pod_builder};

/// Field of the ControllerRevision data that holds the configuration in its original text.
const CONFIG_FIELD: &str = "serveConfigV2";

/// Stored Serve configuration.
#[derive(Debug, Clone, Copy)]
pub struct StoredServeConfig<'a> {
    /// ControllerRevision that stores it, owned by the RayCluster.
    pub revision: &'a ControllerRevision,
    /// Parsed configuration.
    pub config: &'a ServeConfig,
}

/// Reads the configuration stored in a ControllerRevision; None if it holds none or it cannot be
/// parsed.
pub fn read_stored_config(object: &ControllerRevision) -> Option<ServeConfig> {
    ServeConfig::from_yaml(object.data.as_ref()?.0.get(CONFIG_FIELD)?.as_str()?).ok()
}

/// Returns the configuration applied to a cluster last; None if it is not stored.
pub(super) fn last_applied<'a>(observed: &ObservedService<'a>, child: &ServiceCluster<'a>) -> Option<&'a ServeConfig> {
    let hash = child.applied_config_hash()?;
    stored_configs_of(observed, child).map(|kept| kept.config).find(|config| config.hash() == hash)
}

/// Stores the configuration that a cluster will get. Older ones are deleted once the cluster's
/// annotation confirms that the new one was applied.
pub(super) fn plan_storage(
    context: &ServiceContext<'_>,
    child: &ServiceCluster<'_>,
    config: &ServeConfig,
    plan: &mut Plan,
) {
    let name = naming::serve_config(child.cluster, config.hash());
    if !stored_configs_of(context.observed, child).any(|kept| kept.revision.name_any() == name) {
        plan.write(Write::create(&controller_revision(child, name, config)));
        return;
    }
    let annotated = child.cluster.annotations().get(names::SERVE_CONFIG_HASH_ANNOTATION);
    if annotated.is_some_and(|annotated| annotated == config.hash()) {
        let previous = stored_configs_of(context.observed, child).filter(|kept| kept.revision.name_any() != name);
        let deletable = previous.filter(|kept| kept.revision.metadata.deletion_timestamp.is_none());
        plan.writes.extend(deletable.map(|kept| Write::delete(kept.revision)));
    }
}

/// Returns the configurations stored for a cluster.
fn stored_configs_of<'v, 'a>(
    observed: &'v ObservedService<'a>,
    child: &ServiceCluster<'_>,
) -> impl Iterator<Item = StoredServeConfig<'a>> + use<'v, 'a> {
    let uid = child.cluster.metadata.uid.clone();
    let is_owned = move |kept: &StoredServeConfig<'_>| {
        kept.revision.owner_references().iter().any(|owner| Some(&owner.uid) == uid.as_ref())
    };
    observed.stored_configs.iter().copied().filter(is_owned)
}

fn controller_revision(child: &ServiceCluster<'_>, name: String, config: &ServeConfig) -> ControllerRevision {
    ControllerRevision {
        metadata: ObjectMeta {
            name: Some(name),
            namespace: child.cluster.namespace(),
            labels: Some([(names::CLUSTER_LABEL.to_owned(), child.name())].into()),
            owner_references: Some(vec![pod_builder::owner_reference(child.cluster)]),
            ..ObjectMeta::default()
        },
        data: Some(RawExtension(json!({CONFIG_FIELD: config.text()}))),
        revision: 1,
    }
}
