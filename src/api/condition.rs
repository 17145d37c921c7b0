//! Conditions in the status of an object.

use std::collections::BTreeSet;

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};

/// Condition type, present only while True: the object sets fields that Sluice does not support.
pub const UNSUPPORTED: &str = "sluice.dev/Unsupported";
/// Reason of [`UNSUPPORTED`].
pub const UNSUPPORTED_REASON: &str = "UnsupportedFields";

/// Maximum length of a condition message that the API server accepts, in bytes.
const MAX_MESSAGE_BYTES: usize = 32_768;

/// Desired content of a condition.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConditionUpdate {
    /// Condition type.
    pub type_: &'static str,
    /// Status: `True` or `False`.
    pub status: bool,
    /// Machine-readable reason in CamelCase.
    pub reason: String,
    /// Human-readable message. It is truncated to the maximum length.
    pub message: String,
    /// Generation of the object that the condition was computed from.
    pub observed_generation: Option<i64>,
}

/// Returns the condition of this type. None if there is none.
pub fn get<'a>(conditions: &'a [Condition], type_: &str) -> Option<&'a Condition> {
    conditions.iter().find(|condition| condition.type_ == type_)
}

/// Returns the condition of this type if its status is True.
pub fn get_true<'a>(conditions: &'a [Condition], type_: &str) -> Option<&'a Condition> {
    get(conditions, type_).filter(|condition| condition.status == status(true))
}

/// Returns the condition of this type if its status is False.
pub fn get_false<'a>(conditions: &'a [Condition], type_: &str) -> Option<&'a Condition> {
    get(conditions, type_).filter(|condition| condition.status == status(false))
}

/// Returns whether there is a condition of this type with status True.
pub fn is_true(conditions: &[Condition], type_: &str) -> bool {
    get_true(conditions, type_).is_some()
}

/// Returns whether there is a condition of this type with status False.
pub fn is_false(conditions: &[Condition], type_: &str) -> bool {
    get_false(conditions, type_).is_some()
}

/// Returns type and reason of the conditions with status True, in the order of their types.
pub fn true_conditions(conditions: &[Condition]) -> BTreeSet<(&str, &str)> {
    let holding = conditions.iter().filter(|condition| condition.status == status(true));
    holding.map(|condition| (condition.type_.as_str(), condition.reason.as_str())).collect()
}

/// Returns the status of a condition that holds, or does not.
pub fn status(holds: bool) -> &'static str {
    if holds { "True" } else { "False" }
}

/// Returns whether the condition is already as [`set`] would make it.
pub fn is_up_to_date(conditions: &[Condition], verdict: &ConditionUpdate) -> bool {
    get(conditions, verdict.type_).is_some_and(|condition| {
        condition.status == status(verdict.status)
            && condition.reason == verdict.reason
            && condition.observed_generation == verdict.observed_generation
            && condition.message == truncate(verdict.message.clone())
    })
}

/// Sets a condition. The transition time becomes `now` (in whole seconds, as the API server stores
/// it) only if the status changes. Returns whether anything changed, which includes a newer
/// observed generation alone.
pub fn set(conditions: &mut Vec<Condition>, now: Timestamp, verdict: ConditionUpdate) -> bool {
    let mut desired = Condition {
        type_: verdict.type_.to_owned(),
        status: status(verdict.status).to_owned(),
        reason: verdict.reason,
        message: truncate(verdict.message),
        observed_generation: verdict.observed_generation,
        last_transition_time: Time(whole_seconds(now)),
    };
    match conditions.iter_mut().find(|condition| condition.type_ == desired.type_) {
        Some(current) => {
            if current.status == desired.status {
                desired.last_transition_time = current.last_transition_time.clone();
            }
            let changed = *current != desired;
            *current = desired;
            changed
        }
        None => {
            conditions.push(desired);
            true
        }
    }
}

