//! Many services compete for the same quota.

use kube::ResourceExt;
use kube::api::{DeleteParams, ListParams};
use sluice_api::condition;
use sluice_api::kueue::Workload;
use sluice_api::quantity::Amount;

use sluice_testkit::history::{Recorder, State};
use sluice_testkit::objects::{QUEUE_SAMPLE, SERVICE_SAMPLE};
use sluice_testkit::{TestEnv, eventually, invariants};

const SERVICES: usize = 100;
/// Number of services that fit simultaneously: each requests 1 CPU and 2 GiB.
const FIT: usize = 10;

#[tokio::test]
async fn hundred_services_share_a_queue_that_fits_ten() {
    let env = TestEnv::start().await;
    let recorder = Recorder::start(env.client.clone(), None).await;
    let _manager = env.manager().await;
    env.apply(QUEUE_SAMPLE).await.expect("the queue");
    env.set_quota(&FIT.to_string(), &format!("{}Gi", 2 * FIT)).await;
    for n in 0..SERVICES {
        env.apply(&SERVICE_SAMPLE.replace("name: fruit\n  namespace", &format!("name: fruit-{n}\n  namespace")))
            .await
            .expect("a service");
    }

    // Each service is deleted as soon as it is ready, which releases its quota for another.
    eventually_all_served(&env).await;

    let history = recorder.history().await;
    let breaches = invariants::violations(&history);
    assert!(breaches.is_empty(), "{}", breaches.join("\n"));
    let mut state = State::default();
    let mut most = 0;
    for change in &history {
        state.apply(change);
        let held = state.workloads.values().filter(|workload| is_admitted(workload)).map(cpu_held);
        most = most.max(held.sum());
    }
    assert_eq!(most, 1000 * FIT, "the queue was full and never exceeded");
}

fn is_admitted(workload: &Workload) -> bool {
    let conditions = workload.status.as_ref().map(|status| status.conditions.as_slice()).unwrap_or_default();
    condition::is_true(conditions, "Admitted") && !condition::is_true(conditions, "Finished")
}

/// Returns the reserved milli-CPU of a Workload. It shrinks with the pods of a deleted service
/// before the slice is deleted.
pub(crate) fn cpu_held(workload: &Workload) -> usize {
    let admission = workload.status.as_ref().and_then(|status| status.admission.as_ref());
    let sets = admission.into_iter().flat_map(|admission| &admission.pod_set_assignments);
    let held = sets.filter_map(|set| Amount::from_quantity("cpu", set.resource_usage.get("cpu")?).ok());
    held.map(|amount| usize::try_from(amount.get()).expect("not negative")).sum()
}

async fn eventually_all_served(env: &TestEnv) {
    let mut served = 0;
    while served < SERVICES {
        let ready = eventually("a service is ready", async || {
            let services = env.ray_services().list(&ListParams::default()).await.expect("the services");
            let ready = services.into_iter().filter(|service| {
                let conditions = service.status.as_ref().map(|status| status.conditions.as_slice()).unwrap_or_default();
                service.metadata.deletion_timestamp.is_none() && condition::is_true(conditions, "Ready")
            });
            let ready: Vec<String> = ready.map(|service| service.name_any()).collect();
            (!ready.is_empty()).then_some(ready)
        })
        .await;
        for name in ready {
            env.ray_services().delete(&name, &DeleteParams::default()).await.expect("the service is deleted");
            served += 1;
        }
    }
    env.wait_until_empty().await;
}
