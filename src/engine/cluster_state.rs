//! Observed state of the API server: one [`Store`] per kind.

use std::collections::BTreeSet;
use std::sync::Arc;

use k8s_openapi::api::apps::v1::ControllerRevision;
use k8s_openapi::api::batch::v1::Job as BatchJob;
use k8s_openapi::api::core::v1::{LimitRange, Namespace, Pod, Secret, Service, ServiceAccount};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use k8s_openapi::api::networking::v1::Ingress;
use k8s_openapi::api::node::v1::RuntimeClass;
use k8s_openapi::api::rbac::v1::{Role, RoleBinding};
use k8s_openapi::api::scheduling::v1::PriorityClass;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};
use kube_core::PartialObjectMeta;
use kube_core::{Resource, ResourceExt, TypeMeta};
use serde::de::DeserializeOwned;
use serde_json::Value;

use super::store::{Applied, IndexKeys, Store};
use super::{Scope, unused_fields};
use sluice_api::gateway_api::{Gateway, GatewayClass, HTTPRoute};
use sluice_api::kueue::names::JOB_UID_LABEL;
use sluice_api::kueue::{ClusterQueue, Cohort, LocalQueue, ResourceFlavor, Workload, WorkloadPriorityClass};
use sluice_api::ray::{RayCluster, RayJob, RayService, names};
use sluice_jobframework::batch_job::{CONTROLLER_UID_LABEL, JOB_NAME_LABEL};
use sluice_jobframework::slice_record::SliceRecord;
use sluice_plan::ObjectKey;
use sluice_plan::{self as plan, ObjectRef, Write, WriteOp};
use sluice_raycluster::revision;

/// Metadata of a Secret, without its data.
pub type SecretMeta = PartialObjectMeta<Secret>;

/// A kind that is watched.
pub trait WatchedKind:
    Resource<DynamicType = ()> + DeserializeOwned + Clone + std::fmt::Debug + Send + Sync + 'static
{
    /// Wraps an object of this kind.
    fn wrap(object: Arc<Self>) -> Object;
    /// Wraps a complete list of the objects of this kind.
    fn object_list(objects: Vec<Arc<Self>>) -> ObjectList;
}

