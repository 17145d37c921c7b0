//! Annotations of a RayService that configure the admission of its upgrades.

use jiff::SignedDuration;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

use super::annotations::{AllowedValues, AnnotationError, annotation_value};
use crate::duration;

/// Annotation of a RayService: policy for an upgrade that can never be admitted while the active
/// cluster holds its quota. See [`ExceedsQuotaPolicy`].
pub const EXCEEDS_QUOTA_ANNOTATION: &str = "sluice.dev/when-upgrade-exceeds-quota";
/// Annotation of a RayService: time limit for the admission of an upgrade, like `30m` or `1h30m`.
/// No limit if absent.
pub const ADMISSION_TIMEOUT_ANNOTATION: &str = "sluice.dev/upgrade-admission-timeout";
/// Annotation of a RayService: hash of the pending cluster whose admission timed out. It is not
/// created again while the annotation is present.
pub const TIMED_OUT_ANNOTATION: &str = "sluice.dev/upgrade-timed-out";

/// Policy for an upgrade that can never be admitted while the active cluster holds its quota.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum ExceedsQuotaPolicy {
    /// The upgrade stays pending, and the active cluster keeps serving.
    #[default]
    Wait,
    /// Once there is quota for the new cluster alone, the active cluster stops, and then the new
    /// one starts.
    Recreate,
}

impl ExceedsQuotaPolicy {
    /// Reads the policy from the annotation.
    ///
    /// # Errors
    /// Returns an error that names the annotation if its value is invalid. [`ExceedsQuotaPolicy::Wait`]
    /// applies then.
    pub fn from_annotations(meta: &ObjectMeta) -> Result<Self, AnnotationError> {
        match annotation_value(meta, EXCEEDS_QUOTA_ANNOTATION) {
            None | Some("Wait") => Ok(Self::Wait),
            Some("Recreate") => Ok(Self::Recreate),
            Some(other) => Err(AnnotationError {
                annotation: EXCEEDS_QUOTA_ANNOTATION,
                value: other.to_owned(),
                allowed: AllowedValues::Either("Wait", "Recreate"),
                fallback: "Wait is used",
            }),
        }
    }
}

/// Returns the time limit for the admission of an upgrade. None if the annotation is absent.
///
/// # Errors
/// Returns an error that names the annotation if its value is not a positive duration. No limit
/// applies then.
pub fn admission_timeout(meta: &ObjectMeta) -> Result<Option<SignedDuration>, AnnotationError> {
    let Some(text) = annotation_value(meta, ADMISSION_TIMEOUT_ANNOTATION) else { return Ok(None) };
    let timeout = duration::parse(text).filter(SignedDuration::is_positive);
    timeout.map(Some).ok_or_else(|| AnnotationError {
        annotation: ADMISSION_TIMEOUT_ANNOTATION,
        value: text.to_owned(),
        allowed: AllowedValues::Any("a positive duration like 30m or 1h30m"),
        fallback: "no limit is used",
    })
}

/// Returns the hash of the cluster whose admission timed out. None if the annotation is absent.
pub fn timed_out_cluster_hash(meta: &ObjectMeta) -> Option<&str> {
    annotation_value(meta, TIMED_OUT_ANNOTATION)
}

/// Returns the error of each invalid annotation.
pub fn invalid_annotations(meta: &ObjectMeta) -> Vec<AnnotationError> {
    [ExceedsQuotaPolicy::from_annotations(meta).err(), admission_timeout(meta).err()].into_iter().flatten().collect()
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    fn with(annotation: &str, value: &str) -> ObjectMeta {
        ObjectMeta { annotations: Some([(annotation.to_owned(), value.to_owned())].into()), ..ObjectMeta::default() }
    }

    #[rstest]
    #[case::waits("Wait", Some(ExceedsQuotaPolicy::Wait))]
    #[case::recreates("Recreate", Some(ExceedsQuotaPolicy::Recreate))]
    #[case::lower_case("recreate", None)]
    #[case::empty("", None)]
    fn policy_is_wait_or_recreate(#[case] value: &str, #[case] expected: Option<ExceedsQuotaPolicy>) {
        let meta = with(EXCEEDS_QUOTA_ANNOTATION, value);

        let chosen = ExceedsQuotaPolicy::from_annotations(&meta);

        assert_eq!(chosen.clone().ok(), expected);
        if let Err(problem) = chosen {
            assert_eq!(invalid_annotations(&meta), std::slice::from_ref(&problem));
            for part in [EXCEEDS_QUOTA_ANNOTATION, &format!("{value:?}"), "Wait nor Recreate"] {
                assert!(problem.to_string().contains(part), "{problem}");
            }
        }
    }

    #[rstest]
    #[case::minutes("30m", Some(1_800))]
    #[case::hours_and_minutes("1h30m", Some(5_400))]
    #[case::fraction_of_a_minute("0.5m", Some(30))]
    #[case::zero("0s", None)]
    #[case::negative("-5m", None)]
    #[case::no_unit("30", None)]
    #[case::a_word("soon", None)]
    fn admission_timeout_is_a_positive_duration(#[case] value: &str, #[case] seconds: Option<i64>) {
        let meta = with(ADMISSION_TIMEOUT_ANNOTATION, value);

        let limit = admission_timeout(&meta);

        assert_eq!(limit.clone().ok().flatten().map(|limit| limit.as_secs()), seconds);
        if let Err(problem) = limit {
            assert_eq!(invalid_annotations(&meta), std::slice::from_ref(&problem));
            for part in [ADMISSION_TIMEOUT_ANNOTATION, &format!("{value:?}"), "like 30m"] {
                assert!(problem.to_string().contains(part), "{problem}");
            }
        }
    }

    #[test]
    fn upgrade_without_annotations_waits_without_limit() {
        let meta = ObjectMeta::default();
        assert_eq!(ExceedsQuotaPolicy::from_annotations(&meta), Ok(ExceedsQuotaPolicy::Wait));
        assert_eq!(admission_timeout(&meta), Ok(None));
    }
}
