//! What `sluice manager` can be told, by flags and by a configuration file; a flag wins over the file.

use std::io::IsTerminal;
use std::net::{Ipv4Addr, SocketAddr, ToSocketAddrs as _};
use std::path::{Path, PathBuf};

use clap::{Args, ValueEnum};
use thiserror::Error;

use sluice_config::{ConfigError, Configuration};
use sluice_engine::Habits;
use sluice_manager::ManagerConfig;

/// The flags of `sluice manager`.
#[derive(Debug, Clone, Default, Args)]
pub struct ManagerOptions {
    /// A YAML file with a Configuration of config.kueue.x-k8s.io/v1beta2, as Kueue has it; flags win over it.
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,

    /// Run the queue manager: quota, workloads, and the gate [default: true].
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    pub queue_manager: Option<bool>,

    /// Run the operator of RayClusters and RayServices [default: true].
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    pub ray_operator: Option<bool>,

    /// Whether a RayService without spec.upgradeStrategy.type gets another cluster when its spec asks for one [default: true, unless the
    /// variable ENABLE_ZERO_DOWNTIME is false].
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    pub enable_zero_downtime: Option<bool>,

    /// Whether workers beyond what is wanted are deleted also where Ray's autoscaler has to say which of them go [default: false, unless
    /// the variable ENABLE_RANDOM_POD_DELETE is true].
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    pub enable_random_pod_delete: Option<bool>,

    /// Where /metrics is served, as [HOST]:PORT; 0 turns it off [default: :8080].
    #[arg(long, value_name = "ADDRESS")]
    pub metrics_bind_address: Option<String>,

    /// Where /healthz and /readyz are served, as [HOST]:PORT; 0 turns it off [default: :8081].
    #[arg(long, value_name = "ADDRESS")]
    pub health_probe_bind_address: Option<String>,

    /// Where the webhook is served that makes new queued objects be created suspended, as [HOST]:PORT; 0 turns it off, and so does
    /// --queue-manager=false [default: :9443].
    #[arg(long, value_name = "ADDRESS")]
    pub webhook_bind_address: Option<String>,

    /// Act only while holding the lease `sluice-leader`, so that several replicas can run [default: false; true with a
    /// configuration file].
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    pub leader_elect: Option<bool>,

    /// The namespace of the leader lease [default: the namespace that the process runs in].
    #[arg(long, value_name = "NAMESPACE")]
    pub leader_election_namespace: Option<String>,

    /// The namespaces to watch, separated by commas [default: all].
    #[arg(long, value_name = "NAMESPACES", value_delimiter = ',')]
    pub watch_namespace: Option<Vec<String>>,

    /// Reach Ray dashboards through the API server's service proxy, for a manager outside the cluster [default: false].
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    pub use_kubernetes_proxy: Option<bool>,

    /// A file to whose end every decision on quota is written, and all that it rests on; `sluice replay` reads it [default: none].
    #[arg(long, value_name = "FILE")]
    pub decision_log: Option<PathBuf>,

    /// How logs are written [default: text on a terminal, else json].
    #[arg(long, value_name = "FORMAT")]
    pub log_format: Option<LogFormat>,

    /// What is logged: a level, or a filter like `info,sluice=debug` [default: info].
    #[arg(long, value_name = "FILTER")]
    pub log_level: Option<String>,
}

/// How logs are written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum LogFormat {
    /// Lines for people.
    Text,
    /// One JSON object a line, for a log collector.
    Json,
}

/// [`ManagerOptions`] merged with the configuration file and the defaults.
#[derive(Debug, Clone, PartialEq)]
pub struct ResolvedOptions {
    /// Configuration of the manager.
    pub manager: ManagerConfig,
    /// Format of log lines.
    pub log_format: LogFormat,
    /// Level or filter of what is logged.
    pub log_level: String,
    /// Paths of the fields of the configuration file that are set and not acted on.
    pub unsupported_fields: Vec<String>,
}

