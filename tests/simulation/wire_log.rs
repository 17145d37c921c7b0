//! Log of requests and responses: its hash compares runs, and its text explains a failed one.

use std::fmt::Write as _;
use std::time::Duration;

use bytes::Bytes;
use http::{Method, Request, Uri};

use crate::faults::Fault;

/// One request and its response.
pub struct LogEntry {
    method: Method,
    target: String,
    request_body: Bytes,
    fault: Option<Fault>,
    status: u16,
    response_hash: u64,
}

impl LogEntry {
    /// Returns the entry of a request and of the fault injected into it.
    pub fn new(request: &Request<Bytes>, fault: Option<Fault>) -> Self {
        let (method, target) = (request.method().clone(), request.uri().to_string());
        Self { method, target, request_body: request.body().clone(), fault, status: 0, response_hash: 0 }
    }

    /// Returns verb and plural of a successful write, such as `create pods`. None for other
    /// requests.
    pub fn write_kind(&self) -> Option<String> {
        let path = self.target.split('?').next().unwrap_or_default();
        if self.status >= 300 { None } else { write_kind(&self.method, path) }
    }

    /// Records the response.
    pub fn set_response(&mut self, code: u16, body: &[u8]) {
        (self.status, self.response_hash) = (code, hash(SEED, body));
    }
}

/// Reports whether a request is a dry run, which stores nothing.
pub fn is_dry_run(uri: &Uri) -> bool {
    uri.query().unwrap_or_default().contains("dryRun=All")
}

/// Returns verb and plural of a write, such as `create pods`. None for other requests.
pub fn write_kind(method: &Method, path: &str) -> Option<String> {
    let parts: Vec<&str> = path.trim_matches('/').split('/').collect();
    let plural = match parts.as_slice() {
        ["api", _, "namespaces", _, plural, ..] | ["apis", _, _, "namespaces", _, plural, ..] => plural,
        ["api", _, plural, ..] | ["apis", _, _, plural, ..] => plural,
        _ => return None,
    };
    let verb = match *method {
        _ if path.contains("/proxy/") => return None,
        Method::POST => "create",
        Method::PATCH if path.ends_with("/status") => "patch the status of",
        Method::PATCH => "patch",
        Method::DELETE => "delete",
        _ => return None,
    };
    Some(format!("{verb} {plural}"))
}

/// Log of all requests and responses.
#[derive(Default)]
pub struct WireLog {
    fingerprint: u64,
    /// Readable text. None unless requested.
    text: Option<String>,
}

impl WireLog {
    /// Returns a log that also keeps readable text.
    pub fn readable() -> Self {
        Self { fingerprint: SEED, text: Some(String::new()) }
    }

    /// Appends an entry.
    pub fn append(&mut self, at: Duration, line: LogEntry) {
        let mut fingerprint = hash(self.fingerprint, &at.as_millis().to_le_bytes());
        for part in [
            line.method.as_str().as_bytes(),
            line.target.as_bytes(),
            &line.request_body,
            &line.response_hash.to_le_bytes(),
        ] {
            fingerprint = hash(fingerprint, part);
        }
        self.fingerprint = hash(fingerprint, &line.status.to_le_bytes());
        let Some(text) = &mut self.text else { return };
        let LogEntry { method, target, request_body: sent, fault, status: code, .. } = line;
        let _ = write!(text, "{:>9.3} {method:6} {code} {target}", at.as_secs_f64());
        if let Some(fault) = fault {
            let _ = write!(text, "  [{fault:?}]");
        }
        if !sent.is_empty() && !target.contains("/events?") {
            let _ = write!(text, "\n          {}", String::from_utf8_lossy(&sent));
        }
        text.push('\n');
    }

    /// Appends a remark to the readable text.
    pub fn remark(&mut self, at: Duration, remark: &str) {
        if let Some(text) = &mut self.text {
            let _ = writeln!(text, "{:>9.3} ---- {remark}", at.as_secs_f64());
        }
    }

    /// Returns the hash of all entries. Runs with equal hashes sent the same requests at the same
    /// times.
    pub fn fingerprint(&self) -> u64 {
        self.fingerprint
    }

    /// Returns the readable text. Empty unless requested.
    pub fn text(&self) -> &str {
        self.text.as_deref().unwrap_or_default()
    }
}

const SEED: u64 = 0xcbf2_9ce4_8422_2325;

/// FNV-1a over eight bytes at a time: fast, and equal on all platforms.
fn hash(start: u64, bytes: &[u8]) -> u64 {
    let mut chunks = bytes.chunks(8).map(|chunk| {
        let mut word = [0; 8];
        word[..chunk.len()].copy_from_slice(chunk);
        u64::from_le_bytes(word) ^ (chunk.len() as u64).rotate_left(56)
    });
    let fold = |hash: u64, word: u64| (hash ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(29);
    chunks.by_ref().fold(start, fold)
}
