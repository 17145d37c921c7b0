//! What the owner of a service chooses, in annotations, for an upgrade in steps.

use jiff::SignedDuration;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

use super::annotations::{annotation, misread_as};
use crate::api::duration;

/// On a RayService: how an upgrade in steps is taken back; see [`Rollback`].
pub const ROLLBACK_ANNOTATION: &str = "sluice.dev/rollback";
/// On a RayService: what is to become of the upgrade that is under way; see [`Wish`].
pub const UPGRADE_ANNOTATION: &str = "sluice.dev/upgrade";
/// On a RayService: for how many seconds the old cluster keeps what it has once the new one gets all traffic.
pub const BAKE_ANNOTATION: &str = "sluice.dev/bake-seconds";

/// On a RayService: `false` if worker groups are not to follow the capacity of their cluster, which Ray's autoscaler has to see to then.
pub const SCALE_WORKERS_ANNOTATION: &str = "sluice.dev/scale-workers";
/// On a RayService: for how long the next cluster may be unhealthy without a break, like `10m`, before its upgrade is taken back.
/// Without it, for as long as it takes.
pub const DEADLINE_ANNOTATION: &str = "sluice.dev/upgrade-deadline";
/// On a RayService: the revision of which the upgrade has failed, and why. It isn't tried again as long as this stands here.
pub const FAILED_ANNOTATION: &str = "sluice.dev/upgrade-failed";
/// On the RayCluster that is to take over, where there is a deadline: since when it has been unhealthy without a break (RFC 3339, whole
/// seconds).
pub const UNHEALTHY_SINCE_ANNOTATION: &str = "sluice.dev/unhealthy-since";

/// How an upgrade in steps is taken back.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Rollback {
    /// At once, while the active cluster has all of its capacity, and until then in steps.
    #[default]
    AsCapacityAllows,
    /// In steps, as the upgrade went.
    Stepped,
    /// Without waiting between steps, and as far in each as there are replicas.
    Immediate,
}

/// What is to become of the upgrade that is under way.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Wish {
    /// It goes on.
    #[default]
    GoOn,
    /// It stays where it is. It can be taken back.
    Paused,
    /// It goes to its end as fast as there are quota and replicas.
    Promote,
}

impl Rollback {
    /// What the owner of a service has chosen.
    ///
    /// # Errors
    /// When the annotation says something else, which counts as nothing; the sentence names it.
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
    /// What the owner of a service wishes.
    ///
    /// # Errors
    /// When the annotation says something else, which counts as nothing; the sentence names it.
    pub fn of(meta: &ObjectMeta) -> Result<Self, String> {
        match annotation(meta, UPGRADE_ANNOTATION) {
            None => Ok(Self::default()),
            Some("Paused") => Ok(Self::Paused),
            Some("Promote") => Ok(Self::Promote),
            Some(other) => Err(misread_as(UPGRADE_ANNOTATION, other, "neither Paused nor Promote")),
        }
    }
}

/// For how long the old cluster keeps what it has once the new one gets all traffic.
///
/// # Errors
/// When the annotation doesn't say a number of seconds, which counts as nothing; the sentence names it.
pub fn bake(meta: &ObjectMeta) -> Result<SignedDuration, String> {
    let Some(text) = annotation(meta, BAKE_ANNOTATION) else { return Ok(SignedDuration::ZERO) };
    let seconds =
        text.parse::<u32>().map_err(|_| misread_as(BAKE_ANNOTATION, text, "not a number of seconds like 300"))?;
    Ok(SignedDuration::from_secs(seconds.into()))
}

/// Whether worker groups follow the capacity of their cluster, where Ray's autoscaler doesn't see to that.
///
/// # Errors
/// When the annotation says something else, which counts as nothing; the sentence names it.
pub fn scales_workers(meta: &ObjectMeta) -> Result<bool, String> {
    match annotation(meta, SCALE_WORKERS_ANNOTATION) {
        None | Some("true") => Ok(true),
        Some("false") => Ok(false),
        Some(other) => Err(misread_as(SCALE_WORKERS_ANNOTATION, other, "neither true nor false")),
    }
}

/// For how long the next cluster may be unhealthy, if its owner has set a limit.
///
/// # Errors
/// When the annotation doesn't say a time, which counts as nothing; the sentence names it.
pub fn deadline(meta: &ObjectMeta) -> Result<Option<SignedDuration>, String> {
    let Some(text) = annotation(meta, DEADLINE_ANNOTATION) else { return Ok(None) };
    let deadline = duration::parse(text).filter(SignedDuration::is_positive);
    let wrong = || misread_as(DEADLINE_ANNOTATION, text, "not a time above zero like 10m or 1h30m");
    deadline.map(Some).ok_or_else(wrong)
}

/// What is wrong with the annotations that an owner has set.
pub fn misread(meta: &ObjectMeta) -> Vec<String> {
    let of_upgrade = [Rollback::of(meta).err(), Wish::of(meta).err(), bake(meta).err(), deadline(meta).err()];
    of_upgrade.into_iter().chain([scales_workers(meta).err()]).flatten().collect()
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    fn with(name: &str, value: &str) -> ObjectMeta {
        ObjectMeta { annotations: Some([(name.to_owned(), value.to_owned())].into()), ..ObjectMeta::default() }
    }

    #[test]
    fn choices_are_read() {
        assert_eq!(Rollback::of(&with(ROLLBACK_ANNOTATION, "Stepped")), Ok(Rollback::Stepped));
        assert_eq!(Rollback::of(&with(ROLLBACK_ANNOTATION, "Immediate")), Ok(Rollback::Immediate));
        assert_eq!(Wish::of(&with(UPGRADE_ANNOTATION, "Paused")), Ok(Wish::Paused));
        assert_eq!(Wish::of(&with(UPGRADE_ANNOTATION, "Promote")), Ok(Wish::Promote));
        assert_eq!(bake(&with(BAKE_ANNOTATION, "300")), Ok(SignedDuration::from_secs(300)));
        assert_eq!(deadline(&with(DEADLINE_ANNOTATION, "10m")), Ok(Some(SignedDuration::from_mins(10))));
        assert_eq!(scales_workers(&with(SCALE_WORKERS_ANNOTATION, "false")), Ok(false));

        let nothing = ObjectMeta::default();
        assert_eq!(Rollback::of(&nothing), Ok(Rollback::AsCapacityAllows));
        assert_eq!(Wish::of(&nothing), Ok(Wish::GoOn));
        assert_eq!(bake(&nothing), Ok(SignedDuration::ZERO));
        assert_eq!(deadline(&nothing), Ok(None));
        assert_eq!(scales_workers(&nothing), Ok(true));
        assert!(misread(&nothing).is_empty());
    }

    #[rstest]
    #[case::small_letters(ROLLBACK_ANNOTATION, "stepped", "neither Stepped nor Immediate")]
    #[case::another_word(UPGRADE_ANNOTATION, "Stop", "neither Paused nor Promote")]
    #[case::a_unit(BAKE_ANNOTATION, "5m", "a number of seconds like 300")]
    #[case::a_no(SCALE_WORKERS_ANNOTATION, "no", "neither true nor false")]
    #[case::no_unit(DEADLINE_ANNOTATION, "30", "a time above zero like 10m or 1h30m")]
    #[case::below_zero(BAKE_ANNOTATION, "-5", "a number of seconds like 300")]
    fn what_makes_no_sense_is_named_with_what_is_allowed(
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
