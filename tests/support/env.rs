//! Starts a real control plane for one test, and managers against it.

use std::collections::BTreeMap;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{ExitStatus, Stdio};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use k8s_openapi::api::authentication::v1::{TokenRequest, TokenRequestSpec};
use k8s_openapi::api::core::v1::ServiceAccount;
use kube::api::{ApiResource, DynamicObject, Patch, PatchParams, PostParams};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Api, Client, Config, ResourceExt};
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::{Child, Command};

/// Namespace of the service account defined in `config/rbac`.
const NAMESPACE: &str = "sluice-system";
/// Service account defined in `config/rbac`, which managers run as.
const SERVICE_ACCOUNT: &str = "sluice";

/// Flags of a manager unless a test sets them. Its listeners are disabled, because their ports could
/// be in use.
const DEFAULT_FLAGS: [&str; 4] = [
    "--metrics-bind-address=0",
    "--health-probe-bind-address=0",
    "--webhook-bind-address=0",
    "--log-level=info,sluice=debug",
];

/// Options of a control plane.
#[derive(Default)]
pub struct TestEnvOptions<'a> {
    /// Directory of a control plane that outlives this process; a temporary one otherwise.
    pub kept_in: Option<PathBuf>,
    /// Install the CRDs of the Gateway API, which take longer to install than all others together.
    pub gateway_api: bool,
    /// Connect managers to the API server directly, not through the proxy that serves the fake Ray
    /// dashboards.
    pub direct: bool,
    /// Additional `testenv` flags.
    pub flags: &'a [&'a str],
}

/// A control plane: etcd, kube-apiserver, kube-controller-manager, kube-scheduler, fake nodes and
/// fake Ray dashboards, with everything from `config/` installed except the Deployment. Dropping
/// the value stops it, unless [`TestEnvOptions::kept_in`] is set.
pub struct TestEnv {
    /// Stops the control plane when dropped, because its standard input closes.
    _process: Option<Child>,
    /// Directory of the logs and kubeconfigs.
    pub dir: PathBuf,
    /// Kubeconfig of an administrator.
    pub kubeconfig: PathBuf,
    /// Kubeconfig of an administrator, through the proxy that serves the fake Ray dashboards.
    pub proxied_kubeconfig: PathBuf,
    /// URL of the API that controls the fake Ray dashboards and etcd.
    pub control_url: String,
    /// Client with administrator rights.
    pub client: Client,
    manager_kubeconfig: PathBuf,
}

/// The JSON line that the control plane prints once it is ready.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct ControlPlaneInfo {
    kubeconfig: PathBuf,
    admin_kubeconfig: PathBuf,
    steer: String,
}

impl TestEnv {
    /// Starts a control plane in a temporary directory, with nodes and without the Gateway API.
    pub async fn start() -> Self {
        Self::start_with(TestEnvOptions::default()).await
    }

    /// Starts a control plane in a temporary directory, with nodes and the Gateway API.
    pub async fn start_with_gateway_api() -> Self {
        Self::start_with(TestEnvOptions { gateway_api: true, ..TestEnvOptions::default() }).await
    }

    /// Starts a control plane without nodes or fake Ray dashboards, with the Gateway API: the
    /// dashboards are those of the pods.
    pub async fn start_bare() -> Self {
        let flags = &["--nodes=0"];
        Self::start_with(TestEnvOptions { gateway_api: true, direct: true, flags, ..TestEnvOptions::default() }).await
    }

    /// Starts a control plane.
    pub async fn start_with(options: TestEnvOptions<'_>) -> Self {
        let (dir, keep) = match options.kept_in {
            Some(dir) => (dir, true),
            None => (temporary_dir(), false),
        };
        std::fs::create_dir_all(&dir).expect("a directory for the control plane");
        let mut command = Command::new(testenv_binary());
        command.arg(if keep { "start" } else { "run" }).arg("--dir").arg(&dir);
        command.arg("--crds").arg(repository_root().join("config/crd"));
        if options.gateway_api {
            command.arg("--crds").arg(cache_dir().join("gateway-crds"));
        }
        command.args(options.flags);
        let mut process = command
            .stdin(if keep { Stdio::null() } else { Stdio::piped() })
            .stdout(Stdio::piped())
            .spawn()
            .unwrap_or_else(|error| {
                panic!("starting {} (make testenv builds it): {error}", testenv_binary().display())
            });
        let mut lines = BufReader::new(process.stdout.take().expect("its output")).lines();
        let line = lines.next_line().await.expect("its output").expect("the control plane reports that it is ready");
        let started: ControlPlaneInfo = serde_json::from_str(&line).unwrap_or_else(|error| panic!("{line}: {error}"));
        let client = client_for(&started.admin_kubeconfig).await;
        let process = if keep {
            process.wait().await.expect("the starter ends");
            None
        } else {
            Some(process)
        };
        let manager_kubeconfig = dir.join("sluice.kubeconfig");
        let env = Self {
            _process: process,
            dir,
            kubeconfig: started.admin_kubeconfig,
            proxied_kubeconfig: started.kubeconfig,
            control_url: started.steer,
            client,
            manager_kubeconfig,
        };
        env.apply_kustomization("rbac").await;
        env.apply_kustomization("policy").await;
        let kubeconfig = if options.direct { &env.kubeconfig } else { &env.proxied_kubeconfig };
        env.write_manager_kubeconfig(kubeconfig).await;
        env
    }

