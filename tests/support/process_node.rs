//! A node that runs pods as local processes, so that they run real Ray. `make ray` builds it and
//! isolates it in a network namespace.

use std::collections::BTreeMap;
use std::process::Stdio;
use std::time::Duration;

use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::{Child, Command};

use super::TestEnv;
use super::env::cache_dir;

/// A running node. Dropping the value stops it and its pods.
pub struct ProcessNode(Child);

impl ProcessNode {
    /// Starts a node with these images, each a version of the samples' application.
    pub async fn start(env: &TestEnv, images: Value) -> Self {
        let dir = env.dir.join("node");
        let table = env.dir.join("images.json");
        std::fs::write(&table, images.to_string()).expect("a file for the images");
        let log = std::fs::File::create(env.dir.join("node.log")).expect("a log file");
        let program = cache_dir().join("bin/processnode");
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
        assert!(ready.is_some(), "the node reports that it is ready: see {}", env.dir.join("node.log").display());
        Self(process)
    }
}

impl Drop for ProcessNode {
    /// Closes standard input, which stops the node, and waits until it has exited: the next node
    /// uses the same network.
    fn drop(&mut self) {
        drop(self.0.stdin.take());
        while matches!(self.0.try_wait(), Ok(None)) {
            std::thread::sleep(Duration::from_millis(50));
        }
    }
}

/// Returns an image with Ray and the samples' application as installed by `make ray`, and with
/// these environment variables.
pub fn ray_image(environment: &[(&str, &str)]) -> Value {
    let environment: BTreeMap<&str, &str> = environment.iter().copied().collect();
    json!({"path": cache_dir().join("ray"), "env": environment})
}
