//! Options of `sluice manager`: flags, which take precedence over the configuration file.

use std::io::IsTerminal;
use std::net::{Ipv4Addr, SocketAddr, ToSocketAddrs as _};
use std::path::{Path, PathBuf};

use clap::{Args, ValueEnum};
use thiserror::Error;

use sluice_config::{ConfigError, Configuration};
use sluice_engine::OperatorConfig;
use sluice_manager::ManagerConfig;

/// Flags of `sluice manager`.
#[derive(Debug, Clone, Default, Args)]
pub struct ManagerOptions {
    /// Read a Configuration (config.kueue.x-k8s.io/v1beta2, as in Kueue) from this YAML file; flags
    /// take precedence
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,

    /// Run the queue manager: quota, Workloads and the suspension of jobs [default: true]
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    pub queue_manager: Option<bool>,

    /// Run the operator for RayClusters and RayServices [default: true]
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    pub ray_operator: Option<bool>,

    /// Upgrade a RayService without spec.upgradeStrategy.type by creating a new cluster [default:
    /// true, unless the environment variable ENABLE_ZERO_DOWNTIME is false]
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    pub enable_zero_downtime: Option<bool>,

    /// Delete surplus workers even if the Ray autoscaler is enabled, which otherwise selects them
    /// [default: false, unless the environment variable ENABLE_RANDOM_POD_DELETE is true]
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    pub enable_random_pod_delete: Option<bool>,

    /// Serve /metrics at this address, \[HOST\]:PORT; 0 disables it [default: :8080]
    #[arg(long, value_name = "ADDRESS")]
    pub metrics_bind_address: Option<String>,

    /// Serve /healthz and /readyz at this address, \[HOST\]:PORT; 0 disables them [default: :8081]
    #[arg(long, value_name = "ADDRESS")]
    pub health_probe_bind_address: Option<String>,

    /// Serve the mutating webhook, which suspends new queued objects, at this address, \[HOST\]:PORT;
    /// 0 or --queue-manager=false disables it [default: :9443]
    #[arg(long, value_name = "ADDRESS")]
    pub webhook_bind_address: Option<String>,

    /// Enable leader election with the Lease sluice-leader, so that several replicas can run
    /// [default: false; true with a configuration file]
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    pub leader_elect: Option<bool>,

    /// Set the namespace of the leader Lease [default: the namespace that the process runs in]
    #[arg(long, value_name = "NAMESPACE")]
    pub leader_election_namespace: Option<String>,

    /// Watch only these namespaces, separated by commas [default: all]
    #[arg(long, value_name = "NAMESPACES", value_delimiter = ',')]
    pub watch_namespace: Option<Vec<String>>,

    /// Connect to the Ray dashboard through the service proxy of the API server, for a manager
    /// outside the cluster [default: false]
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    pub use_kubernetes_proxy: Option<bool>,

    /// Append every scheduling decision and its inputs to this file, for `sluice replay` [default:
    /// none]
    #[arg(long, value_name = "FILE")]
    pub decision_log: Option<PathBuf>,

    /// Set the log format [default: text on a terminal, else json]
    #[arg(long, value_name = "FORMAT")]
    pub log_format: Option<LogFormat>,

    /// Set the log level, or a filter such as `info,sluice=debug` [default: info]
    #[arg(long, value_name = "FILTER")]
    pub log_level: Option<String>,
}

/// Log format.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum LogFormat {
    /// Log lines of text
    Text,
    /// Log one JSON object per line
    Json,
}

/// [`ManagerOptions`] merged with the configuration file and the defaults.
#[derive(Debug, Clone, PartialEq)]
pub struct ResolvedOptions {
    /// Configuration of the manager.
    pub manager: ManagerConfig,
    /// Format of the log.
    pub log_format: LogFormat,
    /// Log level or filter.
    pub log_level: String,
    /// Paths of the fields that the configuration file sets and Sluice ignores.
    pub unsupported_fields: Vec<String>,
}

