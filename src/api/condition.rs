//! Conditions in an object's status.

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};

/// Condition of any object: it has fields set that Sluice does not act on.
pub const UNSUPPORTED: &str = "sluice.dev/Unsupported";

/// How long a condition's message may be, in bytes; the API server refuses more.
const MESSAGE_LIMIT: usize = 32_768;

/// What a condition is to say.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Verdict {
    /// The type of the condition.
    pub type_: &'static str,
    /// Whether it holds.
    pub status: bool,
    /// Why, as a CamelCase word.
    pub reason: String,
    /// Why, as a sentence for people.
    pub message: String,
    /// The generation of the object that was looked at.
    pub observed_generation: Option<i64>,
}

/// The condition of this type, if there is one.
pub fn get<'a>(conditions: &'a [Condition], type_: &str) -> Option<&'a Condition> {
    conditions.iter().find(|condition| condition.type_ == type_)
}

/// Whether there is a condition of this type with status True.
pub fn is_true(conditions: &[Condition], type_: &str) -> bool {
    get(conditions, type_).is_some_and(|condition| condition.status == "True")
}

/// Whether there is a condition of this type with status False.
pub fn is_false(conditions: &[Condition], type_: &str) -> bool {
    get(conditions, type_).is_some_and(|condition| condition.status == "False")
}

/// Whether there is the condition that [`set`] would make, so that setting it would change nothing.
pub fn says(conditions: &[Condition], verdict: &Verdict) -> bool {
    let status = if verdict.status { "True" } else { "False" };
    get(conditions, verdict.type_).is_some_and(|condition| {
        condition.status == status
            && condition.reason == verdict.reason
            && condition.observed_generation == verdict.observed_generation
            && condition.message == truncated(verdict.message.clone())
    })
}

/// Sets the condition of the verdict's type. The transition time moves to `now` (whole seconds, as the API stores
/// it) only when the status changes. Returns whether anything changed; when only the generation that was looked at
/// is newer, that counts as a change too.
pub fn set(conditions: &mut Vec<Condition>, now: Timestamp, verdict: Verdict) -> bool {
    let status = if verdict.status { "True" } else { "False" };
    let mut wanted = Condition {
        type_: verdict.type_.to_owned(),
        status: status.to_owned(),
        reason: verdict.reason,
        message: truncated(verdict.message),
        observed_generation: verdict.observed_generation,
        last_transition_time: Time(whole_seconds(now)),
    };
    match conditions.iter_mut().find(|condition| condition.type_ == wanted.type_) {
        Some(current) => {
            if current.status == wanted.status {
                wanted.last_transition_time = current.last_transition_time.clone();
            }
            let changed = *current != wanted;
            *current = wanted;
            changed
        }
        None => {
            conditions.push(wanted);
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

/// Shows which fields are set that nothing acts on yet, so that none of them is ignored in silence. With no fields the
/// condition goes. Returns whether anything changed.
pub fn report_unsupported(
    conditions: &mut Vec<Condition>,
    now: Timestamp,
    generation: Option<i64>,
    fields: &[String],
) -> bool {
    if fields.is_empty() {
        return remove(conditions, UNSUPPORTED);
    }
    let verdict = Verdict {
        type_: UNSUPPORTED,
        status: true,
        reason: "FieldsNotActedOn".to_owned(),
        message: format!("set, but without effect for now: {}", fields.join("; ")),
        observed_generation: generation,
    };
    set(conditions, now, verdict)
}

/// The API server stores times in whole seconds; a fraction would make what was written differ from what comes back.
pub fn whole_seconds(time: Timestamp) -> Timestamp {
    Timestamp::from_second(time.as_second()).unwrap_or(time)
}

fn truncated(mut message: String) -> String {
    if message.len() > MESSAGE_LIMIT {
        let end = (0..=MESSAGE_LIMIT - '…'.len_utf8()).rev().find(|&at| message.is_char_boundary(at)).unwrap_or(0);
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

    fn verdict(status: bool, message: &str) -> Verdict {
        Verdict {
            type_: "Ready",
            status,
            reason: "Because".into(),
            message: message.into(),
            observed_generation: Some(1),
        }
    }

    #[test]
    fn setting_the_same_condition_again_changes_nothing() {
        let mut conditions = Vec::new();
        assert!(set(&mut conditions, at(10), verdict(true, "fine")));
        assert!(!set(&mut conditions, at(20), verdict(true, "fine")));
        assert_eq!(get(&conditions, "Ready").map(|c| c.last_transition_time.0), Some(at(10)));
    }

    #[test]
    fn a_new_message_keeps_the_transition_time_and_a_new_status_moves_it() {
        let mut conditions = Vec::new();
        set(&mut conditions, at(10), verdict(true, "fine"));
        assert!(set(&mut conditions, at(20), verdict(true, "still fine")));
        assert_eq!(conditions[0].last_transition_time.0, at(10));
        assert!(set(&mut conditions, at(30), verdict(false, "broken")));
        assert_eq!(conditions[0].last_transition_time.0, at(30));
        assert!(is_false(&conditions, "Ready") && !is_true(&conditions, "Ready"));
    }

    #[test]
    fn a_message_that_is_too_long_is_cut_at_a_character() {
        let mut conditions = Vec::new();
        set(&mut conditions, at(1), verdict(true, &"ü".repeat(MESSAGE_LIMIT)));
        assert!(conditions[0].message.len() <= MESSAGE_LIMIT);
        assert!(conditions[0].message.ends_with('…'));
    }

    #[test]
    fn unsupported_fields_are_named_for_as_long_as_they_are_set() {
        let mut conditions = Vec::new();
        assert!(report_unsupported(&mut conditions, at(1), Some(2), &["spec.a".into(), "spec.b".into()]));
        assert_eq!(conditions[0].message, "set, but without effect for now: spec.a; spec.b");
        assert!(report_unsupported(&mut conditions, at(2), Some(3), &[]));
        assert!(conditions.is_empty());
    }

    #[test]
    fn a_removed_condition_is_gone() {
        let mut conditions = Vec::new();
        set(&mut conditions, at(1), verdict(true, ""));
        assert!(remove(&mut conditions, "Ready"));
        assert!(!remove(&mut conditions, "Ready"));
    }
}
