//! What is known of Serve on one cluster.

use jiff::{SignedDuration, Timestamp};
use sha2::{Digest, Sha256};

use sluice_plan::{ServeAnswer, ServeError, ServeReply, ServeStatus};

/// Pauses between questions while something isn't running yet; the last one goes on.
const PAUSES_WHILE_WAITING: [SignedDuration; 3] =
    [SignedDuration::from_millis(500), SignedDuration::from_secs(1), SignedDuration::from_secs(2)];
/// About how long the pause between questions is while everything runs.
const PAUSE_WHILE_RUNNING: SignedDuration = SignedDuration::from_secs(10);
/// Between two questions while traffic moves as the answers allow (KubeRay 1.7 asks in every pass, which is every 2 s).
const PAUSE_WHILE_UPGRADING: SignedDuration = SignedDuration::from_secs(2);
/// The pause after a configuration was refused for the first time; it doubles with each refusal.
const FIRST_PAUSE_AFTER_REFUSAL: SignedDuration = SignedDuration::from_secs(2);
/// The longest pause after a refusal.
const LONGEST_PAUSE_AFTER_REFUSAL: SignedDuration = SignedDuration::from_secs(60);
/// A configuration that was taken and has left no trace is not applied again before this has passed.
const PAUSE_BEFORE_REAPPLYING: SignedDuration = SignedDuration::from_secs(2);
/// A proxy, or a dashboard, counts as ill after this many failed checks in a row: one lost answer must not take a head out of service.
const FAILURES_UNTIL_ILL: u32 = 2;

/// What is known of Serve on one cluster, folded from the answers to calls. It is lost with the process; then everything is
/// asked for again, and what must not be lost is in annotations of the cluster.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct ServeObservation {
    /// The uid of the cluster.
    uid: String,
    /// When the applications were asked for last.
    asked: Option<Asked>,
    /// The last answer.
    status: Option<ServeStatus>,
    /// Questions in a row that were not answered by "everything runs".
    waiting: usize,
    applied: Option<Applied>,
    refused: Option<Refused>,
    health: Option<Health>,
}

#[derive(Debug, Clone, PartialEq)]
struct Asked {
    called_at: Timestamp,
    /// The uid of the head pod that was asked.
    head: Option<String>,
    /// Whether there was an answer.
    result: Result<(), ServeError>,
}

#[derive(Debug, Clone, PartialEq)]
struct Applied {
    config_hash: String,
    at: Timestamp,
}

#[derive(Debug, Clone, PartialEq)]
struct Refused {
    config_hash: String,
    at: Timestamp,
    times: u32,
    error: ServeError,
}

#[derive(Debug, Clone, PartialEq)]
struct Health {
    pod: String,
    called_at: Timestamp,
    failures: u32,
}

impl ServeObservation {
    /// What is known before anything was asked.
    pub(super) const fn nothing() -> Self {
        Self { uid: String::new(), asked: None, status: None, waiting: 0, applied: None, refused: None, health: None }
    }

    /// Takes in the answer to a call. What is known of another cluster of the same name is forgotten.
    pub fn observe(&mut self, reply: ServeReply) {
        if self.uid != reply.uid {
            *self = Self { uid: reply.uid, ..Self::nothing() };
        }
        match reply.answer {
            ServeAnswer::Status(answer) => self.observe_status(reply.called_at, reply.head, answer),
            ServeAnswer::Applied { config_hash, result: Ok(()) } => {
                self.applied = Some(Applied { config_hash, at: reply.at });
                self.refused = None;
                self.waiting = 0;
            }
            ServeAnswer::Applied { config_hash, result: Err(error) } => {
                let again = self.refused.as_ref().filter(|before| before.config_hash == config_hash);
                let times = again.map_or(1, |before| before.times.saturating_add(1));
                self.refused = Some(Refused { config_hash, at: reply.at, times, error });
            }
            ServeAnswer::Health { pod, result } => {
                let again = self.health.as_ref().filter(|before| before.pod == pod);
                let failures = match result {
                    Ok(()) => 0,
                    Err(_) => again.map_or(1, |before| before.failures.saturating_add(1)),
                };
                self.health = Some(Health { pod, called_at: reply.called_at, failures });
            }
        }
    }

