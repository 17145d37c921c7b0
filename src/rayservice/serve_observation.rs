//! Observed state of Serve on one RayCluster, and when to query it again.

use jiff::{SignedDuration, Timestamp};
use sha2::{Digest, Sha256};

use sluice_plan::{ServeAnswer, ServeError, ServeReply, ServeStatus};

/// Delays between status queries while something is not running yet; the last one repeats.
const NOT_RUNNING_QUERY_DELAYS: [SignedDuration; 3] =
    [SignedDuration::from_millis(500), SignedDuration::from_secs(1), SignedDuration::from_secs(2)];
/// Approximate delay between queries while everything is running.
const RUNNING_QUERY_DELAY: SignedDuration = SignedDuration::from_secs(10);
/// Delay between queries during an incremental upgrade, which depends on the answers (KubeRay 1.7
/// queries in every reconcile, which is every 2 s).
const UPGRADE_QUERY_DELAY: SignedDuration = SignedDuration::from_secs(2);
/// Delay after the first rejection of a configuration; it doubles with each further one.
const INITIAL_REJECTION_BACKOFF: SignedDuration = SignedDuration::from_secs(2);
/// Maximum delay after a rejection.
const MAX_REJECTION_BACKOFF: SignedDuration = SignedDuration::from_secs(60);
/// Delay before a configuration that was accepted, but is not in effect, is applied again.
const REAPPLY_DELAY: SignedDuration = SignedDuration::from_secs(2);
/// Consecutive failures after which a proxy or dashboard counts as unhealthy: a single lost
/// response must not take a head pod out of the serve Service.
const FAILURES_UNTIL_UNHEALTHY: u32 = 2;

/// Frequency of status queries while Serve runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum QueryPace {
    /// The usual one.
    Usual,
    /// The higher one of an incremental upgrade, whose steps depend on the status.
    IncrementalUpgrade,
}

/// Observed state of Serve on one RayCluster, accumulated from call results. It is lost on restart
/// and then queried again; whatever must survive a restart is in annotations of the RayCluster.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct ServeObservation {
    /// UID of the RayCluster; `None` before the first query.
    cluster_uid: Option<String>,
    /// Last status query; None if there was none.
    last_query: Option<StatusQuery>,
    /// Last status received.
    status: Option<ServeStatus>,
    /// Consecutive status queries that failed or reported something not running.
    queries_until_running: usize,
    last_applied: Option<AppliedConfig>,
    last_rejection: Option<RejectedConfig>,
    proxy_health: Option<ProxyHealth>,
}

#[derive(Debug, Clone, PartialEq)]
struct StatusQuery {
    called_at: Timestamp,
    /// UID of the head pod that was queried.
    head: Option<String>,
    /// Error if the query failed.
    result: Result<(), ServeError>,
}

#[derive(Debug, Clone, PartialEq)]
struct AppliedConfig {
    config_hash: String,
    at: Timestamp,
}

#[derive(Debug, Clone, PartialEq)]
struct RejectedConfig {
    config_hash: String,
    at: Timestamp,
    rejections: u32,
    error: ServeError,
}

#[derive(Debug, Clone, PartialEq)]
struct ProxyHealth {
    pod: String,
    called_at: Timestamp,
    failures: u32,
}

impl ServeObservation {
    /// Returns the observation before any query.
    pub(super) const fn never_observed() -> Self {
        Self {
            cluster_uid: None,
            last_query: None,
            status: None,
            queries_until_running: 0,
            last_applied: None,
            last_rejection: None,
            proxy_health: None,
        }
    }

