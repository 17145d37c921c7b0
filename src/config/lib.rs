//! Configuration file: Kueue's `Configuration`. Fields that Sluice supports are applied, fields
//! that only Kueue supports are reported, unknown fields are rejected. Defaults are those of kueue
//! v0.19.2 `apis/config/v1beta2/defaults.go`, validation is that of its `pkg/config/validation.go`,
//! unless a comment says otherwise.

mod frameworks;
mod problem;
mod reader;
mod schema;
#[cfg(test)]
mod tests;

use std::cell::RefCell;
use std::collections::BTreeMap;

use jiff::SignedDuration;
use thiserror::Error;

pub use problem::{Problem, Wrong};
use reader::Reader;

use sluice_jobframework::managed::{NAMESPACE_NAME_LABEL, OWN_NAMESPACES, Rules, all_but};
use sluice_queue::Settings;
use sluice_queue::settings::{
    FairSharing, PreemptionStrategy, Requeuing, RequeuingTimestamp, ResourceRules, Transformation,
    TransformationStrategy, Undeclared, WaitForPodsReady,
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
    pub jobs: Rules,
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
    pub not_acted_on: Vec<String>,
}

/// Reason why a configuration file is rejected.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum ConfigError {
    /// The file is not YAML.
    #[error("invalid YAML: {0}")]
    NotYaml(String),
    /// One or more fields are unknown or have an invalid value.
    #[error("{}", .0.iter().map(ToString::to_string).collect::<Vec<_>>().join("; "))]
    Invalid(Vec<Problem>),
}

impl Configuration {
    /// Parses a configuration file.
    ///
    /// # Errors
    /// Returns an error if the file is not YAML, or one that names every field that is unknown or
    /// has an invalid value.
    pub fn from_yaml(text: &str) -> Result<Self, ConfigError> {
        let file = serde_saphyr::from_str(text).map_err(|error| ConfigError::NotYaml(error.to_string()))?;
        let problems = RefCell::new(Vec::new());
        let root = Reader::new(&file, &problems);
        header(&root);
        if !problems.borrow().is_empty() {
            // A file of another version or kind has other fields, so they are not validated.
            return Err(ConfigError::Invalid(problems.into_inner()));
        }
        let mut not_acted_on = schema::check(&file, &mut problems.borrow_mut());
        let election = root.at("leaderElection");
        let configuration = Self {
            queue: queue(&root),
            jobs: jobs(&root, &mut not_acted_on),
            metrics_bind_address: root.at("metrics").at("bindAddress").text(),
            health_probe_bind_address: root.at("health").at("healthProbeBindAddress").text(),
            webhook_bind_address: webhook(&root),
            leader_elect: election.at("leaderElect").bool().unwrap_or(true),
            leader_election_namespace: election.at("resourceNamespace").text(),
            not_acted_on,
        };
        match problems.into_inner() {
            problems if problems.is_empty() => Ok(configuration),
            problems => Err(ConfigError::Invalid(problems)),
        }
    }
}

fn header(root: &Reader<'_>) {
    for (name, expected) in [("apiVersion", API_VERSION), ("kind", KIND)] {
        let field = root.at(name);
        // `choice` accepts an absent field, but these two are required.
        if !field.is_set() {
            field.refuse(expected);
        } else {
            field.choice(&[(expected, ())]);
        }
    }
}

/// Returns the webhook address. Sluice serves with its own certificates only, never with those of
/// `webhook.certDir`, which Kueue uses with `internalCertManagement.enable: false`. The webhook is
/// disabled then.
fn webhook(root: &Reader<'_>) -> Option<String> {
    if root.at("internalCertManagement").at("enable").bool() == Some(false) {
        return Some("0".to_owned());
    }
    let section = root.at("webhook");
    let (host, port) = (section.at("host").text(), section.at("port").port());
    if host.is_none() && port.is_none() {
        return None;
    }
    let host = host.unwrap_or_default();
    let host = if host.contains(':') { format!("[{host}]") } else { host };
    Some(format!("{host}:{}", port.unwrap_or(9443)))
}

fn queue(root: &Reader<'_>) -> Settings {
    let disabled = root.at("featureGates").at("DisableWaitForPodsReady").bool().unwrap_or(false);
    // The section is validated even if the feature gate disables it.
    let section = wait_for_pods_ready(&root.at("waitForPodsReady"));
    Settings {
        fair_sharing: fair_sharing(&root.at("fairSharing")),
        wait_for_pods_ready: if disabled { None } else { section },
        resources: resources(&root.at("resources")),
    }
}