/// Error of resolving the options.
#[derive(Debug, Error)]
pub enum OptionsError {
    /// The file can't be read.
    #[error("reading the configuration file {path}: {source}")]
    Read {
        /// Path of the file.
        path: PathBuf,
        /// Cause.
        source: std::io::Error,
    },
    /// The file is invalid.
    #[error("the configuration file {path}: {source}")]
    Configuration {
        /// Path of the file.
        path: PathBuf,
        /// Invalid fields.
        source: ConfigError,
    },
    /// A value can't be parsed or resolved as an address.
    #[error("{option}: {value:?} is not an address: expected HOST:PORT, :PORT, or 0 to disable it")]
    Address {
        /// Name of the flag or field.
        option: &'static str,
        /// Its value.
        value: String,
    },
    /// Both the queue manager and the Ray operator are disabled.
    #[error("--queue-manager and --ray-operator are both false: nothing to run")]
    NothingToRun,
}

impl ManagerOptions {
    /// Reads the configuration file, if one is given, and applies the defaults.
    ///
    /// # Errors
    /// If the file can't be read, or a field is unknown or has an invalid value.
    pub fn resolve(self) -> Result<ResolvedOptions, OptionsError> {
        let file = self.config.as_deref().map(read_configuration).transpose()?.unwrap_or_default();
        let format = if std::io::stderr().is_terminal() { LogFormat::Text } else { LogFormat::Json };
        let namespaces = self.watch_namespace.unwrap_or_default();
        let manager = ManagerConfig {
            queue_manager: self.queue_manager.unwrap_or(true),
            ray_operator: self.ray_operator.unwrap_or(true),
            metrics_address: bind_address(
                [
                    ("--metrics-bind-address", self.metrics_bind_address),
                    ("metrics.bindAddress", file.metrics_bind_address),
                ],
                8080,
            )?,
            health_address: bind_address(
                [
                    ("--health-probe-bind-address", self.health_probe_bind_address),
                    ("health.healthProbeBindAddress", file.health_probe_bind_address),
                ],
                8081,
            )?,
            webhook_address: bind_address(
                [("--webhook-bind-address", self.webhook_bind_address), ("webhook", file.webhook_bind_address)],
                9443,
            )?
            .filter(|_| self.queue_manager.unwrap_or(true)),
            leader_elect: self.leader_elect.unwrap_or(file.leader_elect),
            leader_election_namespace: self.leader_election_namespace.or(file.leader_election_namespace),
            namespaces: namespaces.into_iter().filter(|namespace| !namespace.is_empty()).collect(),
            use_kubernetes_proxy: self.use_kubernetes_proxy.unwrap_or(false),
            decision_log: self.decision_log,
            scheduler: file.queue,
            managed_jobs: file.managed_jobs,
            retention: file.retention,
            operator_config: operator_config(self.enable_zero_downtime, self.enable_random_pod_delete, |name| {
                std::env::var(name).ok()
            }),
        };
        if !manager.queue_manager && !manager.ray_operator {
            return Err(OptionsError::NothingToRun);
        }
        Ok(ResolvedOptions {
            manager,
            log_format: self.log_format.unwrap_or(format),
            log_level: self.log_level.unwrap_or_else(|| "info".into()),
            unsupported_fields: file.unsupported_fields,
        })
    }
}

/// Returns the operator defaults. A flag takes precedence over KubeRay's environment variable, of
/// which every value but the listed one is ignored (KubeRay 1.7
/// `ray-operator/controllers/ray/rayservice_controller.go`, `isZeroDowntimeUpgradeEnabled`, and
/// `raycluster_controller.go`).
fn operator_config(
    upgrades: Option<bool>,
    trims: Option<bool>,
    variable: impl Fn(&str) -> Option<String>,
) -> OperatorConfig {
    let equals = |name: &str, word: &str| variable(name).is_some_and(|value| value.eq_ignore_ascii_case(word));
    OperatorConfig {
        default_zero_downtime: upgrades.unwrap_or_else(|| !equals("ENABLE_ZERO_DOWNTIME", "false")),
        random_pod_delete: trims.unwrap_or_else(|| equals("ENABLE_RANDOM_POD_DELETE", "true")),
    }
}

/// Reads the configuration file.
///
/// # Errors
/// If it can't be read or is invalid.
pub(super) fn read_configuration(path: &Path) -> Result<Configuration, OptionsError> {
    let text = std::fs::read_to_string(path).map_err(|source| OptionsError::Read { path: path.into(), source })?;
    Configuration::from_yaml(&text).map_err(|source| OptionsError::Configuration { path: path.into(), source })
}

