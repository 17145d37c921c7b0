//! Cluster state that a command reads: from the API server, or from manifest files.

use std::path::PathBuf;

use clap::Args;

use super::{BoxError, options};
use sluice_inspect::dry_run::PolicyConfig;
use sluice_inspect::snapshot::Snapshot;
use sluice_manager as manager;

/// Options that select the state a command reads.
#[derive(Debug, Args)]
pub(super) struct StateSource {
    /// Set the namespace [default: that of the kubeconfig, or "default" with --from]
    #[arg(long, short, value_name = "NAMESPACE")]
    namespace: Option<String>,
    /// Read the objects from the YAML and JSON files in this directory instead of the cluster
    #[arg(long = "from", value_name = "DIR")]
    directory: Option<PathBuf>,
    /// Read the configuration file of the manager
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
}

/// State that a command reads.
pub(super) struct LoadedState {
    /// Objects of the watched kinds.
    pub(super) snapshot: Snapshot,
    /// Namespace of objects that name none.
    pub(super) namespace: String,
    /// Scheduler settings and managed-jobs policy, from the configuration file.
    pub(super) policy: PolicyConfig,
}

impl StateSource {
    /// Reads the state.
    ///
    /// # Errors
    /// If the cluster or the directory can't be read, or the configuration file is invalid.
    pub(super) fn load(self) -> Result<LoadedState, BoxError> {
        let configuration = self.config.as_deref().map(options::read_configuration).transpose()?.unwrap_or_default();
        let (snapshot, namespace) = match &self.directory {
            Some(directory) => (Snapshot::from_directory(directory)?, "default".to_owned()),
            None => load_from_cluster()?,
        };
        let policy = PolicyConfig { queue: configuration.queue, managed_jobs: configuration.managed_jobs };
        Ok(LoadedState { snapshot, namespace: self.namespace.unwrap_or(namespace), policy })
    }
}

fn load_from_cluster() -> Result<(Snapshot, String), BoxError> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let client = manager::connect().await?;
        let namespace = client.default_namespace().to_owned();
        Ok((Snapshot::new(manager::list_objects(&client).await?), namespace))
    })
}
