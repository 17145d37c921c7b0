//! Kueue's suites, each with the configuration that its specs give to Kueue's manager.

/// A suite of specs, or those that share one configuration of the manager.
pub(super) struct Suite {
    pub(super) name: &'static str,
    /// Folder below Kueue's `test/integration/singlecluster`.
    pub(super) folder: &'static str,
    /// Regular expression that selects specs.
    pub(super) focus: &'static str,
    /// Fields of the manager's configuration.
    pub(super) configuration: &'static str,
}

pub(super) const SUITES: &[Suite] = &[
    Suite { name: "webhook", folder: "webhook/core", focus: "", configuration: "" },
    Suite {
        name: "scheduler",
        folder: "scheduler",
        focus: "",
        configuration: "resources: {transformations: [{input: kueue.x-k8s.io/cpu, strategy: Replace, outputs: {cpu: 2}}]}",
    },
    Suite { name: "requeueing", folder: "scheduler/inadmissible", focus: "", configuration: "" },
    Suite {
        name: "undeclared-resources",
        folder: "scheduler/quotacheckstrategy",
        focus: "1E for cpu",
        configuration: "resources: {quotaCheckStrategy: IgnoreUndeclared}",
    },
    Suite {
        name: "fair-sharing",
        folder: "scheduler/fairsharing",
        focus: "when (Preemption is|RecomputeAssignment|using hierarchical|ClusterQueue head)|Cohorts when",
        configuration: "fairSharing: {preemptionStrategies: [LessThanOrEqualToFinalShare, LessThanInitialShare]}",
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
    },
    Suite {
        name: "credits",
        folder: "scheduler/resourcetransformations",
        focus: "Retain CPU",
        configuration: "resources: {transformations: [{input: cpu, strategy: Retain, outputs: {cpu_credits: 1}}]}",
    },
    Suite {
        name: "exclusions",
        folder: "scheduler/excluderesources",
        focus: "SchedulerWithExcludeResourcePrefixes",
        configuration: "resources: {excludeResourcePrefixes: [networking.example.com/, storage.example.com/]}",
    },
    Suite {
        name: "pods-ready-long",
        folder: "scheduler/podsready",
        focus: "SchedulerWithWaitForPodsReady Long",
        configuration: "\
waitForPodsReady: {blockAdmission: true, timeout: 45s, requeuingStrategy: {timestamp: Eviction, backoffBaseSeconds: 1}}",
    },
    Suite {
        name: "pods-ready-short",
        folder: "scheduler/podsready",
        focus: "SchedulerWithWaitForPodsReady Short",
        configuration: "\
waitForPodsReady:
  {blockAdmission: true, timeout: 1s, requeuingStrategy: {timestamp: Eviction, backoffLimitCount: 2, backoffBaseSeconds: 1}}",
    },
    Suite {
        name: "pods-ready-tiny",
        folder: "scheduler/podsready",
        focus: "SchedulerWithWaitForPodsReady Tiny",
        configuration: "\
waitForPodsReady:
  {blockAdmission: true, timeout: 10ms, requeuingStrategy: {timestamp: Eviction, backoffLimitCount: 2, backoffBaseSeconds: 1}}",
    },
    Suite {
        name: "pods-ready-creation",
        folder: "scheduler/podsready",
        focus: "SchedulerWithWaitForPodsReady Requeuing",
        configuration: "\
waitForPodsReady: {blockAdmission: true, timeout: 3s, requeuingStrategy: {timestamp: Creation, backoffBaseSeconds: 1}}",
    },
    Suite {
        name: "pods-ready-unblocked-long",
        folder: "scheduler/podsready",
        focus: "SchedulerWithWaitForPodsReadyNonblockingMode Long",
        configuration: "\
waitForPodsReady: {blockAdmission: false, timeout: 45s, requeuingStrategy: {timestamp: Eviction, backoffBaseSeconds: 1}}",
    },
    Suite {
        name: "pods-ready-unblocked-tiny",
        folder: "scheduler/podsready",
        focus: "SchedulerWithWaitForPodsReadyNonblockingMode Tiny",
        configuration: "\
waitForPodsReady: {blockAdmission: false, timeout: 10ms, requeuingStrategy: {timestamp: Eviction, backoffBaseSeconds: 1}}",
    },
    Suite {
        name: "pods-ready-unblocked-creation",
        folder: "scheduler/podsready",
        focus: "SchedulerWithWaitForPodsReadyNonblockingMode Requeuing",
        configuration: "\
waitForPodsReady: {blockAdmission: false, timeout: 3s, requeuingStrategy: {timestamp: Creation, backoffBaseSeconds: 1}}",
    },
    Suite { name: "core", folder: "controller/core", focus: "", configuration: "" },
    Suite {
        name: "jobs",
        folder: "controller/jobs/job",
        focus: "^(Interacting with scheduler|Job with elastic jobs)",
        configuration: "",
    },
    Suite {
        name: "ray-clusters",
        folder: "controller/jobs/raycluster",
        focus: "interacting with scheduler|with preemption enabled|elastic jobs|only jobs with queue",
        configuration: "",
    },
];
