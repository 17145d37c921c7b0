//! Which jobs are the queue's to manage, and which of those have yet to come into a queue.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{LabelSelector, LabelSelectorRequirement};

use sluice_api::selector;

/// The label that the API server puts on every namespace: its name.
pub const NAMESPACE_NAME_LABEL: &str = "kubernetes.io/metadata.name";
/// Namespaces of the cluster itself, and of Sluice: whoever can make jobs there can do anything.
pub const OWN_NAMESPACES: [&str; 2] = ["kube-system", "sluice-system"];

/// A kind of job.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Framework {
    /// Job of Kubernetes.
    BatchJob,
    /// RayCluster that nothing else owns.
    RayCluster,
    /// RayJob.
    RayJob,
    /// RayService.
    RayService,
}

impl Framework {
    /// Every kind that there is.
    pub const ALL: [Self; 4] = [Self::BatchJob, Self::RayCluster, Self::RayJob, Self::RayService];

    /// What Kueue calls it (kueue v0.19.2 `pkg/controller/jobs/*`, `FrameworkName`).
    pub fn name(self) -> &'static str {
        match self {
            Self::BatchJob => "batch/job",
            Self::RayCluster => "ray.io/raycluster",
            Self::RayJob => "ray.io/rayjob",
            Self::RayService => "ray.io/rayservice",
        }
    }
}

/// Some kinds of jobs; all, by default.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Frameworks(BTreeSet<Framework>);

impl Default for Frameworks {
    fn default() -> Self {
        Self(Framework::ALL.into())
    }
}

impl Frameworks {
    /// None at all.
    pub fn none() -> Self {
        Self(BTreeSet::new())
    }

    /// These as well.
    pub fn add(&mut self, framework: Framework) {
        self.0.insert(framework);
    }
}

/// Which jobs are managed (kueue v0.19.2 `apis/config/v1beta2/configuration_types.go`, `integrations.frameworks`,
/// `manageJobsWithoutQueueName` and `managedJobsNamespaceSelector`).
#[derive(Debug, Clone, PartialEq)]
pub struct Rules {
    /// The kinds of jobs that are managed at all.
    pub frameworks: Frameworks,
    /// Whether a job that names no LocalQueue is held until it names one.
    pub without_queue_name: bool,
    /// The namespaces whose jobs are managed at all, also of those that name a LocalQueue.
    pub namespaces: LabelSelector,
}

impl Default for Rules {
    fn default() -> Self {
        Self { frameworks: Frameworks::default(), without_queue_name: false, namespaces: all_but(OWN_NAMESPACES) }
    }
}

/// Selects all namespaces but these.
pub fn all_but<'a>(names: impl IntoIterator<Item = &'a str>) -> LabelSelector {
    let requirement = LabelSelectorRequirement {
        key: NAMESPACE_NAME_LABEL.to_owned(),
        operator: "NotIn".to_owned(),
        values: Some(names.into_iter().map(str::to_owned).collect()),
    };
    LabelSelector { match_expressions: Some(vec![requirement]), match_labels: None }
}

impl Rules {
    /// Whether jobs of this namespace are managed; `None` if that follows from labels that aren't known.
    pub fn manage(&self, namespace: &str, labels: Option<&BTreeMap<String, String>>) -> Option<bool> {
        // A configuration with a selector that can't be read is refused, so there is none here.
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
        let others = self.namespaces.match_expressions.iter().flatten().map(|requirement| &requirement.key);
        keys.chain(others).all(|key| key == NAMESPACE_NAME_LABEL)
    }
}

/// What counts of a job.
#[derive(Debug, Clone, Copy)]
pub struct Candidate<'a> {
    /// Its kind.
    pub framework: Framework,
    /// The LocalQueue that it names.
    pub queue_name: Option<&'a str>,
    /// Whether `spec.managedBy` leaves it to another controller than the Ray operator of this cluster.
    pub is_managed_elsewhere: bool,
    /// Whether nobody has begun to run it.
    pub is_new: bool,
}

/// What counts of the place where a job is.
#[derive(Debug, Clone, Copy)]
pub struct Place<'a> {
    /// The namespace.
    pub namespace: &'a str,
    /// Its labels, once it was seen.
    pub labels: Option<&'a BTreeMap<String, String>>,
    /// Whether there is a LocalQueue for jobs that name none.
    pub has_default_queue: bool,
}

