//! Kueue's own integration specs, run against Sluice on a real API server: `make kueue-specs`.

mod report;
mod source;
mod suites;

use std::path::Path;
use std::process::Command;

use sluice_testkit::env::cache_dir;
use sluice_testkit::{TestEnv, TestEnvOptions};

use crate::Failure;
use report::DOCUMENT;
use source::Source;
use suites::{SUITES, Suite};

/// Seconds after which a suite is stopped.
const TIMEOUT: &str = "3000";

/// Runs the named suites, or all. Returns every spec whose result differs from the document.
///
/// # Errors
/// If a suite is unknown, cannot be built, or reports nothing.
pub(crate) async fn run(root: &Path, names: &[String]) -> Result<Vec<String>, Failure> {
    let known: Vec<&str> = SUITES.iter().map(|suite| suite.name).collect();
    if let Some(unknown) = names.iter().find(|name| !known.contains(&name.as_str())) {
        return Err(format!("no suite is called {unknown:?}; there are {}", known.join(", ")).into());
    }
    let source = Source::prepare(&cache_dir())?;
    let document = std::fs::read_to_string(root.join(DOCUMENT))?;
    let mut problems = Vec::new();
    for suite in SUITES.iter().filter(|suite| names.is_empty() || names.iter().any(|name| name == suite.name)) {
        problems.extend(suite.run(root, &source, &document).await?);
    }
    Ok(problems)
}

impl Suite {
    async fn run(&self, root: &Path, source: &Source, document: &str) -> Result<Vec<String>, Failure> {
        let binary = source.build(self.folder)?;
        let crds = source.further_crds(&root.join("config/crd"), &cache_dir().join("kuberay-crds"))?;
        let crds = crds.to_str().ok_or("the cache has a path that is not UTF-8")?;
        let flags = ["--controllers=false", "--crds", crds];
        let env =
            TestEnv::start_with(TestEnvOptions { direct: true, flags: &flags, ..TestEnvOptions::default() }).await;
        let configuration = env.dir.join("configuration.yaml");
        let header = "apiVersion: config.kueue.x-k8s.io/v1beta2\nkind: Configuration\n";
        std::fs::write(&configuration, format!("{header}{}\n", self.configuration))?;
        let port = env.configure_webhook().await;
        let manager = env
            .manager_with(&[
                &format!("--config={}", configuration.display()),
                &format!("--webhook-bind-address=127.0.0.1:{port}"),
                &format!("--ray-operator={}", self.ray_operator),
            ])
            .await;
        let report = source.results(&format!("{}.json", self.name))?;
        let log = source.results(&format!("{}.log", self.name))?;
        let status = Command::new("timeout")
            .arg(TIMEOUT)
            .arg(binary)
            .args(["--ginkgo.no-color", &format!("--ginkgo.focus={}", self.focus)])
            .arg(format!("--ginkgo.skip={}", self.skip))
            .arg(format!("--ginkgo.json-report={}", report.display()))
            .current_dir(source.folder(self.folder))
            .env("KUBECONFIG", &env.kubeconfig)
            .stdout(std::fs::File::create(&log)?)
            .status()?;
        manager.terminate().await;
        let results = report::read(&report).map_err(|error| format!("{}: {status}: {error}", self.name))?;
        let passed = results.values().filter(|passed| **passed).count();
        let total = results.len();
        println!(
            "{}: {passed} of {total} specs of Kueue {} passed; log: {}",
            self.name,
            source::VERSION,
            log.display()
        );
        Ok(report::differences(self.name, &results, document))
    }
}
