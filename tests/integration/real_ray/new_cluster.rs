//! A new cluster replaces the active one once there is quota for both.

use std::collections::BTreeMap;

use super::{RealRayFixture, SAMPLE_SIZE, print_summary, service};

pub(super) async fn an_upgrade_waits_for_quota_and_no_request_is_lost(fixture: &RealRayFixture) {
    // Given a service that uses all of its queue's quota,
    let env = &fixture.env;
    fixture.apply(&service("1")).await;
    fixture.create_gateway().await;
    let load = fixture.start_load().await;

    // when it is upgraded, then the old version answers everything while the upgrade is pending,
    fixture.apply(&service("2")).await;
    let (pending, _) = env.wait_for_pending_upgrade().await;
    assert_eq!(load.count_next(SAMPLE_SIZE).await, BTreeMap::from([("1".to_owned(), SAMPLE_SIZE)]));
    assert!(env.pods_of(&pending).await.is_empty());

    // and once the quota is raised, the new one does: no request fails, and none goes back to the
    // old version.
    env.set_quota("2", "4Gi").await;
    fixture.wait_for_version("2", &load).await;
    env.wait_for_only_cluster(&pending).await;
    assert_eq!(load.count_next(SAMPLE_SIZE).await, BTreeMap::from([("2".to_owned(), SAMPLE_SIZE)]));
    let requests = load.stop().await;
    print_summary("NewCluster upgrade that waits for quota", &requests);
    sluice_testkit::load::assert_all_answered(&requests);
}
