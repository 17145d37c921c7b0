//! Resources of a RayCluster other than its pods: autoscaler RBAC, Ingress and serve Service.

use k8s_openapi::api::authorization::v1::SubjectAccessReview;
use k8s_openapi::api::core::v1::Service;
use k8s_openapi::api::networking::v1::Ingress;
use k8s_openapi::api::rbac::v1::{Role, RoleBinding};
use kube::Api;
use kube::api::{DeleteParams, Patch, PatchParams, PostParams};
use serde_json::json;

use crate::rayclusters::{CLUSTER, cluster_manifest, wait_until_ready};
use sluice_testkit::objects::{NAMESPACE, QUEUE_SAMPLE};
use sluice_testkit::{TestEnv, eventually};

/// Returns the sample RayCluster with an autoscaler, an Ingress and a serve Service.
fn cluster_with_autoscaler_and_ingress() -> String {
    cluster_manifest()
        .replace("spec:\n  rayVersion", "spec:\n  enableInTreeAutoscaling: true\n  rayVersion")
        .replace("headGroupSpec:\n", "headGroupSpec:\n    enableIngress: true\n")
        .replace("  labels:\n", "  annotations:\n    ray.io/enable-serve-service: \"true\"\n  labels:\n")
}

/// Asks the API server whether the cluster's autoscaler is authorized for an action.
async fn autoscaler_can(env: &TestEnv, verb: &str, group: &str, resource: &str) -> bool {
    let attributes = json!({"namespace": NAMESPACE, "verb": verb, "group": group, "resource": resource});
    let user = format!("system:serviceaccount:{NAMESPACE}:{CLUSTER}");
    let review = json!({"metadata": {}, "spec": {"user": user, "resourceAttributes": attributes}});
    let review: SubjectAccessReview = serde_json::from_value(review).expect("a review");
    let reviews: Api<SubjectAccessReview> = Api::all(env.client.clone());
    let answer = reviews.create(&PostParams::default(), &review).await.expect("an answer");
    answer.status.is_some_and(|status| status.allowed)
}

#[tokio::test]
async fn autoscaler_has_its_permissions_and_ingress_and_serve_service_select_the_cluster() {
    let env = TestEnv::start().await;
    let _manager = env.manager().await;
    env.apply(QUEUE_SAMPLE).await.expect("the queue");
    env.set_quota("2", "4Gi").await;

    env.apply(&cluster_with_autoscaler_and_ingress()).await.expect("the cluster");
    wait_until_ready(&env).await;

    // Then its head runs with a service account that has exactly the autoscaler's permissions,
    let pods = env.pods_of(CLUSTER).await;
    let accounts: Vec<_> = pods.iter().filter_map(|pod| pod.spec.as_ref()?.service_account_name.as_deref()).collect();
    assert!(accounts.contains(&CLUSTER), "{accounts:?}");
    for (verb, group, resource) in [("watch", "", "pods"), ("patch", "ray.io", "rayclusters")] {
        eventually("the autoscaler is authorized", async || {
            autoscaler_can(&env, verb, group, resource).await.then_some(())
        })
        .await;
    }
    assert!(!autoscaler_can(&env, "delete", "", "pods").await);

    // and the Ingress and the serve Service lead to it.
    let ingresses: Api<Ingress> = Api::namespaced(env.client.clone(), NAMESPACE);
    let ingress = ingresses.get("basket-head-ingress").await.expect("an Ingress");
    let rules = serde_json::to_value(ingress.spec.expect("a spec").rules).expect("JSON");
    assert_eq!(rules[0]["http"]["paths"][0]["backend"]["service"]["name"], "basket-head-svc");
    let services: Api<Service> = Api::namespaced(env.client.clone(), NAMESPACE);
    let serve = services.get("basket-serve-svc").await.expect("the Service for requests").spec.expect("a spec");
    assert_eq!(serve.ports.iter().flatten().map(|port| port.port).collect::<Vec<_>>(), [8000]);

    // When its Role is deleted, then it is recreated;
    let roles: Api<Role> = Api::namespaced(env.client.clone(), NAMESPACE);
    let old = roles.get(CLUSTER).await.expect("a Role").metadata.uid;
    roles.delete(CLUSTER, &DeleteParams::default()).await.expect("deleted");
    eventually("the Role is recreated", async || {
        let role = roles.get_opt(CLUSTER).await.expect("an answer")?;
        (role.metadata.uid != old).then_some(())
    })
    .await;

    // when the Ingress is disabled, then it is deleted;
    let disabled = Patch::Merge(json!({"spec": {"headGroupSpec": {"enableIngress": false}}}));
    env.ray_clusters().patch(CLUSTER, &PatchParams::default(), &disabled).await.expect("patched");
    eventually("the Ingress is deleted", async || {
        ingresses.get_opt("basket-head-ingress").await.expect("an answer").is_none().then_some(())
    })
    .await;

    // and nothing outlives the cluster.
    env.ray_clusters().delete(CLUSTER, &DeleteParams::default()).await.expect("deleted");
    let bindings: Api<RoleBinding> = Api::namespaced(env.client.clone(), NAMESPACE);
    eventually("nothing is left", async || {
        let role = roles.get_opt(CLUSTER).await.expect("an answer");
        let binding = bindings.get_opt(CLUSTER).await.expect("an answer");
        let service = services.get_opt("basket-serve-svc").await.expect("an answer");
        (role.is_none() && binding.is_none() && service.is_none()).then_some(())
    })
    .await;
}