    /// Records the result of a call. Observations of an earlier cluster of the same name are
    /// discarded.
    pub fn observe(&mut self, reply: ServeReply) {
        if self.cluster_uid.as_ref() != Some(&reply.uid) {
            *self = Self { cluster_uid: Some(reply.uid), ..Self::never_observed() };
        }
        match reply.answer {
            ServeAnswer::Status(answer) => self.observe_status(reply.called_at, reply.head_uid, answer),
            ServeAnswer::Applied { config_hash, result: Ok(()) } => {
                self.last_applied = Some(AppliedConfig { config_hash, at: reply.answered_at });
                self.last_rejection = None;
                self.queries_until_running = 0;
            }
            ServeAnswer::Applied { config_hash, result: Err(error) } => {
                let previous = self.last_rejection.as_ref().filter(|previous| previous.config_hash == config_hash);
                let times = previous.map_or(1, |previous| previous.rejections.saturating_add(1));
                self.last_rejection =
                    Some(RejectedConfig { config_hash, at: reply.answered_at, rejections: times, error });
            }
            ServeAnswer::Health { pod, result } => {
                let previous = self.proxy_health.as_ref().filter(|previous| previous.pod == pod);
                let failures = match result {
                    Ok(()) => 0,
                    Err(_) => previous.map_or(1, |previous| previous.failures.saturating_add(1)),
                };
                self.proxy_health = Some(ProxyHealth { pod, called_at: reply.called_at, failures });
            }
        }
    }

    fn observe_status(&mut self, called_at: Timestamp, head: Option<String>, answer: Result<ServeStatus, ServeError>) {
        let (status, result) = match answer {
            Ok(status) => (Some(status), Ok(())),
            Err(error) => (None, Err(error)),
        };
        let is_running = status.as_ref().is_some_and(ServeStatus::is_running);
        self.queries_until_running = if is_running { 0 } else { self.queries_until_running.saturating_add(1) };
        self.last_query = Some(StatusQuery { called_at, head, result });
        self.status = status.or(self.status.take());
    }

    /// Returns the last status received; None if there was none.
    pub fn last_status(&self) -> Option<&ServeStatus> {
        self.status.as_ref()
    }

    /// Returns the status if it was queried from this head pod, after the last configuration was
    /// accepted and not before `since`: only then does it reflect that configuration. The head pod
    /// is compared as well, because `since` has a resolution of one second and misses a head that
    /// restarts within it.
    pub fn current_status(&self, since: Timestamp, head: Option<&str>) -> Option<&ServeStatus> {
        let asked = self.last_query.as_ref()?;
        let applied_at = self.last_applied.as_ref().map_or(Timestamp::MIN, |applied| applied.at);
        let is_recent = asked.called_at >= applied_at && asked.called_at >= since;
        let is_current = asked.result.is_ok() && is_recent && asked.head.as_deref() == head;
        self.status.as_ref().filter(|_| is_current)
    }

    /// Returns the error of the last status query; None if it succeeded.
    pub fn query_error(&self) -> Option<&ServeError> {
        self.last_query.as_ref()?.result.as_ref().err()
    }

    /// Returns true if the last status query failed and at least two consecutive ones had no
    /// running status.
    pub fn is_not_responding(&self) -> bool {
        self.query_error().is_some() && self.queries_until_running >= FAILURES_UNTIL_UNHEALTHY as usize
    }

    /// Returns the hash of the configuration accepted last; None if none was accepted.
    pub fn applied_config_hash(&self) -> Option<&str> {
        self.last_applied.as_ref().map(|applied| applied.config_hash.as_str())
    }

    /// Returns the error of the last rejection of this configuration; None if it was not rejected.
    pub fn rejection(&self, config_hash: &str) -> Option<&ServeError> {
        self.last_rejection.as_ref().filter(|refused| refused.config_hash == config_hash).map(|refused| &refused.error)
    }

