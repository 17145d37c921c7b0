//! Sluice on real Ray behind a real gateway, under continuous load. `make ray` runs it.
//!
//! Each test has a separate environment in which several scenarios run in sequence, because a Ray
//! cluster is slow to start.

mod autoscaling;
mod fixture;
mod in_place;
mod incremental_upgrade;
mod killed;
mod new_cluster;
mod recreate;
mod request_stats;

use fixture::{RealRayFixture, SAMPLE_SIZE, START_TIMEOUT, service};
use request_stats::print_summary;

#[tokio::test]
#[ignore = "needs Ray, Traefik, and a network of its own: make ray"]
async fn service_survives_upgrade_config_change_and_killed_processes() {
    let mut fixture = RealRayFixture::start().await;
    new_cluster::an_upgrade_waits_for_quota_and_no_request_is_lost(&fixture).await;
    in_place::a_change_of_the_serve_configuration_loses_no_request(&fixture).await;
    killed::an_upgrade_goes_on_where_a_killed_manager_left_it(&mut fixture).await;
    killed::a_service_whose_head_is_killed_comes_back_by_itself(&fixture).await;
    fixture.end().await;
}

#[tokio::test]
#[ignore = "needs Ray, Traefik, and a network of its own: make ray"]
async fn service_is_upgraded_incrementally_and_rolled_back() {
    let fixture = RealRayFixture::start().await;
    incremental_upgrade::requests_follow_the_weights_and_throughput_stays(&fixture).await;
    incremental_upgrade::an_upgrade_that_is_put_back_half_way_loses_no_request(&fixture).await;
    incremental_upgrade::an_upgrade_that_fails_to_start_goes_back_by_itself(&fixture).await;
    fixture.end().await;
}

#[tokio::test]
#[ignore = "needs Ray, Traefik, and a network of its own: make ray"]
async fn worker_requested_by_ray_autoscaler_waits_for_quota() {
    let fixture = RealRayFixture::start().await;
    autoscaling::a_worker_that_ray_asks_for_waits_for_quota_and_serves(&fixture).await;
    fixture.end().await;
}

#[tokio::test]
#[ignore = "needs Ray, Traefik, and a network of its own: make ray"]
async fn cluster_is_recreated() {
    let fixture = RealRayFixture::start().await;
    recreate::all_old_pods_are_gone_before_the_first_new_one(&fixture).await;
    fixture.end().await;
}
