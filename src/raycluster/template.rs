//! Builds the pod template of a group from the user's template.
//!
//! This is the only place that defines the content of a Ray pod. Quota accounting uses its result,
//! so usage equals the requests of the pods that run. It follows KubeRay 1.7
//! (`ray-operator/controllers/ray/common/pod.go`): the first container runs Ray.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{
    Container, ContainerPort, EmptyDirVolumeSource, PodSpec, PodTemplateSpec, ResourceRequirements, Volume, VolumeMount,
};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use kube_core::ResourceExt;

use super::auth;
use super::autoscaler::{self, Autoscaler};
use super::env_vars;
use super::field_error::FieldError;
use super::groups::RayNodeType;
use super::start_command::{self, StartParamsInput};
use super::{fault_tolerance, pre_stop};
use super::{names as naming, probes};
use sluice_api::ray::options::StringMap;
use sluice_api::ray::{PodTemplate, RayCluster, WorkerGroupSpec, names};

/// Default port of the GCS.
const GCS_PORT: &str = "6379";
/// Default metrics port.
const METRICS_PORT: i32 = 8080;

/// Values that all pods of a cluster share.
pub(super) struct TemplateContext<'a> {
    pub(super) cluster: &'a RayCluster,
    /// DNS name of the head Service.
    pub(super) head_address: String,
    /// Port of the GCS.
    pub(super) gcs_port: String,
    /// Kind that the cluster was created for: RayCluster, RayService or RayJob.
    pub(super) origin_kind: &'static str,
    /// Autoscaler that sets the number of workers.
    pub(super) autoscaler: Autoscaler,
}

impl<'a> TemplateContext<'a> {
    fn of(cluster: &'a RayCluster) -> Self {
        let port = cluster.spec.head_group_spec.ray_start_params.as_ref().and_then(|params| params.get("port"));
        Self {
            cluster,
            head_address: naming::head_address(cluster),
            gcs_port: port.map_or_else(|| GCS_PORT.to_owned(), Clone::clone),
            origin_kind: origin_kind(cluster),
            autoscaler: Autoscaler::of(&cluster.spec),
        }
    }

    /// Reports whether the cluster belongs to a RayService.
    pub(super) fn belongs_to_ray_service(&self) -> bool {
        self.origin_kind == "RayService"
    }
}

/// Returns the kind that a cluster was created for.
fn origin_kind(cluster: &RayCluster) -> &'static str {
    match cluster.labels().get(names::ORIGIN_KIND_LABEL).map(String::as_str) {
        Some("RayService") => "RayService",
        Some("RayJob") => "RayJob",
        _ => "RayCluster",
    }
}

/// Returns the template of the head pod.
///
/// # Errors
/// Fails when the user's template or a quantity can't be parsed; the error names the field and the
/// value.
pub fn head_template(cluster: &RayCluster) -> Result<PodTemplateSpec, FieldError> {
    let common = TemplateContext::of(cluster);
    let group = &cluster.spec.head_group_spec;
    let field = "spec.headGroupSpec";
    let mut draft = TemplateDraft::of(&group.template, field)?;
    fault_tolerance::configure_head(cluster, &mut draft.template, &mut draft.ray)?;
    let params = start_command::params(&StartParamsInput {
        field,
        node_type: RayNodeType::Head,
        common: &common,
        params: Some(&fault_tolerance::head_params(cluster)),
        resources: group.resources.as_ref(),
        labels: group.labels.as_ref(),
        container_resources: draft.ray.resources.as_ref(),
    })?;
    draft.set_labels(&common, RayNodeType::Head, names::HEAD_GROUP, group.labels.as_ref());
    let sidecar = autoscaler::sidecar(&common, &draft.ray)?;
    draft.finish(&common, RayNodeType::Head, &params);
    if common.autoscaler != Autoscaler::Off {
        draft.spec.service_account_name = Some(naming::head_service_account(cluster));
    }
    if let Some(mut sidecar) = sidecar {
        mount_shared_logs(&mut draft, &mut sidecar);
        draft.spec.containers.push(sidecar);
    }
    Ok(draft.into_template())
}

