//! The Serve configuration that a cluster was given, kept in the API server beside it. The spec tells only what the next cluster is to
//! have: a head that comes up anew while another configuration is wanted, or while the spec makes no sense, is given what it had.

use k8s_openapi::api::apps::v1::ControllerRevision;
use k8s_openapi::apimachinery::pkg::runtime::RawExtension;
use kube_core::ResourceExt;
use kube_core::ObjectMeta;
use serde_json::json;

use super::family::Child;
use super::{Scene, View};
use sluice_api::ray::names;
use sluice_plan::ServeConfig;
use sluice_plan::{Plan, Write};
use sluice_raycluster::{build, names as naming};

/// Where in a ControllerRevision the configuration is, as the text that it was written as.
const FIELD: &str = "serveConfigV2";

/// One configuration that is kept.
#[derive(Debug, Clone, Copy)]
pub struct Kept<'a> {
    /// What it is kept in, which belongs to the cluster that has it.
    pub object: &'a ControllerRevision,
    /// The configuration.
    pub config: &'a ServeConfig,
}

/// Reads the configuration that is kept in an object; `None` if none is.
pub fn read(object: &ControllerRevision) -> Option<ServeConfig> {
    ServeConfig::from_yaml(object.data.as_ref()?.0.get(FIELD)?.as_str()?).ok()
}

/// The configuration that a child was given last, if that is kept.
pub(super) fn applied<'a>(view: &View<'a>, child: &Child<'a>) -> Option<&'a ServeConfig> {
    let hash = child.applied_config()?;
    of(view, child).map(|kept| kept.config).find(|config| config.hash() == hash)
}

/// Keeps the configuration that a child is to have, and lets go those before it once it is on record that the child has taken it.
pub(super) fn plan(scene: &Scene<'_>, child: &Child<'_>, config: &ServeConfig, plan: &mut Plan) {
    let name = naming::serve_config(child.cluster, config.hash());
    if !of(scene.view, child).any(|kept| kept.object.name_any() == name) {
        plan.write(Write::create(&object(child, name, config)));
        return;
    }
    let noted = child.cluster.annotations().get(names::SERVE_CONFIG_HASH_ANNOTATION);
    if noted.is_some_and(|noted| noted == config.hash()) {
        let former = of(scene.view, child).filter(|kept| kept.object.name_any() != name);
        let there = former.filter(|kept| kept.object.metadata.deletion_timestamp.is_none());
        plan.writes.extend(there.map(|kept| Write::delete(kept.object, false)));
    }
}

/// What is kept for a child.
fn of<'v, 'a>(view: &'v View<'a>, child: &Child<'_>) -> impl Iterator<Item = Kept<'a>> + use<'v, 'a> {
    let uid = child.cluster.metadata.uid.clone();
    let is_its =
        move |kept: &Kept<'_>| kept.object.owner_references().iter().any(|owner| Some(&owner.uid) == uid.as_ref());
    view.kept.iter().copied().filter(is_its)
}

fn object(child: &Child<'_>, name: String, config: &ServeConfig) -> ControllerRevision {
    ControllerRevision {
        metadata: ObjectMeta {
            name: Some(name),
            namespace: child.cluster.namespace(),
            labels: Some([(names::CLUSTER_LABEL.to_owned(), child.name())].into()),
            owner_references: Some(vec![build::owner(child.cluster)]),
            ..ObjectMeta::default()
        },
        data: Some(RawExtension(json!({FIELD: config.text()}))),
        revision: 1,
    }
}
