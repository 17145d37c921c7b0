use k8s_openapi::api::core::v1::Namespace;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ManagedFieldsEntry, ObjectMeta};
use kube_core::Resource;
use rstest::rstest;
use serde_json::{Value, json};

use super::*;
use crate::placement::Placement;
use crate::settings::{
    FairSharing, ResourceRules, Transformation, TransformationStrategy, Undeclared, WaitForPodsReady,
};
use crate::template_requests;

const START: &str = r#"{"start":{"format":1,"settings":{"resources":{"excludePrefixes":[],"transformations":[],"undeclared":"Block"}}}}"#;
const CYCLE: &str = r#"{"cycle":{"at":"1970-01-01T00:00:05Z","decisions":[]}}"#;
const FLAVOR_GONE: &str = r#"{"event":{"at":"1970-01-01T00:00:03Z","told":{"resourceFlavorGone":"a100"}}}"#;

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
fn what_may_be_secret_is_left_out_and_what_counts_is_kept() {
    let workload = workload();

    let trimmed = trim::workload(&workload).into_owned();

    let text = serde_json::to_string(&trimmed).expect("JSON");
    assert!(!text.contains("s3cret") && !text.contains("managedFields"), "{text}");
    assert_eq!(trimmed.metadata.annotations, Some([("kept".to_owned(), "yes".to_owned())].into()));
    let (before, after) = (&workload.spec.pod_sets[0].template, &trimmed.spec.pod_sets[0].template);
    assert_eq!(template_requests(before).expect("valid"), template_requests(after).expect("valid"));
    assert_eq!(Placement::of(before).expect("valid"), Placement::of(after).expect("valid"));
}

#[rstest]
#[case::containers_that_are_no_list(json!({"spec": {"containers": "none"}}))]
#[case::a_container_that_is_none(json!({"spec": {"containers": [7]}}))]
#[case::a_bad_quantity(json!({"spec": {"containers": [{"name": "c", "resources": {"requests": {"cpu": "much"}}}]}}))]
fn a_bad_template_is_as_bad_in_the_log(#[case] template: Value) {
    let mut workload = workload();
    workload.spec.pod_sets[0].template.0 = template.into();

    let trimmed = trim::workload(&workload);

    let problem =
        |workload: &Workload| template_requests(&workload.spec.pod_sets[0].template).map_err(|e| e.to_string());
    assert!(problem(&workload).is_err());
    assert_eq!(problem(&workload), problem(&trimmed));
}

#[test]
fn other_objects_lose_their_managed_fields_only() {
    let labels = Some([("team".to_owned(), "a".to_owned())].into());
    let mut namespace = Namespace::default();
    *namespace.meta_mut() = ObjectMeta {
        name: Some("team".into()),
        labels: labels.clone(),
        managed_fields: Some(vec![ManagedFieldsEntry::default()]),
        ..ObjectMeta::default()
    };

    let trimmed = trim::object(&namespace);

    assert_eq!(trimmed.metadata, ObjectMeta { name: Some("team".into()), labels, ..ObjectMeta::default() });
}

#[test]
fn every_setting_is_read_again_as_it_was() {
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
            block_admission: true,
            requeuing: Default::default(),
        }),
        resources: ResourceRules {
            exclude_prefixes: vec!["example.com/".into()],
            transformations: vec![transformation],
            undeclared: Undeclared::Ignore,
        },
    };

    let lines = Recorder::new(&Engine::new(settings.clone())).take();

    match serde_json::from_slice(&lines).expect("a line") {
        Line::Start { settings: read, .. } => assert_eq!(*read, settings),
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_log_is_counted_section_by_section() {
    let replayed = replay([START, FLAVOR_GONE, CYCLE, CYCLE, START, CYCLE]).expect("a good log");
    assert_eq!(replayed, Replay { sections: 2, events: 1, cycles: 3, ..Replay::default() });
}

#[rstest]
#[case::at_the_end(&[START, CYCLE, r#"{"event":{"at":"19"#], 1)]
#[case::before_the_next_process(&[START, r#"{"ev"#, START, CYCLE], 1)]
#[case::twice(&[START, r#"{"ev"#, START, r#"{"#], 2)]
fn a_line_may_be_cut_off_where_its_process_ended(#[case] lines: &[&str], #[case] cut_off: usize) {
    let replayed = replay(lines).expect("a good log");
    assert_eq!((replayed.cut_off, replayed.differences), (cut_off, 0));
}

#[rstest]
#[case::nothing(&[], "the log is empty")]
#[case::no_json(&[START, "E1121 panic"], "line 2, column 1: expected value")]
#[case::no_text(&[START, "\u{0}"], "line 2, column 1: expected value")]
#[case::cut_off_in_the_middle(&[START, r#"{"ev"#, CYCLE], "line 2, column 4: EOF while parsing a string")]
#[case::cut_off_from_the_start(&[r#"{"start":"#], "line 1, column 9: EOF while parsing a value")]
#[case::blank(&[START, "", CYCLE], "line 2, column 0: EOF while parsing a value")]
#[case::no_settings(&[FLAVOR_GONE], "line 1: an event or a cycle before the line with the settings that begins a section")]
#[case::another_kind_of_line(
    &[START, r#"{"note":{}}"#],
    "line 2, column 7: unknown variant `note`, expected one of `start`, `event`, `cycle`"
)]
#[case::another_format(
    &[r#"{"start":{"format":2,"settings":{"resources":{"excludePrefixes":[],"transformations":[],"undeclared":"Block"}}}}"#],
    "line 1: the log has format 2; this version reads format 1"
)]
#[case::a_setting_that_is_not_known(
    &[r#"{"start":{"format":1,"settings":{"lottery":true}}}"#],
    "line 1, column 42: unknown field `lottery`, expected one of `fairSharing`, `waitForPodsReady`, `resources`"
)]
#[case::a_kind_that_the_queue_is_not_told(
    &[START, r#"{"event":{"at":"1970-01-01T00:00:03Z","told":{"secretGone":"a"}}}"#],
    "line 2, column 58: unknown variant `secretGone`, expected one of"
)]
#[case::no_namespace(
    &[START, r#"{"event":{"at":"1970-01-01T00:00:03Z","told":{"workloadGone":"w"}}}"#],
    r#"line 2, column 65: "w" is not NAMESPACE/NAME"#
)]
#[case::no_time(
    &[START, r#"{"cycle":{"at":"yesterday","decisions":[]}}"#],
    "line 2, column 26: "
)]
fn a_bad_log_is_refused_with_the_line_and_the_reason(#[case] lines: &[&str], #[case] expected: &str) {
    let error = replay(lines).expect_err("it is bad").to_string();
    assert!(error.starts_with(expected), "{error}");
}

#[test]
fn a_difference_is_told_with_both_sides() {
    let cycle = r#"{"cycle":{"at":"1970-01-01T00:00:05Z","decisions":[{"setInactive":{"workload":"team/w"}}]}}"#;

    let replayed = replay([START, cycle, CYCLE]).expect("a good log");

    assert_eq!((replayed.decisions, replayed.differences), (1, 1));
    let expected = "line 2: the cycle at 1970-01-01T00:00:05Z differs in decision 1\n  \
                    recorded: {\"setInactive\":{\"workload\":\"team/w\"}}\n  replayed: nothing";
    assert_eq!(replayed.first.map(|first| first.to_string()).as_deref(), Some(expected));
}
