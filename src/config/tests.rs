//! Parsing of valid files, and rejection of invalid ones.

use jiff::SignedDuration;
use rstest::rstest;

use super::*;
use sluice_jobframework::managed::{EnabledFrameworks, Framework};

const HEADER: &str = "apiVersion: config.kueue.x-k8s.io/v1beta2\nkind: Configuration\n";

fn read(body: &str) -> Result<Configuration, ConfigError> {
    Configuration::from_yaml(&format!("{HEADER}{body}"))
}

fn settings(body: &str) -> Settings {
    read(body).expect("a valid file").queue
}

#[test]
fn empty_file_enables_only_leader_election() {
    let file = read("").expect("a valid file");

    assert_eq!(file, Configuration { leader_elect: true, ..Configuration::default() });
    assert_eq!(file.queue, Settings { fair_sharing: None, wait_for_pods_ready: None, ..Settings::default() });
}

#[test]
fn empty_wait_for_pods_ready_section_has_the_defaults_of_kueue() {
    let expected = WaitForPodsReady {
        timeout: SignedDuration::from_mins(30),
        recovery_timeout: Some(SignedDuration::from_mins(30)),
        unscheduled_timeout: None,
        block_admission: false,
        requeuing: Requeuing {
            timestamp: RequeuingTimestamp::Eviction,
            backoff_limit_count: None,
            backoff_base_seconds: 60,
            backoff_max_seconds: 3600,
        },
    };
    assert_eq!(settings("waitForPodsReady: {}").wait_for_pods_ready, Some(expected));
}

#[rstest]
#[case::no_section("", false)]
#[case::null_section("waitForPodsReady:", false)]
#[case::empty("waitForPodsReady: {}", true)]
#[case::gate("waitForPodsReady: {}\nfeatureGates: {DisableWaitForPodsReady: true}", false)]
#[case::gate_off("waitForPodsReady: {}\nfeatureGates: {DisableWaitForPodsReady: false}", true)]
#[case::gate_alone("featureGates: {DisableWaitForPodsReady: false}", false)]
fn wait_for_pods_ready_is_enabled_by_its_section_unless_the_feature_gate_disables_it(
    #[case] body: &str,
    #[case] enabled: bool,
) {
    assert_eq!(settings(body).wait_for_pods_ready.is_some(), enabled);
}

#[rstest]
#[case::absent("waitForPodsReady: {}", None)]
#[case::set("waitForPodsReady: {unscheduledTimeout: 5m}", Some(300))]
#[case::zero_is_unset("waitForPodsReady: {unscheduledTimeout: 0s}", None)]
#[case::gate(
    "waitForPodsReady: {unscheduledTimeout: 5m}\nfeatureGates: {WaitForPodsReadyUnscheduledTimeout: true}",
    Some(300)
)]
#[case::gate_off(
    "waitForPodsReady: {unscheduledTimeout: 5m}\nfeatureGates: {WaitForPodsReadyUnscheduledTimeout: false}",
    None
)]
fn unscheduled_timeout_is_off_unless_set(#[case] body: &str, #[case] expected: Option<i64>) {
    let rules = settings(body).wait_for_pods_ready.expect("the section");
    assert_eq!(rules.unscheduled_timeout, expected.map(SignedDuration::from_secs));
}

#[rstest]
#[case::recovery_follows_the_timeout("{timeout: 5m}", 300, Some(300))]
#[case::separate_recovery_timeout("{timeout: 5m, recoveryTimeout: 3m}", 300, Some(180))]
#[case::no_limit_on_recovery("{recoveryTimeout: 0s}", 1800, None)]
#[case::zero_is_unset("{timeout: 0s}", 1800, Some(1800))]
#[case::null_is_unset("{timeout: null}", 1800, Some(1800))]
fn timeouts_default_as_in_kueue(#[case] body: &str, #[case] timeout: i64, #[case] recovery: Option<i64>) {
    let rules = settings(&format!("waitForPodsReady: {body}")).wait_for_pods_ready.expect("on");

    assert_eq!(rules.timeout, SignedDuration::from_secs(timeout));
    assert_eq!(rules.recovery_timeout, recovery.map(SignedDuration::from_secs));
}

#[test]
fn requeuing_strategy_is_parsed() {
    let rules = settings(
        "waitForPodsReady:\n  blockAdmission: true\n  requeuingStrategy: {timestamp: Creation, backoffLimitCount: 0, \
         backoffBaseSeconds: 5, backoffMaxSeconds: 50}",
    );
    let rules = rules.wait_for_pods_ready.expect("on");

    assert!(rules.block_admission);
    let expected = Requeuing {
        timestamp: RequeuingTimestamp::Creation,
        backoff_limit_count: Some(0),
        backoff_base_seconds: 5,
        backoff_max_seconds: 50,
    };
    assert_eq!(rules.requeuing, expected);
}

