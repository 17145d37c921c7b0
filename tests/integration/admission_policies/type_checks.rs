//! The types of the policies' expressions on built-in kinds, as the API server checks them. It does not check those on
//! kinds of CRDs.

use k8s_openapi::api::admissionregistration::v1::ValidatingAdmissionPolicy;
use kube::api::ListParams;
use kube::{Api, ResourceExt};

use sluice_testkit::{TestEnv, TestEnvOptions, eventually};

#[tokio::test]
async fn expressions_have_no_type_errors() {
    let options = TestEnvOptions { flags: &["--type-check-policies"], ..TestEnvOptions::default() };
    let env = TestEnv::start_with(options).await;
    let policies: Api<ValidatingAdmissionPolicy> = Api::all(env.client.clone());

    let listed = policies.list(&ListParams::default()).await.expect("the policies").items;
    assert!(!listed.is_empty());
    for policy in listed {
        let name = policy.name_any();
        let status = eventually(&format!("the types of {name} are checked"), async || {
            let status = policies.get(&name).await.expect("the policy").status?;
            (status.observed_generation == policy.metadata.generation).then_some(status)
        })
        .await;
        let warnings = status.type_checking.and_then(|checks| checks.expression_warnings).unwrap_or_default();
        assert!(warnings.is_empty(), "{name}: {warnings:#?}");
    }
}