/// Removes the condition of this type. Returns whether there was one.
pub fn remove(conditions: &mut Vec<Condition>, type_: &str) -> bool {
    let before = conditions.len();
    conditions.retain(|condition| condition.type_ != type_);
    conditions.len() != before
}

/// Sets the condition [`UNSUPPORTED`] with the ignored fields in its message, so that none is
/// ignored silently. Removes it if there are none. Returns whether anything changed.
pub fn set_unsupported(
    conditions: &mut Vec<Condition>,
    now: Timestamp,
    generation: Option<i64>,
    fields: &[String],
) -> bool {
    if fields.is_empty() {
        return remove(conditions, UNSUPPORTED);
    }
    let verdict = ConditionUpdate {
        type_: UNSUPPORTED,
        status: true,
        reason: UNSUPPORTED_REASON.to_owned(),
        message: format!("unsupported or invalid settings are ignored: {}", fields.join("; ")),
        observed_generation: generation,
    };
    set(conditions, now, verdict)
}

/// Truncates a time to whole seconds, as the API server stores it. A fraction would make the
/// written value differ from the stored one.
pub fn whole_seconds(time: Timestamp) -> Timestamp {
    Timestamp::from_second(time.as_second()).unwrap_or(time)
}

fn truncate(mut message: String) -> String {
    if message.len() > MAX_MESSAGE_BYTES {
        let end = (0..=MAX_MESSAGE_BYTES - '…'.len_utf8()).rev().find(|&at| message.is_char_boundary(at)).unwrap_or(0);
        message.truncate(end);
        message.push('…');
    }
    message
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: i64) -> Timestamp {
        Timestamp::from_second(seconds).expect("in range")
    }

    fn verdict(status: bool, message: &str) -> ConditionUpdate {
        ConditionUpdate {
            type_: "Ready",
            status,
            reason: "Because".into(),
            message: message.into(),
            observed_generation: Some(1),
        }
    }

    #[test]
    fn setting_an_equal_condition_changes_nothing() {
        let mut conditions = Vec::new();
        assert!(set(&mut conditions, at(10), verdict(true, "fine")));
        assert!(!set(&mut conditions, at(20), verdict(true, "fine")));
        assert_eq!(get(&conditions, "Ready").map(|c| c.last_transition_time.0), Some(at(10)));
    }

    #[test]
    fn transition_time_changes_with_the_status_only() {
        let mut conditions = Vec::new();
        set(&mut conditions, at(10), verdict(true, "fine"));
        assert!(set(&mut conditions, at(20), verdict(true, "still fine")));
        assert_eq!(conditions[0].last_transition_time.0, at(10));
        assert!(set(&mut conditions, at(30), verdict(false, "broken")));
        assert_eq!(conditions[0].last_transition_time.0, at(30));
        assert!(is_false(&conditions, "Ready") && !is_true(&conditions, "Ready"));
    }

    #[test]
    fn long_message_is_truncated_at_a_character_boundary() {
        let mut conditions = Vec::new();
        set(&mut conditions, at(1), verdict(true, &"ü".repeat(MAX_MESSAGE_BYTES)));
        assert!(conditions[0].message.len() <= MAX_MESSAGE_BYTES);
        assert!(conditions[0].message.ends_with('…'));
    }

    #[test]
    fn unsupported_condition_is_present_while_fields_are_set() {
        let mut conditions = Vec::new();
        assert!(set_unsupported(&mut conditions, at(1), Some(2), &["spec.a".into(), "spec.b".into()]));
        assert_eq!(conditions[0].message, "unsupported or invalid settings are ignored: spec.a; spec.b");
        assert!(set_unsupported(&mut conditions, at(2), Some(3), &[]));
        assert!(conditions.is_empty());
    }

    #[test]
    fn remove_deletes_the_condition() {
        let mut conditions = Vec::new();
        set(&mut conditions, at(1), verdict(true, ""));
        assert!(remove(&mut conditions, "Ready"));
        assert!(!remove(&mut conditions, "Ready"));
    }
}
