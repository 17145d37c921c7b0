//! Appends the decision log to its file on a separate thread, which never blocks the manager.

use std::fs::{File, OpenOptions};
use std::io::{self, ErrorKind, Read as _, Seek as _, SeekFrom, Write as _};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc;
use std::time::Duration;

use tokio::sync::oneshot;
use tracing::{error, info};

use sluice_metrics::Metrics;

/// Maximum backlog in bytes. A log with a gap can't be replayed, so it ends when the backlog is
/// larger.
const MAX_BACKLOG_BYTES: usize = 256 << 20;
/// Delay before a failed write is retried.
const RETRY_DELAY: Duration = Duration::from_secs(1);
/// Maximum time that a shutdown waits for the last lines.
const FINISH_TIMEOUT: Duration = Duration::from_secs(2);

/// Handle of the thread that writes the decision log.
pub(super) struct DecisionLog {
    lines: mpsc::Sender<Vec<u8>>,
    /// Bytes not yet written; at most `limit` before the log ends.
    backlog: Arc<AtomicUsize>,
    limit: usize,
    done: oneshot::Receiver<()>,
}

/// Error: the backlog exceeds its limit.
#[derive(Debug)]
pub(super) struct BacklogExceeded;

impl DecisionLog {
    /// Starts the thread that appends to the file at `path`, which is created if it doesn't exist.
    /// File errors are logged, counted and retried.
    ///
    /// # Errors
    /// If the thread can't be started.
    pub(super) fn start(path: PathBuf, metrics: Metrics) -> io::Result<Self> {
        let (lines, waiting) = mpsc::channel::<Vec<u8>>();
        let (end, done) = oneshot::channel();
        let backlog = Arc::new(AtomicUsize::new(0));
        let mut writer = LogWriter { path, file: None, is_failing: false, metrics, backlog: backlog.clone() };
        std::thread::Builder::new().name("decision-log".into()).spawn(move || {
            for lines in waiting {
                writer.write(&lines);
            }
            // The receiver is gone if the shutdown timed out.
            let _ = end.send(());
        })?;
        Ok(Self { lines, backlog, limit: MAX_BACKLOG_BYTES, done })
    }

    /// Queues lines for writing.
    ///
    /// # Errors
    /// If the backlog exceeds its limit. The lines are lost, which makes all later ones useless.
    pub(super) fn write(&self, lines: Vec<u8>) -> Result<(), BacklogExceeded> {
        if lines.is_empty() {
            return Ok(());
        }
        if self.backlog.load(Ordering::Relaxed) > self.limit {
            return Err(BacklogExceeded);
        }
        self.backlog.fetch_add(lines.len(), Ordering::Relaxed);
        self.lines.send(lines).map_err(|_| BacklogExceeded)
    }

    /// Waits up to [`FINISH_TIMEOUT`] for the last lines to be written.
    pub(super) async fn finish(self) {
        drop(self.lines);
        if tokio::time::timeout(FINISH_TIMEOUT, self.done).await.is_err() {
            error!("could not write the last lines of the decision log in time");
        }
    }
}

struct LogWriter {
    path: PathBuf,
    file: Option<File>,
    /// True if the last attempt failed and the failure was logged.
    is_failing: bool,
    metrics: Metrics,
    backlog: Arc<AtomicUsize>,
}

impl LogWriter {
    /// Writes all lines, and retries until that succeeds.
    fn write(&mut self, lines: &[u8]) {
        let mut rest = lines;
        while !rest.is_empty() {
            match self.try_write(rest) {
                Ok(written) => {
                    rest = rest.get(written..).unwrap_or_default();
                    self.backlog.fetch_sub(written, Ordering::Relaxed);
                    if std::mem::take(&mut self.is_failing) {
                        info!(file = %self.path.display(), "writing the decision log succeeded again");
                    }
                }
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => {
                    self.metrics.record_decision_log_failure();
                    if !std::mem::replace(&mut self.is_failing, true) {
                        error!(file = %self.path.display(), %error, "writing the decision log failed; retrying");
                    }
                    std::thread::sleep(RETRY_DELAY);
                }
            }
        }
    }

    fn try_write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let file = match &mut self.file {
            Some(file) => file,
            empty => empty.insert(open(&self.path)?),
        };
        match file.write(bytes)? {
            0 => Err(ErrorKind::WriteZero.into()),
            written => Ok(written),
        }
    }
}

/// Opens a file for appending. Terminates a line that a killed process left incomplete.
fn open(path: &Path) -> io::Result<File> {
    let mut options = OpenOptions::new();
    let mut file = options.append(true).create(true).read(true).mode(0o600).open(path)?;
    let meta = file.metadata()?;
    if meta.is_file() && meta.len() > 0 {
        let mut last = [0];
        file.seek(SeekFrom::End(-1))?;
        file.read_exact(&mut last)?;
        if last != *b"\n" {
            file.write_all(b"\n")?;
        }
    }
    Ok(file)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Temporary directory, removed on drop.
    struct TempDirectory(PathBuf);

    impl TempDirectory {
        fn new(name: &str) -> Self {
            let path = std::env::temp_dir().join(format!("sluice-decision-log-{}-{name}", std::process::id()));
            std::fs::create_dir_all(&path).expect("a temporary folder");
            Self(path)
        }
    }

    impl Drop for TempDirectory {
        fn drop(&mut self) {
            let _ = std::fs::remove_dir_all(&self.0);
        }
    }

    fn failures(metrics: &Metrics) -> String {
        let exposition = metrics.encode_text();
        let line = exposition.lines().find(|line| line.starts_with("sluice_decision_log_failures_total"));
        line.expect("the metric").to_owned()
    }

    #[tokio::test]
    async fn lines_are_appended_and_an_incomplete_line_is_terminated() {
        let folder = TempDirectory::new("append");
        let file = folder.0.join("log");
        std::fs::write(&file, "first\ncut o").expect("a file");

        let log = DecisionLog::start(file.clone(), Metrics::default()).expect("a thread");
        log.write(b"a\nb\n".to_vec()).expect("backlog below its limit");
        log.write(b"c\n".to_vec()).expect("backlog below its limit");
        log.finish().await;

        assert_eq!(std::fs::read_to_string(file).expect("the file"), "first\ncut o\na\nb\nc\n");
    }

    #[tokio::test]
    async fn failed_write_is_counted_and_retried_until_it_succeeds() {
        let folder = TempDirectory::new("retry");
        let (later, metrics) = (folder.0.join("later"), Metrics::default());

        let log = DecisionLog::start(later.join("log"), metrics.clone()).expect("a thread");
        log.write(b"a\n".to_vec()).expect("backlog below its limit");
        log.write(b"b\n".to_vec()).expect("backlog below its limit");
        while failures(&metrics).ends_with(" 0") {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        std::fs::create_dir(&later).expect("a folder");
        log.finish().await;

        assert_eq!(std::fs::read_to_string(later.join("log")).expect("the file"), "a\nb\n");
    }

    #[tokio::test]
    async fn lines_are_refused_when_the_backlog_exceeds_its_limit() {
        let folder = TempDirectory::new("overrun");

        let mut log = DecisionLog::start(folder.0.join("no/such/folder"), Metrics::default()).expect("a thread");
        log.limit = 1;
        log.write(b"a\n".to_vec()).expect("backlog below its limit");

        assert!(log.write(b"a\n".to_vec()).is_err());
    }
}
