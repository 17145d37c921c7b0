//! Managed jobs policy: decides which jobs are managed, and which of those are on hold without a
//! queue.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{LabelSelector, LabelSelectorRequirement};

use sluice_api::selector;

/// Label of every namespace with its name, set by the API server.
pub const NAMESPACE_NAME_LABEL: &str = "kubernetes.io/metadata.name";
/// Namespaces of the control plane and of Sluice: a user who can create jobs there has full access
/// anyway.
pub const OWN_NAMESPACES: [&str; 2] = ["kube-system", "sluice-system"];

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
pub struct Frameworks(BTreeSet<Framework>);

impl Default for Frameworks {
    fn default() -> Self {
        Self(Framework::ALL.into())
    }
}

impl Frameworks {
    /// Returns the empty set.
    pub fn none() -> Self {
        Self(BTreeSet::new())
    }

    /// Enables a kind.
    pub fn add(&mut self, framework: Framework) {
        self.0.insert(framework);
    }
}

/// Policy for managed jobs (kueue v0.19.2 `apis/config/v1beta2/configuration_types.go`,
/// `integrations.frameworks`, `manageJobsWithoutQueueName` and `managedJobsNamespaceSelector`).
#[derive(Debug, Clone, PartialEq)]
pub struct Rules {
    /// Kinds of jobs that are managed.
    pub frameworks: Frameworks,
    /// True if a job without a queue name is held until it has one.
    pub without_queue_name: bool,
    /// Namespaces whose jobs are managed. Applies to jobs with a queue name too.
    pub namespaces: LabelSelector,
}

impl Default for Rules {
    fn default() -> Self {
        Self { frameworks: Frameworks::default(), without_queue_name: false, namespaces: all_but(OWN_NAMESPACES) }
    }
}

/// Returns a selector for all namespaces except these.
pub fn all_but<'a>(names: impl IntoIterator<Item = &'a str>) -> LabelSelector {
    let requirement = LabelSelectorRequirement {
        key: NAMESPACE_NAME_LABEL.to_owned(),
        operator: "NotIn".to_owned(),
        values: Some(names.into_iter().map(str::to_owned).collect()),
    };
    LabelSelector { match_expressions: Some(vec![requirement]), match_labels: None }
}

impl Rules {
    /// Returns true if jobs of this namespace are managed; `None` if that depends on labels that
    /// are not known.
    pub fn manage(&self, namespace: &str, labels: Option<&BTreeMap<String, String>>) -> Option<bool> {
        // The configuration is rejected if the selector is invalid, so it is valid here.
        let is_chosen = |labels: &_| selector::matches(Some(&self.namespaces), labels).unwrap_or(false);
        match labels {
            Some(labels) => Some(is_chosen(labels)),
            None if self.asks_for_names_only() => {
                Some(is_chosen(&BTreeMap::from([(NAMESPACE_NAME_LABEL.to_owned(), namespace.to_owned())])))
            }
            None => None,
        }
    }

    fn asks_for_names_only(&self) -> bool {
        let keys = self.namespaces.match_labels.iter().flat_map(BTreeMap::keys);
        let expressions = self.namespaces.match_expressions.iter().flatten().map(|requirement| &requirement.key);
        keys.chain(expressions).all(|key| key == NAMESPACE_NAME_LABEL)
    }
}

/// Properties of a job that the policy depends on.
#[derive(Debug, Clone, Copy)]
pub struct Candidate<'a> {
    /// Kind of the job.
    pub framework: Framework,
    /// LocalQueue that the job names; `None` if it names none.
    pub queue_name: Option<&'a str>,
    /// True if `spec.managedBy` names another controller than the Ray operator of this cluster.
    pub is_managed_elsewhere: bool,
    /// True if no controller has started to run the job.
    pub is_new: bool,
}

/// Properties of a job's namespace that the policy depends on.
#[derive(Debug, Clone, Copy)]
pub struct Place<'a> {
    /// Name of the namespace.
    pub namespace: &'a str,
    /// Labels of the namespace; `None` until it is in the cache.
    pub labels: Option<&'a BTreeMap<String, String>>,
    /// True if the namespace has a default LocalQueue for jobs without a queue name.
    pub has_default_queue: bool,
}

/// Result of the policy for a job.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Managed {
    /// Not managed: the job runs without quota.
    No,
    /// Queued: the job runs with quota from the LocalQueue that it names.
    InQueue,
    /// On hold: the job may not run yet.
    Held(Hold),
}

/// Reason why a job without a queue is on hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Hold {
    /// The job has to name a LocalQueue and does not.
    NoQueueName,
    /// The job is about to be assigned to the default LocalQueue.
    Default,
    /// The result depends on the namespace, which is not in the cache yet.
    UnseenNamespace,
}