/// What the queue has to do with a job.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Managed {
    /// Nothing: it runs as if there were no queue.
    No,
    /// It runs as far as it has quota in the LocalQueue that it names.
    InQueue,
    /// It may not run yet.
    Held(Hold),
}

/// Why a job that is in no queue may not run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Hold {
    /// It names no LocalQueue, and has to.
    NoQueueName,
    /// It is about to be told that it is in the LocalQueue for jobs that name none.
    Default,
    /// Whether it is managed depends on its namespace, which wasn't seen yet.
    UnseenNamespace,
}

impl Managed {
    /// Where a job is (kueue v0.19.2 `pkg/controller/jobframework/reconciler.go`, `ReconcileGenericJob`, and `defaults.go`,
    /// `ApplyDefaultLocalQueueWithManagedJobsNamespaceSelector`). A job that runs already is not put into the LocalQueue for
    /// jobs that name none: it would have to stop until there is quota for it.
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
    const BEGUN: Candidate<'_> = Candidate { is_new: false, ..NEW };
    const NAMED: Candidate<'_> = Candidate { queue_name: Some("a"), ..NEW };
    const TEAM: Place<'_> = Place { namespace: "team", labels: None, has_default_queue: false };
    const DEFAULT: Place<'_> = Place { has_default_queue: true, ..TEAM };
    const STRICT: bool = true;
    const LAX: bool = false;

    #[rstest]
    #[case::named(NAMED, TEAM, LAX, Managed::InQueue)]
    #[case::unnamed(NEW, TEAM, LAX, Managed::No)]
    #[case::unnamed_where_all_have_to_be_named(NEW, TEAM, STRICT, Managed::Held(Hold::NoQueueName))]
    #[case::new_where_there_is_a_default(NEW, DEFAULT, LAX, Managed::Held(Hold::Default))]
    #[case::new_where_there_is_a_default_and_all_have_to_be_named(NEW, DEFAULT, STRICT, Managed::Held(Hold::Default))]
    #[case::named_beside_a_default(NAMED, DEFAULT, LAX, Managed::InQueue)]
    #[case::begun_where_there_is_a_default(BEGUN, DEFAULT, LAX, Managed::No)]
    #[case::begun_where_all_have_to_be_named(BEGUN, DEFAULT, STRICT, Managed::Held(Hold::NoQueueName))]
    #[case::of_another_controller(Candidate { is_managed_elsewhere: true, ..NAMED }, TEAM, STRICT, Managed::No)]
    #[case::of_the_cluster(NAMED, Place { namespace: "kube-system", ..TEAM }, STRICT, Managed::No)]
    #[case::of_ours(NEW, Place { namespace: "sluice-system", ..DEFAULT }, STRICT, Managed::No)]
    fn a_job_is_managed_as_its_name_its_place_and_the_rules_say(
        #[case] job: Candidate<'_>,
        #[case] place: Place<'_>,
        #[case] without_queue_name: bool,
        #[case] expected: Managed,
    ) {
        assert_eq!(Managed::of(job, place, &Rules { without_queue_name, ..Rules::default() }), expected);
    }

    #[rstest]
    #[case::chosen(NAMED, TEAM, Some(json!({"gpu": "yes"})), Managed::InQueue)]
    #[case::not_chosen(NAMED, TEAM, Some(json!({"gpu": "no"})), Managed::No)]
    #[case::not_seen(NAMED, TEAM, None, Managed::Held(Hold::UnseenNamespace))]
    #[case::default_in_one_not_chosen(NEW, DEFAULT, Some(json!({})), Managed::No)]
    #[case::default_in_one_not_seen(NEW, DEFAULT, None, Managed::Held(Hold::UnseenNamespace))]
    #[case::unnamed_in_one_not_seen(NEW, TEAM, None, Managed::No)]
    fn only_jobs_of_chosen_namespaces_are_managed(
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
    fn only_jobs_of_chosen_kinds_are_managed(#[case] framework: Framework, #[case] expected: Managed) {
        let mut frameworks = Frameworks::none();
        frameworks.add(Framework::BatchJob);
        let rules = Rules { frameworks, without_queue_name: true, ..Rules::default() };
        assert_eq!(Managed::of(Candidate { framework, ..NAMED }, TEAM, &rules), expected);
    }
}