#[rstest]
#[case::no_section("", None, None)]
#[case::null("objectRetentionPolicies: {workloads: null}", None, None)]
#[case::finished("objectRetentionPolicies: {workloads: {afterFinished: 1h30m}}", Some(5400), None)]
#[case::immediately("objectRetentionPolicies: {workloads: {afterFinished: 0s}}", Some(0), None)]
#[case::deactivated("objectRetentionPolicies: {workloads: {afterDeactivatedByKueue: 10m}}", None, Some(600))]
fn retention_is_unlimited_unless_a_duration_is_set(
    #[case] body: &str,
    #[case] finished: Option<i64>,
    #[case] deactivated: Option<i64>,
) {
    let file = read(body).expect("a valid file");

    assert_eq!(file.retention.after_finished, finished.map(SignedDuration::from_secs));
    assert_eq!(file.retention.after_deactivated_by_kueue, deactivated.map(SignedDuration::from_secs));
    assert!(file.unsupported_fields.is_empty(), "{:?}", file.unsupported_fields);
}

#[rstest]
#[case("[LessThanInitialShare]", vec![PreemptionStrategy::LessThanInitialShare])]
#[case("[LessThanOrEqualToFinalShare, LessThanInitialShare]", FairSharing::default().strategies)]
fn fair_sharing_section_enables_fair_sharing(#[case] list: &str, #[case] strategies: Vec<PreemptionStrategy>) {
    let settings = settings(&format!("fairSharing: {{preemptionStrategies: {list}}}"));
    assert_eq!(settings.fair_sharing, Some(FairSharing { strategies }));
}

#[test]
fn resource_rules_are_parsed() {
    let resources = settings(
        "resources:
  quotaCheckStrategy: BlockUndeclared
  excludeResourcePrefixes: [example.com/]
  transformations:
  - {input: nvidia.com/mig-4g.5gb, strategy: Replace, multiplyBy: pods, outputs: {memory: 5Gi, gpc: 4}}
  - {input: cpu}",
    )
    .resources;

    assert_eq!(resources.exclude_prefixes, ["example.com/"]);
    assert_eq!(resources.undeclared, UndeclaredResourcePolicy::Block);
    let [mig, cpu] = resources.transformations.as_slice() else { panic!("two rules: {resources:?}") };
    assert_eq!((mig.strategy, mig.multiply_by.as_deref()), (TransformationStrategy::Replace, Some("pods")));
    let outputs: Vec<_> = mig.outputs.iter().map(|(name, amount)| (name.as_str(), amount.0.as_str())).collect();
    assert_eq!(outputs, [("gpc", "4"), ("memory", "5Gi")]);
    assert_eq!((cpu.strategy, cpu.outputs.len()), (TransformationStrategy::Retain, 0));
}

#[test]
fn undeclared_resources_can_be_ignored() {
    assert_eq!(
        settings("resources: {quotaCheckStrategy: IgnoreUndeclared}").resources.undeclared,
        UndeclaredResourcePolicy::Ignore
    );
}

#[rstest]
#[case::default_selector("", &["team", "gpus", "ours"])]
#[case::own_namespace("namespace: ours", &["team", "gpus"])]
#[case::by_label("managedJobsNamespaceSelector: {matchLabels: {gpu: 'yes'}}", &["gpus"])]
#[case::by_more_than_one(
    "managedJobsNamespaceSelector:
  matchExpressions:
  - {key: gpu, operator: DoesNotExist}
  - {key: kubernetes.io/metadata.name, operator: NotIn, values: [kube-system, ours]}",
    &["team", "sluice-system"]
)]
fn jobs_are_managed_in_the_selected_namespaces(#[case] body: &str, #[case] expected: &[&str]) {
    let rules = read(body).expect("a valid file").managed_jobs;
    let is_managed = |name: &&str| {
        let named = (NAMESPACE_NAME_LABEL.to_owned(), (*name).to_owned());
        let gpu = (*name == "gpus").then(|| ("gpu".to_owned(), "yes".to_owned()));
        rules.manages_namespace(name, Some(&[named].into_iter().chain(gpu).collect())) == Some(true)
    };
    let managed: Vec<&str> =
        ["team", "gpus", "ours", "kube-system", "sluice-system"].into_iter().filter(is_managed).collect();
    assert_eq!(managed, expected);
}

#[test]
fn jobs_without_queue_name_are_managed_only_if_the_file_enables_it() {
    assert!(!read("").expect("a valid file").managed_jobs.manage_jobs_without_queue_name);
    assert!(
        read("manageJobsWithoutQueueName: true").expect("a valid file").managed_jobs.manage_jobs_without_queue_name
    );
}

