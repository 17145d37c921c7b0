//! What `sluice manager` can be told, by flags and by a file; a flag wins over the file.

use std::io::IsTerminal;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};

use clap::{Args, ValueEnum};
use serde::Deserialize;
use thiserror::Error;

/// The flags of `sluice manager`. The same names, in camelCase, are the fields of the file that `--config` names.
#[derive(Debug, Clone, Default, Args, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ManagerOptions {
    /// A YAML file with these same options; flags win over it.
    #[arg(long, value_name = "FILE")]
    #[serde(skip)]
    pub config: Option<PathBuf>,

    /// Run the queue manager: quota, workloads, and the gate [default: true].
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    pub queue_manager: Option<bool>,

    /// Run the operator of RayClusters and RayServices [default: true].
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    pub ray_operator: Option<bool>,

    /// Where /metrics is served, as [HOST]:PORT; 0 turns it off [default: :8080].
    #[arg(long, value_name = "ADDRESS")]
    pub metrics_bind_address: Option<String>,

    /// Where /healthz and /readyz are served, as [HOST]:PORT; 0 turns it off [default: :8081].
    #[arg(long, value_name = "ADDRESS")]
    pub health_probe_bind_address: Option<String>,

    /// Act only while holding the lease `sluice-leader`, so that several replicas can run [default: false].
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
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum LogFormat {
    /// Lines for people.
    Text,
    /// One JSON object a line, for a log collector.
    Json,
}

/// [`ManagerOptions`] with every default filled in.
#[derive(Debug, Clone, PartialEq)]
pub struct Settings {
    /// Whether the queue manager runs.
    pub queue_manager: bool,
    /// Whether the Ray operator runs.
    pub ray_operator: bool,
    /// Where metrics are served.
    pub metrics: Option<SocketAddr>,
    /// Where health is served.
    pub health: Option<SocketAddr>,
    /// Whether to act only as the leader.
    pub leader_elect: bool,
    /// The namespace of the lease; `None` for the one that the process runs in.
    pub leader_election_namespace: Option<String>,
    /// The namespaces to watch; empty for all.
    pub namespaces: Vec<String>,
    /// Whether dashboards are reached through the API server.
    pub use_kubernetes_proxy: bool,
    /// Where decisions are written down.
    pub decision_log: Option<PathBuf>,
    /// How logs are written.
    pub log_format: LogFormat,
    /// What is logged.
    pub log_level: String,
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
    #[error("the configuration file {path}: {message}")]
    Parse {
        /// The file.
        path: PathBuf,
        /// What went wrong, and where.
        message: String,
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
    #[error("queueManager and rayOperator are both false: nothing would run")]
    NothingToRun,
}

impl ManagerOptions {
    /// Reads the file, if one is named, and fills in the defaults.
    ///
    /// # Errors
    /// When the file can't be read, has an unknown field, or a value isn't allowed.
    pub fn settings(self) -> Result<Settings, OptionsError> {
        let file = self.config.as_deref().map(read).transpose()?.unwrap_or_default();
        let metrics = self.metrics_bind_address.or(file.metrics_bind_address);
        let health = self.health_probe_bind_address.or(file.health_probe_bind_address);
        let format = if std::io::stderr().is_terminal() { LogFormat::Text } else { LogFormat::Json };
        let namespaces = self.watch_namespace.or(file.watch_namespace).unwrap_or_default();
        let settings = Settings {
            queue_manager: self.queue_manager.or(file.queue_manager).unwrap_or(true),
            ray_operator: self.ray_operator.or(file.ray_operator).unwrap_or(true),
            metrics: address("metricsBindAddress", metrics.as_deref().unwrap_or(":8080"))?,
            health: address("healthProbeBindAddress", health.as_deref().unwrap_or(":8081"))?,
            leader_elect: self.leader_elect.or(file.leader_elect).unwrap_or(false),
            leader_election_namespace: self.leader_election_namespace.or(file.leader_election_namespace),
            namespaces: namespaces.into_iter().filter(|namespace| !namespace.is_empty()).collect(),
            use_kubernetes_proxy: self.use_kubernetes_proxy.or(file.use_kubernetes_proxy).unwrap_or(false),
            decision_log: self.decision_log.or(file.decision_log),
            log_format: self.log_format.or(file.log_format).unwrap_or(format),
            log_level: self.log_level.or(file.log_level).unwrap_or_else(|| "info".into()),
        };
        if !settings.queue_manager && !settings.ray_operator {
            return Err(OptionsError::NothingToRun);
        }
        Ok(settings)
    }
}

fn read(path: &Path) -> Result<ManagerOptions, OptionsError> {
    let text = std::fs::read_to_string(path).map_err(|source| OptionsError::Read { path: path.into(), source })?;
    serde_saphyr::from_str(&text).map_err(|error| OptionsError::Parse { path: path.into(), message: error.to_string() })
}

/// An address as controller-runtime's flags write it: `:8080` is every interface, `0` is none.
fn address(option: &'static str, value: &str) -> Result<Option<SocketAddr>, OptionsError> {
    let wrong = || OptionsError::Address { option, value: value.to_owned() };
    match value {
        "0" => Ok(None),
        _ => match value.strip_prefix(':') {
            Some(port) => Ok(Some((Ipv4Addr::UNSPECIFIED, port.parse().map_err(|_| wrong())?).into())),
            None => Ok(Some(value.parse().map_err(|_| wrong())?)),
        },
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;
    use rstest::rstest;

    use super::*;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        options: ManagerOptions,
    }

    fn parsed(flags: &[&str]) -> ManagerOptions {
        Line::try_parse_from([&["sluice"], flags].concat()).expect("flags that parse").options
    }

    fn in_file(text: &str, flags: &[&str]) -> Result<Settings, OptionsError> {
        let file = std::env::temp_dir().join(format!("sluice-options-{}-{:?}", std::process::id(), text.len()));
        std::fs::write(&file, text).expect("a temporary file");
        let settings = ManagerOptions { config: Some(file.clone()), ..parsed(flags) }.settings();
        std::fs::remove_file(file).expect("the temporary file");
        settings
    }

    #[test]
    fn a_flag_wins_over_the_file_and_the_file_over_the_default() {
        let settings = in_file("rayOperator: false\nmetricsBindAddress: ':9'\n", &["--metrics-bind-address=0"]);
        let settings = settings.expect("valid");

        assert!(settings.queue_manager && !settings.ray_operator);
        assert_eq!(settings.metrics, None);
        assert_eq!(settings.health, Some(([0, 0, 0, 0], 8081).into()));
    }

    #[rstest]
    #[case::unknown_field("rayOperater: false", "rayOperater")]
    #[case::not_an_address("metricsBindAddress: here", "metricsBindAddress: \"here\" is not an address")]
    #[case::nothing_runs("rayOperator: false\nqueueManager: false", "nothing would run")]
    fn a_bad_file_is_refused_with_the_field(#[case] text: &str, #[case] expected: &str) {
        let error = in_file(text, &[]).expect_err("refused").to_string();
        assert!(error.contains(expected), "{error}");
    }

    #[test]
    fn a_switch_may_be_bare_or_have_a_value() {
        assert_eq!(parsed(&["--leader-elect"]).leader_elect, Some(true));
        assert_eq!(parsed(&["--queue-manager=false"]).queue_manager, Some(false));
        assert_eq!(parsed(&["--watch-namespace=a,b"]).watch_namespace, Some(vec!["a".into(), "b".into()]));
    }
}
