//! Runs Traefik as a Gateway controller. `make gateway` installs it and isolates it in a network
//! namespace.

use std::collections::BTreeSet;
use std::process::Stdio;

use http::StatusCode;
use serde_json::Value;
use tokio::process::{Child, Command};

use super::TestEnv;
use super::env::cache_dir;
use super::fake_gateway::gateway_class;
use super::http::HttpClient;

/// Address at which Traefik accepts requests, with the port of the Gateway's listener.
pub const GATEWAY_ADDRESS: &str = "127.0.0.1:80";
/// Address of Traefik's own API.
const ADMIN_ADDRESS: &str = "127.0.0.1:8080";
/// Controller name of Traefik.
const CONTROLLER: &str = "traefik.io/gateway-controller";

/// A running Traefik. Dropping the value kills it.
pub struct Traefik {
    _process: Child,
    http: HttpClient,
}

impl Traefik {
    /// Creates the GatewayClass and starts Traefik with administrator rights.
    pub async fn start(env: &TestEnv) -> Self {
        env.apply(&gateway_class(CONTROLLER).to_string()).await.expect("the class");
        let file = std::fs::File::create(env.dir.join("traefik.log")).expect("a log file");
        let program = cache_dir().join("traefik/bin/traefik");
        let process = Command::new(&program)
            .args(["--providers.kubernetesgateway", "--providers.kubernetesgateway.statusaddress.ip=127.0.0.1"])
            .arg(format!("--entrypoints.web.address={GATEWAY_ADDRESS}"))
            .args([&format!("--entrypoints.traefik.address={ADMIN_ADDRESS}"), "--api.insecure"])
            .args(["--global.checknewversion=false", "--global.sendanonymoususage=false", "--log.level=DEBUG"])
            .env("KUBECONFIG", &env.kubeconfig)
            .stdin(Stdio::null())
            .stdout(file.try_clone().expect("a log file"))
            .stderr(file)
            .kill_on_drop(true)
            .spawn()
            .unwrap_or_else(|error| panic!("starting {} (make gateway installs it): {error}", program.display()));
        Self { _process: process, http: HttpClient::new() }
    }

    /// Returns the routing that Traefik currently applies to a cluster: the share of requests, in
    /// percent, and the addresses of the pods that receive them. It lags behind the reported
    /// status.
    pub async fn routing_to(&self, cluster: &str) -> Result<(i64, BTreeSet<String>), String> {
        let (status, body) =
            self.http.send("GET", &format!("http://{ADMIN_ADDRESS}/api/http/services"), String::new()).await?;
        if status != StatusCode::OK {
            return Err(format!("{status}: {body}"));
        }
        let services: Vec<Value> = serde_json::from_str(&body).map_err(|error| format!("{error}: {body}"))?;
        let is_backend =
            |service: &Value| service["name"].as_str().is_some_and(|name| name.contains(&backend_name_part(cluster)));
        let (mut own, mut all) = (0, 0);
        for backend in items(&services, "/weighted/services") {
            let weight = backend["weight"].as_i64().unwrap_or_default();
            own += if is_backend(backend) { weight } else { 0 };
            all += weight;
        }
        let share = (own * 100_i64).checked_div(all).ok_or("all weights are zero")?;
        let balancers: Vec<Value> = services.iter().filter(|service| is_backend(service)).cloned().collect();
        let urls = items(&balancers, "/loadBalancer/servers").filter_map(|server| server["url"].as_str());
        let hosts = urls.filter_map(|url| url.parse::<http::Uri>().ok()?.host().map(str::to_owned));
        Ok((share, hosts.collect()))
    }
}

/// Returns the part that the names of all of a cluster's backends contain.
fn backend_name_part(cluster: &str) -> String {
    format!("-{cluster}-serve-svc-")
}

fn items<'a>(services: &'a [Value], pointer: &'a str) -> impl Iterator<Item = &'a Value> {
    services.iter().filter_map(move |service| service.pointer(pointer)?.as_array()).flatten()
}
