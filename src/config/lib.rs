//! Configuration file: Kueue's `Configuration`. Fields that Sluice supports are applied, fields
//! that only Kueue supports are reported, unknown fields are rejected. Defaults are those of kueue
//! v0.19.2 `apis/config/v1beta2/defaults.go`, validation is that of its `pkg/config/validation.go`,
//! unless a comment says otherwise.

mod field_error;
mod field_reader;
mod frameworks;
mod schema;
#[cfg(test)]
mod tests;

use std::cell::RefCell;
use std::collections::BTreeMap;

use jiff::SignedDuration;
use thiserror::Error;

pub use field_error::{FieldError, FieldErrorKind};
use field_reader::FieldReader;

use sluice_jobframework::managed::{ManagedJobsPolicy, NAMESPACE_NAME_LABEL, SYSTEM_NAMESPACES, all_namespaces_except};
use sluice_jobframework::retention::RetentionPolicy;
use sluice_queue::Settings;
use sluice_queue::settings::{
    FairSharing, PreemptionStrategy, Requeuing, RequeuingTimestamp, ResourceRules, Transformation,
    TransformationStrategy, UndeclaredResourcePolicy, WaitForPodsReady,
};

const API_VERSION: &str = "config.kueue.x-k8s.io/v1beta2";
const KIND: &str = "Configuration";

/// Parsed configuration file with Kueue's defaults. [`Configuration::default`] applies without a
/// file.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Configuration {
    /// Settings of the scheduler.
    pub queue: Settings,
    /// Selection of the jobs to manage.
    pub managed_jobs: ManagedJobsPolicy,
    /// Times after which finished Workloads and deactivated jobs are deleted.
    pub retention: RetentionPolicy,
    /// Address of the metrics endpoint, as `[HOST]:PORT`, or `0` to disable it. None if the file
    /// does not set it.
    pub metrics_bind_address: Option<String>,
    /// Address of the health endpoint, as `[HOST]:PORT`, or `0` to disable it. None if the file
    /// does not set it.
    pub health_probe_bind_address: Option<String>,
    /// Address of the webhook, as `[HOST]:PORT`, or `0` to disable it. None if the file does not
    /// set it.
    pub webhook_bind_address: Option<String>,
    /// Enables leader election. A file that does not set it enables it: Kueue's file with two
    /// replicas must not result in two active managers.
    pub leader_elect: bool,
    /// Namespace of the leader lease. None if the file does not set it.
    pub leader_election_namespace: Option<String>,
    /// Paths of fields that are set, but that Sluice does not support.
    pub unsupported_fields: Vec<String>,
}

/// Reason why a configuration file is rejected.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum ConfigError {
    /// The file is not YAML.
    #[error("invalid YAML: {0}")]
    InvalidYaml(String),
    /// One or more fields are unknown or have an invalid value.
    #[error("{}", .0.iter().map(ToString::to_string).collect::<Vec<_>>().join("; "))]
    InvalidFields(Vec<FieldError>),
}

impl Configuration {
    /// Parses a configuration file.
    ///
    /// # Errors
    /// Returns an error if the file is not YAML, or one that names every field that is unknown or
    /// has an invalid value.
    pub fn from_yaml(text: &str) -> Result<Self, ConfigError> {
        let file = serde_saphyr::from_str(text).map_err(|error| ConfigError::InvalidYaml(error.to_string()))?;
        let problems = RefCell::new(Vec::new());
        let root = FieldReader::new(&file, &problems);
        validate_type_meta(&root);
        if !problems.borrow().is_empty() {
            // A file of another version or kind has other fields, so they are not validated.
            return Err(ConfigError::InvalidFields(problems.into_inner()));
        }
        let mut not_acted_on = schema::validate(&file, &mut problems.borrow_mut());
        let election = root.field("leaderElection");
        let configuration = Self {
            queue: scheduler_settings(&root),
            managed_jobs: managed_jobs(&root, &mut not_acted_on),
            retention: retention(&root.field("objectRetentionPolicies").field("workloads")),
            metrics_bind_address: root.field("metrics").field("bindAddress").string(),
            health_probe_bind_address: root.field("health").field("healthProbeBindAddress").string(),
            webhook_bind_address: webhook_bind_address(&root),
            leader_elect: election.field("leaderElect").bool().unwrap_or(true),
            leader_election_namespace: election.field("resourceNamespace").string(),
            unsupported_fields: not_acted_on,
        };
        match problems.into_inner() {
            problems if problems.is_empty() => Ok(configuration),
            problems => Err(ConfigError::InvalidFields(problems)),
        }
    }
}

