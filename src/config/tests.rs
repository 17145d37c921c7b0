//! What files are read as, and why others are refused.

use jiff::SignedDuration;
use rstest::rstest;

use super::*;
use sluice_jobframework::managed::{Framework, Frameworks};

const HEADER: &str = "apiVersion: config.kueue.x-k8s.io/v1beta2\nkind: Configuration\n";

fn read(body: &str) -> Result<Configuration, ConfigError> {
    Configuration::from_yaml(&format!("{HEADER}{body}"))
}

fn settings(body: &str) -> Settings {
    read(body).expect("a valid file").queue
}

#[test]
fn without_a_word_nothing_is_on_but_the_election() {
    let file = read("").expect("a valid file");

    assert_eq!(file, Configuration { leader_elect: true, ..Configuration::default() });
    assert_eq!(file.queue, Settings { fair_sharing: None, wait_for_pods_ready: None, ..Settings::default() });
}

#[test]
fn an_empty_section_is_what_kueue_does_by_default() {
    let expected = WaitForPodsReady {
        timeout: SignedDuration::from_mins(30),
        recovery_timeout: Some(SignedDuration::from_mins(30)),
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
#[case::nothing_in_it("waitForPodsReady:", false)]
#[case::empty("waitForPodsReady: {}", true)]
#[case::gate("waitForPodsReady: {}\nfeatureGates: {DisableWaitForPodsReady: true}", false)]
#[case::gate_off("waitForPodsReady: {}\nfeatureGates: {DisableWaitForPodsReady: false}", true)]
#[case::gate_alone("featureGates: {DisableWaitForPodsReady: false}", false)]
fn readiness_is_waited_for_when_the_section_is_written_and_the_gate_allows_it(#[case] body: &str, #[case] waits: bool) {
    assert_eq!(settings(body).wait_for_pods_ready.is_some(), waits);
}

#[rstest]
#[case::recovery_follows_the_timeout("{timeout: 5m}", 300, Some(300))]
#[case::recovery_of_its_own("{timeout: 5m, recoveryTimeout: 3m}", 300, Some(180))]
#[case::no_limit_on_recovery("{recoveryTimeout: 0s}", 1800, None)]
#[case::zero_is_unset("{timeout: 0s}", 1800, Some(1800))]
#[case::null_is_unset("{timeout: null}", 1800, Some(1800))]
fn timeouts_are_those_of_kueue(#[case] body: &str, #[case] timeout: i64, #[case] recovery: Option<i64>) {
    let rules = settings(&format!("waitForPodsReady: {body}")).wait_for_pods_ready.expect("on");

    assert_eq!(rules.timeout, SignedDuration::from_secs(timeout));
    assert_eq!(rules.recovery_timeout, recovery.map(SignedDuration::from_secs));
}

#[test]
fn all_of_requeuing_is_read() {
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
#[case("[LessThanInitialShare]", vec![PreemptionStrategy::LessThanInitialShare])]
#[case("[LessThanOrEqualToFinalShare, LessThanInitialShare]", FairSharing::default().strategies)]
fn fair_sharing_is_on_when_it_is_named(#[case] list: &str, #[case] strategies: Vec<PreemptionStrategy>) {
    let settings = settings(&format!("fairSharing: {{preemptionStrategies: {list}}}"));
    assert_eq!(settings.fair_sharing, Some(FairSharing { strategies }));
}

#[test]
fn rules_of_resources_are_read() {
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
    assert_eq!(resources.undeclared, Undeclared::Block);
    let [mig, cpu] = resources.transformations.as_slice() else { panic!("two rules: {resources:?}") };
    assert_eq!((mig.strategy, mig.multiply_by.as_deref()), (TransformationStrategy::Replace, Some("pods")));
    let outputs: Vec<_> = mig.outputs.iter().map(|(name, amount)| (name.as_str(), amount.0.as_str())).collect();
    assert_eq!(outputs, [("gpc", "4"), ("memory", "5Gi")]);
    assert_eq!((cpu.strategy, cpu.outputs.len()), (TransformationStrategy::Retain, 0));
}

#[test]
fn undeclared_resources_can_be_ignored() {
    assert_eq!(settings("resources: {quotaCheckStrategy: IgnoreUndeclared}").resources.undeclared, Undeclared::Ignore);
}

#[rstest]
#[case::nothing_said("", &["team", "gpus", "ours"])]
#[case::own_namespace("namespace: ours", &["team", "gpus"])]
#[case::by_label("managedJobsNamespaceSelector: {matchLabels: {gpu: 'yes'}}", &["gpus"])]
#[case::by_more_than_one(
    "managedJobsNamespaceSelector:
  matchExpressions:
  - {key: gpu, operator: DoesNotExist}
  - {key: kubernetes.io/metadata.name, operator: NotIn, values: [kube-system, ours]}",
    &["team", "sluice-system"]
)]
fn jobs_are_managed_in_the_namespaces_that_the_file_chooses(#[case] body: &str, #[case] expected: &[&str]) {
    let rules = read(body).expect("a valid file").jobs;
    let is_managed = |name: &&str| {
        let named = (NAMESPACE_NAME_LABEL.to_owned(), (*name).to_owned());
        let gpu = (*name == "gpus").then(|| ("gpu".to_owned(), "yes".to_owned()));
        rules.manage(name, Some(&[named].into_iter().chain(gpu).collect())) == Some(true)
    };
    let managed: Vec<&str> =
        ["team", "gpus", "ours", "kube-system", "sluice-system"].into_iter().filter(is_managed).collect();
    assert_eq!(managed, expected);
}

#[test]
fn jobs_that_name_no_queue_are_managed_only_if_the_file_says_so() {
    assert!(!read("").expect("a valid file").jobs.without_queue_name);
    assert!(read("manageJobsWithoutQueueName: true").expect("a valid file").jobs.without_queue_name);
}

#[rstest]
#[case::no_word("", &Framework::ALL)]
#[case::some("integrations: {frameworks: [ray.io/rayservice, pod]}", &[Framework::RayService])]
#[case::all(
    "integrations: {frameworks: [batch/job, ray.io/raycluster, ray.io/rayjob, ray.io/rayservice]}",
    &Framework::ALL
)]
#[case::none("integrations: {frameworks: []}", &[])]
fn kinds_of_jobs_are_managed_that_the_file_lists(#[case] body: &str, #[case] listed: &[Framework]) {
    let mut expected = Frameworks::none();
    listed.iter().for_each(|framework| expected.add(*framework));
    assert_eq!(read(body).expect("a valid file").jobs.frameworks, expected);
}

