//! Managed jobs policy: decides which jobs are managed, and which of those are on hold without a
//! queue.

use std::collections::{BTreeMap, BTreeSet};

use kube_core::Expression;

use sluice_api::selector::Selector;

/// Label of every namespace with its name, set by the API server.
pub const NAMESPACE_NAME_LABEL: &str = "kubernetes.io/metadata.name";
/// Namespaces of the control plane and of Sluice: a user who can create jobs there has full access
/// anyway.
pub const SYSTEM_NAMESPACES: [&str; 2] = ["kube-system", "sluice-system"];

/// Kind of job.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Framework {
    /// batch/v1 Job.
    BatchJob,
    /// Standalone RayCluster.
    RayCluster,
    /// RayJob.
    RayJob,
    /// RayService.
    RayService,
}

impl Framework {
    /// All supported kinds.
    pub const ALL: [Self; 4] = [Self::BatchJob, Self::RayCluster, Self::RayJob, Self::RayService];

    /// Returns the name that Kueue uses (kueue v0.19.2 `pkg/controller/jobs/*`, `FrameworkName`).
    pub fn name(self) -> &'static str {
        match self {
            Self::BatchJob => "batch/job",
            Self::RayCluster => "ray.io/raycluster",
            Self::RayJob => "ray.io/rayjob",
            Self::RayService => "ray.io/rayservice",
        }
    }
}

/// Set of enabled kinds of jobs; all by default.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EnabledFrameworks(BTreeSet<Framework>);

impl Default for EnabledFrameworks {
    fn default() -> Self {
        Self(Framework::ALL.into())
    }
}

impl EnabledFrameworks {
    /// Returns the empty set.
    pub fn none() -> Self {
        Self(BTreeSet::new())
    }

    /// Enables a kind.
    pub fn enable(&mut self, framework: Framework) {
        self.0.insert(framework);
    }
}

/// Policy for managed jobs (kueue v0.19.2 `apis/config/v1beta2/configuration_types.go`,
/// `integrations.frameworks`, `manageJobsWithoutQueueName` and `managedJobsNamespaceSelector`).
#[derive(Debug, Clone, PartialEq)]
pub struct ManagedJobsPolicy {
    /// Kinds of jobs that are managed.
    pub frameworks: EnabledFrameworks,
    /// True if a job without a queue name is held until it has one.
    pub manage_jobs_without_queue_name: bool,
    /// Namespaces whose jobs are managed. Applies to jobs with a queue name too.
    pub namespaces: Selector,
}

impl Default for ManagedJobsPolicy {
    fn default() -> Self {
        Self {
            frameworks: EnabledFrameworks::default(),
            manage_jobs_without_queue_name: false,
            namespaces: all_namespaces_except(SYSTEM_NAMESPACES),
        }
    }
}

/// Returns a selector for all namespaces except these.
pub fn all_namespaces_except<'a>(names: impl IntoIterator<Item = &'a str>) -> Selector {
    let names = names.into_iter().map(str::to_owned).collect();
    Selector::from_iter([Expression::NotIn(NAMESPACE_NAME_LABEL.to_owned(), names)])
}

impl ManagedJobsPolicy {
    /// Returns true if jobs of this namespace are managed; `None` if that depends on labels that
    /// are not known.
    pub fn manages_namespace(&self, namespace: &str, labels: Option<&BTreeMap<String, String>>) -> Option<bool> {
        match labels {
            Some(labels) => Some(self.namespaces.matches(labels)),
            None if self.selects_by_name_only() => {
                let labels = BTreeMap::from([(NAMESPACE_NAME_LABEL.to_owned(), namespace.to_owned())]);
                Some(self.namespaces.matches(&labels))
            }
            None => None,
        }
    }

    fn selects_by_name_only(&self) -> bool {
        self.namespaces.keys().all(|key| key == NAMESPACE_NAME_LABEL)
    }
}

