//! Answers of the API server to dry runs of pods, by template.

use std::collections::{BTreeMap, BTreeSet};

use jiff::{SignedDuration, Timestamp};
use sluice_plan::{PodDryRun, PodDryRunId, PodVerdict};

use super::cluster_state::{Change, Object};
use super::planner_key::{JobKey, PlannerKey};
use super::{Command, Engine, WriteError};

/// Time without an answer after which the pods count as accepted: a check that does not work delays
/// no job.
const TIMEOUT: SignedDuration = SignedDuration::from_secs(15);
/// Time for which pods count as accepted.
const ACCEPTED_FOR: SignedDuration = SignedDuration::from_mins(10);
/// Time until rejected pods are tried again. It doubles with each rejection.
const FIRST_RETRY: SignedDuration = SignedDuration::from_secs(30);
/// Longest time until rejected pods are tried again.
const MAX_RETRY: SignedDuration = SignedDuration::from_mins(5);
/// Time between two removals of what is known of templates that no job asks about any longer.
const CLEANUP_INTERVAL: SignedDuration = SignedDuration::from_mins(1);

/// Dry runs of pods, and their answers.
#[derive(Debug, Clone, Default)]
pub(super) struct PodDryRuns {
    /// If false, all pods count as accepted.
    is_enabled: bool,
    by_template: BTreeMap<PodDryRunId, Template>,
    next_cleanup: Option<Timestamp>,
}

/// The state of a template: its dry run and the answer.
#[derive(Debug, Clone, Default)]
struct Template {
    /// Time of the dry run that is not answered; `None` if there is none.
    in_flight_since: Option<Timestamp>,
    answer: Option<Answer>,
    /// Jobs that are planned again when the answer changes.
    jobs: BTreeSet<JobKey>,
}

#[derive(Debug, Clone)]
enum Answer {
    Accepted { until: Timestamp },
    Rejected { message: String, times: u32, retry_at: Timestamp },
}

impl PodDryRuns {
    /// Requires the dry run of a template before quota is requested for its pods.
    pub(super) fn enable(&mut self) {
        self.is_enabled = true;
    }

    /// Returns the answer to the dry run of a template.
    pub(super) fn verdict(&self, id: &PodDryRunId, now: Timestamp) -> PodVerdict {
        if !self.is_enabled {
            return PodVerdict::Accepted;
        }
        let Some(template) = self.by_template.get(id) else { return PodVerdict::Unknown };
        let is_overdue = template.in_flight_since.is_some_and(|since| since + TIMEOUT <= now);
        match &template.answer {
            Some(Answer::Rejected { message, retry_at, .. }) => {
                PodVerdict::Rejected { message: message.clone(), retry_at: *retry_at }
            }
            Some(Answer::Accepted { until }) if now < *until => PodVerdict::Accepted,
            _ if is_overdue => PodVerdict::Accepted,
            _ => PodVerdict::Unknown,
        }
    }

    /// Begins a dry run for a job. Returns false if one of the same template is in flight, and the time
    /// at which that is overdue.
    pub(super) fn begin(&mut self, id: &PodDryRunId, job: &JobKey, now: Timestamp) -> (bool, Timestamp) {
        self.clean_up(now);
        let template = self.by_template.entry(id.clone()).or_default();
        template.jobs.insert(job.clone());
        let since = template.in_flight_since.filter(|since| now < *since + TIMEOUT);
        template.in_flight_since = Some(since.unwrap_or(now));
        (since.is_none(), since.unwrap_or(now) + TIMEOUT)
    }

