//! Labels, annotations and other names of KubeRay (KubeRay 1.7
//! `ray-operator/controllers/ray/utils/constant.go`), and those of Sluice under `sluice.dev/`.

/// Label of the pods and other objects of a RayCluster: its name.
pub const CLUSTER_LABEL: &str = "ray.io/cluster";
/// Label of pods: `head` or `worker`.
pub const NODE_TYPE_LABEL: &str = "ray.io/node-type";
/// Label of pods: name of the group, which is [`HEAD_GROUP`] for the head.
pub const GROUP_LABEL: &str = "ray.io/group";
/// Label of pods and the head Service: `CLUSTER-head` or `CLUSTER-worker`.
pub const IDENTIFIER_LABEL: &str = "ray.io/identifier";
/// Label of pods: `yes`.
pub const IS_RAY_NODE_LABEL: &str = "ray.io/is-ray-node";
/// Label of pods of a RayService: `true` if the pod may receive Serve traffic.
pub const SERVE_LABEL: &str = "ray.io/serve";
/// Label of the headless Service for the hosts of multi-host replicas.
pub const HEADLESS_WORKER_LABEL: &str = "ray.io/headless-worker-svc";
/// Label of objects created by a RayService or RayJob: its name.
pub const ORIGIN_NAME_LABEL: &str = "ray.io/originated-from-cr-name";
/// Label of objects created by a RayService or RayJob: its kind.
pub const ORIGIN_KIND_LABEL: &str = "ray.io/originated-from-crd";
/// Label of worker pods: index of the pod's replica within its group, from 0.
pub const REPLICA_INDEX_LABEL: &str = "ray.io/worker-group-replica-index";
/// Label of pods of multi-host groups: name of the pod's replica.
pub const REPLICA_NAME_LABEL: &str = "ray.io/worker-group-replica-name";
/// Label of pods of multi-host groups: index of the pod within its replica, from 0.
pub const HOST_INDEX_LABEL: &str = "ray.io/replica-host-index";
/// Label of jobs: requests gang scheduling from a batch scheduler.
pub const GANG_SCHEDULING_LABEL: &str = "ray.io/gang-scheduling-enabled";
/// Label of jobs: priority class for a batch scheduler.
pub const PRIORITY_CLASS_LABEL: &str = "ray.io/priority-class-name";
/// Label of RayClusters of a RayCronJob: its name.
pub const CRON_JOB_LABEL: &str = "ray.io/cronjob-name";
/// Label of pods: `kuberay`.
pub const APP_NAME_LABEL: &str = "app.kubernetes.io/name";
/// Label of pods: `kuberay-operator`.
pub const CREATED_BY_LABEL: &str = "app.kubernetes.io/created-by";

/// Group name of the head pod.
pub const HEAD_GROUP: &str = "headgroup";
/// Init container that the operator adds to worker pods, which waits for the head.
pub const WAIT_CONTAINER: &str = "wait-gcs-ready";
/// Requests of that container, by resource (KubeRay 1.7
/// `ray-operator/controllers/ray/common/pod.go`, `DefaultWorkerPodTemplate`).
pub const WAIT_CONTAINER_RESOURCES: [(&str, &str); 2] = [("cpu", "200m"), ("memory", "256Mi")];