    /// Starts a manager with exactly the permissions of `config/rbac`.
    pub async fn manager(&self) -> Manager {
        self.manager_with(&[]).await
    }

    /// Starts a manager with additional flags.
    pub async fn manager_with(&self, flags: &[&str]) -> Manager {
        self.manager_through(&self.manager_kubeconfig, flags).await
    }

    /// Starts a manager with additional flags that connects to the API server of a kubeconfig.
    pub async fn manager_through(&self, kubeconfig: &Path, flags: &[&str]) -> Manager {
        self.start_manager(&sluice_binary(), kubeconfig, flags)
    }

    /// Starts a manager from this binary with additional flags.
    pub fn manager_from(&self, binary: &Path, flags: &[&str]) -> Manager {
        self.start_manager(binary, &self.manager_kubeconfig, flags)
    }

    fn start_manager(&self, binary: &Path, kubeconfig: &Path, flags: &[&str]) -> Manager {
        let log = self.dir.join(format!("sluice-{}.log", next_id()));
        let file = std::fs::File::create(&log).expect("a log file");
        let process = Command::new(binary)
            .arg("manager")
            .arg("--use-kubernetes-proxy")
            .args(DEFAULT_FLAGS.iter().filter(|flag| {
                let (name, _) = flag.split_once('=').unwrap_or_default();
                !flags.iter().any(|given| given.starts_with(name))
            }))
            .arg("--log-format=text")
            .args(flags)
            .env("KUBECONFIG", kubeconfig)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(file)
            .kill_on_drop(true)
            .spawn()
            .unwrap_or_else(|error| panic!("starting {}: {error}", binary.display()));
        Manager { process, log }
    }

    /// Replays the decision log in `file` with `sluice replay`. Returns the printed table as counts
    /// by row name.
    ///
    /// # Panics
    /// Panics if the log cannot be read or a decision differs.
    pub async fn replay(&self, file: &Path) -> BTreeMap<String, usize> {
        let output = Command::new(sluice_binary()).arg("replay").arg(file).output().await.expect("a replay");
        let (stdout, stderr) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        assert!(output.status.success(), "{}\n{stdout}{stderr}", output.status);
        let rows = stdout.lines().filter_map(|row| row.rsplit_once(' '));
        rows.map(|(name, count)| (name.trim().to_owned(), count.parse().expect("a number"))).collect()
    }

    /// Applies the files that a kustomization in `config/` lists as resources, without
    /// transformations.
    pub async fn apply_kustomization(&self, folder: &str) {
        #[derive(Deserialize)]
        struct Kustomization {
            resources: Vec<PathBuf>,
        }
        let folder = repository_root().join("config").join(folder);
        let text = std::fs::read_to_string(folder.join("kustomization.yaml")).expect("a kustomization");
        let listed: Kustomization = serde_saphyr::from_str(&text).expect("a list of resources");
        for file in listed.resources {
            self.apply_file(&folder.join(file)).await;
        }
    }

    /// Configures the API server to call the webhook of a manager at a free local port, which it
    /// returns: managers run outside of the cluster.
    pub async fn configure_webhook(&self) -> u16 {
        let port = free_port();
        let text = std::fs::read_to_string(repository_root().join("config/webhook/configuration.yaml"));
        let mut configuration: Value = serde_saphyr::from_str(&text.expect("the configuration")).expect("YAML");
        configuration["webhooks"][0]["clientConfig"] = json!({"url": format!("https://127.0.0.1:{port}/mutate")});
        self.apply(&configuration.to_string()).await.expect("the configuration is applied");
        port
    }

    /// Applies every document of a YAML file.
    pub async fn apply_file(&self, path: &Path) {
        let text = std::fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        self.apply(&text).await.unwrap_or_else(|error| panic!("applying {}: {error}", path.display()));
    }

