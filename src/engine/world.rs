//! All that is known of the API server: one [`Store`] a kind.

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
use kube_core::{Resource, ResourceExt};
use serde::de::DeserializeOwned;
use serde_json::Value;

use super::Scope;
use super::store::{Applied, Store, Under};
use sluice_api::gateway::{Gateway, GatewayClass, HTTPRoute};
use sluice_api::kueue::names::JOB_UID_LABEL;
use sluice_api::kueue::{ClusterQueue, Cohort, LocalQueue, ResourceFlavor, Workload, WorkloadPriorityClass};
use sluice_api::ray::{RayCluster, RayJob, RayService};
use sluice_plan::ObjectKey;
use sluice_plan::{self as plan, ObjectRef, Write, WriteOp};

/// A Secret, without what is secret about it.
pub type SecretMeta = PartialObjectMeta<Secret>;

/// One of the kinds that are watched.
pub trait Kind:
    Resource<DynamicType = ()> + DeserializeOwned + Clone + std::fmt::Debug + Send + Sync + 'static
{
    /// Wraps an object of this kind.
    fn wrap(object: Arc<Self>) -> Object;
    /// Wraps a complete list of the objects of this kind.
    fn listing(objects: Vec<Arc<Self>>) -> Listing;
}

macro_rules! kinds {
    ($( $(#[$doc:meta])* $kind:ident in $store:ident by $index:expr; )*) => {
        /// An object of any of the kinds that are watched.
        #[derive(Debug, Clone)]
        pub enum Object {
            $( $(#[$doc])* $kind(Arc<$kind>), )*
        }

        impl Object {
            /// Decodes the answer to a write of `target`; `None` when it is of no kind that is watched.
            pub fn decode(target: &ObjectRef, value: Value) -> Result<Option<Self>, serde_json::Error> {
                $(
                    if target.kind == $kind::kind(&()) && target.api_version == $kind::api_version(&()) {
                        return Ok(Some(received(serde_json::from_value::<$kind>(value)?)));
                    }
                )*
                Ok(None)
            }

            /// Its metadata.
            pub fn meta(&self) -> &ObjectMeta {
                match self { $( Self::$kind(object) => object.meta(), )* }
            }

            /// The whole object, as the API server has it.
            pub fn manifest(&self) -> Value {
                match self { $( Self::$kind(object) => plan::manifest(object.as_ref()), )* }
            }

            /// The reference to this object.
            pub fn reference(&self) -> ObjectRef {
                match self { $( Self::$kind(object) => ObjectRef::of(object.as_ref()), )* }
            }
        }

        /// All objects of one kind.
        #[derive(Debug, Clone)]
        pub enum Listing {
            $( $(#[$doc])* $kind(Vec<Arc<$kind>>), )*
        }

        impl Listing {
            /// The kind that this is a list of, like `RayCluster`.
            pub fn kind(&self) -> &'static str {
                match self { $( Self::$kind(_) => stringify!($kind), )* }
            }
        }

        /// The objects of every kind that is watched, as new as anything that was seen of them.
        #[derive(Debug)]
        pub struct World {
            $( $(#[$doc])* pub $store: Store<$kind>, )*
        }

        impl Default for World {
            fn default() -> Self {
                Self { $( $store: Store::new($index), )* }
            }
        }

        impl World {
            /// Takes in a version of an object; returns the changes that this makes.
            pub fn apply(&mut self, object: Object) -> Option<Change> {
                match object {
                    $( Object::$kind(object) => apply_to(&mut self.$store, object), )*
                }
            }

            /// Takes in a complete list of what is in a scope; returns the changes that this makes.
            pub fn relist(&mut self, listing: Listing, scope: &Scope) -> Vec<Change> {
                match listing {
                    $( Listing::$kind(objects) => relist_in(&mut self.$store, objects, scope), )*
                }
            }

            /// Takes in that what `write` was to change isn't there: the watch may tell much later. What has been seen since the
            /// write was planned is another object, or newer than the answer.
            pub fn absent(&mut self, write: &Write) -> Option<Change> {
                let target = &write.target;
                let key = ObjectKey::new(target.namespace.clone().unwrap_or_default(), target.name.clone());
                $(
                    if target.kind == $kind::kind(&()) && target.api_version == $kind::api_version(&()) {
                        let held = self.$store.get(&key).filter(|held| write.is_meant_for(held.meta()))?.clone();
                        let was = self.$store.remove(held.as_ref())?;
                        return Some(Change { was: Some(Object::$kind(was)), is: None });
                    }
                )*
                None
            }

            /// The metadata of the object that is known under this reference.
            fn meta(&self, target: &ObjectRef) -> Option<&ObjectMeta> {
                let key = ObjectKey::new(target.namespace.clone().unwrap_or_default(), target.name.clone());
                $(
                    if target.kind == $kind::kind(&()) && target.api_version == $kind::api_version(&()) {
                        return self.$store.get(&key).map(|held| held.meta());
                    }
                )*
                None
            }

            /// Takes in that an object is gone.
            pub fn remove(&mut self, last: &Object) -> Option<Change> {
                match last {
                    $( Object::$kind(last) => {
                        self.$store.remove(last).map(|was| Change { was: Some(Object::$kind(was)), is: None })
                    } )*
                }
            }
        }

        $(
            impl Kind for $kind {
                fn wrap(object: Arc<Self>) -> Object {
                    Object::$kind(object)
                }
                fn listing(objects: Vec<Arc<Self>>) -> Listing {
                    Listing::$kind(objects)
                }
            }
        )*
    };
}

kinds! {
    /// A named class of hardware.
    ResourceFlavor in resource_flavors by |_| NOWHERE;
    /// A pool of quota.
    ClusterQueue in cluster_queues by |_| NOWHERE;
    /// The entry to a ClusterQueue in a namespace.
    LocalQueue in local_queues by |_| NOWHERE;
    /// A group of ClusterQueues.
    Cohort in cohorts by |_| NOWHERE;
    /// One slice of a job; under the uid of the job.
    Workload in workloads by controller_uid;
    /// A priority of workloads.
    WorkloadPriorityClass in workload_priority_classes by |_| NOWHERE;
    /// A priority of pods.
    PriorityClass in priority_classes by |_| NOWHERE;
    /// A Ray cluster; under the uid of the service or Ray job that owns it.
    RayCluster in ray_clusters by controller_uid;
    /// A Ray service.
    RayService in ray_services by |_| NOWHERE;
    /// A Job of Kubernetes; under the uid of what owns it.
    BatchJob in batch_jobs by controller_uid;
    /// A Ray job; under its own uid.
    RayJob in ray_jobs by own_uid;
    /// A pod of a Ray cluster or a Job; under the uid of that, and under that of the Ray job that it was let go for.
    Pod in pods by controller_and_job_uid;
    /// A Service of a Ray cluster or service; under the uid of its owner.
    Service in services by controller_uid;
    /// A way in from outside.
    Ingress in ingresses by |_| NOWHERE;
    /// What the pods of a Ray cluster are made from; under the uid of that.
    ControllerRevision in controller_revisions by controller_uid;
    /// Whom the pods of a namespace may run as.
    ServiceAccount in service_accounts by |_| NOWHERE;
    /// Where the token of a cluster is kept.
    SecretMeta in secrets by |_| NOWHERE;
    /// What may be done in a namespace.
    Role in roles by |_| NOWHERE;
    /// Who may do it.
    RoleBinding in role_bindings by |_| NOWHERE;
    /// The endpoints of a Service; under that Service.
    EndpointSlice in endpoint_slices by service_of_slice;
    /// Where requests come in.
    Gateway in gateways by |_| NOWHERE;
    /// A kind of Gateways.
    GatewayClass in gateway_classes by |_| NOWHERE;
    /// Which requests go to which Services.
    HTTPRoute in http_routes by |_| NOWHERE;
    /// A namespace.
    Namespace in namespaces by |_| NOWHERE;
    /// What the pods of a namespace may ask for, and what they get if they ask for nothing.
    LimitRange in limit_ranges by |_| NOWHERE;
    /// A way to run pods, which may cost more than what they ask for.
    RuntimeClass in runtime_classes by |_| NOWHERE;
}

impl World {
    /// Whether nothing newer is known of the object that `write` was planned for, so that its answer alone would tell what became
    /// of it.
    pub fn is_as_planned(&self, write: &Write) -> bool {
        let Some(meta) = self.meta(&write.target) else { return false };
        let is_going = matches!(write.op, WriteOp::Delete { .. }) && meta.deletion_timestamp.is_some();
        !is_going && write.is_meant_for(meta)
    }
}

/// One object that changed: what was known of it before, and what is now.
#[derive(Debug, Clone)]
pub struct Change {
    /// The version known before; `None` for an object that is new.
    pub was: Option<Object>,
    /// The version known now; `None` for an object that is gone.
    pub is: Option<Object>,
}

impl Change {
    /// The versions of the object on both sides of the change.
    pub fn sides(&self) -> impl Iterator<Item = &Object> {
        [&self.was, &self.is].into_iter().flatten()
    }
}

fn relist_in<K: Kind>(store: &mut Store<K>, listed: Vec<Arc<K>>, scope: &Scope) -> Vec<Change> {
    let keys: BTreeSet<ObjectKey> = listed.iter().map(|object| ObjectKey::of(object.as_ref())).collect();
    let absent = store.absent_from(&keys, scope).into_iter();
    let mut changes: Vec<Change> = absent.map(|was| Change { was: Some(K::wrap(was)), is: None }).collect();
    changes.extend(listed.into_iter().filter_map(|object| apply_to(store, object)));
    changes
}

fn apply_to<K: Kind>(store: &mut Store<K>, object: Arc<K>) -> Option<Change> {
    match store.apply(object.clone()) {
        Applied::Stale => None,
        Applied::News { replaced } => Some(Change { was: replaced.map(K::wrap), is: Some(K::wrap(object)) }),
    }
}

/// Makes an object that was received ready to be kept: nobody here reads who wrote which field, and it is half of the bytes.
pub fn received<K: Kind>(object: K) -> Object {
    K::wrap(slim(object))
}

/// See [`received`]. Of a Secret its annotations are left out too: `kubectl apply` writes all of it into one of them.
pub fn slim<K: Kind>(mut object: K) -> Arc<K> {
    object.meta_mut().managed_fields = None;
    if K::kind(&()) == Secret::kind(&()) {
        object.meta_mut().annotations = None;
    }
    Arc::new(object)
}

/// The index key for objects that belong to the owner with this uid.
pub fn owned_by(uid: &str) -> ObjectKey {
    ObjectKey::global(uid)
}

/// What has pods.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Runner {
    RayCluster,
    RayJob,
    BatchJob,
}

/// Names one object that has pods, and none that had its name before or gets it later: the pods of one that is gone are not those
/// of its successor, nor paid for by the same quota.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct MemberId {
    /// What it is.
    pub(super) runner: Runner,
    /// What it is called.
    pub(super) key: ObjectKey,
    /// Its uid.
    pub(super) uid: String,
}

impl MemberId {
    /// What a pod belongs to.
    pub(super) fn of_pod(pod: &Pod) -> Option<Self> {
        let of = |runner, kind| Some((runner, controller(pod, kind)?));
        let (runner, owner) = of(Runner::RayCluster, "RayCluster").or_else(|| of(Runner::BatchJob, "Job"))?;
        let key = ObjectKey::new(pod.namespace().unwrap_or_default(), owner.name.clone());
        Some(Self { runner, key, uid: owner.uid.clone() })
    }

    /// The RayJob that a pod was let go for. Its name isn't known.
    pub(super) fn let_go_for(pod: &Pod) -> Option<Self> {
        let key = ObjectKey::new(pod.namespace().unwrap_or_default(), "");
        Some(Self { runner: Runner::RayJob, key, uid: ray_job_of(pod)?.to_owned() })
    }
}

/// The controlling owner of this kind.
pub(super) fn controller<'a, K: Resource>(object: &'a K, kind: &str) -> Option<&'a OwnerReference> {
    let owners = object.meta().owner_references.as_deref().unwrap_or_default();
    owners.iter().find(|owner| owner.controller == Some(true) && owner.kind == kind)
}

/// For what nobody looks up by anything but its key.
const NOWHERE: Under = [None, None];

fn own_uid<K: Resource>(object: &K) -> Under {
    [object.meta().uid.as_deref().map(owned_by), None]
}

fn controller_uid<K: Resource>(object: &K) -> Under {
    let owners = object.meta().owner_references.as_deref().unwrap_or_default();
    let controller = owners.iter().find(|owner| owner.controller == Some(true));
    [controller.map(|owner| owned_by(&owner.uid)), None]
}

fn controller_and_job_uid(pod: &Pod) -> Under {
    let [controller, _] = controller_uid(pod);
    [controller, ray_job_of(pod).map(owned_by)]
}

/// The uid of the Ray job that a pod was let go for.
fn ray_job_of(pod: &Pod) -> Option<&str> {
    pod.labels().get(JOB_UID_LABEL).map(String::as_str)
}

fn service_of_slice(slice: &EndpointSlice) -> Under {
    let service = slice.labels().get("kubernetes.io/service-name");
    [service.map(|name| ObjectKey::new(slice.namespace().unwrap_or_default(), name)), None]
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn what_kubectl_writes_about_a_secret_is_not_kept() {
        let object = json!({"metadata": {"name": "a", "annotations": {"a": "b"}, "managedFields": [{}]}});
        let secret: SecretMeta = serde_json::from_value(object.clone()).expect("a Secret");
        let pod: Pod = serde_json::from_value(object).expect("a Pod");

        let (secret, pod) = (slim(secret), slim(pod));

        assert_eq!((&secret.metadata.annotations, &secret.metadata.managed_fields), (&None, &None));
        assert!(pod.metadata.annotations.is_some() && pod.metadata.managed_fields.is_none());
    }
}
