//! Annotations of a RayService that control its incremental upgrades.

use jiff::SignedDuration;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

use super::annotations::{annotation, misread_as};
use crate::duration;

/// Annotation of a RayService: rollback mode of an incremental upgrade. See [`Rollback`].
pub const ROLLBACK_ANNOTATION: &str = "sluice.dev/rollback";
/// Annotation of a RayService: directive for the upgrade in progress. See [`Wish`].
pub const UPGRADE_ANNOTATION: &str = "sluice.dev/upgrade";
/// Annotation of a RayService: time for which the old cluster keeps its capacity once the new one
/// gets all traffic, in seconds.
pub const BAKE_ANNOTATION: &str = "sluice.dev/bake-seconds";

/// Annotation of a RayService: `false` if worker groups do not follow the capacity of their
/// cluster, which is left to the Ray autoscaler then.
pub const SCALE_WORKERS_ANNOTATION: &str = "sluice.dev/scale-workers";
/// Annotation of a RayService: time for which the pending cluster may be continuously unhealthy
/// before its upgrade is rolled back, like `10m`. No limit if absent.
pub const DEADLINE_ANNOTATION: &str = "sluice.dev/upgrade-deadline";
/// Annotation of a RayService: revision whose upgrade failed, and the reason. It is not retried
/// while the annotation is present.
pub const FAILED_ANNOTATION: &str = "sluice.dev/upgrade-failed";
/// Annotation of a pending RayCluster of a service with a deadline: time since which it has been
/// continuously unhealthy (RFC 3339, whole seconds).
pub const UNHEALTHY_SINCE_ANNOTATION: &str = "sluice.dev/unhealthy-since";

/// Rollback mode of an incremental upgrade.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Rollback {
    /// Rolls back immediately while the active cluster still has its full capacity, and
    /// incrementally otherwise.
    #[default]
    AsCapacityAllows,
    /// Rolls back incrementally, in the steps of the upgrade.
    Stepped,
    /// Rolls back without waiting between steps, each as far as there are replicas.
    Immediate,
}

/// Directive for the upgrade in progress.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Wish {
    /// The upgrade proceeds.
    #[default]
    GoOn,
    /// The upgrade is paused. It can still be rolled back.
    Paused,
    /// The upgrade completes as fast as quota and replicas allow.
    Promote,
}

impl Rollback {
    /// Reads the rollback mode from the annotation.
    ///
    /// # Errors
    /// Returns a message that names the annotation if its value is invalid. The annotation is
    /// ignored then.
    pub fn of(meta: &ObjectMeta) -> Result<Self, String> {
        match annotation(meta, ROLLBACK_ANNOTATION) {
            None => Ok(Self::default()),
            Some("Stepped") => Ok(Self::Stepped),
            Some("Immediate") => Ok(Self::Immediate),
            Some(other) => Err(misread_as(ROLLBACK_ANNOTATION, other, "neither Stepped nor Immediate")),
        }
    }
}

impl Wish {
    /// Reads the directive from the annotation.
    ///
    /// # Errors
    /// Returns a message that names the annotation if its value is invalid. The annotation is
    /// ignored then.
    pub fn of(meta: &ObjectMeta) -> Result<Self, String> {
        match annotation(meta, UPGRADE_ANNOTATION) {
            None => Ok(Self::default()),
            Some("Paused") => Ok(Self::Paused),
            Some("Promote") => Ok(Self::Promote),
            Some(other) => Err(misread_as(UPGRADE_ANNOTATION, other, "neither Paused nor Promote")),
        }
    }
}

/// Returns the time for which the old cluster keeps its capacity once the new one gets all traffic.
/// Zero if the annotation is absent.
///
/// # Errors
/// Returns a message that names the annotation if its value is not a number of seconds. The
/// annotation is ignored then.
pub fn bake(meta: &ObjectMeta) -> Result<SignedDuration, String> {
    let Some(text) = annotation(meta, BAKE_ANNOTATION) else { return Ok(SignedDuration::ZERO) };
    let seconds =
        text.parse::<u32>().map_err(|_| misread_as(BAKE_ANNOTATION, text, "not a number of seconds like 300"))?;
    Ok(SignedDuration::from_secs(seconds.into()))
}