/// Returns the template of the pods of a worker group, which has this index in the spec.
///
/// # Errors
/// Fails when the user's template or a quantity can't be parsed; the error names the field and the
/// value.
pub fn worker_template(
    cluster: &RayCluster,
    index: usize,
    group: &WorkerGroupSpec,
) -> Result<PodTemplateSpec, FieldError> {
    let common = TemplateContext::of(cluster);
    let field = format!("spec.workerGroupSpecs[{index}]");
    let mut draft = TemplateDraft::of(&group.template, &field)?;
    let params = start_command::params(&StartParamsInput {
        field: &field,
        node_type: RayNodeType::Worker,
        common: &common,
        params: group.ray_start_params.as_ref(),
        resources: group.resources.as_ref(),
        labels: group.labels.as_ref(),
        container_resources: draft.ray.resources.as_ref(),
    })?;
    draft.set_labels(&common, RayNodeType::Worker, &group.group_name, group.labels.as_ref());
    let mut waiter = wait_gcs_ready_container(&common, &draft.ray);
    auth::apply_to(cluster, &mut waiter);
    draft.spec.init_containers.get_or_insert_default().push(waiter);
    fault_tolerance::configure_worker(cluster, &mut draft.ray);
    draft.finish(&common, RayNodeType::Worker, &params);
    Ok(draft.into_template())
}

/// Template under construction. The container that runs Ray is held separately from the spec, so
/// that it always exists.
struct TemplateDraft {
    template: PodTemplateSpec,
    spec: PodSpec,
    ray: Container,
}

impl TemplateDraft {
    fn of(template: &PodTemplate, field: &str) -> Result<Self, FieldError> {
        let field = format!("{field}.template");
        let mut template =
            template.parse().map_err(|problem| FieldError::new(&field, format!("can't be parsed: {problem}")))?;
        let mut spec = template.spec.take().unwrap_or_default();
        if spec.containers.is_empty() {
            let message = "is empty; at least one container is required, and the first one runs Ray";
            return Err(FieldError::new(format!("{field}.spec.containers"), message));
        }
        let ray = spec.containers.remove(0);
        Ok(Self { template, spec, ray })
    }

    /// Sets the labels that select pods. Users can override all but cluster, node type and group.
    fn set_labels(&mut self, common: &TemplateContext<'_>, role: RayNodeType, group: &str, own: Option<&StringMap>) {
        if is_annotation_true(common.cluster.annotations().get(names::OVERWRITE_COMMAND_ANNOTATION)) {
            let annotations = self.template.metadata.get_or_insert_default().annotations.get_or_insert_default();
            annotations.insert(names::OVERWRITE_COMMAND_ANNOTATION.to_owned(), "true".to_owned());
        }
        let labels = self.template.metadata.get_or_insert_default().labels.get_or_insert_default();
        labels.extend(own.into_iter().flatten().map(|(key, value)| (key.clone(), value.clone())));
        let defaults = [
            (names::IS_RAY_NODE_LABEL, "yes".to_owned()),
            (names::IDENTIFIER_LABEL, naming::identifier(common.cluster, role)),
            (names::APP_NAME_LABEL, "kuberay".to_owned()),
            (names::CREATED_BY_LABEL, "kuberay-operator".to_owned()),
        ];
        for (key, value) in defaults {
            labels.entry(key.to_owned()).or_insert(value);
        }
        labels.insert(names::CLUSTER_LABEL.to_owned(), common.cluster.name_any());
        labels.insert(names::NODE_TYPE_LABEL.to_owned(), role.to_string());
        labels.insert(names::GROUP_LABEL.to_owned(), group.to_owned());
        if common.belongs_to_ray_service() {
            // The readiness probe excludes a worker that does not serve. The head has no such
            // probe, so the RayService operator sets its label.
            labels.insert(names::SERVE_LABEL.to_owned(), (role == RayNodeType::Worker).to_string());
        }
    }

    /// Applies the parts that head and workers have in common.
    fn finish(&mut self, common: &TemplateContext<'_>, role: RayNodeType, params: &StringMap) {
        if !params.contains_key("plasma-directory") {
            let size = memory_size(self.ray.resources.as_ref());
            let medium = Some("Memory".to_owned());
            self.mount_empty_dir("shared-mem", "/dev/shm", EmptyDirVolumeSource { medium, size_limit: size });
        }
        if common.autoscaler == Autoscaler::V2 {
            self.spec.restart_policy = Some("Never".to_owned());
        }
        let ports = self.ray.ports.get_or_insert_default();
        if !ports.iter().any(|port| port.name.as_deref() == Some("metrics")) {
            ports.push(ContainerPort {
                name: Some("metrics".to_owned()),
                container_port: METRICS_PORT,
                ..ContainerPort::default()
            });
        }
        let command = start_command::command_line(role, params);
        for container in self.spec.init_containers.iter_mut().flatten() {
            env_vars::set_init_container_env(common, container);
        }
        env_vars::set_ray_env(common, role, &command, &mut self.ray);
        if !self.overwrites_command() {
            start_command::apply_to(&command, &mut self.ray);
        }
        probes::apply_to(common, role, params, &mut self.ray);
        if common.belongs_to_ray_service() && role == RayNodeType::Worker {
            pre_stop::apply_to(&self.spec, &mut self.ray);
        }
        auth::apply_to(common.cluster, &mut self.ray);
        auth::add_token_volume(common.cluster, &mut self.spec);
    }