    /// Returns the earliest time at which this configuration may be applied (again).
    pub fn apply_not_before(&self, config_hash: &str) -> Timestamp {
        let refused = self.last_rejection.as_ref().filter(|refused| refused.config_hash == config_hash);
        if let Some(refused) = refused {
            let pause = INITIAL_REJECTION_BACKOFF.saturating_mul(1 << (refused.rejections - 1).min(16));
            return saturating_after(refused.at, pause.min(MAX_REJECTION_BACKOFF));
        }
        let applied = self.last_applied.as_ref().filter(|applied| applied.config_hash == config_hash);
        applied.map_or(Timestamp::MIN, |applied| saturating_after(applied.at, REAPPLY_DELAY))
    }

    /// Returns when to query the status again: immediately if it was not queried since the last
    /// configuration was accepted, and after the shortest delay if it was queried before `since`
    /// (possibly of another clock) or from another head pod. During an incremental upgrade the
    /// delay is shorter.
    pub fn next_query_at(&self, since: Timestamp, head: Option<&str>, pace: QueryPace) -> Timestamp {
        let Some(StatusQuery { called_at, head: asked_head, .. }) = &self.last_query else { return Timestamp::MIN };
        if self.last_applied.as_ref().is_some_and(|applied| *called_at < applied.at) {
            return Timestamp::MIN;
        }
        let pause = match self.queries_until_running.checked_sub(1) {
            _ if *called_at < since || asked_head.as_deref() != head => NOT_RUNNING_QUERY_DELAYS[0],
            None if pace == QueryPace::IncrementalUpgrade => UPGRADE_QUERY_DELAY,
            None => self.with_jitter(RUNNING_QUERY_DELAY, *called_at),
            Some(earlier) => NOT_RUNNING_QUERY_DELAYS[earlier.min(NOT_RUNNING_QUERY_DELAYS.len() - 1)],
        };
        saturating_after(*called_at, pause)
    }

    /// Returns true if the Serve proxy on a pod is healthy, false after repeated failures; None if
    /// unknown or after a single failure.
    pub fn is_proxy_healthy(&self, pod: &str) -> Option<bool> {
        let health = self.proxy_health.as_ref().filter(|health| health.pod == pod)?;
        match health.failures {
            0 => Some(true),
            failures => (failures >= FAILURES_UNTIL_UNHEALTHY).then_some(false),
        }
    }

    /// Returns when to check the Serve proxy on a pod again.
    pub fn next_health_check_at(&self, pod: &str) -> Timestamp {
        let Some(health) = self.proxy_health.as_ref().filter(|health| health.pod == pod) else { return Timestamp::MIN };
        let pause = match health.failures {
            0 => self.with_jitter(RUNNING_QUERY_DELAY, health.called_at),
            failures if failures < FAILURES_UNTIL_UNHEALTHY => NOT_RUNNING_QUERY_DELAYS[0],
            _ => NOT_RUNNING_QUERY_DELAYS[2],
        };
        saturating_after(health.called_at, pause)
    }

    /// Returns the delay with up to 10 % of deterministic jitter, so that clusters queried
    /// simultaneously, as all are after a restart, spread out.
    fn with_jitter(&self, pause: SignedDuration, since: Timestamp) -> SignedDuration {
        let digest = Sha256::digest(format!("{}/{since}", self.cluster_uid.as_deref().unwrap_or_default()));
        let jitter = i32::from(u16::from_be_bytes([digest[0], digest[1]]) % 201);
        pause.saturating_mul(900 + jitter) / 1000
    }

    /// Returns true if this observation is of the cluster with this UID.
    pub fn is_of_cluster(&self, uid: &str) -> bool {
        self.cluster_uid.as_deref() == Some(uid)
    }
}

