//! Objects that a write has deleted, before a watch reports their deletion.

use jiff::Timestamp;
use kube_core::TypeMeta;
use serde_json::{Value, json};

use crate::cluster_state::Object;
use crate::tokens::TokenKey;
use crate::{ApiServerLoad, Command, Components, Engine, EngineInput, WriteOutcome};
use sluice_api::kueue::names;
use sluice_queue::Settings;

/// Returns a Workload that is being deleted.
fn terminating_workload(finalizers: &[&str]) -> Object {
    let types = TypeMeta { api_version: "kueue.x-k8s.io/v1beta2".to_owned(), kind: "Workload".to_owned() };
    let object: Value = json!({
        "metadata": {
            "name": "chat", "namespace": "ml", "uid": "1", "resourceVersion": "7", "finalizers": finalizers,
            "deletionTimestamp": "2026-01-01T00:00:00Z",
        },
        "spec": {"podSets": []},
    });
    Object::decode(&types, object).expect("a Workload").expect("a watched kind")
}

#[test]
fn workload_is_gone_once_its_last_finalizer_is_removed() {
    // Given a Workload that is being deleted, whose finalizer is removed because no pod uses its quota,
    let mut engine = Engine::new(Components::ALL, Settings::default(), [], TokenKey::insecure());
    let now = Timestamp::UNIX_EPOCH;
    let held = terminating_workload(&[names::RESOURCE_IN_USE_FINALIZER]);
    let mut commands = engine.step(now, [EngineInput::Applied(held)]);
    let Some(Command::Write(id, write)) = commands.pop() else { panic!("no write: {commands:?}") };

    // when the response has the resource version that is known already,
    let result = Ok(WriteOutcome::Object(terminating_workload(&[])));
    let response = EngineInput::Written { id, write: Box::new(write), result, load: ApiServerLoad::Low };
    let commands = engine.step(now, [response]);

    // then the Workload is gone, and its finalizer is not removed again.
    assert!(engine.cluster_state.workloads.iter().next().is_none());
    assert!(commands.is_empty(), "{commands:?}");
}
