//! Annotations of a RayService that control its incremental upgrades.

use jiff::SignedDuration;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

use super::annotations::{AllowedValues, AnnotationError, annotation_value};
use crate::duration;

/// Annotation of a RayService: rollback mode of an incremental upgrade. See [`RollbackMode`].
pub const ROLLBACK_ANNOTATION: &str = "sluice.dev/rollback";
/// Annotation of a RayService: directive for the upgrade in progress. See [`UpgradeDirective`].
pub const UPGRADE_DIRECTIVE_ANNOTATION: &str = "sluice.dev/upgrade";
/// Annotation of a RayService: time for which the old cluster keeps its capacity once the new one
/// gets all traffic, in seconds.
pub const BAKE_ANNOTATION: &str = "sluice.dev/bake-seconds";

/// Annotation of a RayService: `false` if worker groups do not follow the capacity of their
/// cluster, which is left to the Ray autoscaler then.
pub const SCALE_WORKERS_ANNOTATION: &str = "sluice.dev/scale-workers";
/// Annotation of a RayService: time for which the pending cluster may be continuously unhealthy
/// before its upgrade is rolled back, like `10m`. No limit if absent.
pub const UNHEALTHY_DEADLINE_ANNOTATION: &str = "sluice.dev/upgrade-deadline";
/// Annotation of a RayService: revision whose upgrade failed, and the reason. It is not retried
/// while the annotation is present.
pub const UPGRADE_FAILED_ANNOTATION: &str = "sluice.dev/upgrade-failed";
/// Annotation of a pending RayCluster of a service with a deadline: time since which it has been
/// continuously unhealthy (RFC 3339, whole seconds).
pub const UNHEALTHY_SINCE_ANNOTATION: &str = "sluice.dev/unhealthy-since";

/// Rollback mode of an incremental upgrade.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum RollbackMode {
    /// Rolls back immediately while the active cluster still has its full capacity, and
    /// incrementally otherwise.
    #[default]
    ImmediateAtFullCapacity,
    /// Rolls back incrementally, in the steps of the upgrade.
    Stepped,
    /// Rolls back without waiting between steps, each as far as there are replicas.
    Immediate,
}

/// Directive for the upgrade in progress.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum UpgradeDirective {
    /// The upgrade proceeds.
    #[default]
    Proceed,
    /// The upgrade is paused. It can still be rolled back.
    Paused,
    /// The upgrade completes as fast as quota and replicas allow.
    Promote,
}

impl RollbackMode {
    /// Reads the rollback mode from the annotation.
    ///
    /// # Errors
    /// Returns an error that names the annotation if its value is invalid. The annotation is
    /// ignored then.
    pub fn from_annotations(meta: &ObjectMeta) -> Result<Self, AnnotationError> {
        match annotation_value(meta, ROLLBACK_ANNOTATION) {
            None => Ok(Self::default()),
            Some("Stepped") => Ok(Self::Stepped),
            Some("Immediate") => Ok(Self::Immediate),
            Some(other) => {
                Err(AnnotationError::ignored(ROLLBACK_ANNOTATION, other, AllowedValues::Either("Stepped", "Immediate")))
            }
        }
    }
}

impl UpgradeDirective {
    /// Reads the directive from the annotation.
    ///
    /// # Errors
    /// Returns an error that names the annotation if its value is invalid. The annotation is
    /// ignored then.
    pub fn from_annotations(meta: &ObjectMeta) -> Result<Self, AnnotationError> {
        match annotation_value(meta, UPGRADE_DIRECTIVE_ANNOTATION) {
            None => Ok(Self::default()),
            Some("Paused") => Ok(Self::Paused),
            Some("Promote") => Ok(Self::Promote),
            Some(other) => Err(AnnotationError::ignored(
                UPGRADE_DIRECTIVE_ANNOTATION,
                other,
                AllowedValues::Either("Paused", "Promote"),
            )),
        }
    }
}

/// Returns the time for which the old cluster keeps its capacity once the new one gets all traffic.
/// Zero if the annotation is absent.
///
/// # Errors
/// Returns an error that names the annotation if its value is not a number of seconds. The
/// annotation is ignored then.
pub fn bake_duration(meta: &ObjectMeta) -> Result<SignedDuration, AnnotationError> {
    let Some(text) = annotation_value(meta, BAKE_ANNOTATION) else { return Ok(SignedDuration::ZERO) };
    let seconds = text.parse::<u32>().map_err(|_| {
        AnnotationError::ignored(BAKE_ANNOTATION, text, AllowedValues::Any("a number of seconds like 300"))
    })?;
    Ok(SignedDuration::from_secs(seconds.into()))
}