/// Returns whether worker groups follow the capacity of their cluster. Irrelevant if the Ray
/// autoscaler runs.
///
/// # Errors
/// Returns a message that names the annotation if its value is invalid. The annotation is ignored
/// then.
pub fn scales_workers(meta: &ObjectMeta) -> Result<bool, String> {
    match annotation(meta, SCALE_WORKERS_ANNOTATION) {
        None | Some("true") => Ok(true),
        Some("false") => Ok(false),
        Some(other) => Err(misread_as(SCALE_WORKERS_ANNOTATION, other, "neither true nor false")),
    }
}

/// Returns the time for which the pending cluster may be unhealthy. None if the annotation is
/// absent.
///
/// # Errors
/// Returns a message that names the annotation if its value is not a positive duration. The
/// annotation is ignored then.
pub fn deadline(meta: &ObjectMeta) -> Result<Option<SignedDuration>, String> {
    let Some(text) = annotation(meta, DEADLINE_ANNOTATION) else { return Ok(None) };
    let deadline = duration::parse(text).filter(SignedDuration::is_positive);
    let invalid = || misread_as(DEADLINE_ANNOTATION, text, "not a positive duration like 10m or 1h30m");
    deadline.map(Some).ok_or_else(invalid)
}

/// Returns a message for each invalid annotation.
pub fn misread(meta: &ObjectMeta) -> Vec<String> {
    let errors = [Rollback::of(meta).err(), Wish::of(meta).err(), bake(meta).err(), deadline(meta).err()];
    errors.into_iter().chain([scales_workers(meta).err()]).flatten().collect()
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
        assert_eq!(Rollback::of(&with(ROLLBACK_ANNOTATION, "Stepped")), Ok(Rollback::Stepped));
        assert_eq!(Rollback::of(&with(ROLLBACK_ANNOTATION, "Immediate")), Ok(Rollback::Immediate));
        assert_eq!(Wish::of(&with(UPGRADE_ANNOTATION, "Paused")), Ok(Wish::Paused));
        assert_eq!(Wish::of(&with(UPGRADE_ANNOTATION, "Promote")), Ok(Wish::Promote));
        assert_eq!(bake(&with(BAKE_ANNOTATION, "300")), Ok(SignedDuration::from_secs(300)));
        assert_eq!(deadline(&with(DEADLINE_ANNOTATION, "10m")), Ok(Some(SignedDuration::from_mins(10))));
        assert_eq!(scales_workers(&with(SCALE_WORKERS_ANNOTATION, "false")), Ok(false));

        let unannotated = ObjectMeta::default();
        assert_eq!(Rollback::of(&unannotated), Ok(Rollback::AsCapacityAllows));
        assert_eq!(Wish::of(&unannotated), Ok(Wish::GoOn));
        assert_eq!(bake(&unannotated), Ok(SignedDuration::ZERO));
        assert_eq!(deadline(&unannotated), Ok(None));
        assert_eq!(scales_workers(&unannotated), Ok(true));
        assert!(misread(&unannotated).is_empty());
    }

    #[rstest]
    #[case::lower_case(ROLLBACK_ANNOTATION, "stepped", "neither Stepped nor Immediate")]
    #[case::another_word(UPGRADE_ANNOTATION, "Stop", "neither Paused nor Promote")]
    #[case::duration_instead_of_seconds(BAKE_ANNOTATION, "5m", "a number of seconds like 300")]
    #[case::no_instead_of_false(SCALE_WORKERS_ANNOTATION, "no", "neither true nor false")]
    #[case::no_unit(DEADLINE_ANNOTATION, "30", "a positive duration like 10m or 1h30m")]
    #[case::below_zero(BAKE_ANNOTATION, "-5", "a number of seconds like 300")]
    fn invalid_upgrade_annotation_is_reported_with_the_allowed_values(
        #[case] name: &str,
        #[case] value: &str,
        #[case] allowed: &str,
    ) {
        let misread = misread(&with(name, value));
        assert_eq!(misread.len(), 1);
        for part in [name, &format!("{value:?}"), allowed] {
            assert!(misread[0].contains(part), "{misread:?}");
        }
    }
}
