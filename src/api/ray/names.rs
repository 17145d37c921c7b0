//! Labels, annotations and other names that KubeRay's users and tools rely on
//! (KubeRay 1.7 `ray-operator/controllers/ray/utils/constant.go`).

/// On everything of a cluster: the name of the RayCluster.
pub const CLUSTER_LABEL: &str = "ray.io/cluster";
/// On pods: `head` or `worker`.
pub const NODE_TYPE_LABEL: &str = "ray.io/node-type";
/// On pods: the group; that of the head is [`HEAD_GROUP`].
pub const GROUP_LABEL: &str = "ray.io/group";
/// On pods and the head Service: `CLUSTER-head` or `CLUSTER-worker`.
pub const IDENTIFIER_LABEL: &str = "ray.io/identifier";
/// On pods: `yes`.
pub const IS_RAY_NODE_LABEL: &str = "ray.io/is-ray-node";
/// On pods of a RayService: `true` if requests may be sent to the pod.
pub const SERVE_LABEL: &str = "ray.io/serve";
/// On the Service for the hosts of multi-host replicas.
pub const HEADLESS_WORKER_LABEL: &str = "ray.io/headless-worker-svc";
/// On what a RayService or RayJob made: its name.
pub const ORIGIN_NAME_LABEL: &str = "ray.io/originated-from-cr-name";
/// On what a RayService or RayJob made: its kind.
pub const ORIGIN_KIND_LABEL: &str = "ray.io/originated-from-crd";
/// On worker pods: which replica of its group the pod belongs to, from 0.
pub const REPLICA_INDEX_LABEL: &str = "ray.io/worker-group-replica-index";
/// On pods of multi-host groups: a name for the replica that the pod belongs to.
pub const REPLICA_NAME_LABEL: &str = "ray.io/worker-group-replica-name";
/// On pods of multi-host groups: which host of its replica the pod is, from 0.
pub const HOST_INDEX_LABEL: &str = "ray.io/replica-host-index";
/// On jobs: ask a batch scheduler for all pods at once.
pub const GANG_SCHEDULING_LABEL: &str = "ray.io/gang-scheduling-enabled";
/// On jobs: the priority class that a batch scheduler uses.
pub const PRIORITY_CLASS_LABEL: &str = "ray.io/priority-class-name";
/// On RayClusters of a RayCronJob: its name.
pub const CRON_JOB_LABEL: &str = "ray.io/cronjob-name";
/// On pods: `kuberay`.
pub const APP_NAME_LABEL: &str = "app.kubernetes.io/name";
/// On pods: `kuberay-operator`.
pub const CREATED_BY_LABEL: &str = "app.kubernetes.io/created-by";

/// The group that the head pod is in.
pub const HEAD_GROUP: &str = "headgroup";

/// On a RayCluster or a pod template: leave the container's command as it is.
pub const OVERWRITE_COMMAND_ANNOTATION: &str = "ray.io/overwrite-container-cmd";
/// On a RayCluster: once it was provisioned, a head that is gone stays gone.
pub const KEEP_HEAD_DOWN_ANNOTATION: &str = "ray.io/disable-provisioned-head-restart";
/// On a RayCluster: it gets a Service for requests of its own.
pub const SERVE_SERVICE_ANNOTATION: &str = "ray.io/enable-serve-service";
/// On a RayCluster: its state is kept in a Redis that the head's environment names; superseded by
/// `gcsFaultToleranceOptions`.
pub const FAULT_TOLERANCE_ANNOTATION: &str = "ray.io/ft-enabled";
/// On a RayCluster: prefix of its keys in that Redis.
pub const STORAGE_NAMESPACE_ANNOTATION: &str = "ray.io/external-storage-namespace";
/// On a RayCluster: seconds after which its deletion no longer waits for that Redis to be cleaned up.
pub const FAULT_TOLERANCE_DELETION_ANNOTATION: &str = "ray.io/gcs-ft-deletion-timeout";
/// On a head pod: the hash of the spec that it was made from.
pub const RECREATE_HASH_ANNOTATION: &str = "ray.io/upgrade-strategy-recreate-hash";
/// On what was made: the version of the operator that made it.
pub const OPERATOR_VERSION_ANNOTATION: &str = "ray.io/kuberay-version";
/// On a RayService: how long it may take to become ready the first time, like `30m`, or in seconds.
pub const INITIALIZING_TIMEOUT_ANNOTATION: &str = "ray.io/initializing-timeout";
/// On a child RayCluster: the hash of the spec that it was made from, without what may change at any time.
pub const SPEC_HASH_ANNOTATION: &str = "ray.io/hash-without-replicas-and-workers-to-delete";
/// On a child RayCluster: how many worker groups it was made with.
pub const WORKER_GROUPS_ANNOTATION: &str = "ray.io/num-worker-groups";
/// On a child RayCluster: when it is to be deleted, as RFC 3339; written once it no longer serves.
pub const DELETE_AFTER_ANNOTATION: &str = "sluice.dev/delete-after";
/// On a child RayCluster: the hash of the Serve configuration that was applied to it last.
pub const SERVE_CONFIG_HASH_ANNOTATION: &str = "sluice.dev/serve-config-hash";
/// On a pod, and on a ControllerRevision: which revision of its RayCluster it was made from, if not the first.
pub const REVISION_LABEL: &str = "sluice.dev/revision";

/// Keeps a RayService until its clusters, and so their pods, are gone.
pub const SERVICE_FINALIZER: &str = "ray.io/rayservice-finalizer";
/// Keeps a RayCluster until its keys in Redis are gone.
pub const REDIS_CLEANUP_FINALIZER: &str = "ray.io/gcs-ft-redis-cleanup-finalizer";
/// The value of `managedBy` that means this operator; so does no value.
pub const MANAGED_BY_OPERATOR: &str = "ray.io/kuberay-operator";

/// Condition of a RayCluster: whether the head is ready for requests.
pub const HEAD_POD_READY: &str = "HeadPodReady";
/// Condition of a RayCluster, there only while True: pods of it could not be made or deleted.
pub const REPLICA_FAILURE: &str = "ReplicaFailure";
/// Condition of a RayCluster: whether all of its pods were ready once since it was made or resumed.
pub const PROVISIONED: &str = "RayClusterProvisioned";
/// Condition of a RayCluster: it is to lose all pods, whatever becomes of its spec meanwhile.
pub const CLUSTER_SUSPENDING: &str = "RayClusterSuspending";
/// Condition of a RayCluster: it has no pods, and gets none.
pub const CLUSTER_SUSPENDED: &str = "RayClusterSuspended";
/// Condition of a RayCluster or RayService, there only while True: nothing is done about a spec that makes no sense, and what runs is
/// looked after as it was.
pub const SPEC_REJECTED: &str = "sluice.dev/SpecRejected";

/// State of a RayCluster: all of its pods were ready.
pub const STATE_READY: &str = "ready";
/// State of a RayCluster: it has no pods because it is suspended.
pub const STATE_SUSPENDED: &str = "suspended";
