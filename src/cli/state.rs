//! Cluster state that a command reads: from the API server, or from manifest files.

use std::path::PathBuf;

use clap::Args;

use super::{Failure, options};
use sluice_inspect::rehearsal::Policy;
use sluice_inspect::snapshot::Snapshot;
use sluice_manager as manager;

/// Options that select the state a command reads.
#[derive(Debug, Args)]
pub(super) struct StateOptions {
    /// Set the namespace [default: that of the kubeconfig, or "default" with --from]
    #[arg(long, short, value_name = "NAMESPACE")]
    namespace: Option<String>,
    /// Read the objects from the YAML and JSON files in this directory instead of the cluster
    #[arg(long = "from", value_name = "DIR")]
    from: Option<PathBuf>,
    /// Read the configuration file of the manager
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
}

/// State that a command reads.
pub(super) struct State {
    /// Objects of the watched kinds.
    pub(super) snapshot: Snapshot,
    /// Namespace of objects that name none.
    pub(super) namespace: String,
    /// Scheduler settings and managed-jobs policy, from the configuration file.
    pub(super) policy: Policy,
}

impl StateOptions {
    /// Reads the state.
    ///
    /// # Errors
    /// If the cluster or the directory can't be read, or the configuration file is invalid.
    pub(super) fn read(self) -> Result<State, Failure> {
        let configuration = self.config.as_deref().map(options::configuration).transpose()?.unwrap_or_default();
        let (snapshot, namespace) = match &self.from {
            Some(directory) => (Snapshot::of_folder(directory)?, "default".to_owned()),
            None => of_cluster()?,
        };
        let policy = Policy { queue: configuration.queue, jobs: configuration.jobs };
        Ok(State { snapshot, namespace: self.namespace.unwrap_or(namespace), policy })
    }
}

fn of_cluster() -> Result<(Snapshot, String), Failure> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let client = manager::connect().await?;
        let namespace = client.default_namespace().to_owned();
        Ok((Snapshot::of(manager::list_objects(&client).await?), namespace))
    })
}