    fn observe_status(&mut self, called_at: Timestamp, head: Option<String>, answer: Result<ServeStatus, ServeError>) {
        let (status, result) = match answer {
            Ok(status) => (Some(status), Ok(())),
            Err(error) => (None, Err(error)),
        };
        let runs = status.as_ref().is_some_and(ServeStatus::is_running);
        self.waiting = if runs { 0 } else { self.waiting.saturating_add(1) };
        self.asked = Some(Asked { called_at, head, result });
        self.status = status.or(self.status.take());
    }

    /// The applications as they were when there was an answer last.
    pub fn last_status(&self) -> Option<&ServeStatus> {
        self.status.as_ref()
    }

    /// The applications, if this head pod was asked for them, after the last configuration was taken and after `since`: only then do
    /// they tell what became of that. (A head that is lost and back within a second would pass by its times alone, which are whole
    /// seconds.)
    pub fn current_status(&self, since: Timestamp, head: Option<&str>) -> Option<&ServeStatus> {
        let asked = self.asked.as_ref()?;
        let applied_at = self.applied.as_ref().map_or(Timestamp::MIN, |applied| applied.at);
        let is_late_enough = asked.called_at >= applied_at && asked.called_at >= since;
        let is_current = asked.result.is_ok() && is_late_enough && asked.head.as_deref() == head;
        self.status.as_ref().filter(|_| is_current)
    }

    /// Why the last question was not answered.
    pub fn silence(&self) -> Option<&ServeError> {
        self.asked.as_ref()?.result.as_ref().err()
    }

    /// Whether the applications were asked for more than once, and nobody answers.
    pub fn is_silent(&self) -> bool {
        self.silence().is_some() && self.waiting >= FAILURES_UNTIL_ILL as usize
    }

    /// Hash of the configuration that was taken last.
    pub fn applied_config(&self) -> Option<&str> {
        self.applied.as_ref().map(|applied| applied.config_hash.as_str())
    }

    /// Why this configuration was refused last.
    pub fn refusal(&self, config_hash: &str) -> Option<&ServeError> {
        self.refused.as_ref().filter(|refused| refused.config_hash == config_hash).map(|refused| &refused.error)
    }

    /// When a configuration may be applied, as far as what came of it before allows.
    pub fn may_apply_at(&self, config_hash: &str) -> Timestamp {
        let refused = self.refused.as_ref().filter(|refused| refused.config_hash == config_hash);
        if let Some(refused) = refused {
            let pause = FIRST_PAUSE_AFTER_REFUSAL.saturating_mul(1 << (refused.times - 1).min(16));
            return later(refused.at, pause.min(LONGEST_PAUSE_AFTER_REFUSAL));
        }
        let applied = self.applied.as_ref().filter(|applied| applied.config_hash == config_hash);
        applied.map_or(Timestamp::MIN, |applied| later(applied.at, PAUSE_BEFORE_REAPPLYING))
    }

    /// When the applications are to be asked for again; at once if they weren't since the last configuration was taken, and
    /// soon if they weren't since `since`, which may be of another clock, or not of this head pod. `closely` is for when something is to
    /// be decided by the answer.
    pub fn ask_at(&self, since: Timestamp, head: Option<&str>, closely: bool) -> Timestamp {
        let Some(Asked { called_at, head: asked, .. }) = &self.asked else { return Timestamp::MIN };
        if self.applied.as_ref().is_some_and(|applied| *called_at < applied.at) {
            return Timestamp::MIN;
        }
        let pause = match self.waiting.checked_sub(1) {
            _ if *called_at < since || asked.as_deref() != head => PAUSES_WHILE_WAITING[0],
            None if closely => PAUSE_WHILE_UPGRADING,
            None => self.about(PAUSE_WHILE_RUNNING, *called_at),
            Some(before) => PAUSES_WHILE_WAITING[before.min(PAUSES_WHILE_WAITING.len() - 1)],
        };
        later(*called_at, pause)
    }