#[test]
fn what_is_known_and_not_acted_on_is_named() {
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

    let mut named = file.not_acted_on;
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
#[case::unknown("fairShare: {}", "fairShare: unknown field: allowed are apiVersion, kind,")]
#[case::unknown_below(
    "waitForPodsReady: {enable: true}",
    "waitForPodsReady.enable: unknown field: allowed are timeout,"
)]
#[case::unknown_in_a_list(
    "resources: {transformations: [{input: a}, {input: b, output: {}}]}",
    "resources.transformations[1].output: unknown field"
)]
#[case::unknown_in_what_is_not_acted_on("multiKueue: {gcIntervall: 1m}", "multiKueue.gcIntervall: unknown field")]
#[case::not_a_mapping("resources: 5", "resources: 5: allowed is a mapping")]
#[case::not_a_list("resources: {transformations: 5}", "resources.transformations: 5: allowed is a list")]
#[case::negative("waitForPodsReady: {timeout: -5m}", "waitForPodsReady.timeout: \"-5m\": allowed is a duration")]
#[case::no_unit("waitForPodsReady: {timeout: 5}", "waitForPodsReady.timeout: 5: allowed is a duration")]
#[case::selector_of_everything(
    "managedJobsNamespaceSelector: {}",
    "managedJobsNamespaceSelector: {}: allowed is a selector that does not select namespace \"kube-system\""
)]
#[case::selector_of_our_own_namespace(
    "namespace: ours\nmanagedJobsNamespaceSelector: {matchExpressions: [{key: kubernetes.io/metadata.name, operator: In, values: [ours]}]}",
    "allowed is a selector that does not select namespace \"ours\""
)]
#[case::unknown_framework(
    "integrations: {frameworks: [batch/jobs]}",
    "integrations.frameworks[0]: \"batch/jobs\": allowed is batch/job or ray.io/raycluster or ray.io/rayjob or ray.io/rayservice or"
)]
#[case::selector_with_a_slip(
    "managedJobsNamespaceSelector: {matchLabel: {}}",
    "managedJobsNamespaceSelector.matchLabel: unknown field"
)]
#[case::selector_without_an_operator(
    "managedJobsNamespaceSelector: {matchExpressions: [{key: a}]}",
    "managedJobsNamespaceSelector.matchExpressions[0].operator: missing: allowed is In or NotIn or Exists or DoesNotExist"
)]
#[case::selector_with_another_operator(
    "managedJobsNamespaceSelector: {matchExpressions: [{key: a, operator: Is, values: [b]}]}",
    "managedJobsNamespaceSelector.matchExpressions[0].operator: \"Is\": allowed is In or"
)]
#[case::selector_without_values(
    "managedJobsNamespaceSelector: {matchExpressions: [{key: a, operator: In}]}",
    "managedJobsNamespaceSelector.matchExpressions[0].values: missing: allowed is the values that"
)]
#[case::selector_with_values_of_nothing(
    "managedJobsNamespaceSelector: {matchExpressions: [{key: a, operator: Exists, values: [b]}]}",
    "managedJobsNamespaceSelector.matchExpressions[0].values: [\"b\"]: allowed is nothing beside"
)]
#[case::timestamp(
    "waitForPodsReady: {requeuingStrategy: {timestamp: Now}}",
    "waitForPodsReady.requeuingStrategy.timestamp: \"Now\": allowed is Eviction or Creation"
)]
#[case::negative_count(
    "waitForPodsReady: {requeuingStrategy: {backoffLimitCount: -1}}",
    "waitForPodsReady.requeuingStrategy.backoffLimitCount: -1: allowed is a whole number from 0 to 2147483647"
)]
#[case::too_large(
    "waitForPodsReady: {requeuingStrategy: {backoffBaseSeconds: 2147483648}}",
    "backoffBaseSeconds: 2147483648: allowed is a whole number from 0 to 2147483647"
)]
#[case::not_a_switch(
    "waitForPodsReady: {blockAdmission: maybe}",
    "blockAdmission: \"maybe\": allowed is true or false"
)]
#[case::no_strategy(
    "fairSharing: {}",
    "fairSharing.preemptionStrategies: missing: allowed is [LessThanOrEqualToFinalShare]"
)]
#[case::strategy(
    "fairSharing: {preemptionStrategies: [Less]}",
    "fairSharing.preemptionStrategies[0]: \"Less\": allowed is"
)]
#[case::order_of_strategies(
    "fairSharing: {preemptionStrategies: [LessThanInitialShare, LessThanOrEqualToFinalShare]}",
    "fairSharing.preemptionStrategies: [\"LessThanInitialShare\","
)]
#[case::prefixes_beside_ignore(
    "resources: {quotaCheckStrategy: IgnoreUndeclared, excludeResourcePrefixes: [a]}",
    "resources.quotaCheckStrategy: \"IgnoreUndeclared\": allowed is only BlockUndeclared beside"
)]
#[case::no_input(
    "resources: {transformations: [{strategy: Retain}]}",
    "transformations[0].input: missing: allowed is a text"
)]
#[case::twice(
    "resources: {transformations: [{input: a}, {input: a}]}",
    "resources.transformations[1].input: \"a\": allowed is at most one"
)]
#[case::quantity(
    "resources: {transformations: [{input: a, outputs: {b: many}}]}",
    "resources.transformations[0].outputs.b: \"many\": allowed is a quantity"
)]
fn a_bad_field_is_refused_with_its_value_and_what_is_allowed(#[case] body: &str, #[case] expected: &str) {
    let error = read(body).expect_err("refused").to_string();
    assert!(error.contains(expected), "{error}");
}