/// Properties of a job that the policy depends on.
#[derive(Debug, Clone, Copy)]
pub struct JobFacts<'a> {
    /// Kind of the job.
    pub framework: Framework,
    /// LocalQueue that the job names; `None` if it names none.
    pub queue_name: Option<&'a str>,
    /// True if `spec.managedBy` names another controller than the Ray operator of this cluster.
    pub is_managed_elsewhere: bool,
    /// True if the default LocalQueue may be assigned to the job: it is not older than that queue, has
    /// not started, is suspended without pods, or was queued before.
    pub may_join_default_queue: bool,
}

/// Properties of a job's namespace that the policy depends on.
#[derive(Debug, Clone, Copy)]
pub struct NamespaceFacts<'a> {
    /// Name of the namespace.
    pub namespace: &'a str,
    /// Labels of the namespace; `None` until it is in the cache.
    pub labels: Option<&'a BTreeMap<String, String>>,
    /// True if the namespace has a default LocalQueue for jobs without a queue name.
    pub has_default_queue: bool,
}

/// Result of the policy for a job.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ManagementState {
    /// Not managed: the job runs without quota, and its gates are those of another controller.
    Unmanaged,
    /// Not queued: the job runs without quota, because it names no queue and needs none.
    NotQueued,
    /// Queued: the job runs with quota from the LocalQueue that it names.
    InQueue,
    /// On hold: the job may not run yet.
    OnHold(HoldReason),
}

/// Reason why a job without a queue is on hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HoldReason {
    /// The job has to name a LocalQueue and does not.
    NoQueueName,
    /// The job is about to be assigned to the default LocalQueue.
    AssignDefaultQueue,
    /// The result depends on the namespace, which is not in the cache yet.
    NamespaceNotCached,
}

impl ManagementState {
    /// Applies the policy to a job (kueue v0.19.2 `pkg/controller/jobframework/reconciler.go`,
    /// `ReconcileGenericJob`, and `defaults.go`,
    /// `ApplyDefaultLocalQueueWithManagedJobsNamespaceSelector`). A job that ran before there was a
    /// default LocalQueue is not assigned to it: it would have to stop until there is quota for it.
    pub fn classify(job: JobFacts<'_>, place: NamespaceFacts<'_>, rules: &ManagedJobsPolicy) -> Self {
        if job.is_managed_elsewhere || !rules.frameworks.0.contains(&job.framework) {
            return Self::Unmanaged;
        }
        let is_indifferent =
            job.queue_name.is_none() && !rules.manage_jobs_without_queue_name && !place.has_default_queue;
        match rules.manages_namespace(place.namespace, place.labels) {
            Some(false) => Self::Unmanaged,
            None if is_indifferent => Self::NotQueued,
            None => Self::OnHold(HoldReason::NamespaceNotCached),
            Some(true) if job.queue_name.is_some() => Self::InQueue,
            Some(true) if place.has_default_queue && job.may_join_default_queue => {
                Self::OnHold(HoldReason::AssignDefaultQueue)
            }
            Some(true) if rules.manage_jobs_without_queue_name => Self::OnHold(HoldReason::NoQueueName),
            Some(true) => Self::NotQueued,
        }
    }

    /// Returns true if the job runs only on quota.
    pub fn needs_quota(self) -> bool {
        matches!(self, Self::InQueue | Self::OnHold(_))
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;
    use serde_json::json;

    use super::*;

    const NEW: JobFacts<'_> = JobFacts {
        framework: Framework::RayService,
        queue_name: None,
        is_managed_elsewhere: false,
        may_join_default_queue: true,
    };
    const STARTED: JobFacts<'_> = JobFacts { may_join_default_queue: false, ..NEW };
    const NAMED: JobFacts<'_> = JobFacts { queue_name: Some("a"), ..NEW };
    const TEAM: NamespaceFacts<'_> = NamespaceFacts { namespace: "team", labels: None, has_default_queue: false };
    const DEFAULT: NamespaceFacts<'_> = NamespaceFacts { has_default_queue: true, ..TEAM };
    const STRICT: bool = true;
    const LAX: bool = false;

