//! Requests to the API that controls the test environment (see testenv/README.md).

use http::StatusCode;

use super::TestEnv;
use super::http::HttpClient;

impl TestEnv {
    /// Keeps a copy of the data of etcd.
    pub async fn back_up_etcd(&self) {
        self.control("POST", "/etcd/backup", String::new(), StatusCode::NO_CONTENT).await;
    }

    /// Replaces the data of etcd by the copy, and starts all components of the control plane again.
    pub async fn restore_etcd(&self) {
        self.control("POST", "/etcd/restore", String::new(), StatusCode::NO_CONTENT).await;
    }

    /// Sends a request to the API that controls the environment. Returns the body of
    /// the response.
    ///
    /// # Panics
    /// Panics if the response has another status than `expected`.
    pub(crate) async fn control(&self, method: &str, path: &str, body: String, expected: StatusCode) -> String {
        let url = format!("{}{path}", self.control_url.trim_end_matches('/'));
        let (status, body) = HttpClient::new().send(method, &url, body).await.expect("a response");
        assert_eq!(status, expected, "{body}");
        body
    }
}
