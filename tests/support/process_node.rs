//! A node on which pods are processes of this machine, so that real Ray runs in them; `make ray` builds it, and gives it a network
//! of its own.

use std::collections::BTreeMap;
use std::process::Stdio;
use std::time::Duration;

use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::{Child, Command};

use super::TestEnv;
use super::env::cache;

/// A running node. It ends with this value, and its pods with it.
pub struct ProcessNode(Child);

impl ProcessNode {
    /// Starts one that has these images, each a version of the application of the samples.
    pub async fn start(env: &TestEnv, images: Value) -> Self {
        let dir = env.dir.join("node");
        let table = env.dir.join("images.json");
        std::fs::write(&table, images.to_string()).expect("a file for the images");
        let log = std::fs::File::create(env.dir.join("node.log")).expect("a log file");
        let program = cache().join("bin/processnode");
        let mut process = Command::new(&program)
            .args(["run", "--cpu=64", "--memory=256Gi", "--dir"])
            .arg(&dir)
            .arg("--kubeconfig")
            .arg(&env.kubeconfig)
            .arg("--images")
            .arg(&table)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(log)
            .spawn()
            .unwrap_or_else(|error| panic!("starting {} (make processnode builds it): {error}", program.display()));
        let mut lines = BufReader::new(process.stdout.take().expect("its output")).lines();
        let ready = lines.next_line().await.expect("its output");
        assert!(ready.is_some(), "the node says that it is ready: see {}", env.dir.join("node.log").display());
        Self(process)
    }
}

impl Drop for ProcessNode {
    /// Waits until it has ended, since the next one gets the same network: it does so once its standard input is closed.
    fn drop(&mut self) {
        drop(self.0.stdin.take());
        while matches!(self.0.try_wait(), Ok(None)) {
            std::thread::sleep(Duration::from_millis(50));
        }
    }
}

/// An image with Ray and the application of the samples, where `make ray` installs them, and with this environment.
pub fn image(environment: &[(&str, &str)]) -> Value {
    let environment: BTreeMap<&str, &str> = environment.iter().copied().collect();
    json!({"path": cache().join("ray"), "env": environment})
}