    /// Reports whether an annotation on the cluster or template keeps the user's container command.
    fn overwrites_command(&self) -> bool {
        let annotations = self.template.metadata.as_ref().and_then(|metadata| metadata.annotations.as_ref());
        is_annotation_true(annotations.and_then(|annotations| annotations.get(names::OVERWRITE_COMMAND_ANNOTATION)))
    }

    fn mount_empty_dir(&mut self, volume: &str, path: &str, source: EmptyDirVolumeSource) {
        mount_empty_dir(&mut self.spec.volumes, &mut self.ray, volume, path, source);
    }

    fn into_template(self) -> PodTemplateSpec {
        let Self { mut template, mut spec, ray } = self;
        spec.containers.insert(0, ray);
        template.spec = Some(spec);
        template
    }
}

fn is_annotation_true(annotation: Option<&String>) -> bool {
    annotation.is_some_and(|value| value.eq_ignore_ascii_case("true"))
}

/// Mounts an emptyDir volume into a container, unless the path already has a mount.
fn mount_empty_dir(
    volumes: &mut Option<Vec<Volume>>,
    container: &mut Container,
    volume: &str,
    path: &str,
    source: EmptyDirVolumeSource,
) {
    let mounts = container.volume_mounts.get_or_insert_default();
    if mounts.iter().any(|mount| mount.mount_path == path) {
        return;
    }
    mounts.push(VolumeMount { name: volume.to_owned(), mount_path: path.to_owned(), ..VolumeMount::default() });
    let volumes = volumes.get_or_insert_default();
    if !volumes.iter().any(|known| known.name == volume) {
        volumes.push(Volume { name: volume.to_owned(), empty_dir: Some(source), ..Volume::default() });
    }
}

/// Shares the log directory between head and autoscaler sidecar, since the dashboard shows the
/// autoscaler's log.
fn mount_shared_logs(draft: &mut TemplateDraft, sidecar: &mut Container) {
    for container in [&mut draft.ray, sidecar] {
        mount_empty_dir(&mut draft.spec.volumes, container, "ray-logs", "/tmp/ray", EmptyDirVolumeSource::default());
    }
}

/// Returns the memory limit, or else the request.
fn memory_size(resources: Option<&ResourceRequirements>) -> Option<Quantity> {
    let memory = |list: &Option<BTreeMap<String, Quantity>>| list.as_ref()?.get("memory").cloned();
    let resources = resources?;
    memory(&resources.limits).or_else(|| memory(&resources.requests))
}

/// Returns the init container that delays a worker until the head responds. A worker that can't
/// reach the head would exit.
fn wait_gcs_ready_container(common: &TemplateContext<'_>, ray: &Container) -> Container {
    let address = format!("{}:{}", common.head_address, common.gcs_port);
    let script = format!(
        "while ! answer=$(ray health-check --address {address} 2>&1); do\n  \
         echo \"waiting for the Ray head at {address} for $SECONDS s\"\n  \
         if [ \"$SECONDS\" -gt 120 ]; then echo \"$answer\"; fi\n  \
         sleep 5\n\
         done\n"
    );
    let amounts =
        names::WAIT_CONTAINER_RESOURCES.map(|(resource, amount)| (resource.to_owned(), Quantity(amount.into())));
    let amounts = BTreeMap::from(amounts);
    Container {
        name: names::WAIT_CONTAINER.to_owned(),
        image: ray.image.clone(),
        image_pull_policy: ray.image_pull_policy.clone(),
        command: Some(start_command::bash_command()),
        args: Some(vec![script]),
        env: ray.env.clone(),
        env_from: ray.env_from.clone(),
        volume_mounts: ray.volume_mounts.clone(),
        security_context: ray.security_context.clone(),
        resources: Some(ResourceRequirements {
            requests: Some(amounts.clone()),
            limits: Some(amounts),
            ..ResourceRequirements::default()
        }),
        ..Container::default()
    }
}