/// Returns whether worker groups follow the capacity of their cluster. Irrelevant if the Ray
/// autoscaler runs.
///
/// # Errors
/// Returns an error that names the annotation if its value is invalid. The annotation is ignored
/// then.
pub fn scale_workers_enabled(meta: &ObjectMeta) -> Result<bool, AnnotationError> {
    match annotation_value(meta, SCALE_WORKERS_ANNOTATION) {
        None | Some("true") => Ok(true),
        Some("false") => Ok(false),
        Some(other) => {
            Err(AnnotationError::ignored(SCALE_WORKERS_ANNOTATION, other, AllowedValues::Either("true", "false")))
        }
    }
}

/// Returns the time for which the pending cluster may be unhealthy. None if the annotation is
/// absent.
///
/// # Errors
/// Returns an error that names the annotation if its value is not a positive duration. The
/// annotation is ignored then.
pub fn unhealthy_deadline(meta: &ObjectMeta) -> Result<Option<SignedDuration>, AnnotationError> {
    let Some(text) = annotation_value(meta, UNHEALTHY_DEADLINE_ANNOTATION) else { return Ok(None) };
    let deadline = duration::parse(text).filter(SignedDuration::is_positive);
    let invalid = || {
        AnnotationError::ignored(
            UNHEALTHY_DEADLINE_ANNOTATION,
            text,
            AllowedValues::Any("a positive duration like 10m or 1h30m"),
        )
    };
    deadline.map(Some).ok_or_else(invalid)
}

/// Returns the error of each invalid annotation.
pub fn invalid_annotations(meta: &ObjectMeta) -> Vec<AnnotationError> {
    let errors = [
        RollbackMode::from_annotations(meta).err(),
        UpgradeDirective::from_annotations(meta).err(),
        bake_duration(meta).err(),
        unhealthy_deadline(meta).err(),
    ];
    errors.into_iter().chain([scale_workers_enabled(meta).err()]).flatten().collect()
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    fn with(name: &str, value: &str) -> ObjectMeta {
        ObjectMeta { annotations: Some([(name.to_owned(), value.to_owned())].into()), ..ObjectMeta::default() }
    }

    #[test]
    fn upgrade_annotations_are_parsed() {
        assert_eq!(RollbackMode::from_annotations(&with(ROLLBACK_ANNOTATION, "Stepped")), Ok(RollbackMode::Stepped));
        assert_eq!(
            RollbackMode::from_annotations(&with(ROLLBACK_ANNOTATION, "Immediate")),
            Ok(RollbackMode::Immediate)
        );
        assert_eq!(
            UpgradeDirective::from_annotations(&with(UPGRADE_DIRECTIVE_ANNOTATION, "Paused")),
            Ok(UpgradeDirective::Paused)
        );
        assert_eq!(
            UpgradeDirective::from_annotations(&with(UPGRADE_DIRECTIVE_ANNOTATION, "Promote")),
            Ok(UpgradeDirective::Promote)
        );
        assert_eq!(bake_duration(&with(BAKE_ANNOTATION, "300")), Ok(SignedDuration::from_secs(300)));
        assert_eq!(
            unhealthy_deadline(&with(UNHEALTHY_DEADLINE_ANNOTATION, "10m")),
            Ok(Some(SignedDuration::from_mins(10)))
        );
        assert_eq!(scale_workers_enabled(&with(SCALE_WORKERS_ANNOTATION, "false")), Ok(false));

        let unannotated = ObjectMeta::default();
        assert_eq!(RollbackMode::from_annotations(&unannotated), Ok(RollbackMode::ImmediateAtFullCapacity));
        assert_eq!(UpgradeDirective::from_annotations(&unannotated), Ok(UpgradeDirective::Proceed));
        assert_eq!(bake_duration(&unannotated), Ok(SignedDuration::ZERO));
        assert_eq!(unhealthy_deadline(&unannotated), Ok(None));
        assert_eq!(scale_workers_enabled(&unannotated), Ok(true));
        assert!(invalid_annotations(&unannotated).is_empty());
    }

    #[rstest]
    #[case::lower_case(ROLLBACK_ANNOTATION, "stepped", "neither Stepped nor Immediate")]
    #[case::another_word(UPGRADE_DIRECTIVE_ANNOTATION, "Stop", "neither Paused nor Promote")]
    #[case::duration_instead_of_seconds(BAKE_ANNOTATION, "5m", "a number of seconds like 300")]
    #[case::no_instead_of_false(SCALE_WORKERS_ANNOTATION, "no", "neither true nor false")]
    #[case::no_unit(UNHEALTHY_DEADLINE_ANNOTATION, "30", "a positive duration like 10m or 1h30m")]
    #[case::below_zero(BAKE_ANNOTATION, "-5", "a number of seconds like 300")]
    fn invalid_upgrade_annotation_is_reported_with_the_allowed_values(
        #[case] name: &str,
        #[case] value: &str,
        #[case] allowed: &str,
    ) {
        let misread = invalid_annotations(&with(name, value));
        assert_eq!(misread.len(), 1);
        for part in [name, &format!("{value:?}"), allowed] {
            assert!(misread[0].to_string().contains(part), "{misread:?}");
        }
    }
}