fn validate_type_meta(root: &FieldReader<'_>) {
    for (name, expected) in [("apiVersion", API_VERSION), ("kind", KIND)] {
        let field = root.field(name);
        // `choice` accepts an absent field, but these two are required.
        if !field.is_set() {
            field.reject(expected);
        } else {
            field.choice(&[(expected, ())]);
        }
    }
}

/// Returns the webhook address. Sluice serves with its own certificates only, never with those of
/// `webhook.certDir`, which Kueue uses with `internalCertManagement.enable: false`. The webhook is
/// disabled then.
fn webhook_bind_address(root: &FieldReader<'_>) -> Option<String> {
    if root.field("internalCertManagement").field("enable").bool() == Some(false) {
        return Some("0".to_owned());
    }
    let section = root.field("webhook");
    let (host, port) = (section.field("host").string(), section.field("port").port());
    if host.is_none() && port.is_none() {
        return None;
    }
    let host = host.unwrap_or_default();
    let host = if host.contains(':') { format!("[{host}]") } else { host };
    Some(format!("{host}:{}", port.unwrap_or(9443)))
}

fn scheduler_settings(root: &FieldReader<'_>) -> Settings {
    Settings {
        fair_sharing: fair_sharing(&root.field("fairSharing")),
        wait_for_pods_ready: gated_wait_for_pods_ready(root),
        resources: resource_rules(&root.field("resources")),
    }
}

/// Returns the selection of jobs to manage. It must exclude kube-system and Sluice's namespace.
fn managed_jobs(root: &FieldReader<'_>, not_acted_on: &mut Vec<String>) -> ManagedJobsPolicy {
    let own = root.field("namespace").string();
    let selector = root.field("managedJobsNamespaceSelector");
    let by_default = || all_namespaces_except(SYSTEM_NAMESPACES.into_iter().chain(own.as_deref()));
    let namespaces = selector.label_selector().unwrap_or_else(by_default);
    let without_queue_name = root.field("manageJobsWithoutQueueName").bool().unwrap_or(false);
    let frameworks = frameworks::managed_frameworks(&root.field("integrations").field("frameworks"), not_acted_on);
    let rules = ManagedJobsPolicy { frameworks, manage_jobs_without_queue_name: without_queue_name, namespaces };
    for namespace in ["kube-system"].into_iter().chain(own.as_deref()) {
        let labels = BTreeMap::from([(NAMESPACE_NAME_LABEL.to_owned(), namespace.to_owned())]);
        if rules.manages_namespace(namespace, Some(&labels)) == Some(true) {
            selector.reject(format!("a selector that does not select namespace {namespace:?}"));
        }
    }
    rules
}

fn fair_sharing(reader: &FieldReader<'_>) -> Option<FairSharing> {
    use PreemptionStrategy::{LessThanInitialShare, LessThanOrEqualToFinalShare};
    const CHOICES: &[(&str, PreemptionStrategy)] =
        &[("LessThanOrEqualToFinalShare", LessThanOrEqualToFinalShare), ("LessThanInitialShare", LessThanInitialShare)];
    if !reader.is_set() {
        return None;
    }
    let field = reader.field("preemptionStrategies");
    let items = field.items();
    let strategies: Vec<_> = items.iter().filter_map(|item| item.choice(CHOICES)).collect();
    let allowed: &[&[PreemptionStrategy]] = &[
        &[LessThanOrEqualToFinalShare],
        &[LessThanInitialShare],
        &[LessThanOrEqualToFinalShare, LessThanInitialShare],
    ];
    if strategies.len() == items.len() && !allowed.contains(&strategies.as_slice()) {
        field.reject(
            "[LessThanOrEqualToFinalShare], [LessThanInitialShare] or [LessThanOrEqualToFinalShare, LessThanInitialShare]",
        );
    }
    Some(FairSharing { strategies })
}

fn retention(reader: &FieldReader<'_>) -> RetentionPolicy {
    RetentionPolicy {
        after_finished: reader.field("afterFinished").duration(),
        after_deactivated_by_kueue: reader.field("afterDeactivatedByKueue").duration(),
    }
}

