//! A new cluster replaces the active one once there is quota for both.

use std::collections::BTreeMap;

use super::{SOME, Stage, service, tell};

pub(super) async fn an_upgrade_waits_for_quota_and_no_request_is_lost(stage: &Stage) {
    // Given a service that uses all of its queue's quota,
    let env = &stage.env;
    stage.apply(&service("1")).await;
    stage.let_in().await;
    let load = stage.load().await;

    // when it is upgraded, then the old version answers everything while the upgrade is pending,
    stage.apply(&service("2")).await;
    let (pending, _) = env.waits_for_quota().await;
    assert_eq!(load.next(SOME).await, BTreeMap::from([("1".to_owned(), SOME)]));
    assert!(env.pods_of(&pending).await.is_empty());

    // and once the quota is raised, the new one does: no request fails, and none goes back to the
    // old version.
    env.set_quota("2", "4Gi").await;
    stage.is_answered_by("2", &load).await;
    env.only_cluster(&pending).await;
    assert_eq!(load.next(SOME).await, BTreeMap::from([("2".to_owned(), SOME)]));
    let requests = load.stop().await;
    tell("NewCluster upgrade that waits for quota", &requests);
    sluice_testkit::load::assert_all_answered(&requests);
}
