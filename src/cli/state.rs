//! The state that a command looks at: that of a cluster, or what somebody has kept of one.

use std::path::PathBuf;

use clap::Args;

use super::{Failure, options};
use sluice_inspect::rehearsal::Policy;
use sluice_inspect::snapshot::Snapshot;
use sluice_manager as manager;

/// Which state a command looks at.
#[derive(Debug, Args)]
pub(super) struct StateOptions {
    /// The namespace [default: that of the kubeconfig, or "default" with --from].
    #[arg(long, short, value_name = "NAMESPACE")]
    namespace: Option<String>,
    /// A folder with the objects as YAML or JSON files, to be looked at in place of the cluster.
    #[arg(long, value_name = "FOLDER")]
    from: Option<PathBuf>,
    /// The configuration file of the manager, if it has one.
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
}

/// The state that a command looks at.
pub(super) struct State {
    /// All objects.
    pub(super) snapshot: Snapshot,
    /// The namespace of what names none.
    pub(super) namespace: String,
    /// What holds for the queue and for jobs.
    pub(super) policy: Policy,
}

impl StateOptions {
    /// Reads the state.
    ///
    /// # Errors
    /// When the cluster or the folder can't be read, or the configuration file isn't as it should be.
    pub(super) fn read(self) -> Result<State, Failure> {
        let configuration = self.config.as_deref().map(options::configuration).transpose()?.unwrap_or_default();
        let (snapshot, namespace) = match &self.from {
            Some(folder) => (Snapshot::of_folder(folder)?, "default".to_owned()),
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