/// Resolves the first value that is set; None if it is `0`. `:8080` binds every interface, as in
/// controller-runtime's flags. A host that resolves to several addresses gets an IPv4 one if there
/// is one, as in Go.
fn bind_address(
    given: [(&'static str, Option<String>); 2],
    default_port: u16,
) -> Result<Option<SocketAddr>, OptionsError> {
    let any_interface = |port: u16| SocketAddr::from((Ipv4Addr::UNSPECIFIED, port));
    let given = given.into_iter().find_map(|(option, value)| Some((option, value?)));
    let Some((option, value)) = given else { return Ok(Some(any_interface(default_port))) };
    let found = match value.strip_prefix(':') {
        _ if value == "0" => return Ok(None),
        Some(port) => port.parse().map(any_interface).ok(),
        None => value.to_socket_addrs().ok().and_then(|found| found.min_by_key(SocketAddr::is_ipv6)),
    };
    found.map(Some).ok_or(OptionsError::Address { option, value })
}

#[cfg(test)]
mod tests {
    use clap::Parser;
    use rstest::rstest;

    use super::*;
    use sluice_queue as queue;

    #[derive(Parser)]
    struct TestCommandLine {
        #[command(flatten)]
        options: ManagerOptions,
    }

    fn parse_flags(flags: &[&str]) -> ManagerOptions {
        TestCommandLine::try_parse_from([&["sluice"], flags].concat()).expect("flags that parse").options
    }

    fn resolve_with_file(body: &str, flags: &[&str]) -> Result<ManagerConfig, OptionsError> {
        let file = std::env::temp_dir().join(format!(
            "sluice-options-{}-{:?}",
            std::process::id(),
            std::thread::current().id()
        ));
        let text = format!("apiVersion: config.kueue.x-k8s.io/v1beta2\nkind: Configuration\n{body}");
        std::fs::write(&file, text).expect("a temporary file");
        let settings = ManagerOptions { config: Some(file.clone()), ..parse_flags(flags) }
            .resolve()
            .map(|resolved| resolved.manager);
        std::fs::remove_file(file).expect("the temporary file");
        settings
    }

    #[test]
    fn flag_takes_precedence_over_file_and_file_over_default() {
        let file =
            "metrics: {bindAddress: ':9'}\nhealth: {healthProbeBindAddress: ':10'}\nwaitForPodsReady: {timeout: 5m}\n";
        let settings = resolve_with_file(file, &["--metrics-bind-address=0", "--ray-operator=false"]).expect("valid");

        assert!(settings.queue_manager && !settings.ray_operator);
        assert_eq!(settings.metrics_address, None);
        assert_eq!(settings.health_address, Some(([0, 0, 0, 0], 10).into()));
        let timeout = settings.scheduler.wait_for_pods_ready.map(|rules| rules.timeout);
        assert_eq!(timeout, Some(jiff::SignedDuration::from_mins(5)));
    }

    #[rstest]
    #[case::disabled("0", None)]
    #[case::any_interface(":9", Some("0.0.0.0:9"))]
    #[case::address("[::1]:9", Some("[::1]:9"))]
    #[case::host("localhost:9", Some("127.0.0.1:9"))]
    fn bind_address_is_parsed_as_in_go(#[case] value: &str, #[case] expected: Option<&str>) {
        let settings = parse_flags(&["--metrics-bind-address", value]).resolve().expect("valid").manager;
        assert_eq!(settings.metrics_address.map(|address| address.to_string()).as_deref(), expected);
    }

    #[test]
    fn without_a_file_every_option_has_its_default_and_leader_election_is_off() {
        let settings = parse_flags(&[]).resolve().expect("valid").manager;
        assert_eq!(settings.scheduler, queue::Settings::default());
        assert_eq!(settings.metrics_address, Some(([0, 0, 0, 0], 8080).into()));
        assert_eq!(settings.health_address, Some(([0, 0, 0, 0], 8081).into()));
        assert!(!settings.leader_elect);
    }

    #[rstest]
    #[case::unset("", &[], Some("0.0.0.0:9443"))]
    #[case::port("webhook: {port: 10}", &[], Some("0.0.0.0:10"))]
    #[case::host("webhook: {host: 127.0.0.1}", &[], Some("127.0.0.1:9443"))]
    #[case::both("webhook: {host: '::1', port: 10}", &[], Some("[::1]:10"))]
    #[case::flag("webhook: {port: 10}", &["--webhook-bind-address=:11"], Some("0.0.0.0:11"))]
    #[case::flag_off("webhook: {port: 10}", &["--webhook-bind-address=0"], None)]
    #[case::internal_certificates_disabled("internalCertManagement: {enable: false}", &[], None)]
    #[case::internal_certificates_enabled("internalCertManagement: {enable: true}", &[], Some("0.0.0.0:9443"))]
    #[case::no_queue_manager("", &["--queue-manager=false"], None)]
    fn webhook_address_comes_from_flag_or_file(
        #[case] file: &str,
        #[case] flags: &[&str],
        #[case] expected: Option<&str>,
    ) {
        let settings = resolve_with_file(file, flags).expect("valid");
        assert_eq!(settings.webhook_address.map(|address| address.to_string()).as_deref(), expected);
    }

    #[rstest]
    #[case::file_without_the_field("", &[], true)]
    #[case::file("leaderElection: {leaderElect: false}", &[], false)]
    #[case::flag("leaderElection: {leaderElect: false}", &["--leader-elect"], true)]
    fn leader_election_is_on_with_a_file_unless_disabled(
        #[case] text: &str,
        #[case] flags: &[&str],
        #[case] elects: bool,
    ) {
        assert_eq!(resolve_with_file(text, flags).expect("valid").leader_elect, elects);
    }

    #[rstest]
    #[case::unknown_field("fairShare: {}", &[], "fairShare: unknown field")]
    #[case::not_an_address("metrics: {bindAddress: here}", &[], "metrics.bindAddress: \"here\" is not an address")]
    #[case::flag_without_an_address("", &["--metrics-bind-address=here"], "--metrics-bind-address: \"here\" is not")]
    #[case::no_port("health: {healthProbeBindAddress: ':99999'}", &[], "health.healthProbeBindAddress: \":99999\" is not")]
    #[case::webhook_port("webhook: {port: 99999}", &[], "webhook.port: 99999: must be a port from 1 to 65535")]
    #[case::nothing_to_run("", &["--ray-operator=false", "--queue-manager=false"], "nothing to run")]
    fn invalid_value_is_refused_with_its_field(#[case] text: &str, #[case] flags: &[&str], #[case] expected: &str) {
        let error = resolve_with_file(text, flags).expect_err("refused").to_string();
        assert!(error.contains(expected), "{error}");
    }

    #[test]
    fn boolean_flag_may_be_bare_or_have_a_value() {
        assert_eq!(parse_flags(&["--leader-elect"]).leader_elect, Some(true));
        assert_eq!(parse_flags(&["--queue-manager=false"]).queue_manager, Some(false));
        assert_eq!(parse_flags(&["--enable-random-pod-delete"]).enable_random_pod_delete, Some(true));
        assert_eq!(parse_flags(&["--enable-zero-downtime=false"]).enable_zero_downtime, Some(false));
        assert_eq!(parse_flags(&["--watch-namespace=a,b"]).watch_namespace, Some(vec!["a".into(), "b".into()]));
    }

    #[rstest]
    #[case::unset(None, None, "", "", (true, false))]
    #[case::variables(None, None, "False", "TRUE", (false, true))]
    #[case::ignored_values(None, None, "no", "1", (true, false))]
    #[case::flags_take_precedence(Some(true), Some(false), "false", "true", (true, false))]
    fn operator_defaults_come_from_flags_and_variables(
        #[case] upgrades: Option<bool>,
        #[case] trims: Option<bool>,
        #[case] zero_downtime: &str,
        #[case] random_delete: &str,
        #[case] expected: (bool, bool),
    ) {
        let variable = |name: &str| match name {
            "ENABLE_ZERO_DOWNTIME" => Some(zero_downtime.to_owned()),
            "ENABLE_RANDOM_POD_DELETE" => Some(random_delete.to_owned()),
            other => panic!("unexpected variable {other}"),
        };
        let config = operator_config(upgrades, trims, variable);
        assert_eq!((config.default_zero_downtime, config.random_pod_delete), expected);
    }
}