#[rstest]
#[case::absent("", &Framework::ALL)]
#[case::some("integrations: {frameworks: [ray.io/rayservice, pod]}", &[Framework::RayService])]
#[case::all(
    "integrations: {frameworks: [batch/job, ray.io/raycluster, ray.io/rayjob, ray.io/rayservice]}",
    &Framework::ALL
)]
#[case::none("integrations: {frameworks: []}", &[])]
fn listed_frameworks_are_managed(#[case] body: &str, #[case] listed: &[Framework]) {
    let mut expected = EnabledFrameworks::none();
    for framework in listed {
        expected.enable(*framework);
    }
    assert_eq!(read(body).expect("a valid file").managed_jobs.frameworks, expected);
}

#[test]
fn unsupported_fields_are_reported() {
    let file = read(
        "visibilityServer: {bindPort: 1}
webhook: {port: 9443, certDir: /tmp}
integrations: {frameworks: [batch/job, pod], labelKeysToCopy: [team]}
clientConnection: {qps: null}
featureGates: {ElasticJobsViaWorkloadSlices: true, DisableWaitForPodsReady: false}
metrics: {bindAddress: ':9', customLabels: [{name: team}]}
leaderElection: {leaderElect: false, resourceName: x}",
    )
    .expect("a valid file");

    let mut named = file.unsupported_fields;
    named.sort();
    let expected = [
        "featureGates.ElasticJobsViaWorkloadSlices",
        "integrations.frameworks[1] (pod)",
        "integrations.labelKeysToCopy",
        "leaderElection.resourceName",
        "metrics.customLabels[0].name",
        "visibilityServer.bindPort",
        "webhook.certDir",
    ];
    assert_eq!(named, expected);
    assert!(!file.leader_elect);
    assert_eq!(file.metrics_bind_address.as_deref(), Some(":9"));
}

