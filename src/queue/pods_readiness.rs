//! Readiness of the pods of an admitted workload, and the time that it is allowed to take.

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;

use super::settings::WaitForPodsReady;
use sluice_api::condition;
use sluice_api::kueue::names;
use sluice_api::kueue::names::pods_ready_reason::{WAIT_FOR_RECOVERY, WAIT_FOR_SCHEDULING, WAIT_FOR_START};

/// The condition PodsReady of a workload.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum PodsReadiness {
    /// The pods are ready.
    Ready,
    /// The pods are not ready, for this cause since this time.
    Unready(UnreadyCause, Timestamp),
}

/// The reason that the pods of an admitted workload are not ready (kueue v0.19.2
/// `apis/kueue/v1beta2/workload_types.go`; `Scheduling` is that of kueue#15402).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum UnreadyCause {
    /// Some pods have no node.
    Scheduling,
    /// The pods have not all been ready yet.
    Start,
    /// The pods were ready, and some of them no longer are.
    Recovery,
}

impl UnreadyCause {
    /// Returns the cause as the reason of the condition PodsReady spells it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Scheduling => WAIT_FOR_SCHEDULING,
            Self::Start => WAIT_FOR_START,
            Self::Recovery => WAIT_FOR_RECOVERY,
        }
    }
}

/// A timeout of `waitForPodsReady` that applies to a workload.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct ReadinessTimeout {
    pub(super) cause: UnreadyCause,
    pub(super) duration: SignedDuration,
    /// Time at which it ends.
    pub(super) deadline: Timestamp,
}

impl PodsReadiness {
    /// Reads the condition PodsReady; `None` if it is not set.
    pub(super) fn of(conditions: &[Condition]) -> Option<Self> {
        let condition = condition::get(conditions, names::PODS_READY)?;
        let cause = match condition.reason.as_str() {
            WAIT_FOR_SCHEDULING => UnreadyCause::Scheduling,
            WAIT_FOR_RECOVERY => UnreadyCause::Recovery,
            _ => UnreadyCause::Start,
        };
        Some(match condition.status.as_str() {
            "True" => Self::Ready,
            _ => Self::Unready(cause, condition.last_transition_time.0),
        })
    }
}

/// Returns the timeout that ends first for a workload admitted at `admitted_at`; `None` if its pods are
/// ready, or nothing limits their recovery.
pub(super) fn readiness_timeout(
    readiness: Option<PodsReadiness>,
    admitted_at: Timestamp,
    rules: &WaitForPodsReady,
) -> Option<ReadinessTimeout> {
    let (cause, since, duration) = match readiness {
        Some(PodsReadiness::Ready) => return None,
        Some(PodsReadiness::Unready(cause @ UnreadyCause::Recovery, since)) => (cause, since, rules.recovery_timeout?),
        Some(PodsReadiness::Unready(cause @ UnreadyCause::Scheduling, _)) => {
            let limit = rules.unscheduled_timeout.map_or(rules.timeout, |limit| limit.min(rules.timeout));
            (cause, admitted_at, limit)
        }
        Some(PodsReadiness::Unready(UnreadyCause::Start, _)) | None => {
            (UnreadyCause::Start, admitted_at, rules.timeout)
        }
    };
    Some(ReadinessTimeout { cause, duration, deadline: since.checked_add(duration).ok()? })
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;
    use crate::settings::Requeuing;

    /// Admission is at 100 s, the condition has its status since 130 s.
    #[rstest]
    #[case::no_condition(None, Some(40), Some((UnreadyCause::Start, 400)))]
    #[case::ready(Some(("True", "Started")), Some(40), None)]
    #[case::starting(Some(("False", "WaitForStart")), Some(40), Some((UnreadyCause::Start, 400)))]
    #[case::unscheduled(Some(("False", "WaitForScheduling")), Some(40), Some((UnreadyCause::Scheduling, 140)))]
    #[case::unscheduled_timeout_is_longer(Some(("False", "WaitForScheduling")), Some(500), Some((UnreadyCause::Scheduling, 400)))]
    #[case::unscheduled_timeout_was_removed(Some(("False", "WaitForScheduling")), None, Some((UnreadyCause::Scheduling, 400)))]
    #[case::recovering(Some(("False", "WaitForRecovery")), Some(40), Some((UnreadyCause::Recovery, 190)))]
    #[case::reason_of_an_older_kueue(Some(("False", "PodsReady")), Some(40), Some((UnreadyCause::Start, 400)))]
    fn first_timeout_to_end_applies(
        #[case] condition: Option<(&str, &str)>,
        #[case] unscheduled: Option<i64>,
        #[case] expected: Option<(UnreadyCause, i64)>,
    ) {
        let second = |second| Timestamp::from_second(second).expect("a time");
        let mut conditions = Vec::new();
        if let Some((status, reason)) = condition {
            let update = condition::ConditionUpdate {
                type_: names::PODS_READY,
                status: status == "True",
                reason: reason.to_owned(),
                message: String::new(),
                observed_generation: None,
            };
            condition::set(&mut conditions, second(130), update);
        }
        let rules = WaitForPodsReady {
            timeout: SignedDuration::from_secs(300),
            recovery_timeout: Some(SignedDuration::from_secs(60)),
            unscheduled_timeout: unscheduled.map(SignedDuration::from_secs),
            block_admission: false,
            requeuing: Requeuing::default(),
        };

        let timeout = readiness_timeout(PodsReadiness::of(&conditions), second(100), &rules);

        assert_eq!(timeout.map(|timeout| (timeout.cause, timeout.deadline.as_second())), expected);
    }
}