/// Returns the selection of jobs to manage. It must exclude kube-system and Sluice's namespace.
fn jobs(root: &Reader<'_>, not_acted_on: &mut Vec<String>) -> Rules {
    let own = root.at("namespace").text();
    let selector = root.at("managedJobsNamespaceSelector");
    let namespaces = if selector.is_set() {
        selector.label_selector()
    } else {
        all_but(OWN_NAMESPACES.into_iter().chain(own.as_deref()))
    };
    let without_queue_name = root.at("manageJobsWithoutQueueName").bool().unwrap_or(false);
    let frameworks = frameworks::frameworks(&root.at("integrations").at("frameworks"), not_acted_on);
    let rules = Rules { frameworks, without_queue_name, namespaces };
    for namespace in ["kube-system"].into_iter().chain(own.as_deref()) {
        let labels = BTreeMap::from([(NAMESPACE_NAME_LABEL.to_owned(), namespace.to_owned())]);
        if rules.manage(namespace, Some(&labels)) == Some(true) {
            selector.refuse(format!("a selector that does not select namespace {namespace:?}"));
        }
    }
    rules
}

fn fair_sharing(reader: &Reader<'_>) -> Option<FairSharing> {
    use PreemptionStrategy::{LessThanInitialShare, LessThanOrEqualToFinalShare};
    const CHOICES: &[(&str, PreemptionStrategy)] =
        &[("LessThanOrEqualToFinalShare", LessThanOrEqualToFinalShare), ("LessThanInitialShare", LessThanInitialShare)];
    if !reader.is_set() {
        return None;
    }
    let field = reader.at("preemptionStrategies");
    let items = field.items();
    let strategies: Vec<_> = items.iter().filter_map(|item| item.choice(CHOICES)).collect();
    let allowed: &[&[PreemptionStrategy]] = &[
        &[LessThanOrEqualToFinalShare],
        &[LessThanInitialShare],
        &[LessThanOrEqualToFinalShare, LessThanInitialShare],
    ];
    if strategies.len() == items.len() && !allowed.contains(&strategies.as_slice()) {
        field.refuse(
            "[LessThanOrEqualToFinalShare], [LessThanInitialShare] or [LessThanOrEqualToFinalShare, LessThanInitialShare]",
        );
    }
    Some(FairSharing { strategies })
}

/// Unlike in Kueue 0.19, disabled if the section is absent: an upgrade whose pods start slowly
/// could otherwise evict the active cluster, although the user did not ask for it.
fn wait_for_pods_ready(reader: &Reader<'_>) -> Option<WaitForPodsReady> {
    if !reader.is_set() {
        return None;
    }
    let set = reader.at("timeout").duration().filter(|timeout| !timeout.is_zero());
    let timeout = set.unwrap_or(SignedDuration::from_mins(30));
    let recovery = reader.at("recoveryTimeout").duration().unwrap_or(timeout);
    Some(WaitForPodsReady {
        timeout,
        recovery_timeout: (!recovery.is_zero()).then_some(recovery),
        block_admission: reader.at("blockAdmission").bool().unwrap_or(false),
        requeuing: requeuing(&reader.at("requeuingStrategy")),
    })
}

fn requeuing(reader: &Reader<'_>) -> Requeuing {
    const TIMESTAMPS: &[(&str, RequeuingTimestamp)] =
        &[("Eviction", RequeuingTimestamp::Eviction), ("Creation", RequeuingTimestamp::Creation)];
    let default = Requeuing::default();
    Requeuing {
        timestamp: reader.at("timestamp").choice(TIMESTAMPS).unwrap_or(default.timestamp),
        backoff_limit_count: reader.at("backoffLimitCount").count(),
        backoff_base_seconds: reader.at("backoffBaseSeconds").count().unwrap_or(default.backoff_base_seconds),
        backoff_max_seconds: reader.at("backoffMaxSeconds").count().unwrap_or(default.backoff_max_seconds),
    }
}

fn resources(reader: &Reader<'_>) -> ResourceRules {
    const STRATEGIES: &[(&str, Undeclared)] =
        &[("BlockUndeclared", Undeclared::Block), ("IgnoreUndeclared", Undeclared::Ignore)];
    let strategy = reader.at("quotaCheckStrategy");
    let undeclared = strategy.choice(STRATEGIES).unwrap_or_default();
    let prefixes = reader.at("excludeResourcePrefixes").items();
    if undeclared == Undeclared::Ignore && !prefixes.is_empty() {
        strategy.refuse("BlockUndeclared if excludeResourcePrefixes is set");
    }
    ResourceRules {
        exclude_prefixes: prefixes.iter().filter_map(Reader::required_text).collect(),
        transformations: transformations(&reader.at("transformations")),
        undeclared,
    }
}

fn transformations(reader: &Reader<'_>) -> Vec<Transformation> {
    const STRATEGIES: &[(&str, TransformationStrategy)] =
        &[("Retain", TransformationStrategy::Retain), ("Replace", TransformationStrategy::Replace)];
    let mut rules: Vec<Transformation> = Vec::new();
    for item in reader.items() {
        let field = item.at("input");
        let Some(input) = field.required_text() else { continue };
        if rules.iter().any(|rule| rule.input == input) {
            field.refuse("the input of at most one transformation");
        }
        rules.push(Transformation {
            input,
            strategy: item.at("strategy").choice(STRATEGIES).unwrap_or_default(),
            multiply_by: item.at("multiplyBy").text(),
            outputs: item.at("outputs").resource_list(),
        });
    }
    rules
}