#[rstest]
#[case::empty("", "apiVersion: missing: allowed is config.kueue.x-k8s.io/v1beta2")]
#[case::older("apiVersion: config.kueue.x-k8s.io/v1beta1\nkind: Configuration", "v1beta1\": allowed is")]
#[case::other_kind("apiVersion: config.kueue.x-k8s.io/v1beta2\nkind: Workload", "kind: \"Workload\": allowed is")]
#[case::list("[1]", "apiVersion: missing")]
#[case::no_yaml("a: [", "it isn't YAML")]
#[case::twice("apiVersion: config.kueue.x-k8s.io/v1beta2\nkind: Configuration\nkind: Configuration", "duplicate")]
fn what_is_no_configuration_is_refused(#[case] text: &str, #[case] expected: &str) {
    let error = Configuration::from_yaml(text).expect_err("refused").to_string();
    assert!(error.contains(expected), "{error}");
}

#[test]
fn all_that_is_wrong_is_told_at_once() {
    let error = read("fairShare: {}\nwaitForPodsReady: {timeout: soon}").expect_err("refused");
    let ConfigError::Invalid(problems) = error else { panic!("{error}") };
    let fields: Vec<_> = problems.iter().map(|problem| problem.field.as_str()).collect();
    assert_eq!(fields, ["fairShare", "waitForPodsReady.timeout"]);
}

#[test]
fn the_file_that_the_deployment_mounts_is_acted_on_whole() {
    let text = include_str!("../../config/manager/sluice.yaml");

    let file = Configuration::from_yaml(text).expect("a valid file");

    assert_eq!(file.queue, Settings::default());
    assert!(file.leader_elect && file.not_acted_on.is_empty(), "{file:?}");
}