macro_rules! kinds {
    ($( $(#[$doc:meta])* $kind:ident in $store:ident by $index:expr; )*) => {
        /// An object of any watched kind.
        #[derive(Debug, Clone)]
        pub enum Object {
            $( $(#[$doc])* $kind(Arc<$kind>), )*
        }

        impl Object {
            /// Decodes an object of this type; `None` if its kind is not watched.
            ///
            /// # Errors
            /// Fails if `value` does not match the kind.
            pub fn decode(of: &TypeMeta, value: Value) -> Result<Option<Self>, serde_json::Error> {
                $(
                    if of.kind == $kind::kind(&()) && of.api_version == $kind::api_version(&()) {
                        return Ok(Some(strip_and_wrap(serde_json::from_value::<$kind>(value)?)));
                    }
                )*
                Ok(None)
            }

            /// Returns the metadata.
            pub fn meta(&self) -> &ObjectMeta {
                match self { $( Self::$kind(object) => object.meta(), )* }
            }

            /// Reports whether the write with this response deleted the object: it removed the last finalizer
            /// (kubernetes v1.36 `staging/src/k8s.io/apiserver/pkg/registry/generic/registry/store.go`,
            /// `ShouldDeleteDuringUpdate`). Pods stay for their grace period.
            pub fn is_deleted(&self) -> bool {
                let meta = self.meta();
                let has_finalizers = meta.finalizers.as_ref().is_some_and(|finalizers| !finalizers.is_empty());
                meta.deletion_timestamp.is_some() && !has_finalizers && !matches!(self, Self::Pod(_))
            }

            /// Returns the object as JSON, with `apiVersion` and `kind`.
            pub fn manifest(&self) -> Value {
                match self { $( Self::$kind(object) => plan::manifest(object.as_ref()), )* }
            }

            /// Returns the reference to this object.
            pub fn reference(&self) -> ObjectRef {
                match self { $( Self::$kind(object) => ObjectRef::of(object.as_ref()), )* }
            }
        }

        /// A complete list of the objects of one kind.
        #[derive(Debug, Clone)]
        pub enum ObjectList {
            $( $(#[$doc])* $kind(Vec<Arc<$kind>>), )*
        }

        impl ObjectList {
            /// Returns the kind of the objects, like `RayCluster`.
            pub fn kind(&self) -> &'static str {
                match self { $( Self::$kind(_) => stringify!($kind), )* }
            }
        }

        /// The newest known version of every object of the watched kinds.
        #[derive(Debug, Clone)]
        pub struct ClusterState {
            $( $(#[$doc])* pub $store: Store<$kind>, )*
        }

        impl Default for ClusterState {
            fn default() -> Self {
                Self { $( $store: Store::new($index), )* }
            }
        }

        impl ClusterState {
            /// Applies a version of an object; returns the change, `None` if the version is stale.
            pub fn apply(&mut self, object: Object) -> Option<Change> {
                match object {
                    $( Object::$kind(object) => apply_to(&mut self.$store, object), )*
                }
            }

            /// Applies a complete list of a scope, taken at a resource version; returns the changes.
            pub fn relist(&mut self, listing: ObjectList, scope: &Scope, version: u64) -> Vec<Change> {
                match listing {
                    $( ObjectList::$kind(objects) => relist_in(&mut self.$store, objects, scope, version), )*
                }
            }

            /// Removes the target of a write that the API server reported as not found; the watch
            /// event may arrive much later. Returns `None` if the stored version is not the one
            /// that the write was planned for: that is another object, or newer than the response.
            pub fn on_not_found(&mut self, write: &Write) -> Option<Change> {
                let target = &write.target;
                let key = ObjectKey::new(target.namespace.clone().unwrap_or_default(), target.name.clone());
                $(
                    if target.kind == $kind::kind(&()) && target.api_version == $kind::api_version(&()) {
                        let held = self.$store.get(&key).filter(|held| write.targets_version(held.meta()))?.clone();
                        let before = self.$store.remove(held.as_ref())?;
                        return Some(Change { before: Some(Object::$kind(before)), after: None });
                    }
                )*
                None
            }

            /// Returns the metadata of the stored object with this reference.
            fn meta(&self, target: &ObjectRef) -> Option<&ObjectMeta> {
                let key = ObjectKey::new(target.namespace.clone().unwrap_or_default(), target.name.clone());
                $(
                    if target.kind == $kind::kind(&()) && target.api_version == $kind::api_version(&()) {
                        return self.$store.get(&key).map(|held| held.meta());
                    }
                )*
                None
            }

            /// Removes a deleted object; returns the change, `None` if it was not stored.
            pub fn remove(&mut self, last: &Object) -> Option<Change> {
                match last {
                    $( Object::$kind(last) => {
                        self.$store.remove(last).map(|before| Change { before: Some(Object::$kind(before)), after: None })
                    } )*
                }
            }
        }

        $(
            impl WatchedKind for $kind {
                fn wrap(object: Arc<Self>) -> Object {
                    Object::$kind(object)
                }
                fn object_list(objects: Vec<Arc<Self>>) -> ObjectList {
                    ObjectList::$kind(objects)
                }
            }
        )*
    };
}

kinds! {
    /// A flavor of resources, like one node type.
    ResourceFlavor in resource_flavors by |_| UNINDEXED;
    /// A pool of quota for workloads.
    ClusterQueue in cluster_queues by |_| UNINDEXED;
    /// A namespaced queue that submits to a ClusterQueue.
    LocalQueue in local_queues by |_| UNINDEXED;
    /// A group of ClusterQueues that share quota.
    Cohort in cohorts by |_| UNINDEXED;
    /// A Workload, that is a slice of a job; indexed by the uid of the job, and without an owner by
    /// that of its only member too.
    Workload in workloads by job_uids_of_workload;
    /// A priority for Workloads.
    WorkloadPriorityClass in workload_priority_classes by |_| UNINDEXED;
    /// A priority for pods.
    PriorityClass in priority_classes by |_| UNINDEXED;
    /// A RayCluster; indexed by the uid of the RayService or RayJob that owns it.
    RayCluster in ray_clusters by controller_uid;
    /// A RayService.
    RayService in ray_services by |_| UNINDEXED;
    /// A batch/v1 Job; indexed by the uid of its owner.
    BatchJob in batch_jobs by controller_uid;
    /// A RayJob; indexed by its own uid.
    RayJob in ray_jobs by own_uid;
    /// A pod of a RayCluster or batch/v1 Job; indexed by the uid of its owner (without one: see
    /// `orphaned_pod_key`), and of the RayJob that it was ungated for.
    Pod in pods by controller_and_job_uid;
    /// A Service of a RayCluster or RayService; indexed by the uid of its owner.
    Service in services by controller_uid;
    /// An Ingress to the head of a RayCluster.
    Ingress in ingresses by |_| UNINDEXED;
    /// A stored spec or Serve configuration of a RayCluster; indexed by the uid of the cluster.
    ControllerRevision in controller_revisions by controller_uid;
    /// A ServiceAccount of the autoscaler.
    ServiceAccount in service_accounts by |_| UNINDEXED;
    /// A Secret with the auth token of a cluster; metadata only.
    SecretMeta in secrets by |_| UNINDEXED;
    /// A Role of the autoscaler.
    Role in roles by |_| UNINDEXED;
    /// A RoleBinding of the autoscaler.
    RoleBinding in role_bindings by |_| UNINDEXED;
    /// Endpoints of a Service; indexed by that Service.
    EndpointSlice in endpoint_slices by service_of_slice;
    /// A Gateway that receives the traffic of RayServices.
    Gateway in gateways by |_| UNINDEXED;
    /// A class of Gateways.
    GatewayClass in gateway_classes by |_| UNINDEXED;
    /// A route that splits traffic between Services.
    HTTPRoute in http_routes by |_| UNINDEXED;
    /// A namespace.
    Namespace in namespaces by |_| UNINDEXED;
    /// Limits and defaults for the requests of pods in a namespace.
    LimitRange in limit_ranges by |_| UNINDEXED;
    /// A container runtime, which may add overhead to the requests of pods.
    RuntimeClass in runtime_classes by |_| UNINDEXED;
}

impl ClusterState {
    /// Reports whether the stored object is still the version that `write` was planned for, so that
    /// only the response reveals the outcome of the write.
    pub fn is_unchanged_since_plan(&self, write: &Write) -> bool {
        let Some(meta) = self.meta(&write.target) else { return false };
        let is_terminating = matches!(write.op, WriteOp::Delete { .. }) && meta.deletion_timestamp.is_some();
        !is_terminating && write.targets_version(meta)
    }
}

/// A change of one object.
#[derive(Debug, Clone)]
pub struct Change {
    /// Version before the change; `None` for a new object.
    pub before: Option<Object>,
    /// Version after the change; `None` for a deleted object.
    pub after: Option<Object>,
}

impl Change {
    /// Iterates over the versions before and after the change.
    pub fn versions(&self) -> impl Iterator<Item = &Object> {
        [&self.before, &self.after].into_iter().flatten()
    }
}

fn relist_in<K: WatchedKind>(store: &mut Store<K>, listed: Vec<Arc<K>>, scope: &Scope, version: u64) -> Vec<Change> {
    let keys: BTreeSet<ObjectKey> = listed.iter().map(|object| ObjectKey::of(object.as_ref())).collect();
    let absent = store.remove_unlisted(&keys, scope, version).into_iter();
    let mut changes: Vec<Change> = absent.map(|before| Change { before: Some(K::wrap(before)), after: None }).collect();
    changes.extend(listed.into_iter().filter_map(|object| apply_to(store, object)));
    changes
}

fn apply_to<K: WatchedKind>(store: &mut Store<K>, object: Arc<K>) -> Option<Change> {
    match store.apply(object.clone()) {
        Applied::Stale => None,
        Applied::Updated { replaced } => Some(Change { before: replaced.map(K::wrap), after: Some(K::wrap(object)) }),
    }
}

/// Wraps a received object after dropping its unused fields; see [`unused_fields::strip`].
pub fn strip_and_wrap<K: WatchedKind>(object: K) -> Object {
    K::wrap(unused_fields::strip(object))
}

/// Returns the index key for objects of the owner with this uid.
pub fn owner_key(uid: &str) -> ObjectKey {
    ObjectKey::global(uid)
}

/// Kinds that own pods.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum PodOwnerKind {
    RayCluster,
    RayJob,
    BatchJob,
}

/// Identifies one owner of pods by name and uid: the pods of a deleted object neither belong to a
/// later object of the same name nor are covered by its quota.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct PodOwnerId {
    /// Kind of the owner.
    pub(super) owner_kind: PodOwnerKind,
    /// Namespace and name of the owner.
    pub(super) key: ObjectKey,
    /// Uid of the owner.
    pub(super) uid: String,
}

impl PodOwnerId {
    /// Returns the RayCluster or batch/v1 Job that owns a pod, or that did until the pod was orphaned;
    /// `None` if neither does, or if that is not known.
    pub(super) fn of_pod(pod: &Pod) -> Option<Self> {
        let owned_by_kind = |runner, kind| Some((runner, controller_reference(pod, kind)?));
        let owned = owned_by_kind(PodOwnerKind::RayCluster, "RayCluster")
            .or_else(|| owned_by_kind(PodOwnerKind::BatchJob, "Job"));
        let namespace = pod.namespace().unwrap_or_default();
        let Some((runner, owner)) = owned else {
            let (name, uid) = (pod.labels().get(JOB_NAME_LABEL)?, pod.labels().get(CONTROLLER_UID_LABEL)?);
            let is_orphaned = !has_controller(pod);
            let owner =
                || Self { owner_kind: PodOwnerKind::BatchJob, key: ObjectKey::new(namespace, name), uid: uid.clone() };
            return is_orphaned.then(owner);
        };
        let key = ObjectKey::new(namespace, owner.name.clone());
        Some(Self { owner_kind: runner, key, uid: owner.uid.clone() })
    }

    /// Returns the RayJob that a pod was ungated for, with an empty name: the pod records only the
    /// uid.
    pub(super) fn ungated_for(pod: &Pod) -> Option<Self> {
        let key = ObjectKey::new(pod.namespace().unwrap_or_default(), "");
        Some(Self { owner_kind: PodOwnerKind::RayJob, key, uid: ungated_for_ray_job_uid(pod)?.to_owned() })
    }
}

/// Returns the controlling owner of an object if it is of this kind.
pub(super) fn controller_reference<'a, K: Resource>(object: &'a K, kind: &str) -> Option<&'a OwnerReference> {
    let owners = object.meta().owner_references.as_deref().unwrap_or_default();
    owners.iter().find(|owner| owner.controller == Some(true) && owner.kind == kind)
}

/// Index keys of kinds that are looked up by object key only.
const UNINDEXED: IndexKeys = [None, None];

fn own_uid<K: Resource>(object: &K) -> IndexKeys {
    [object.meta().uid.as_deref().map(owner_key), None]
}

fn controller_uid<K: Resource>(object: &K) -> IndexKeys {
    let owners = object.meta().owner_references.as_deref().unwrap_or_default();
    let controller = owners.iter().find(|owner| owner.controller == Some(true));
    [controller.map(|owner| owner_key(&owner.uid)), None]
}

/// Reports whether an object has a controlling owner.
pub(super) fn has_controller<K: Resource>(object: &K) -> bool {
    object.meta().owner_references.iter().flatten().any(|owner| owner.controller == Some(true))
}

fn job_uids_of_workload(workload: &Workload) -> IndexKeys {
    if has_controller(workload) {
        return controller_uid(workload);
    }
    let members = SliceRecord::from_workload(workload).map(|record| record.members).unwrap_or_default();
    let only = match members.as_slice() {
        [member] => Some(owner_key(revision::parse_member_uid(&member.uid).0)),
        _ => None,
    };
    let job = workload.labels().get(JOB_UID_LABEL).map(|uid| owner_key(uid));
    [job.clone(), only.filter(|only| job.as_ref() != Some(only))]
}

fn controller_and_job_uid(pod: &Pod) -> IndexKeys {
    let [controller, _] = controller_uid(pod);
    [controller.or_else(|| orphaned_pod_key(pod)), ungated_for_ray_job_uid(pod).map(owner_key)]
}

/// Returns the index key of a pod that lost its owner (`kubectl delete --cascade=orphan`): the uid of
/// its Job or RayCluster, or the name of its RayCluster if no label has the uid.
pub(super) fn orphaned_pod_key(pod: &Pod) -> Option<ObjectKey> {
    let labels = pod.labels();
    let of_cluster = || Some(orphaned_pods_key(pod.metadata.namespace.as_deref()?, labels.get(names::CLUSTER_LABEL)?));
    let uid = labels.get(CONTROLLER_UID_LABEL).or_else(|| labels.get(names::CLUSTER_UID_LABEL));
    uid.map(|uid| owner_key(uid)).or_else(of_cluster)
}

/// Returns the index key of the orphaned pods of RayClusters with this name that have no uid of their
/// cluster.
pub(super) fn orphaned_pods_key(namespace: &str, cluster: &str) -> ObjectKey {
    ObjectKey::new(namespace, cluster)
}

/// Returns the uid of the RayJob that a pod was ungated for.
fn ungated_for_ray_job_uid(pod: &Pod) -> Option<&str> {
    pod.labels().get(JOB_UID_LABEL).map(String::as_str)
}

fn service_of_slice(slice: &EndpointSlice) -> IndexKeys {
    let service = slice.labels().get("kubernetes.io/service-name");
    [service.map(|name| ObjectKey::new(slice.namespace().unwrap_or_default(), name)), None]
}

#[cfg(test)]
mod tests {
    use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
    use rstest::rstest;

    use super::*;

    fn workload(meta: ObjectMeta) -> Object {
        Object::Workload(Arc::new(Workload { metadata: meta, ..Workload::default() }))
    }

    fn pod(meta: ObjectMeta) -> Object {
        Object::Pod(Arc::new(Pod { metadata: meta, ..Pod::default() }))
    }

    #[rstest]
    #[case::last_finalizer_removed(workload, true, &[], true)]
    #[case::other_finalizers_left(workload, true, &["foregroundDeletion"], false)]
    #[case::not_being_deleted(workload, false, &[], false)]
    #[case::pod_in_its_grace_period(pod, true, &[], false)]
    fn write_that_removes_the_last_finalizer_deletes_the_object(
        #[case] object: fn(ObjectMeta) -> Object,
        #[case] is_terminating: bool,
        #[case] finalizers: &[&str],
        #[case] expected: bool,
    ) {
        let meta = ObjectMeta {
            deletion_timestamp: is_terminating.then_some(Time(jiff::Timestamp::UNIX_EPOCH)),
            finalizers: Some(finalizers.iter().map(|&name| name.to_owned()).collect()),
            ..ObjectMeta::default()
        };
        assert_eq!(object(meta).is_deleted(), expected);
    }
}