    /// Records the answer to a dry run. Returns the jobs to plan again.
    pub(super) fn record(
        &mut self,
        id: &PodDryRunId,
        result: Result<(), &WriteError>,
        now: Timestamp,
    ) -> BTreeSet<JobKey> {
        let Some(template) = self.by_template.get_mut(id) else { return BTreeSet::new() };
        template.in_flight_since = None;
        let Some(message) = result.err().and_then(rejection) else {
            template.answer = Some(Answer::Accepted { until: now + ACCEPTED_FOR });
            return std::mem::take(&mut template.jobs);
        };
        let times = match template.answer {
            Some(Answer::Rejected { times, .. }) => times.saturating_add(1),
            _ => 0,
        };
        let pause = (0..times.min(8)).fold(FIRST_RETRY, |pause, _| (pause * 2).min(MAX_RETRY));
        template.answer = Some(Answer::Rejected { message: message.to_owned(), times, retry_at: now + pause });
        template.jobs.clone()
    }

    /// Makes the rejected templates of a namespace due. Returns the jobs to plan again.
    pub(super) fn retry_rejected(&mut self, namespace: &str, now: Timestamp) -> BTreeSet<JobKey> {
        let first = PodDryRunId { namespace: namespace.to_owned(), template: String::new() };
        let of_namespace = self.by_template.range_mut(first..).take_while(|(id, _)| id.namespace == namespace);
        let mut jobs = BTreeSet::new();
        for (_, template) in of_namespace {
            if let Some(Answer::Rejected { retry_at, .. }) = &mut template.answer {
                *retry_at = (*retry_at).min(now);
                jobs.extend(template.jobs.iter().cloned());
            }
        }
        jobs
    }

    /// Removes templates that no job has asked about for some time.
    fn clean_up(&mut self, now: Timestamp) {
        if self.next_cleanup.is_some_and(|at| now < at) {
            return;
        }
        self.next_cleanup = Some(now + CLEANUP_INTERVAL);
        self.by_template.retain(|_, template| {
            // An overdue one stays until its jobs have been planned, which count its pods as accepted.
            let kept_for = TIMEOUT + CLEANUP_INTERVAL;
            let is_in_flight = template.in_flight_since.is_some_and(|since| now < since + kept_for);
            let is_known = match &template.answer {
                Some(Answer::Accepted { until }) => now < *until,
                Some(Answer::Rejected { retry_at, .. }) => now < *retry_at + MAX_RETRY,
                None => false,
            };
            is_in_flight || is_known
        });
    }
}

impl Engine {
    /// Begins the dry runs that a job waits for. Returns the time at which the first is overdue.
    pub(super) fn begin_dry_runs(
        &mut self,
        now: Timestamp,
        job: &JobKey,
        dry_runs: Vec<PodDryRun>,
        commands: &mut Vec<Command>,
    ) -> Option<Timestamp> {
        let begun = dry_runs.into_iter().map(|dry_run| {
            let (is_new, overdue_at) = self.pod_dry_runs.begin(&dry_run.id, job, now);
            commands.extend(is_new.then_some(Command::DryRunPod(dry_run)));
            overdue_at
        });
        begun.min()
    }

    pub(super) fn on_pod_dry_run_answered(
        &mut self,
        now: Timestamp,
        id: &PodDryRunId,
        result: &Result<(), WriteError>,
    ) {
        let jobs = self.pod_dry_runs.record(id, result.as_ref().copied(), now);
        self.enqueue_jobs(jobs);
    }

    /// Tries rejected pods again after a change of their namespace: its labels select what rejects them.
    pub(super) fn retry_rejected_pods(&mut self, now: Timestamp, change: &Change) {
        if let Some(Object::Namespace(namespace)) = &change.after {
            let namespace = namespace.metadata.name.as_deref().unwrap_or_default();
            let jobs = self.pod_dry_runs.retry_rejected(namespace, now);
            self.enqueue_jobs(jobs);
        }
    }

    fn enqueue_jobs(&mut self, jobs: BTreeSet<JobKey>) {
        for job in jobs {
            self.work_queue.enqueue(PlannerKey::Job(job));
        }
    }
}

