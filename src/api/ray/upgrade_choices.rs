//! What the owner of a service chooses, in annotations, for an upgrade that gets no quota.

use jiff::SignedDuration;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

use super::annotations::annotation;
use crate::api::duration;

/// On a RayService: what becomes of an upgrade that can never be admitted beside what serves; see [`WhenExceeds`].
pub const WHEN_EXCEEDS_ANNOTATION: &str = "sluice.dev/when-upgrade-exceeds-quota";
/// On a RayService: for how long an upgrade may wait to be admitted, like `30m` or `1h30m`. Without it, for as long as it takes.
pub const TIMEOUT_ANNOTATION: &str = "sluice.dev/upgrade-admission-timeout";
/// On a RayService: the hash of the cluster that waited for longer than that. It isn't made again as long as this stands here.
pub const GIVEN_UP_ANNOTATION: &str = "sluice.dev/upgrade-given-up";

/// What becomes of an upgrade that can never be admitted beside what serves.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum WhenExceeds {
    /// It waits, and what serves goes on.
    #[default]
    Wait,
    /// Once there is quota for it alone, what serves stops, and then it starts.
    Recreate,
}

impl WhenExceeds {
    /// What the owner of a service has chosen.
    ///
    /// # Errors
    /// When the annotation says something else, which counts as [`WhenExceeds::Wait`]; the sentence names it.
    pub fn of(meta: &ObjectMeta) -> Result<Self, String> {
        match annotation(meta, WHEN_EXCEEDS_ANNOTATION) {
            None | Some("Wait") => Ok(Self::Wait),
            Some("Recreate") => Ok(Self::Recreate),
            Some(other) => Err(format!(
                "annotation {WHEN_EXCEEDS_ANNOTATION}: {other:?} is neither Wait nor Recreate, and counts as Wait"
            )),
        }
    }
}

/// For how long an upgrade may wait to be admitted, if its owner has set a limit.
///
/// # Errors
/// When the annotation doesn't say a time, and so sets no limit; the sentence names it.
pub fn admission_timeout(meta: &ObjectMeta) -> Result<Option<SignedDuration>, String> {
    let Some(text) = annotation(meta, TIMEOUT_ANNOTATION) else { return Ok(None) };
    let timeout = duration::parse(text).filter(SignedDuration::is_positive);
    timeout.map(Some).ok_or_else(|| {
        format!(
            "annotation {TIMEOUT_ANNOTATION}: {text:?} is not a time above zero like 30m or 1h30m, and sets no limit"
        )
    })
}

/// The hash of the cluster that is not to be made again.
pub fn given_up(meta: &ObjectMeta) -> Option<&str> {
    annotation(meta, GIVEN_UP_ANNOTATION)
}

/// What is wrong with the annotations that an owner has set.
pub fn misread(meta: &ObjectMeta) -> Vec<String> {
    [WhenExceeds::of(meta).err(), admission_timeout(meta).err()].into_iter().flatten().collect()
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    fn with(annotation: &str, value: &str) -> ObjectMeta {
        ObjectMeta { annotations: Some([(annotation.to_owned(), value.to_owned())].into()), ..ObjectMeta::default() }
    }

    #[rstest]
    #[case::waits("Wait", Some(WhenExceeds::Wait))]
    #[case::recreates("Recreate", Some(WhenExceeds::Recreate))]
    #[case::in_small_letters("recreate", None)]
    #[case::empty("", None)]
    fn what_becomes_of_it_is_one_of_two_words(#[case] value: &str, #[case] expected: Option<WhenExceeds>) {
        let meta = with(WHEN_EXCEEDS_ANNOTATION, value);

        let chosen = WhenExceeds::of(&meta);

        assert_eq!(chosen.clone().ok(), expected);
        if let Err(problem) = chosen {
            assert_eq!(misread(&meta), std::slice::from_ref(&problem));
            for part in [WHEN_EXCEEDS_ANNOTATION, &format!("{value:?}"), "Wait nor Recreate"] {
                assert!(problem.contains(part), "{problem}");
            }
        }
    }

    #[rstest]
    #[case::minutes("30m", Some(1_800))]
    #[case::hours_and_minutes("1h30m", Some(5_400))]
    #[case::a_part_of_a_minute("0.5m", Some(30))]
    #[case::nothing("0s", None)]
    #[case::before_it_began("-5m", None)]
    #[case::no_unit("30", None)]
    #[case::a_word("soon", None)]
    fn a_limit_is_a_time_above_zero(#[case] value: &str, #[case] seconds: Option<i64>) {
        let meta = with(TIMEOUT_ANNOTATION, value);

        let limit = admission_timeout(&meta);

        assert_eq!(limit.clone().ok().flatten().map(|limit| limit.as_secs()), seconds);
        if let Err(problem) = limit {
            assert_eq!(misread(&meta), std::slice::from_ref(&problem));
            for part in [TIMEOUT_ANNOTATION, &format!("{value:?}"), "like 30m"] {
                assert!(problem.contains(part), "{problem}");
            }
        }
    }

    #[test]
    fn nothing_chosen_is_to_wait_for_as_long_as_it_takes() {
        let meta = ObjectMeta::default();
        assert_eq!(WhenExceeds::of(&meta), Ok(WhenExceeds::Wait));
        assert_eq!(admission_timeout(&meta), Ok(None));
    }
}
