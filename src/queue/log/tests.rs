use k8s_openapi::api::core::v1::Namespace;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ManagedFieldsEntry, ObjectMeta};
use kube_core::Resource;
use rstest::rstest;
use serde_json::{Value, json};

use super::*;
use crate::node_affinity::NodeRequirements;
use crate::settings::{
    FairSharing, ResourceRules, Transformation, TransformationStrategy, UndeclaredResourcePolicy, WaitForPodsReady,
};
use crate::template_requests;

const START: &str = r#"{"start":{"format":1,"settings":{"resources":{"excludePrefixes":[],"transformations":[],"undeclared":"Block"}}}}"#;
const CYCLE: &str = r#"{"cycle":{"at":"1970-01-01T00:00:05Z","decisions":[]}}"#;
const FLAVOR_DELETED: &str = r#"{"event":{"at":"1970-01-01T00:00:03Z","told":{"resourceFlavorGone":"a100"}}}"#;

fn workload() -> Workload {
    let container = json!({
        "name": "ray-worker",
        "image": "ray:2.52.0",
        "env": [{"name": "TOKEN", "value": "s3cret"}],
        "args": ["--password=s3cret"],
        "resources": {"requests": {"cpu": "2"}, "limits": {"nvidia.com/gpu": "1"}},
    });
    let mut sidecar = container.clone();
    sidecar["restartPolicy"] = json!("Always");
    let spec = json!({
        "containers": [container],
        "initContainers": [sidecar],
        "overhead": {"memory": "1Gi"},
        "resources": {"requests": {"cpu": "9"}},
        "nodeSelector": {"pool": "gpu"},
        "tolerations": [{"key": "gpu", "operator": "Exists"}],
        "affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {
            "nodeSelectorTerms": [{"matchExpressions": [{"key": "zone", "operator": "In", "values": ["a"]}]}],
        }}},
        "volumes": [{"name": "inline", "csi": {"volumeAttributes": {"key": "s3cret"}}}],
    });
    let template = json!({"metadata": {"annotations": {"note": "s3cret"}}, "spec": spec});
    let object = json!({
        "apiVersion": "kueue.x-k8s.io/v1beta2",
        "kind": "Workload",
        "metadata": {
            "name": "w",
            "namespace": "team",
            "annotations": {"kubectl.kubernetes.io/last-applied-configuration": "s3cret", "kept": "yes"},
            "managedFields": [{"manager": "kubectl"}],
        },
        "spec": {"queueName": "lq", "podSets": [{"name": "main", "count": 2, "template": template}]},
    });
    serde_json::from_value(object).expect("a Workload")
}

#[test]
fn redacted_workload_keeps_scheduling_fields_without_secrets() {
    let workload = workload();

    let redacted = redact::workload(&workload).into_owned();

    let text = serde_json::to_string(&redacted).expect("JSON");
    assert!(!text.contains("s3cret") && !text.contains("managedFields"), "{text}");
    assert_eq!(redacted.metadata.annotations, Some([("kept".to_owned(), "yes".to_owned())].into()));
    let (before, after) = (&workload.spec.pod_sets[0].template, &redacted.spec.pod_sets[0].template);
    assert_eq!(template_requests(before).expect("valid"), template_requests(after).expect("valid"));
    assert_eq!(
        NodeRequirements::from_template(before).expect("valid"),
        NodeRequirements::from_template(after).expect("valid")
    );
}

#[rstest]
#[case::containers_are_not_a_list(json!({"spec": {"containers": "none"}}))]
#[case::container_is_a_number(json!({"spec": {"containers": [7]}}))]
#[case::malformed_quantity(json!({"spec": {"containers": [{"name": "c", "resources": {"requests": {"cpu": "much"}}}]}}))]
fn invalid_template_gives_the_same_error_after_redaction(#[case] template: Value) {
    let mut workload = workload();
    workload.spec.pod_sets[0].template = template.into();

    let redacted = redact::workload(&workload);

    let error = |workload: &Workload| template_requests(&workload.spec.pod_sets[0].template).map_err(|e| e.to_string());
    assert!(error(&workload).is_err());
    assert_eq!(error(&workload), error(&redacted));
}

#[test]
fn redaction_of_other_objects_removes_only_managed_fields() {
    let labels = Some([("team".to_owned(), "a".to_owned())].into());
    let mut namespace = Namespace::default();
    *namespace.meta_mut() = ObjectMeta {
        name: Some("team".into()),
        labels: labels.clone(),
        managed_fields: Some(vec![ManagedFieldsEntry::default()]),
        ..ObjectMeta::default()
    };

    let redacted = redact::object(&namespace);

    assert_eq!(redacted.metadata, ObjectMeta { name: Some("team".into()), labels, ..ObjectMeta::default() });
}