    #[rstest]
    #[case::named(NAMED, TEAM, LAX, ManagementState::InQueue)]
    #[case::unnamed(NEW, TEAM, LAX, ManagementState::NotQueued)]
    #[case::unnamed_where_a_name_is_required(NEW, TEAM, STRICT, ManagementState::OnHold(HoldReason::NoQueueName))]
    #[case::new_where_there_is_a_default(NEW, DEFAULT, LAX, ManagementState::OnHold(HoldReason::AssignDefaultQueue))]
    #[case::new_where_there_is_a_default_and_a_name_is_required(
        NEW,
        DEFAULT,
        STRICT,
        ManagementState::OnHold(HoldReason::AssignDefaultQueue)
    )]
    #[case::named_where_there_is_a_default(NAMED, DEFAULT, LAX, ManagementState::InQueue)]
    #[case::started_where_there_is_a_default(STARTED, DEFAULT, LAX, ManagementState::NotQueued)]
    #[case::started_where_a_name_is_required(
        STARTED,
        DEFAULT,
        STRICT,
        ManagementState::OnHold(HoldReason::NoQueueName)
    )]
    #[case::of_another_controller(JobFacts { is_managed_elsewhere: true, ..NAMED }, TEAM, STRICT, ManagementState::Unmanaged)]
    #[case::in_kube_system(NAMED, NamespaceFacts { namespace: "kube-system", ..TEAM }, STRICT, ManagementState::Unmanaged)]
    #[case::in_sluice_system(NEW, NamespaceFacts { namespace: "sluice-system", ..DEFAULT }, STRICT, ManagementState::Unmanaged)]
    fn policy_depends_on_queue_name_namespace_and_start_of_the_job(
        #[case] job: JobFacts<'_>,
        #[case] place: NamespaceFacts<'_>,
        #[case] manage_jobs_without_queue_name: bool,
        #[case] expected: ManagementState,
    ) {
        assert_eq!(
            ManagementState::classify(
                job,
                place,
                &ManagedJobsPolicy { manage_jobs_without_queue_name, ..ManagedJobsPolicy::default() }
            ),
            expected
        );
    }

    #[rstest]
    #[case::selected(NAMED, TEAM, Some(json!({"gpu": "yes"})), ManagementState::InQueue)]
    #[case::not_selected(NAMED, TEAM, Some(json!({"gpu": "no"})), ManagementState::Unmanaged)]
    #[case::not_in_the_cache(NAMED, TEAM, None, ManagementState::OnHold(HoldReason::NamespaceNotCached))]
    #[case::default_in_a_namespace_not_selected(NEW, DEFAULT, Some(json!({})), ManagementState::Unmanaged)]
    #[case::default_in_a_namespace_not_in_the_cache(
        NEW,
        DEFAULT,
        None,
        ManagementState::OnHold(HoldReason::NamespaceNotCached)
    )]
    #[case::unnamed_in_a_namespace_not_in_the_cache(NEW, TEAM, None, ManagementState::NotQueued)]
    fn only_jobs_of_selected_namespaces_are_managed(
        #[case] job: JobFacts<'_>,
        #[case] place: NamespaceFacts<'_>,
        #[case] labels: Option<serde_json::Value>,
        #[case] expected: ManagementState,
    ) {
        let labels = labels.map(|labels| serde_json::from_value(labels).expect("labels"));
        let namespaces = serde_json::from_value(json!({"matchLabels": {"gpu": "yes"}})).expect("a selector");
        let rules = ManagedJobsPolicy { namespaces, ..ManagedJobsPolicy::default() };
        assert_eq!(
            ManagementState::classify(job, NamespaceFacts { labels: labels.as_ref(), ..place }, &rules),
            expected
        );
    }

    #[rstest]
    #[case::listed(Framework::BatchJob, ManagementState::InQueue)]
    #[case::not_listed(Framework::RayService, ManagementState::Unmanaged)]
    fn only_jobs_of_enabled_kinds_are_managed(#[case] framework: Framework, #[case] expected: ManagementState) {
        let mut frameworks = EnabledFrameworks::none();
        frameworks.enable(Framework::BatchJob);
        let rules =
            ManagedJobsPolicy { frameworks, manage_jobs_without_queue_name: true, ..ManagedJobsPolicy::default() };
        assert_eq!(ManagementState::classify(JobFacts { framework, ..NAMED }, TEAM, &rules), expected);
    }
}