impl Managed {
    /// Applies the policy to a job (kueue v0.19.2 `pkg/controller/jobframework/reconciler.go`,
    /// `ReconcileGenericJob`, and `defaults.go`,
    /// `ApplyDefaultLocalQueueWithManagedJobsNamespaceSelector`). A running job is not assigned to
    /// the default LocalQueue: it would have to stop until there is quota for it.
    pub fn of(job: Candidate<'_>, place: Place<'_>, rules: &Rules) -> Self {
        if job.is_managed_elsewhere || !rules.frameworks.0.contains(&job.framework) {
            return Self::No;
        }
        let is_indifferent = job.queue_name.is_none() && !rules.without_queue_name && !place.has_default_queue;
        match rules.manage(place.namespace, place.labels) {
            Some(false) => Self::No,
            None if is_indifferent => Self::No,
            None => Self::Held(Hold::UnseenNamespace),
            Some(true) if job.queue_name.is_some() => Self::InQueue,
            Some(true) if place.has_default_queue && job.is_new => Self::Held(Hold::Default),
            Some(true) if rules.without_queue_name => Self::Held(Hold::NoQueueName),
            Some(true) => Self::No,
        }
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;
    use serde_json::json;

    use super::*;

    const NEW: Candidate<'_> =
        Candidate { framework: Framework::RayService, queue_name: None, is_managed_elsewhere: false, is_new: true };
    const STARTED: Candidate<'_> = Candidate { is_new: false, ..NEW };
    const NAMED: Candidate<'_> = Candidate { queue_name: Some("a"), ..NEW };
    const TEAM: Place<'_> = Place { namespace: "team", labels: None, has_default_queue: false };
    const DEFAULT: Place<'_> = Place { has_default_queue: true, ..TEAM };
    const STRICT: bool = true;
    const LAX: bool = false;

    #[rstest]
    #[case::named(NAMED, TEAM, LAX, Managed::InQueue)]
    #[case::unnamed(NEW, TEAM, LAX, Managed::No)]
    #[case::unnamed_where_a_name_is_required(NEW, TEAM, STRICT, Managed::Held(Hold::NoQueueName))]
    #[case::new_where_there_is_a_default(NEW, DEFAULT, LAX, Managed::Held(Hold::Default))]
    #[case::new_where_there_is_a_default_and_a_name_is_required(NEW, DEFAULT, STRICT, Managed::Held(Hold::Default))]
    #[case::named_where_there_is_a_default(NAMED, DEFAULT, LAX, Managed::InQueue)]
    #[case::started_where_there_is_a_default(STARTED, DEFAULT, LAX, Managed::No)]
    #[case::started_where_a_name_is_required(STARTED, DEFAULT, STRICT, Managed::Held(Hold::NoQueueName))]
    #[case::of_another_controller(Candidate { is_managed_elsewhere: true, ..NAMED }, TEAM, STRICT, Managed::No)]
    #[case::in_kube_system(NAMED, Place { namespace: "kube-system", ..TEAM }, STRICT, Managed::No)]
    #[case::in_sluice_system(NEW, Place { namespace: "sluice-system", ..DEFAULT }, STRICT, Managed::No)]
    fn policy_depends_on_queue_name_namespace_and_start_of_the_job(
        #[case] job: Candidate<'_>,
        #[case] place: Place<'_>,
        #[case] without_queue_name: bool,
        #[case] expected: Managed,
    ) {
        assert_eq!(Managed::of(job, place, &Rules { without_queue_name, ..Rules::default() }), expected);
    }

    #[rstest]
    #[case::selected(NAMED, TEAM, Some(json!({"gpu": "yes"})), Managed::InQueue)]
    #[case::not_selected(NAMED, TEAM, Some(json!({"gpu": "no"})), Managed::No)]
    #[case::not_in_the_cache(NAMED, TEAM, None, Managed::Held(Hold::UnseenNamespace))]
    #[case::default_in_a_namespace_not_selected(NEW, DEFAULT, Some(json!({})), Managed::No)]
    #[case::default_in_a_namespace_not_in_the_cache(NEW, DEFAULT, None, Managed::Held(Hold::UnseenNamespace))]
    #[case::unnamed_in_a_namespace_not_in_the_cache(NEW, TEAM, None, Managed::No)]
    fn only_jobs_of_selected_namespaces_are_managed(
        #[case] job: Candidate<'_>,
        #[case] place: Place<'_>,
        #[case] labels: Option<serde_json::Value>,
        #[case] expected: Managed,
    ) {
        let labels = labels.map(|labels| serde_json::from_value(labels).expect("labels"));
        let namespaces = serde_json::from_value(json!({"matchLabels": {"gpu": "yes"}})).expect("a selector");
        let rules = Rules { namespaces, ..Rules::default() };
        assert_eq!(Managed::of(job, Place { labels: labels.as_ref(), ..place }, &rules), expected);
    }

    #[rstest]
    #[case::listed(Framework::BatchJob, Managed::InQueue)]
    #[case::not_listed(Framework::RayService, Managed::No)]
    fn only_jobs_of_enabled_kinds_are_managed(#[case] framework: Framework, #[case] expected: Managed) {
        let mut frameworks = Frameworks::none();
        frameworks.add(Framework::BatchJob);
        let rules = Rules { frameworks, without_queue_name: true, ..Rules::default() };
        assert_eq!(Managed::of(Candidate { framework, ..NAMED }, TEAM, &rules), expected);
    }
}