#[test]
fn settings_round_trip_through_the_log() {
    let transformation = Transformation {
        input: "nvidia.com/mig-1g.5gb".into(),
        strategy: TransformationStrategy::Replace,
        multiply_by: Some("cpu".into()),
        outputs: [("gpu-memory".to_owned(), k8s_openapi::apimachinery::pkg::api::resource::Quantity("5Gi".into()))]
            .into(),
    };
    let settings = Settings {
        fair_sharing: Some(FairSharing::default()),
        wait_for_pods_ready: Some(WaitForPodsReady {
            timeout: jiff::SignedDuration::from_mins(5),
            recovery_timeout: Some(jiff::SignedDuration::from_millis(1500)),
            unscheduled_timeout: Some(jiff::SignedDuration::from_secs(20)),
            block_admission: true,
            requeuing: Default::default(),
        }),
        resources: ResourceRules {
            exclude_prefixes: vec!["example.com/".into()],
            transformations: vec![transformation],
            undeclared: UndeclaredResourcePolicy::Ignore,
        },
    };

    let lines = Recorder::new(&Scheduler::new(settings.clone())).take();

    match serde_json::from_slice(&lines).expect("a line") {
        LogLine::Start { settings: read, .. } => assert_eq!(*read, settings),
        other => panic!("{other:?}"),
    }
}

#[test]
fn replay_counts_sections_inputs_and_cycles() {
    let replayed = replay([START, FLAVOR_DELETED, CYCLE, CYCLE, START, CYCLE]).expect("a valid log");
    assert_eq!(replayed, ReplaySummary { sections: 2, inputs: 1, cycles: 3, ..ReplaySummary::default() });
}

#[rstest]
#[case::at_the_end(&[START, CYCLE, r#"{"event":{"at":"19"#], 1)]
#[case::before_the_next_process(&[START, r#"{"ev"#, START, CYCLE], 1)]
#[case::twice(&[START, r#"{"ev"#, START, r#"{"#], 2)]
fn truncated_last_line_of_a_section_is_skipped(#[case] lines: &[&str], #[case] truncated: usize) {
    let replayed = replay(lines).expect("a valid log");
    assert_eq!((replayed.truncated_lines, replayed.differences), (truncated, 0));
}

#[rstest]
#[case::empty(&[], "the log is empty")]
#[case::not_json(&[START, "E1121 panic"], "line 2, column 1: expected value")]
#[case::control_character(&[START, "\u{0}"], "line 2, column 1: expected value")]
#[case::truncated_in_the_middle(&[START, r#"{"ev"#, CYCLE], "line 2, column 4: EOF while parsing a string")]
#[case::truncated_at_the_start(&[r#"{"start":"#], "line 1, column 9: EOF while parsing a value")]
#[case::blank(&[START, "", CYCLE], "line 2, column 0: EOF while parsing a value")]
#[case::no_settings(&[FLAVOR_DELETED], "line 1: input or cycle before the start line with the settings")]
#[case::unknown_line_kind(
    &[START, r#"{"note":{}}"#],
    "line 2, column 7: unknown variant `note`, expected one of `start`, `event`, `cycle`"
)]
#[case::unknown_format(
    &[r#"{"start":{"format":2,"settings":{"resources":{"excludePrefixes":[],"transformations":[],"undeclared":"Block"}}}}"#],
    "line 1: the log has format 2; this version reads format 1"
)]
#[case::unknown_setting(
    &[r#"{"start":{"format":1,"settings":{"lottery":true}}}"#],
    "line 1, column 42: unknown field `lottery`, expected one of `fairSharing`, `waitForPodsReady`, `resources`"
)]
#[case::unknown_input_kind(
    &[START, r#"{"event":{"at":"1970-01-01T00:00:03Z","told":{"secretGone":"a"}}}"#],
    "line 2, column 58: unknown variant `secretGone`, expected one of"
)]
#[case::key_without_namespace(
    &[START, r#"{"event":{"at":"1970-01-01T00:00:03Z","told":{"workloadGone":"w"}}}"#],
    r#"line 2, column 65: "w" is not NAMESPACE/NAME"#
)]
#[case::invalid_timestamp(
    &[START, r#"{"cycle":{"at":"yesterday","decisions":[]}}"#],
    "line 2, column 26: "
)]
fn invalid_log_is_rejected_with_line_and_reason(#[case] lines: &[&str], #[case] expected: &str) {
    let error = replay(lines).expect_err("an invalid log").to_string();
    assert!(error.starts_with(expected), "{error}");
}

#[test]
fn difference_is_reported_with_both_decisions() {
    let cycle = r#"{"cycle":{"at":"1970-01-01T00:00:05Z","decisions":[{"setInactive":{"workload":"team/w"}}]}}"#;

    let replayed = replay([START, cycle, CYCLE]).expect("a valid log");

    assert_eq!((replayed.decisions, replayed.differences), (1, 1));
    let expected = "line 2: the cycle at 1970-01-01T00:00:05Z differs in decision 1\n  \
                    recorded: {\"setInactive\":{\"workload\":\"team/w\"}}\n  replayed: nothing";
    assert_eq!(replayed.first_difference.map(|first| first.to_string()).as_deref(), Some(expected));
}