#[rstest]
#[case::unknown("fairShare: {}", "fairShare: unknown field, must be one of apiVersion, kind,")]
#[case::unknown_below(
    "waitForPodsReady: {enable: true}",
    "waitForPodsReady.enable: unknown field, must be one of timeout,"
)]
#[case::unknown_in_a_list(
    "resources: {transformations: [{input: a}, {input: b, output: {}}]}",
    "resources.transformations[1].output: unknown field"
)]
#[case::unknown_in_an_unsupported_section("multiKueue: {gcIntervall: 1m}", "multiKueue.gcIntervall: unknown field")]
#[case::not_a_mapping("resources: 5", "resources: 5: must be a mapping")]
#[case::not_a_list("resources: {transformations: 5}", "resources.transformations: 5: must be a list")]
#[case::negative(
    "waitForPodsReady: {timeout: -5m}",
    "waitForPodsReady.timeout: \"-5m\": must be a non-negative duration"
)]
#[case::negative_retention(
    "objectRetentionPolicies: {workloads: {afterFinished: -1s}}",
    "objectRetentionPolicies.workloads.afterFinished: \"-1s\": must be a non-negative duration like 5m or 1h30m"
)]
#[case::retention_without_a_unit(
    "objectRetentionPolicies: {workloads: {afterDeactivatedByKueue: 60}}",
    "objectRetentionPolicies.workloads.afterDeactivatedByKueue: 60: must be a non-negative duration like 5m or 1h30m"
)]
#[case::no_unit("waitForPodsReady: {timeout: 5}", "waitForPodsReady.timeout: 5: must be a non-negative duration")]
#[case::selector_of_everything(
    "managedJobsNamespaceSelector: {}",
    "managedJobsNamespaceSelector: {}: must be a selector that does not select namespace \"kube-system\""
)]
#[case::selector_of_our_own_namespace(
    "namespace: ours\nmanagedJobsNamespaceSelector: {matchExpressions: [{key: kubernetes.io/metadata.name, operator: In, values: [ours]}]}",
    "must be a selector that does not select namespace \"ours\""
)]
#[case::unknown_framework(
    "integrations: {frameworks: [batch/jobs]}",
    "integrations.frameworks[0]: \"batch/jobs\": must be batch/job or ray.io/raycluster or ray.io/rayjob or ray.io/rayservice or"
)]
#[case::selector_with_a_typo(
    "managedJobsNamespaceSelector: {matchLabel: {}}",
    "managedJobsNamespaceSelector.matchLabel: unknown field"
)]
#[case::selector_without_an_operator(
    "managedJobsNamespaceSelector: {matchExpressions: [{key: a}]}",
    "managedJobsNamespaceSelector.matchExpressions[0].operator: required, must be In or NotIn or Exists or DoesNotExist"
)]
#[case::selector_with_another_operator(
    "managedJobsNamespaceSelector: {matchExpressions: [{key: a, operator: Is, values: [b]}]}",
    "managedJobsNamespaceSelector.matchExpressions[0].operator: \"Is\": must be In or"
)]
#[case::selector_without_values(
    "managedJobsNamespaceSelector: {matchExpressions: [{key: a, operator: In}]}",
    "managedJobsNamespaceSelector.matchExpressions[0].values: required, must be a list of values"
)]
#[case::selector_with_superfluous_values(
    "managedJobsNamespaceSelector: {matchExpressions: [{key: a, operator: Exists, values: [b]}]}",
    "managedJobsNamespaceSelector.matchExpressions[0].values: [\"b\"]: must be absent with"
)]
#[case::timestamp(
    "waitForPodsReady: {requeuingStrategy: {timestamp: Now}}",
    "waitForPodsReady.requeuingStrategy.timestamp: \"Now\": must be Eviction or Creation"
)]
#[case::negative_count(
    "waitForPodsReady: {requeuingStrategy: {backoffLimitCount: -1}}",
    "waitForPodsReady.requeuingStrategy.backoffLimitCount: -1: must be an integer from 0 to 2147483647"
)]
#[case::too_large(
    "waitForPodsReady: {requeuingStrategy: {backoffBaseSeconds: 2147483648}}",
    "backoffBaseSeconds: 2147483648: must be an integer from 0 to 2147483647"
)]
#[case::not_a_boolean("waitForPodsReady: {blockAdmission: maybe}", "blockAdmission: \"maybe\": must be true or false")]
#[case::no_strategy(
    "fairSharing: {}",
    "fairSharing.preemptionStrategies: required, must be [LessThanOrEqualToFinalShare]"
)]
#[case::strategy(
    "fairSharing: {preemptionStrategies: [Less]}",
    "fairSharing.preemptionStrategies[0]: \"Less\": must be"
)]
#[case::order_of_strategies(
    "fairSharing: {preemptionStrategies: [LessThanInitialShare, LessThanOrEqualToFinalShare]}",
    "fairSharing.preemptionStrategies: [\"LessThanInitialShare\","
)]
#[case::prefixes_with_ignore_undeclared(
    "resources: {quotaCheckStrategy: IgnoreUndeclared, excludeResourcePrefixes: [a]}",
    "resources.quotaCheckStrategy: \"IgnoreUndeclared\": must be BlockUndeclared if"
)]
#[case::no_input(
    "resources: {transformations: [{strategy: Retain}]}",
    "transformations[0].input: required, must be a non-empty string"
)]
#[case::twice(
    "resources: {transformations: [{input: a}, {input: a}]}",
    "resources.transformations[1].input: \"a\": must be the input of at most one"
)]
#[case::quantity(
    "resources: {transformations: [{input: a, outputs: {b: many}}]}",
    "resources.transformations[0].outputs.b: \"many\": must be a non-negative quantity"
)]
fn invalid_field_is_rejected_with_its_value_and_the_allowed_ones(#[case] body: &str, #[case] expected: &str) {
    let error = read(body).expect_err("refused").to_string();
    assert!(error.contains(expected), "{error}");
}

#[rstest]
#[case::empty("", "apiVersion: required, must be config.kueue.x-k8s.io/v1beta2")]
#[case::older("apiVersion: config.kueue.x-k8s.io/v1beta1\nkind: Configuration", "v1beta1\": must be")]
#[case::other_kind("apiVersion: config.kueue.x-k8s.io/v1beta2\nkind: Workload", "kind: \"Workload\": must be")]
#[case::list("[1]", "apiVersion: required")]
#[case::no_yaml("a: [", "invalid YAML")]
#[case::twice("apiVersion: config.kueue.x-k8s.io/v1beta2\nkind: Configuration\nkind: Configuration", "duplicate")]
fn file_of_another_kind_or_version_is_rejected(#[case] text: &str, #[case] expected: &str) {
    let error = Configuration::from_yaml(text).expect_err("refused").to_string();
    assert!(error.contains(expected), "{error}");
}

#[test]
fn all_errors_are_reported_together() {
    let error = read("fairShare: {}\nwaitForPodsReady: {timeout: soon}").expect_err("refused");
    let ConfigError::InvalidFields(problems) = error else { panic!("{error}") };
    let fields: Vec<_> = problems.iter().map(|problem| problem.field.as_str()).collect();
    assert_eq!(fields, ["fairShare", "waitForPodsReady.timeout"]);
}

#[test]
fn file_of_the_deployment_is_fully_supported() {
    let text = include_str!("../../config/manager/sluice.yaml");

    let file = Configuration::from_yaml(text).expect("a valid file");

    assert_eq!(file.queue, Settings::default());
    assert!(file.leader_elect && file.unsupported_fields.is_empty(), "{file:?}");
}