    /// Whether the Serve proxy on a pod takes requests; `None` when that isn't clear.
    pub fn is_healthy(&self, pod: &str) -> Option<bool> {
        let health = self.health.as_ref().filter(|health| health.pod == pod)?;
        match health.failures {
            0 => Some(true),
            failures => (failures >= FAILURES_UNTIL_ILL).then_some(false),
        }
    }

    /// When the Serve proxy on a pod is to be asked for its health again.
    pub fn check_health_at(&self, pod: &str) -> Timestamp {
        let Some(health) = self.health.as_ref().filter(|health| health.pod == pod) else { return Timestamp::MIN };
        let pause = match health.failures {
            0 => self.about(PAUSE_WHILE_RUNNING, health.called_at),
            failures if failures < FAILURES_UNTIL_ILL => PAUSES_WHILE_WAITING[0],
            _ => PAUSES_WHILE_WAITING[2],
        };
        later(health.called_at, pause)
    }

    /// A pause that is up to a tenth shorter or longer: those who were asked at the same time, as all are when a process starts, aren't
    /// asked at the same time for ever.
    fn about(&self, pause: SignedDuration, since: Timestamp) -> SignedDuration {
        let digest = Sha256::digest(format!("{}/{since}", self.uid));
        let share = i32::from(u16::from_be_bytes([digest[0], digest[1]]) % 201);
        pause.saturating_mul(900 + share) / 1000
    }

    /// Whether this is about the cluster with this uid.
    pub fn is_of(&self, uid: &str) -> bool {
        self.uid == uid
    }
}