fn saturating_after(time: Timestamp, by: SignedDuration) -> Timestamp {
    time.saturating_add(by).unwrap_or(Timestamp::MAX)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use rstest::rstest;
    use serde_json::json;

    use super::*;

    fn at(millis: i64) -> Timestamp {
        Timestamp::from_millisecond(millis).expect("in range")
    }

    fn reply(called_at: i64, answer: ServeAnswer) -> ServeReply {
        ServeReply {
            namespace: "ml".into(),
            cluster: "chat-x1".into(),
            uid: "uid-1".into(),
            head_uid: None,
            called_at: at(called_at),
            answered_at: at(called_at + 100),
            answer,
        }
    }

    fn error() -> ServeError {
        ServeError::Rejected { doing: "asking".into(), code: 500, body: "no".into() }
    }

    fn status(called_at: i64, app: &str) -> ServeReply {
        let status = serde_json::from_value(json!({"applications": {"chat": {"status": app}}})).expect("valid status");
        reply(called_at, ServeAnswer::Status(Ok(status)))
    }

    fn no_status(called_at: i64) -> ServeReply {
        reply(called_at, ServeAnswer::Status(Err(error())))
    }

    fn put(called_at: i64, hash: &str, result: Result<(), ServeError>) -> ServeReply {
        reply(called_at, ServeAnswer::Applied { config_hash: hash.into(), result })
    }

    fn health(called_at: i64, pod: &str, result: Result<(), ServeError>) -> ServeReply {
        reply(called_at, ServeAnswer::Health { pod: pod.into(), result })
    }

    fn after(replies: impl IntoIterator<Item = ServeReply>) -> ServeObservation {
        let mut observation = ServeObservation::default();
        replies.into_iter().for_each(|reply| observation.observe(reply));
        observation
    }

    #[rstest]
    #[case::never_queried(vec![], i64::MIN)]
    #[case::first_response(vec![status(0, "DEPLOYING")], 500)]
    #[case::second_response(vec![status(0, "DEPLOYING"), no_status(500)], 1500)]
    #[case::third_response(vec![status(0, "DEPLOYING"), no_status(500), status(1500, "DEPLOYING")], 3500)]
    #[case::later_responses(vec![no_status(0), no_status(1), no_status(2), no_status(3), no_status(4)], 2004)]
    #[case::just_applied(vec![status(0, "RUNNING"), put(200, "a", Ok(()))], i64::MIN)]
    #[case::queried_while_applying(vec![put(200, "a", Ok(())), status(250, "RUNNING")], i64::MIN)]
    #[case::queried_after_applying(vec![put(200, "a", Ok(())), status(300, "DEPLOYING")], 800)]
    fn serve_is_queried_frequently_until_it_is_running(#[case] replies: Vec<ServeReply>, #[case] expected: i64) {
        let expected = if expected == i64::MIN { Timestamp::MIN } else { at(expected) };
        assert_eq!(after(replies).next_query_at(Timestamp::MIN, None, QueryPace::Usual), expected);
    }

    #[test]
    fn status_queried_before_a_configuration_was_accepted_is_not_current() {
        let mut observation = after([status(0, "RUNNING")]);
        assert!(observation.current_status(at(0), None).is_some());
        assert!(observation.current_status(at(1), None).is_none(), "the head became ready later");
        assert!(observation.current_status(at(0), Some("another")).is_none(), "a different head was queried");

        observation.observe(put(10, "a", Ok(())));
        observation.observe(status(50, "RUNNING"));
        assert!(observation.current_status(at(0), None).is_none());
        assert!(observation.last_status().is_some());

        observation.observe(status(200, "RUNNING"));
        assert!(observation.current_status(at(0), None).is_some());

        observation.observe(no_status(300));
        assert!(observation.current_status(at(0), None).is_none());
        assert_eq!(observation.query_error(), Some(&error()));
    }

    #[rstest]
    #[case::never_applied(vec![], "a", i64::MIN)]
    #[case::applied(vec![put(0, "a", Ok(()))], "a", 2100)]
    #[case::another_applied(vec![put(0, "b", Ok(()))], "a", i64::MIN)]
    #[case::rejected(vec![put(0, "a", Err(error()))], "a", 2100)]
    #[case::rejected_three_times(vec![put(0, "a", Err(error())), put(1, "a", Err(error())), put(2, "a", Err(error()))], "a", 8102)]
    #[case::another_rejected(vec![put(0, "b", Err(error()))], "a", i64::MIN)]
    #[case::rejected_repeatedly((0..99).map(|_| put(0, "a", Err(error()))).collect(), "a", 60_100)]
    fn configuration_not_in_effect_is_applied_again_after_a_delay(
        #[case] replies: Vec<ServeReply>,
        #[case] hash: &str,
        #[case] expected: i64,
    ) {
        let expected = if expected == i64::MIN { Timestamp::MIN } else { at(expected) };
        assert_eq!(after(replies).apply_not_before(hash), expected);
    }

    #[rstest]
    #[case::unknown(vec![], None, i64::MIN)]
    #[case::of_another_pod(vec![health(0, "old", Ok(()))], None, i64::MIN)]
    #[case::one_failure(vec![health(0, "head", Ok(())), health(5, "head", Err(error()))], None, 505)]
    #[case::two_failures(vec![health(0, "head", Err(error())), health(5, "head", Err(error()))], Some(false), 2005)]
    fn proxy_is_unhealthy_after_two_failures(
        #[case] replies: Vec<ServeReply>,
        #[case] healthy: Option<bool>,
        #[case] again: i64,
    ) {
        let observation = after(replies);
        let again = if again == i64::MIN { Timestamp::MIN } else { at(again) };
        assert_eq!((observation.is_proxy_healthy("head"), observation.next_health_check_at("head")), (healthy, again));
    }

    #[rstest]
    #[case::never_queried(vec![], false)]
    #[case::one_failure(vec![status(0, "RUNNING"), no_status(10)], false)]
    #[case::two_failures(vec![status(0, "RUNNING"), no_status(10), no_status(20)], true)]
    #[case::response_after_failures(vec![no_status(0), no_status(10), status(20, "DEPLOYING")], false)]
    fn dashboard_is_not_responding_after_two_failures(#[case] replies: Vec<ServeReply>, #[case] expected: bool) {
        assert_eq!(after(replies).is_not_responding(), expected);
    }

    #[test]
    fn running_clusters_are_queried_about_every_ten_seconds_with_jitter() {
        let replies = |uid: usize| {
            let uid = format!("uid-{uid}");
            [status(0, "RUNNING"), health(0, "head", Ok(()))].map(|reply| ServeReply { uid: uid.clone(), ..reply })
        };
        let all: Vec<ServeObservation> = (0..100).map(|uid| after(replies(uid))).collect();
        assert!(all.iter().all(|observation| observation.is_proxy_healthy("head") == Some(true)));

        let status_at = all.iter().map(|observation| observation.next_query_at(Timestamp::MIN, None, QueryPace::Usual));
        let health_at = all.iter().map(|observation| observation.next_health_check_at("head"));
        for times in [status_at.collect::<BTreeSet<_>>(), health_at.collect()] {
            assert!(times.iter().all(|time| (at(9_000)..=at(11_000)).contains(time)), "{times:?}");
            assert!(times.len() > 50, "{times:?}");
        }
    }

    #[test]
    fn observation_is_discarded_when_another_cluster_of_the_same_name_responds() {
        let mut observation = after([status(0, "RUNNING"), put(200, "a", Ok(()))]);
        assert!(observation.is_of_cluster("uid-1"));

        observation.observe(ServeReply { uid: "uid-2".into(), ..no_status(400) });

        assert!(observation.is_of_cluster("uid-2") && !observation.is_of_cluster("uid-1"));
        assert_eq!((observation.last_status(), observation.applied_config_hash()), (None, None));
    }

    #[test]
    fn head_ready_since_a_future_time_is_not_queried_in_a_tight_loop() {
        assert_eq!(after([status(0, "RUNNING")]).next_query_at(at(9_000), None, QueryPace::Usual), at(500));
    }
}
