//! KubeRay itself, as its users run it; `make kuberay` builds it. Its pods pretend, and its jobs get on as a test says.

use std::path::{Path, PathBuf};
use std::process::Stdio;

use tokio::process::{Child, Command};

use super::TestEnv;
use super::env::{cache, unique};

/// A control plane with KubeRay's own definitions, beside those of Kueue.
pub async fn control_plane() -> TestEnv {
    control_plane_with(&cache().join("kuberay-crds")).await
}

/// The same, with the definitions in a folder.
pub async fn control_plane_with(definitions: &Path) -> TestEnv {
    let dir = std::env::temp_dir().join(format!("sluice-kuberay-{}-{}", std::process::id(), unique()));
    TestEnv::start_with(dir, false, &["--crds", definitions.to_str().expect("a path in UTF-8")]).await
}

/// A running operator. It is killed with this value.
pub struct RealKubeRay {
    _process: Child,
    /// Where it logs.
    pub log: PathBuf,
}

impl RealKubeRay {
    /// Starts it, with an administrator's rights.
    pub fn start(env: &TestEnv) -> Self {
        Self::start_program(env, &cache().join("bin/kuberay"))
    }

    /// Starts an operator that was built elsewhere.
    pub fn start_program(env: &TestEnv, program: &Path) -> Self {
        let log = env.dir.join("kuberay.log");
        let file = std::fs::File::create(&log).expect("a log file");
        let process = Command::new(program)
            .args(["--use-kubernetes-proxy", "--enable-leader-election=false"])
            .args(["--metrics-addr=0", "--health-probe-bind-address=0"])
            // It would look for a gateway that isn't there.
            .arg("--feature-gates=RayServiceIncrementalUpgrade=false")
            .env("KUBECONFIG", &env.proxied_kubeconfig)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(file)
            .kill_on_drop(true)
            .spawn()
            .unwrap_or_else(|error| panic!("starting {} (make kuberay builds it): {error}", program.display()));
        Self { _process: process, log }
    }
}