fn later(time: Timestamp, by: SignedDuration) -> Timestamp {
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
            head: None,
            called_at: at(called_at),
            at: at(called_at + 100),
            answer,
        }
    }

    fn error() -> ServeError {
        ServeError::Refused { doing: "asking".into(), code: 500, body: "no".into() }
    }

    fn status(called_at: i64, app: &str) -> ServeReply {
        let status = serde_json::from_value(json!({"applications": {"chat": {"status": app}}})).expect("a status");
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
    #[case::nothing_known(vec![], i64::MIN)]
    #[case::first_answer(vec![status(0, "DEPLOYING")], 500)]
    #[case::second(vec![status(0, "DEPLOYING"), no_status(500)], 1500)]
    #[case::third(vec![status(0, "DEPLOYING"), no_status(500), status(1500, "DEPLOYING")], 3500)]
    #[case::later(vec![no_status(0), no_status(1), no_status(2), no_status(3), no_status(4)], 2004)]
    #[case::just_applied(vec![status(0, "RUNNING"), put(200, "a", Ok(()))], i64::MIN)]
    #[case::asked_while_it_was_applied(vec![put(200, "a", Ok(())), status(250, "RUNNING")], i64::MIN)]
    #[case::asked_after_it_was_applied(vec![put(200, "a", Ok(())), status(300, "DEPLOYING")], 800)]
    fn serve_is_asked_often_while_something_is_awaited(#[case] replies: Vec<ServeReply>, #[case] expected: i64) {
        let expected = if expected == i64::MIN { Timestamp::MIN } else { at(expected) };
        assert_eq!(after(replies).ask_at(Timestamp::MIN, None, false), expected);
    }

    #[test]
    fn a_state_that_was_asked_for_before_a_configuration_was_taken_is_not_current() {
        let mut observation = after([status(0, "RUNNING")]);
        assert!(observation.current_status(at(0), None).is_some());
        assert!(observation.current_status(at(1), None).is_none(), "the head became ready later");
        assert!(observation.current_status(at(0), Some("another")).is_none(), "it was not this head that was asked");

        observation.observe(put(10, "a", Ok(())));
        observation.observe(status(50, "RUNNING"));
        assert!(observation.current_status(at(0), None).is_none());
        assert!(observation.last_status().is_some());

        observation.observe(status(200, "RUNNING"));
        assert!(observation.current_status(at(0), None).is_some());

        observation.observe(no_status(300));
        assert!(observation.current_status(at(0), None).is_none());
        assert_eq!(observation.silence(), Some(&error()));
    }

    #[rstest]
    #[case::never_applied(vec![], "a", i64::MIN)]
    #[case::applied(vec![put(0, "a", Ok(()))], "a", 2100)]
    #[case::another_applied(vec![put(0, "b", Ok(()))], "a", i64::MIN)]
    #[case::refused(vec![put(0, "a", Err(error()))], "a", 2100)]
    #[case::refused_thrice(vec![put(0, "a", Err(error())), put(1, "a", Err(error())), put(2, "a", Err(error()))], "a", 8102)]
    #[case::another_refused(vec![put(0, "b", Err(error()))], "a", i64::MIN)]
    #[case::refused_ever_again((0..99).map(|_| put(0, "a", Err(error()))).collect(), "a", 60_100)]
    fn a_configuration_that_came_to_nothing_is_applied_again_after_a_pause(
        #[case] replies: Vec<ServeReply>,
        #[case] hash: &str,
        #[case] expected: i64,
    ) {
        let expected = if expected == i64::MIN { Timestamp::MIN } else { at(expected) };
        assert_eq!(after(replies).may_apply_at(hash), expected);
    }

    #[rstest]
    #[case::unknown(vec![], None, i64::MIN)]
    #[case::of_another_pod(vec![health(0, "old", Ok(()))], None, i64::MIN)]
    #[case::one_failure(vec![health(0, "head", Ok(())), health(5, "head", Err(error()))], None, 505)]
    #[case::two_failures(vec![health(0, "head", Err(error())), health(5, "head", Err(error()))], Some(false), 2005)]
    fn a_proxy_is_ill_after_two_failures(
        #[case] replies: Vec<ServeReply>,
        #[case] healthy: Option<bool>,
        #[case] again: i64,
    ) {
        let observation = after(replies);
        let again = if again == i64::MIN { Timestamp::MIN } else { at(again) };
        assert_eq!((observation.is_healthy("head"), observation.check_health_at("head")), (healthy, again));
    }

    #[rstest]
    #[case::never_asked(vec![], false)]
    #[case::one_lost_answer(vec![status(0, "RUNNING"), no_status(10)], false)]
    #[case::two_lost_answers(vec![status(0, "RUNNING"), no_status(10), no_status(20)], true)]
    #[case::an_answer_after_all(vec![no_status(0), no_status(10), status(20, "DEPLOYING")], false)]
    fn a_dashboard_is_silent_after_two_failures(#[case] replies: Vec<ServeReply>, #[case] expected: bool) {
        assert_eq!(after(replies).is_silent(), expected);
    }

    #[test]
    fn those_who_run_are_asked_every_ten_seconds_or_so_and_not_all_at_once() {
        let replies = |uid: usize| {
            let uid = format!("uid-{uid}");
            [status(0, "RUNNING"), health(0, "head", Ok(()))].map(|reply| ServeReply { uid: uid.clone(), ..reply })
        };
        let all: Vec<ServeObservation> = (0..100).map(|uid| after(replies(uid))).collect();
        assert!(all.iter().all(|observation| observation.is_healthy("head") == Some(true)));

        let status_at = all.iter().map(|observation| observation.ask_at(Timestamp::MIN, None, false));
        let health_at = all.iter().map(|observation| observation.check_health_at("head"));
        for times in [status_at.collect::<BTreeSet<_>>(), health_at.collect()] {
            assert!(times.iter().all(|time| (at(9_000)..=at(11_000)).contains(time)), "{times:?}");
            assert!(times.len() > 50, "{times:?}");
        }
    }

    #[test]
    fn what_is_known_of_a_cluster_is_forgotten_with_the_first_answer_of_another_of_the_same_name() {
        let mut observation = after([status(0, "RUNNING"), put(200, "a", Ok(()))]);
        assert!(observation.is_of("uid-1"));

        observation.observe(ServeReply { uid: "uid-2".into(), ..no_status(400) });

        assert!(observation.is_of("uid-2") && !observation.is_of("uid-1"));
        assert_eq!((observation.last_status(), observation.applied_config()), (None, None));
    }

    #[test]
    fn a_head_that_is_ready_since_a_time_to_come_is_asked_in_peace() {
        assert_eq!(after([status(0, "RUNNING")]).ask_at(at(9_000), None, false), at(500));
    }
}
