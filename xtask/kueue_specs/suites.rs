//! Kueue's suites, each with the configuration that its specs give to Kueue's manager.

/// A suite of specs, or those that share one configuration of the manager.
pub(super) struct Suite {
    pub(super) name: &'static str,
    /// Folder below Kueue's `test/integration/singlecluster`.
    pub(super) folder: &'static str,
    /// Regular expression that selects specs.
    pub(super) focus: &'static str,
    /// Regular expression of specs that are not run: those about AdmissionChecks, which Sluice does not
    /// support, and those that leave objects behind with which others fail.
    pub(super) skip: &'static str,
    /// Fields of the manager's configuration.
    pub(super) configuration: &'static str,
    /// False if the specs act as the Ray operator.
    pub(super) ray_operator: bool,
}

/// A suite without fields of its own.
const PLAIN: Suite = Suite { name: "", folder: "", focus: "", skip: "", configuration: "", ray_operator: true };

pub(super) const SUITES: &[Suite] = &[
    Suite { name: "webhook", folder: "webhook/core", ..PLAIN },
    Suite {
        name: "scheduler",
        folder: "scheduler",
        configuration: "resources: {transformations: [{input: kueue.x-k8s.io/cpu, strategy: Replace, outputs: {cpu: 2}}]}",
        ..PLAIN
    },
    Suite { name: "requeueing", folder: "scheduler/inadmissible", ..PLAIN },
    Suite {
        name: "undeclared-resources",
        folder: "scheduler/quotacheckstrategy",
        focus: "1E for cpu",
        configuration: "resources: {quotaCheckStrategy: IgnoreUndeclared}",
        ..PLAIN
    },
    Suite {
        name: "fair-sharing",
        folder: "scheduler/fairsharing",
        focus: "when (Preemption is|RecomputeAssignment|using hierarchical|ClusterQueue head)|Cohorts when",
        skip: "admission check",
        configuration: "fairSharing: {preemptionStrategies: [LessThanOrEqualToFinalShare, LessThanInitialShare]}",
        ..PLAIN
    },
    Suite {
        name: "transformations",
        folder: "scheduler/resourcetransformations",
        focus: "should transform|should handle multiple",
        configuration: "\
resources:
  transformations:
  - {input: nvidia.com/mig-1g.5gb, strategy: Replace, outputs: {example.com/accelerator-memory: 5Ki, example.com/credits: 10}}
  - {input: nvidia.com/gpucores, strategy: Replace, multiplyBy: nvidia.com/gpu, outputs: {nvidia.com/total-gpucores: 1}}
  - {input: nvidia.com/gpumem, strategy: Replace, multiplyBy: nvidia.com/gpu, outputs: {nvidia.com/total-gpumem: 1}}",
        ..PLAIN
    },
    Suite {
        name: "credits",
        folder: "scheduler/resourcetransformations",
        focus: "Retain CPU",
        configuration: "resources: {transformations: [{input: cpu, strategy: Retain, outputs: {cpu_credits: 1}}]}",
        ..PLAIN
    },
    Suite {
        name: "exclusions",
        folder: "scheduler/excluderesources",
        focus: "SchedulerWithExcludeResourcePrefixes",
        configuration: "resources: {excludeResourcePrefixes: [networking.example.com/, storage.example.com/]}",
        ..PLAIN
    },
    Suite {
        name: "pods-ready-long",
        folder: "scheduler/podsready",
        focus: "SchedulerWithWaitForPodsReady Long",
        configuration: "\
waitForPodsReady: {blockAdmission: true, timeout: 45s, requeuingStrategy: {timestamp: Eviction, backoffBaseSeconds: 1}}",
        ..PLAIN
    },
    Suite {
        name: "pods-ready-short",
        folder: "scheduler/podsready",
        focus: "SchedulerWithWaitForPodsReady Short",
        configuration: "\
waitForPodsReady:
  {blockAdmission: true, timeout: 1s, requeuingStrategy: {timestamp: Eviction, backoffLimitCount: 2, backoffBaseSeconds: 1}}",
        ..PLAIN
    },
    Suite {
        name: "pods-ready-tiny",
        folder: "scheduler/podsready",
        focus: "SchedulerWithWaitForPodsReady Tiny",
        configuration: "\
waitForPodsReady:
  {blockAdmission: true, timeout: 10ms, requeuingStrategy: {timestamp: Eviction, backoffLimitCount: 2, backoffBaseSeconds: 1}}",
        ..PLAIN
    },
    Suite {
        name: "pods-ready-creation",
        folder: "scheduler/podsready",
        focus: "SchedulerWithWaitForPodsReady Requeuing",
        configuration: "\
waitForPodsReady: {blockAdmission: true, timeout: 3s, requeuingStrategy: {timestamp: Creation, backoffBaseSeconds: 1}}",
        ..PLAIN
    },
    Suite {
        name: "pods-ready-unblocked-long",
        folder: "scheduler/podsready",
        focus: "SchedulerWithWaitForPodsReadyNonblockingMode Long",
        configuration: "\
waitForPodsReady: {blockAdmission: false, timeout: 45s, requeuingStrategy: {timestamp: Eviction, backoffBaseSeconds: 1}}",
        ..PLAIN
    },
    Suite {
        name: "pods-ready-unblocked-tiny",
        folder: "scheduler/podsready",
        focus: "SchedulerWithWaitForPodsReadyNonblockingMode Tiny",
        configuration: "\
waitForPodsReady: {blockAdmission: false, timeout: 10ms, requeuingStrategy: {timestamp: Eviction, backoffBaseSeconds: 1}}",
        ..PLAIN
    },
    Suite {
        name: "pods-ready-unblocked-creation",
        folder: "scheduler/podsready",
        focus: "SchedulerWithWaitForPodsReadyNonblockingMode Requeuing",
        configuration: "\
waitForPodsReady: {blockAdmission: false, timeout: 3s, requeuingStrategy: {timestamp: Creation, backoffBaseSeconds: 1}}",
        ..PLAIN
    },
    Suite {
        name: "core",
        folder: "controller/core",
        skip: r"clusterQueue usage status|flavors are created|[aA]dmission ?[cC]heck|multikueue|Deleting clusterQueues|\bQueue controller|maximum execution time|tiny retention",
        ..PLAIN
    },
    // Its Workloads stay and hold quota of "cq", so that other specs of the folder cannot delete theirs.
    Suite { name: "execution-time", folder: "controller/core", focus: "maximum execution time", ..PLAIN },
    Suite {
        name: "retention",
        folder: "controller/core",
        focus: "tiny retention period",
        configuration: "objectRetentionPolicies: {workloads: {afterFinished: 10ms}}",
        ..PLAIN
    },
    Suite {
        name: "jobs",
        folder: "controller/jobs/job",
        focus: "Interacting with scheduler|Job with elastic jobs",
        skip: "admission check",
        ..PLAIN
    },
    Suite {
        name: "ray-clusters",
        folder: "controller/jobs/raycluster",
        focus: "interacting with scheduler|with preemption enabled|elastic jobs|only jobs with queue",
        ray_operator: false,
        ..PLAIN
    },
];