/// Why the options can't be used.
#[derive(Debug, Error)]
pub enum OptionsError {
    /// The file can't be read.
    #[error("reading the configuration file {path}: {source}")]
    Read {
        /// The file.
        path: PathBuf,
        /// What went wrong.
        source: std::io::Error,
    },
    /// The file isn't what it should be.
    #[error("the configuration file {path}: {source}")]
    Configuration {
        /// The file.
        path: PathBuf,
        /// What is wrong, and where.
        source: ConfigError,
    },
    /// An address isn't one.
    #[error("{option}: {value:?} is not an address: give HOST:PORT, :PORT, or 0 to turn it off")]
    Address {
        /// The option.
        option: &'static str,
        /// Its value.
        value: String,
    },
    /// Neither half is to run.
    #[error("--queue-manager and --ray-operator are both false: nothing would run")]
    NothingToRun,
}

impl ManagerOptions {
    /// Reads the file, if one is named, and fills in the defaults.
    ///
    /// # Errors
    /// When the file can't be read, has an unknown field, or a value isn't allowed.
    pub fn resolve(self) -> Result<ResolvedOptions, OptionsError> {
        let file = self.config.as_deref().map(configuration).transpose()?.unwrap_or_default();
        let format = if std::io::stderr().is_terminal() { LogFormat::Text } else { LogFormat::Json };
        let namespaces = self.watch_namespace.unwrap_or_default();
        let manager = ManagerConfig {
            queue_manager: self.queue_manager.unwrap_or(true),
            ray_operator: self.ray_operator.unwrap_or(true),
            metrics: address(
                [
                    ("--metrics-bind-address", self.metrics_bind_address),
                    ("metrics.bindAddress", file.metrics_bind_address),
                ],
                8080,
            )?,
            health: address(
                [
                    ("--health-probe-bind-address", self.health_probe_bind_address),
                    ("health.healthProbeBindAddress", file.health_probe_bind_address),
                ],
                8081,
            )?,
            webhook: address(
                [("--webhook-bind-address", self.webhook_bind_address), ("webhook", file.webhook_bind_address)],
                9443,
            )?
            .filter(|_| self.queue_manager.unwrap_or(true)),
            leader_elect: self.leader_elect.unwrap_or(file.leader_elect),
            leader_election_namespace: self.leader_election_namespace.or(file.leader_election_namespace),
            namespaces: namespaces.into_iter().filter(|namespace| !namespace.is_empty()).collect(),
            use_kubernetes_proxy: self.use_kubernetes_proxy.unwrap_or(false),
            decision_log: self.decision_log,
            queue: file.queue,
            jobs: file.jobs,
            habits: habits(self.enable_zero_downtime, self.enable_random_pod_delete, |name| std::env::var(name).ok()),
        };
        if !manager.queue_manager && !manager.ray_operator {
            return Err(OptionsError::NothingToRun);
        }
        Ok(ResolvedOptions {
            manager,
            log_format: self.log_format.unwrap_or(format),
            log_level: self.log_level.unwrap_or_else(|| "info".into()),
            unsupported_fields: file.not_acted_on,
        })
    }
}

/// What the Ray operator does where a spec leaves it open. A flag wins over a variable of KubeRay's operator, of which any value is
/// allowed, and one says something (KubeRay 1.7 `ray-operator/controllers/ray/rayservice_controller.go`, `isZeroDowntimeUpgradeEnabled`,
/// and `raycluster_controller.go`).
fn habits(upgrades: Option<bool>, trims: Option<bool>, variable: impl Fn(&str) -> Option<String>) -> Habits {
    let is = |name: &str, word: &str| variable(name).is_some_and(|value| value.eq_ignore_ascii_case(word));
    Habits {
        upgrades: upgrades.unwrap_or_else(|| !is("ENABLE_ZERO_DOWNTIME", "false")),
        trims_autoscaled: trims.unwrap_or_else(|| is("ENABLE_RANDOM_POD_DELETE", "true")),
    }
}

/// Reads the configuration file.
///
/// # Errors
/// When it can't be read, or isn't as it should be.
pub(super) fn configuration(path: &Path) -> Result<Configuration, OptionsError> {
    let text = std::fs::read_to_string(path).map_err(|source| OptionsError::Read { path: path.into(), source })?;
    Configuration::from_yaml(&text).map_err(|source| OptionsError::Configuration { path: path.into(), source })
}