    /// Applies every document of a YAML text, like `kubectl apply --server-side`.
    pub async fn apply(&self, text: &str) -> Result<(), kube::Error> {
        for document in documents(text) {
            let types = document.types.clone().expect("apiVersion and kind");
            let (group, version) = types.api_version.split_once('/').unwrap_or(("", &types.api_version));
            let plural = plural(&types.kind);
            let resource = ApiResource {
                group: group.to_owned(),
                version: version.to_owned(),
                api_version: types.api_version.clone(),
                kind: types.kind.clone(),
                plural,
            };
            let api: Api<DynamicObject> = match document.namespace() {
                Some(namespace) => Api::namespaced_with(self.client.clone(), &namespace, &resource),
                None => Api::all_with(self.client.clone(), &resource),
            };
            let params = PatchParams::apply("test").force();
            api.patch(&document.name_any(), &params, &Patch::Apply(&document)).await?;
        }
        Ok(())
    }

    /// Writes a kubeconfig for Sluice's service account with the same API server as `like`.
    async fn write_manager_kubeconfig(&self, like: &Path) {
        let accounts: Api<ServiceAccount> = Api::namespaced(self.client.clone(), NAMESPACE);
        let request = TokenRequest { spec: Some(TokenRequestSpec::default()), ..TokenRequest::default() };
        let token = accounts.create_token_request(SERVICE_ACCOUNT, &PostParams::default(), &request).await;
        let token = token.expect("a token for the manager").status.expect("a token").token;
        let like = Kubeconfig::read_from(like).expect("a kubeconfig");
        let cluster = like.clusters.into_iter().find_map(|named| named.cluster).expect("a cluster");
        let kubeconfig = json!({
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "sluice",
            "clusters": [{"name": "sluice", "cluster": cluster}],
            "users": [{"name": "sluice", "user": {"token": token}}],
            "contexts": [{"name": "sluice", "context": {"cluster": "sluice", "user": "sluice", "namespace": NAMESPACE}}],
        });
        std::fs::write(&self.manager_kubeconfig, kubeconfig.to_string()).expect("a kubeconfig for the manager");
    }

    /// Returns a client that impersonates a service account with administrator rights.
    pub async fn impersonate(&self, account: &str) -> Client {
        let mut read = Kubeconfig::read_from(&self.kubeconfig).expect("the administrator's kubeconfig");
        for user in read.auth_infos.iter_mut().filter_map(|named| named.auth_info.as_mut()) {
            user.impersonate = Some(format!("system:serviceaccount:{account}"));
            user.impersonate_groups = Some(vec!["system:masters".to_owned()]);
        }
        let config =
            Config::from_custom_kubeconfig(read, &KubeConfigOptions::default()).await.expect("a configuration");
        Client::try_from(config).expect("a client")
    }

    /// Returns a client with the manager's permissions.
    pub async fn manager_client(&self) -> Client {
        client_for(&self.manager_kubeconfig).await
    }

    /// Returns a client with the manager's permissions that sends each request exactly once.
    pub(super) async fn manager_client_without_retries(&self) -> Client {
        let mut config = config_of(&self.manager_kubeconfig).await;
        config.default_retry = false;
        Client::try_from(config).expect("a client")
    }
}

impl Drop for TestEnv {
    fn drop(&mut self) {
        // Keep the logs of a failed test.
        if self._process.is_some() && !std::thread::panicking() {
            let _ = std::fs::remove_dir_all(&self.dir);
        }
    }
}

/// A running `sluice manager`. Dropping the value kills it.
pub struct Manager {
    process: Child,
    /// Path of its log file.
    pub log: PathBuf,
}

impl Manager {
    /// Returns the process id.
    ///
    /// # Panics
    /// Panics if the manager has ended.
    pub fn id(&self) -> u32 {
        self.process.id().expect("a manager that runs")
    }

    /// Kills the manager with SIGKILL, as when its node fails.
    pub async fn kill(mut self) {
        self.process.kill().await.expect("the manager can be killed");
    }

    /// Waits until the manager exits by itself. Returns its exit status and log.
    ///
    /// # Panics
    /// Panics if it has not exited within one minute.
    pub async fn wait(mut self) -> (ExitStatus, String) {
        let status = tokio::time::timeout(Duration::from_secs(60), self.process.wait()).await;
        let status = status.expect("the manager exits by itself").expect("its exit status");
        (status, std::fs::read_to_string(&self.log).expect("its log"))
    }

    /// Sends SIGTERM, as when a node is drained, and waits until the manager exits.
    pub async fn terminate(mut self) -> ExitStatus {
        let id = self.id().to_string();
        let sent = Command::new("kill").args(["-TERM", &id]).status().await.expect("kill");
        assert!(sent.success(), "SIGTERM is delivered");
        self.process.wait().await.expect("the manager ends")
    }