/// Returns the section `waitForPodsReady` as far as the feature gates enable it. It is validated as a whole
/// all the same.
fn gated_wait_for_pods_ready(root: &FieldReader<'_>) -> Option<WaitForPodsReady> {
    let gate = |name: &str| root.field("featureGates").field(name).bool();
    let is_disabled = gate("DisableWaitForPodsReady").unwrap_or(false);
    // Kueue 0.20 ignores the field without the gate; here the field itself asks for it.
    let limits_scheduling = gate("WaitForPodsReadyUnscheduledTimeout").unwrap_or(true);
    let mut rules = wait_for_pods_ready(&root.field("waitForPodsReady")).filter(|_| !is_disabled)?;
    rules.unscheduled_timeout = rules.unscheduled_timeout.filter(|_| limits_scheduling);
    Some(rules)
}

/// Unlike in Kueue 0.19, disabled if the section is absent: an upgrade whose pods start slowly
/// could otherwise evict the active cluster, although the user did not ask for it.
fn wait_for_pods_ready(reader: &FieldReader<'_>) -> Option<WaitForPodsReady> {
    if !reader.is_set() {
        return None;
    }
    let set = reader.field("timeout").duration().filter(|timeout| !timeout.is_zero());
    let timeout = set.unwrap_or(SignedDuration::from_mins(30));
    let recovery = reader.field("recoveryTimeout").duration().unwrap_or(timeout);
    Some(WaitForPodsReady {
        timeout,
        recovery_timeout: (!recovery.is_zero()).then_some(recovery),
        unscheduled_timeout: reader.field("unscheduledTimeout").duration().filter(|timeout| !timeout.is_zero()),
        block_admission: reader.field("blockAdmission").bool().unwrap_or(false),
        requeuing: requeuing(&reader.field("requeuingStrategy")),
    })
}

fn requeuing(reader: &FieldReader<'_>) -> Requeuing {
    const TIMESTAMPS: &[(&str, RequeuingTimestamp)] =
        &[("Eviction", RequeuingTimestamp::Eviction), ("Creation", RequeuingTimestamp::Creation)];
    let default = Requeuing::default();
    Requeuing {
        timestamp: reader.field("timestamp").choice(TIMESTAMPS).unwrap_or(default.timestamp),
        backoff_limit_count: reader.field("backoffLimitCount").count(),
        backoff_base_seconds: reader.field("backoffBaseSeconds").count().unwrap_or(default.backoff_base_seconds),
        backoff_max_seconds: reader.field("backoffMaxSeconds").count().unwrap_or(default.backoff_max_seconds),
    }
}

fn resource_rules(reader: &FieldReader<'_>) -> ResourceRules {
    const STRATEGIES: &[(&str, UndeclaredResourcePolicy)] =
        &[("BlockUndeclared", UndeclaredResourcePolicy::Block), ("IgnoreUndeclared", UndeclaredResourcePolicy::Ignore)];
    let strategy = reader.field("quotaCheckStrategy");
    let undeclared = strategy.choice(STRATEGIES).unwrap_or_default();
    let prefixes = reader.field("excludeResourcePrefixes").items();
    if undeclared == UndeclaredResourcePolicy::Ignore && !prefixes.is_empty() {
        strategy.reject("BlockUndeclared if excludeResourcePrefixes is set");
    }
    ResourceRules {
        exclude_prefixes: prefixes.iter().filter_map(FieldReader::required_string).collect(),
        transformations: transformations(&reader.field("transformations")),
        undeclared,
    }
}

fn transformations(reader: &FieldReader<'_>) -> Vec<Transformation> {
    const STRATEGIES: &[(&str, TransformationStrategy)] =
        &[("Retain", TransformationStrategy::Retain), ("Replace", TransformationStrategy::Replace)];
    let mut rules: Vec<Transformation> = Vec::new();
    for item in reader.items() {
        let field = item.field("input");
        let Some(input) = field.required_string() else { continue };
        if rules.iter().any(|rule| rule.input == input) {
            field.reject("the input of at most one transformation");
        }
        rules.push(Transformation {
            input,
            strategy: item.field("strategy").choice(STRATEGIES).unwrap_or_default(),
            multiply_by: item.field("multiplyBy").string(),
            outputs: item.field("outputs").resource_list(),
        });
    }
    rules
}
