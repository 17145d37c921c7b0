//! Runs the real KubeRay operator, which `make kuberay` builds, on fake nodes: its pods do not run,
//! and the test controls the progress of its jobs.

use std::path::{Path, PathBuf};
use std::process::Stdio;

use tokio::process::{Child, Command};

use super::env::cache_dir;
use super::{TestEnv, TestEnvOptions};

/// Starts a control plane with the CRDs of KubeRay and Kueue.
pub async fn start_control_plane() -> TestEnv {
    start_control_plane_with_crds(&cache_dir().join("kuberay-crds")).await
}

/// Starts a control plane with KubeRay's CRDs from a directory.
pub async fn start_control_plane_with_crds(definitions: &Path) -> TestEnv {
    let flags = ["--crds", definitions.to_str().expect("a path in UTF-8")];
    TestEnv::start_with(TestEnvOptions { flags: &flags, ..TestEnvOptions::default() }).await
}

/// A running KubeRay operator. Dropping the value kills it.
pub struct RealKubeRay {
    _process: Child,
    /// Path of its log file.
    pub log: PathBuf,
}

impl RealKubeRay {
    /// Starts the operator with administrator rights.
    pub fn start(env: &TestEnv) -> Self {
        Self::start_program(env, &cache_dir().join("bin/kuberay"))
    }

    /// Starts the operator from another binary.
    pub fn start_program(env: &TestEnv, program: &Path) -> Self {
        let log = env.dir.join("kuberay.log");
        let file = std::fs::File::create(&log).expect("a log file");
        let process = Command::new(program)
            .args(["--use-kubernetes-proxy", "--enable-leader-election=false"])
            .args(["--metrics-addr=0", "--health-probe-bind-address=0"])
            // It requires a Gateway, which these control planes do not have.
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
