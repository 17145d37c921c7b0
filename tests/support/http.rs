//! A minimal HTTP client without retries.

use bytes::Bytes;
use http::{Request, StatusCode};
use http_body_util::{BodyExt, Full};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;

/// Sends each request exactly once.
pub struct HttpClient(Client<HttpConnector, Full<Bytes>>);

impl Default for HttpClient {
    fn default() -> Self {
        Self::new()
    }
}

impl HttpClient {
    /// Returns a client that never retries.
    pub fn new() -> Self {
        Self(Client::builder(TokioExecutor::new()).retry_canceled_requests(false).build_http())
    }

    /// Sends a request. Returns status and body of the response, or an error if there is none.
    pub async fn send(&self, method: &str, url: &str, body: String) -> Result<(StatusCode, String), String> {
        let request = Request::builder().method(method).uri(url).body(Full::new(Bytes::from(body)));
        let answer = self.0.request(request.expect("a request")).await.map_err(|error| format!("{error:?}"))?;
        let status = answer.status();
        let body = answer.into_body().collect().await.map_err(|error| error.to_string())?;
        Ok((status, String::from_utf8_lossy(&body.to_bytes()).into_owned()))
    }
}
