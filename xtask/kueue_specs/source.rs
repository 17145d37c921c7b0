//! Kueue's source, changed so that its specs run against a control plane and a manager that exist
//! already, and the test binaries built from it.

use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

use crate::Failure;

/// Version of Kueue whose specs are run.
pub(super) const VERSION: &str = "v0.19.2";
/// Folder of the specs that need one cluster.
const SPECS: &str = "test/integration/singlecluster";

/// A writable copy of Kueue's source.
pub(super) struct Source {
    root: PathBuf,
}

impl Source {
    /// Downloads the module of Kueue and copies it into a folder of `cache`. Go's own cache makes
    /// later builds quick.
    ///
    /// # Errors
    /// If Go cannot download it, or it differs from what the changes expect.
    pub(super) fn prepare(cache: &Path) -> Result<Self, Failure> {
        let module = format!("sigs.k8s.io/kueue@{VERSION}");
        let downloaded = output(Command::new("go").args(["mod", "download", "-json", &module]))?;
        let downloaded: Value = serde_json::from_str(&downloaded)?;
        let original = downloaded["Dir"].as_str().ok_or("go mod download names no directory")?;
        let root = cache.join("kueue");
        output(Command::new("rm").arg("-rf").arg(&root))?;
        output(Command::new("cp").args(["-r", "--no-preserve=mode", original]).arg(&root))?;
        use_existing_manager(&root)?;
        Ok(Self { root })
    }

    /// Returns the folder of a suite, which its test binary has to run in.
    pub(super) fn folder(&self, suite: &str) -> PathBuf {
        self.root.join(SPECS).join(suite)
    }

    /// Returns the path of a file with results of this run.
    ///
    /// # Errors
    /// If its folder cannot be created.
    pub(super) fn results(&self, file: &str) -> Result<PathBuf, Failure> {
        let folder = self.root.join("results");
        std::fs::create_dir_all(&folder)?;
        Ok(folder.join(file))
    }

    /// Returns a folder with the CRDs of Kueue, and of KubeRay in `kuberay`, that `own` has none for.
    ///
    /// # Errors
    /// If a file cannot be read or copied.
    pub(super) fn further_crds(&self, own: &Path, kuberay: &Path) -> Result<PathBuf, Failure> {
        let folder = self.root.join("further-crds");
        std::fs::create_dir_all(&folder)?;
        for directory in [&self.root.join("config/components/crd/bases"), kuberay] {
            for entry in std::fs::read_dir(directory)? {
                let entry = entry?;
                if !own.join(entry.file_name()).is_file() {
                    std::fs::copy(entry.path(), folder.join(entry.file_name()))?;
                }
            }
        }
        Ok(folder)
    }

    /// Builds the test binary of a suite. The first build takes several minutes.
    ///
    /// # Errors
    /// If it does not compile.
    pub(super) fn build(&self, suite: &str) -> Result<PathBuf, Failure> {
        let binary = self.root.join(format!("{}.test", suite.replace('/', "-")));
        if binary.is_file() {
            return Ok(binary);
        }
        let package = format!("./{SPECS}/{suite}");
        output(
            Command::new("go").args(["test", "-c", "-vet=off", "-o"]).arg(&binary).arg(package).current_dir(&self.root),
        )?;
        Ok(binary)
    }
}

/// Changes the specs: they connect to the control plane of `KUBECONFIG`, start no manager, and wait
/// a moment where they would read a counter inside its process.
fn use_existing_manager(root: &Path) -> Result<(), Failure> {
    let framework = root.join("test/integration/framework/framework.go");
    let text = std::fs::read_to_string(&framework)?;
    let connect = r#"cfg, err = clientcmd.BuildConfigFromFlags("", os.Getenv("KUBECONFIG"))
		cfg.QPS, cfg.Burst = 1000, 1000"#;
    let text = replace(&text, "cfg, err = f.testEnv.Start()", connect)?;
    let rest = r#""k8s.io/client-go/rest""#;
    let text = replace(&text, rest, &format!("{rest}\n\t\"k8s.io/client-go/tools/clientcmd\""))?;
    let text = replace(&text, "err := f.testEnv.Stop()", "var err error")?;
    let text = return_from(&text, "func (f *Framework) StartManager(", "")?;
    std::fs::write(framework, text)?;

    accept_reasons_of_next_version(root)?;
    for file in METRIC_HELPERS {
        let file = root.join(file);
        let mut text = std::fs::read_to_string(&file)?;
        let functions: Vec<String> =
            text.lines().filter(|line| line.to_lowercase().starts_with("func expect")).map(str::to_owned).collect();
        for function in functions {
            text = return_from(&text, &function, WAIT)?;
        }
        std::fs::write(file, text)?;
    }
    Ok(())
}

/// Makes the specs accept the reasons that Kueue 0.20 gives to pending workloads, which say more than
/// `Pending` and `Waiting`.
fn accept_reasons_of_next_version(root: &Path) -> Result<(), Failure> {
    let util = root.join("test/util/util.go");
    let text = std::fs::read_to_string(&util)?;
    let waiting = "cond.Reason == kueue.WorkloadWaiting";
    let text = replace(&text, waiting, &format!(r#"({waiting} || cond.Reason == "WaitingForPodsReady")"#))?;
    std::fs::write(util, text)?;

    let jobs = root.join(SPECS).join("controller/jobs");
    for file in ["job/job_controller_test.go", "raycluster/raycluster_controller_test.go"] {
        let file = jobs.join(file);
        let text = std::fs::read_to_string(&file)?;
        let pending = r#"HaveConditionStatusFalseAndReason(kueue.WorkloadQuotaReserved, "Pending")"#;
        std::fs::write(file, text.replace(pending, "HaveConditionStatusFalse(kueue.WorkloadQuotaReserved)"))?;
    }
    Ok(())
}

/// Files whose functions named `expect…` read counters inside Kueue's process.
const METRIC_HELPERS: [&str; 2] =
    ["test/util/metrics.go", "test/integration/singlecluster/scheduler/fairsharing/fair_sharing_test.go"];

/// Statement that a helper executes in place of reading a counter. Specs rely on it to wait until the manager has
/// seen what they have just created.
const WAIT: &str = "time.Sleep(500 * time.Millisecond)";

/// Makes a function execute `statement` and return. Its code stays reachable for the compiler, which
/// would reject unused imports.
fn return_from(text: &str, start: &str, statement: &str) -> Result<String, Failure> {
    let at = text.find(start).ok_or_else(|| format!("Kueue {VERSION} has no `{start}`"))?;
    let body = text[at..].find("{\n").ok_or_else(|| format!("`{start}` of Kueue {VERSION} has no body"))?;
    let (before, after) = text.split_at(at + body + 2);
    Ok(format!("{before}\tif true {{\n\t\t{statement}\n\t\treturn\n\t}}\n{after}"))
}

fn replace(text: &str, from: &str, to: &str) -> Result<String, Failure> {
    if text.matches(from).count() != 1 {
        return Err(format!("Kueue {VERSION} has not exactly one `{from}`").into());
    }
    Ok(text.replace(from, to))
}

fn output(command: &mut Command) -> Result<String, Failure> {
    let output = command.output()?;
    if !output.status.success() {
        return Err(format!("{command:?}: {}", String::from_utf8_lossy(&output.stderr)).into());
    }
    Ok(String::from_utf8(output.stdout)?)
}