/// The first address that is given, under its name. `:8080` is every interface and `0` is none, as in controller-runtime's flags;
/// of a host's addresses, one of IPv4 is taken if there is one, as Go does.
fn address(given: [(&'static str, Option<String>); 2], default_port: u16) -> Result<Option<SocketAddr>, OptionsError> {
    let everywhere = |port: u16| SocketAddr::from((Ipv4Addr::UNSPECIFIED, port));
    let given = given.into_iter().find_map(|(option, value)| Some((option, value?)));
    let Some((option, value)) = given else { return Ok(Some(everywhere(default_port))) };
    let found = match value.strip_prefix(':') {
        _ if value == "0" => return Ok(None),
        Some(port) => port.parse().map(everywhere).ok(),
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
    struct Line {
        #[command(flatten)]
        options: ManagerOptions,
    }

    fn parsed(flags: &[&str]) -> ManagerOptions {
        Line::try_parse_from([&["sluice"], flags].concat()).expect("flags that parse").options
    }

    fn in_file(body: &str, flags: &[&str]) -> Result<ManagerConfig, OptionsError> {
        let file = std::env::temp_dir().join(format!(
            "sluice-options-{}-{:?}",
            std::process::id(),
            std::thread::current().id()
        ));
        let text = format!("apiVersion: config.kueue.x-k8s.io/v1beta2\nkind: Configuration\n{body}");
        std::fs::write(&file, text).expect("a temporary file");
        let settings =
            ManagerOptions { config: Some(file.clone()), ..parsed(flags) }.resolve().map(|resolved| resolved.manager);
        std::fs::remove_file(file).expect("the temporary file");
        settings
    }

    #[test]
    fn a_flag_wins_over_the_file_and_the_file_over_the_default() {
        let file =
            "metrics: {bindAddress: ':9'}\nhealth: {healthProbeBindAddress: ':10'}\nwaitForPodsReady: {timeout: 5m}\n";
        let settings = in_file(file, &["--metrics-bind-address=0", "--ray-operator=false"]).expect("valid");

        assert!(settings.queue_manager && !settings.ray_operator);
        assert_eq!(settings.metrics, None);
        assert_eq!(settings.health, Some(([0, 0, 0, 0], 10).into()));
        let timeout = settings.queue.wait_for_pods_ready.map(|rules| rules.timeout);
        assert_eq!(timeout, Some(jiff::SignedDuration::from_mins(5)));
    }

    #[rstest]
    #[case::nowhere("0", None)]
    #[case::everywhere(":9", Some("0.0.0.0:9"))]
    #[case::address("[::1]:9", Some("[::1]:9"))]
    #[case::host("localhost:9", Some("127.0.0.1:9"))]
    fn an_address_is_what_it_is_to_go(#[case] value: &str, #[case] expected: Option<&str>) {
        let settings = parsed(&["--metrics-bind-address", value]).resolve().expect("valid").manager;
        assert_eq!(settings.metrics.map(|address| address.to_string()).as_deref(), expected);
    }

    #[test]
    fn without_a_file_all_is_at_its_default_and_nobody_is_elected() {
        let settings = parsed(&[]).resolve().expect("valid").manager;
        assert_eq!(settings.queue, queue::Settings::default());
        assert_eq!(settings.metrics, Some(([0, 0, 0, 0], 8080).into()));
        assert_eq!(settings.health, Some(([0, 0, 0, 0], 8081).into()));
        assert!(!settings.leader_elect);
    }

    #[rstest]
    #[case::nothing_said("", &[], Some("0.0.0.0:9443"))]
    #[case::port("webhook: {port: 10}", &[], Some("0.0.0.0:10"))]
    #[case::host("webhook: {host: 127.0.0.1}", &[], Some("127.0.0.1:9443"))]
    #[case::both("webhook: {host: '::1', port: 10}", &[], Some("[::1]:10"))]
    #[case::flag("webhook: {port: 10}", &["--webhook-bind-address=:11"], Some("0.0.0.0:11"))]
    #[case::flag_off("webhook: {port: 10}", &["--webhook-bind-address=0"], None)]
    #[case::no_certificates_of_ours("internalCertManagement: {enable: false}", &[], None)]
    #[case::certificates_of_ours("internalCertManagement: {enable: true}", &[], Some("0.0.0.0:9443"))]
    #[case::no_queue_manager("", &["--queue-manager=false"], None)]
    fn the_webhook_is_where_flag_and_file_say(
        #[case] file: &str,
        #[case] flags: &[&str],
        #[case] expected: Option<&str>,
    ) {
        let settings = in_file(file, flags).expect("valid");
        assert_eq!(settings.webhook.map(|address| address.to_string()).as_deref(), expected);
    }

    #[rstest]
    #[case::file_without_a_word("", &[], true)]
    #[case::file("leaderElection: {leaderElect: false}", &[], false)]
    #[case::flag("leaderElection: {leaderElect: false}", &["--leader-elect"], true)]
    fn with_a_file_the_leader_is_elected_unless_it_says_no(
        #[case] text: &str,
        #[case] flags: &[&str],
        #[case] elects: bool,
    ) {
        assert_eq!(in_file(text, flags).expect("valid").leader_elect, elects);
    }

    #[rstest]
    #[case::unknown_field("fairShare: {}", &[], "fairShare: unknown field")]
    #[case::not_an_address("metrics: {bindAddress: here}", &[], "metrics.bindAddress: \"here\" is not an address")]
    #[case::flag_that_is_no_address("", &["--metrics-bind-address=here"], "--metrics-bind-address: \"here\" is not")]
    #[case::no_port("health: {healthProbeBindAddress: ':99999'}", &[], "health.healthProbeBindAddress: \":99999\" is not")]
    #[case::webhook_port("webhook: {port: 99999}", &[], "webhook.port: 99999: allowed is a port, from 1 to 65535")]
    #[case::nothing_runs("", &["--ray-operator=false", "--queue-manager=false"], "nothing would run")]
    fn a_bad_file_is_refused_with_the_field(#[case] text: &str, #[case] flags: &[&str], #[case] expected: &str) {
        let error = in_file(text, flags).expect_err("refused").to_string();
        assert!(error.contains(expected), "{error}");
    }

    #[test]
    fn a_switch_may_be_bare_or_have_a_value() {
        assert_eq!(parsed(&["--leader-elect"]).leader_elect, Some(true));
        assert_eq!(parsed(&["--queue-manager=false"]).queue_manager, Some(false));
        assert_eq!(parsed(&["--enable-random-pod-delete"]).enable_random_pod_delete, Some(true));
        assert_eq!(parsed(&["--enable-zero-downtime=false"]).enable_zero_downtime, Some(false));
        assert_eq!(parsed(&["--watch-namespace=a,b"]).watch_namespace, Some(vec!["a".into(), "b".into()]));
    }

    #[rstest]
    #[case::nothing(None, None, "", "", (true, false))]
    #[case::variables(None, None, "False", "TRUE", (false, true))]
    #[case::words_that_say_nothing(None, None, "no", "1", (true, false))]
    #[case::flags_win(Some(true), Some(false), "false", "true", (true, false))]
    fn what_is_left_open_is_as_flags_and_variables_say(
        #[case] upgrades: Option<bool>,
        #[case] trims: Option<bool>,
        #[case] zero_downtime: &str,
        #[case] random_delete: &str,
        #[case] expected: (bool, bool),
    ) {
        let variable = |name: &str| match name {
            "ENABLE_ZERO_DOWNTIME" => Some(zero_downtime.to_owned()),
            "ENABLE_RANDOM_POD_DELETE" => Some(random_delete.to_owned()),
            other => panic!("nobody asked for {other}"),
        };
        let habits = habits(upgrades, trims, variable);
        assert_eq!((habits.upgrades, habits.trims_autoscaled), expected);
    }
}