/// Annotation of a RayCluster or pod template: keeps the container's command unchanged.
pub const OVERWRITE_COMMAND_ANNOTATION: &str = "ray.io/overwrite-container-cmd";
/// Annotation of a RayCluster: once the cluster is provisioned, a deleted head is not recreated.
pub const DISABLE_HEAD_RESTART_ANNOTATION: &str = "ray.io/disable-provisioned-head-restart";
/// Annotation of a RayCluster: creates a serve Service for it.
pub const SERVE_SERVICE_ANNOTATION: &str = "ray.io/enable-serve-service";
/// Annotation of a RayCluster: enables GCS fault tolerance with the Redis that the head's
/// environment names. Superseded by `gcsFaultToleranceOptions`.
pub const FAULT_TOLERANCE_ANNOTATION: &str = "ray.io/ft-enabled";
/// Annotation of a RayCluster: prefix of its keys in that Redis.
pub const STORAGE_NAMESPACE_ANNOTATION: &str = "ray.io/external-storage-namespace";
/// Annotation of a RayCluster: time after which its deletion no longer waits for the Redis cleanup,
/// in seconds.
pub const REDIS_CLEANUP_TIMEOUT_ANNOTATION: &str = "ray.io/gcs-ft-deletion-timeout";
/// Annotation of a head pod: hash of the spec that it was created from.
pub const RECREATE_HASH_ANNOTATION: &str = "ray.io/upgrade-strategy-recreate-hash";
/// Annotation of created objects: version of the operator that created them.
pub const OPERATOR_VERSION_ANNOTATION: &str = "ray.io/kuberay-version";
/// Annotation of a RayService: time limit for becoming ready the first time, as a duration like
/// `30m` or in seconds.
pub const INITIALIZING_TIMEOUT_ANNOTATION: &str = "ray.io/initializing-timeout";
/// Annotation of a child RayCluster: hash of the spec that it was created from, without the fields
/// that may change at any time.
pub const SPEC_HASH_ANNOTATION: &str = "ray.io/hash-without-replicas-and-workers-to-delete";
/// Annotation of a child RayCluster: number of worker groups that it was created with.
pub const WORKER_GROUPS_ANNOTATION: &str = "ray.io/num-worker-groups";
/// Annotation of a child RayCluster: time of its deletion (RFC 3339). Set once it no longer serves.
pub const DELETE_AFTER_ANNOTATION: &str = "sluice.dev/delete-after";
/// Annotation of a child RayCluster: hash of the Serve config last applied to it.
pub const SERVE_CONFIG_HASH_ANNOTATION: &str = "sluice.dev/serve-config-hash";
/// Annotation of a RayService: `true` if Sluice suspended its cluster template, which it takes back when
/// the service leaves its queue.
pub const TEMPLATE_SUSPENDED_ANNOTATION: &str = "sluice.dev/template-suspended";
/// Label of a pod of a queued RayCluster: uid of the cluster. The pod counts for that cluster even after
/// it has lost its owner reference.
pub const CLUSTER_UID_LABEL: &str = "sluice.dev/cluster-uid";
/// Label of a pod or ControllerRevision: revision of the RayCluster that it was created from.
/// Absent for the initial revision.
pub const REVISION_LABEL: &str = "sluice.dev/revision";

/// Finalizer of a RayService. Released once its clusters, and so their pods, are deleted.
pub const SERVICE_FINALIZER: &str = "ray.io/rayservice-finalizer";
/// Finalizer of a RayCluster. Released once its keys in Redis are deleted.
pub const REDIS_CLEANUP_FINALIZER: &str = "ray.io/gcs-ft-redis-cleanup-finalizer";
/// Value of `managedBy` that selects this operator. No value selects it too.
pub const MANAGED_BY_OPERATOR: &str = "ray.io/kuberay-operator";

/// Condition of a RayCluster: the head pod is ready.
pub const HEAD_POD_READY: &str = "HeadPodReady";
/// Condition of a RayCluster, present only while True: creating or deleting pods failed.
pub const REPLICA_FAILURE: &str = "ReplicaFailure";
/// Condition of a RayCluster: all its pods have been ready once since it was created or resumed.
pub const CLUSTER_PROVISIONED: &str = "RayClusterProvisioned";
/// Condition of a RayCluster: all its pods are being deleted, even if the spec changes meanwhile.
pub const CLUSTER_SUSPENDING: &str = "RayClusterSuspending";
/// Condition of a RayCluster: it is suspended and has no pods.
pub const CLUSTER_SUSPENDED: &str = "RayClusterSuspended";
/// Condition of a RayCluster or RayService, present only while True: its spec is invalid and is not
/// applied. Existing pods are reconciled by the last valid spec.
pub const SPEC_REJECTED: &str = "sluice.dev/SpecRejected";

/// State of a RayCluster: all its pods have been ready.
pub const STATE_READY: &str = "ready";
/// State of a RayCluster: it is suspended and has no pods.
pub const STATE_SUSPENDED: &str = "suspended";