/// Returns the message of the API server if it rejects such pods for good, until they, the namespace
/// or an admission rule change.
///
/// A ResourceQuota has room again as soon as other pods end, and a job that waits for that has to be
/// in the queue, since it can preempt them. A missing ServiceAccount may be one that a controller
/// creates. A LimitRange, or a limit below the request, is what the scheduler reports of the Workload,
/// as in Kueue. The other exceptions say nothing about the pods.
fn rejection(error: &WriteError) -> Option<&str> {
    // Kubernetes 1.36: `plugin/pkg/admission/resourcequota/controller.go`,
    // `plugin/pkg/admission/serviceaccount/admission.go`, `plugin/pkg/admission/limitranger/admission.go`,
    // `pkg/apis/core/validation/validation.go`, `pkg/admission/plugin/webhook/errors/statuserror.go`,
    // `pkg/admission/plugin/namespace/lifecycle/admission.go`,
    // `pkg/endpoints/handlers/responsewriters/errors.go` (the last three of k8s.io/apiserver).
    const OTHERS: [&str; 8] = [
        "exceeded quota",
        " usage per ",
        " limit to request ratio per ",
        "must be less than or equal to ",
        "error looking up service account",
        "does not support dry run",
        "because it is being terminated",
        "cannot create resource \"pods\"",
    ];
    let is_rejection = matches!(error.code, Some(400 | 403 | 422));
    (is_rejection && !OTHERS.iter().any(|text| error.message.contains(text))).then_some(&*error.message)
}

#[cfg(test)]
mod tests {
    use rstest::rstest;
    use sluice_plan::ObjectKey;

    use super::*;

    const START: Timestamp = Timestamp::UNIX_EPOCH;

    fn id(template: &str) -> PodDryRunId {
        PodDryRunId { namespace: "ns".into(), template: template.into() }
    }

    fn job(name: &str) -> JobKey {
        JobKey::BatchJob(ObjectKey::new("ns", name))
    }

    fn seconds(seconds: i64) -> Timestamp {
        START + SignedDuration::from_secs(seconds)
    }

    fn error(code: Option<u16>, message: &str) -> WriteError {
        WriteError { code, ..WriteError::unanswered(message.into()) }
    }

    fn enabled() -> PodDryRuns {
        PodDryRuns { is_enabled: true, ..PodDryRuns::default() }
    }