    /// Detaches the manager from this process. Its process id is written to `manager.pid` next to
    /// its log.
    pub fn detach(self) {
        let id = self.id();
        std::fs::write(self.log.with_file_name("manager.pid"), id.to_string()).expect("a file for the process id");
        // Dropping the value would kill the manager.
        std::mem::forget(self);
    }
}

/// Polls `found` until it returns a value.
///
/// # Panics
/// Panics after two minutes. The timeout is generous: it is meant for conditions that never become
/// true, not for slow ones.
pub async fn eventually<T, F, Fut>(what: &str, mut found: F) -> T
where
    F: FnMut() -> Fut,
    Fut: Future<Output = Option<T>>,
{
    eventually_or_err(what, || {
        let found = found();
        async move { found.await.ok_or_else(String::new) }
    })
    .await
}

/// Polls `found` until it returns a value. Its error describes the current state.
///
/// # Panics
/// Panics after two minutes, like [`eventually`], with the last error.
pub async fn eventually_or_err<T, F, Fut>(what: &str, found: F) -> T
where
    F: FnMut() -> Fut,
    Fut: Future<Output = Result<T, String>>,
{
    poll_until(Duration::from_secs(120), what, found).await
}

/// Polls `found` until it returns a value, for at most `patience`.
///
/// # Panics
/// Panics after the timeout, with the last error.
pub async fn poll_until<T, F, Fut>(patience: Duration, what: &str, mut found: F) -> T
where
    F: FnMut() -> Fut,
    Fut: Future<Output = Result<T, String>>,
{
    let end = tokio::time::Instant::now() + patience;
    loop {
        match found().await {
            Ok(value) => return value,
            Err(instead) => assert!(tokio::time::Instant::now() < end, "timed out waiting: {what} {instead}"),
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

/// Waits until the wall clock is in its next second. An object created then is newer than those
/// created before in every order: timestamps in Kubernetes are whole seconds, and ties are broken
/// by uid.
pub async fn next_second() {
    let now = || SystemTime::now().duration_since(UNIX_EPOCH).expect("a time after 1970").as_secs();
    let start = now();
    while now() == start {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

async fn client_for(kubeconfig: &Path) -> Client {
    Client::try_from(config_of(kubeconfig).await).expect("a client")
}

async fn config_of(kubeconfig: &Path) -> Config {
    let read = Kubeconfig::read_from(kubeconfig).unwrap_or_else(|error| panic!("{}: {error}", kubeconfig.display()));
    Config::from_custom_kubeconfig(read, &KubeConfigOptions::default()).await.expect("a configuration")
}

fn documents(text: &str) -> Vec<DynamicObject> {
    let parts = text.split("\n---").map(|part| part.trim_start_matches("---"));
    let parts = parts.filter(|part| part.lines().any(|line| !line.trim().is_empty() && !line.starts_with('#')));
    parts.map(|part| serde_saphyr::from_str(part).unwrap_or_else(|error| panic!("{part}: {error}"))).collect()
}

fn plural(kind: &str) -> String {
    let lower = kind.to_lowercase();
    if lower.ends_with('y') && !lower.ends_with("ay") {
        format!("{}ies", lower.trim_end_matches('y'))
    } else if lower.ends_with("ss") {
        format!("{lower}es")
    } else {
        format!("{lower}s")
    }
}

fn temporary_dir() -> PathBuf {
    std::env::temp_dir().join(format!("sluice-test-{}-{}", std::process::id(), next_id()))
}

/// Returns the root of the repository.
pub fn repository_root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).expect("tests/support is two levels below the root")
}

/// Returns the directory into which `make testenv` builds its programs.
pub fn cache_dir() -> PathBuf {
    std::env::var_os("SLUICE_CACHE").map_or_else(|| repository_root().join(".cache"), PathBuf::from)
}

/// Returns a local port that no program listens at.
///
/// # Panics
/// Panics if the machine has none.
pub fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0").and_then(|listener| listener.local_addr()).expect("a free port").port()
}

fn testenv_binary() -> PathBuf {
    cache_dir().join("bin/testenv")
}

/// Returns the path of the `sluice` binary under test, which cargo builds next to the test
/// binaries.
pub fn sluice_binary() -> PathBuf {
    let own = std::env::current_exe().expect("the path of the test binary");
    let profile = own.ancestors().find(|folder| folder.join("sluice").is_file());
    profile.expect("target/PROFILE/sluice (cargo builds it with the tests)").join("sluice")
}

pub(super) fn next_id() -> u64 {
    use std::sync::atomic::{AtomicU64, Ordering};
    static NEXT: AtomicU64 = AtomicU64::new(0);
    NEXT.fetch_add(1, Ordering::Relaxed)
}