    #[rstest]
    #[case::pod_security(Some(403), "violates PodSecurity \"restricted:latest\"", true)]
    #[case::invalid_field(Some(422), "spec.containers[0].image: Required value", true)]
    #[case::webhook(Some(400), "admission webhook \"v.example.com\" denied the request: no", true)]
    #[case::limit_range(Some(403), "maximum cpu usage per Container is 1, but limit is 2", false)]
    #[case::ratio(Some(403), "cpu max limit to request ratio per Pod is 2, but provided ratio is 4", false)]
    #[case::limit_below_request(
        Some(422),
        "requests: Invalid value: \"2\": must be less than or equal to cpu limit of 1",
        false
    )]
    #[case::quota_without_a_limit(Some(403), "failed quota: compute: must specify limits.cpu", true)]
    #[case::resource_quota(
        Some(403),
        "exceeded quota: compute, requested: pods=1, used: pods=2, limited: pods=2",
        false
    )]
    #[case::service_account(Some(403), "error looking up service account ns/a: serviceaccount \"a\" not found", false)]
    #[case::webhook_without_dry_run(Some(400), "admission webhook \"v\" does not support dry run", false)]
    #[case::namespace_that_goes(
        Some(403),
        "unable to create new content in namespace ns because it is being terminated",
        false
    )]
    #[case::missing_role(Some(403), "User \"x\" cannot create resource \"pods\" in API group \"\"", false)]
    #[case::such_a_pod_exists(Some(409), "pods \"train-main\" already exists", false)]
    #[case::overload(Some(429), "too many requests", false)]
    #[case::no_answer(None, "no response within 10 s", false)]
    fn only_rejections_that_the_queue_does_not_report_hold_a_job_back(
        #[case] code: Option<u16>,
        #[case] message: &str,
        #[case] rejects: bool,
    ) {
        let mut runs = enabled();
        runs.begin(&id("a"), &job("one"), START);

        let jobs = runs.record(&id("a"), Err(&error(code, message)), START);

        assert_eq!(jobs, BTreeSet::from([job("one")]));
        let is_rejected = matches!(runs.verdict(&id("a"), START), PodVerdict::Rejected { .. });
        assert_eq!(is_rejected, rejects, "{:?}", runs.verdict(&id("a"), START));
    }

    #[test]
    fn jobs_of_one_template_share_a_dry_run_until_its_answer_is_too_old() {
        let mut runs = enabled();
        assert_eq!(runs.verdict(&id("a"), START), PodVerdict::Unknown);
        assert!(runs.begin(&id("a"), &job("one"), START).0);
        assert!(!runs.begin(&id("a"), &job("two"), START).0);
        assert_eq!(runs.verdict(&id("a"), START), PodVerdict::Unknown);

        let jobs = runs.record(&id("a"), Ok(()), START);

        assert_eq!(jobs, BTreeSet::from([job("one"), job("two")]));
        assert_eq!(runs.verdict(&id("a"), seconds(599)), PodVerdict::Accepted);
        assert_eq!(runs.verdict(&id("a"), seconds(600)), PodVerdict::Unknown);
        assert_eq!(runs.verdict(&id("b"), START), PodVerdict::Unknown);
    }

    #[test]
    fn dry_run_without_an_answer_delays_no_job() {
        let mut runs = enabled();

        let (is_sent, overdue_at) = runs.begin(&id("a"), &job("one"), START);

        assert!(is_sent);
        assert_eq!(runs.verdict(&id("a"), overdue_at), PodVerdict::Accepted);

        // Also if a cleanup comes first.
        let later = overdue_at.max(START + CLEANUP_INTERVAL);
        runs.begin(&id("b"), &job("two"), later);
        assert_eq!(runs.verdict(&id("a"), later), PodVerdict::Accepted);
    }

    #[test]
    fn rejected_pods_are_tried_again_after_growing_pauses() {
        let mut runs = enabled();
        let rejected = error(Some(422), "invalid");
        let mut now = START;
        let pauses: Vec<i64> = (0..6)
            .map(|_| {
                assert!(runs.begin(&id("a"), &job("one"), now).0);
                runs.record(&id("a"), Err(&rejected), now);
                let PodVerdict::Rejected { retry_at, .. } = runs.verdict(&id("a"), now) else { panic!("rejected") };
                let pause = retry_at.duration_since(now).as_secs();
                now = retry_at;
                pause
            })
            .collect();

        assert_eq!(pauses, [30, 60, 120, 240, 300, 300]);
    }

    #[test]
    fn rejected_pods_are_due_once_their_namespace_changes() {
        let mut runs = enabled();
        runs.begin(&id("a"), &job("one"), START);
        runs.record(&id("a"), Err(&error(Some(422), "invalid")), START);

        assert!(runs.retry_rejected("other", START).is_empty());
        assert_eq!(runs.retry_rejected("ns", seconds(1)), BTreeSet::from([job("one")]));

        let due = PodVerdict::Rejected { message: "invalid".into(), retry_at: seconds(1) };
        assert_eq!(runs.verdict(&id("a"), seconds(1)), due);
    }

    #[test]
    fn templates_that_no_job_asks_about_are_forgotten() {
        let mut runs = enabled();
        runs.begin(&id("a"), &job("one"), START);
        runs.record(&id("a"), Ok(()), START);

        runs.begin(&id("b"), &job("two"), seconds(601));

        assert_eq!(runs.by_template.keys().collect::<Vec<_>>(), [&id("b")]);
    }
}
