//! Writes the decision log to its file, beside the manager and never in its way.

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

/// How many bytes may wait for a disk that doesn't keep up. A log with a gap is of no use, so it ends when there are more.
const BACKLOG: usize = 256 << 20;
/// After so long a write that failed is tried again.
const PAUSE: Duration = Duration::from_secs(1);
/// How long a stop waits for the last lines.
const PATIENCE: Duration = Duration::from_secs(2);

/// The file of the decision log, and the thread that writes to it.
pub(super) struct DecisionLog {
    lines: mpsc::Sender<Vec<u8>>,
    /// Bytes that wait, and how many may.
    backlog: Arc<AtomicUsize>,
    limit: usize,
    done: oneshot::Receiver<()>,
}

/// Too much waits to be written.
#[derive(Debug)]
pub(super) struct Overrun;

impl DecisionLog {
    /// Starts writing to the end of the file at `path`, which is made if it isn't there. Whatever is wrong with it is logged
    /// and counted, and tried again.
    pub(super) fn start(path: PathBuf, metrics: Metrics) -> io::Result<Self> {
        let (lines, waiting) = mpsc::channel();
        let (end, done) = oneshot::channel();
        let backlog = Arc::new(AtomicUsize::new(0));
        let mut writer = LogWriter { path, file: None, is_failing: false, metrics, backlog: backlog.clone() };
        std::thread::Builder::new().name("decision-log".into()).spawn(move || {
            waiting.iter().for_each(|lines: Vec<u8>| writer.write(&lines));
            // Nobody listens any more when the stop has lost its patience.
            let _ = end.send(());
        })?;
        Ok(Self { lines, backlog, limit: BACKLOG, done })
    }

    /// Has lines written.
    ///
    /// # Errors
    /// When too much waits already. The lines are lost then, and whatever came after them would be of no use.
    pub(super) fn write(&self, lines: Vec<u8>) -> Result<(), Overrun> {
        if lines.is_empty() {
            return Ok(());
        }
        if self.backlog.load(Ordering::Relaxed) > self.limit {
            return Err(Overrun);
        }
        self.backlog.fetch_add(lines.len(), Ordering::Relaxed);
        self.lines.send(lines).map_err(|_| Overrun)
    }

    /// Waits for the last lines to be written, but not for long.
    pub(super) async fn finish(self) {
        drop(self.lines);
        if tokio::time::timeout(PATIENCE, self.done).await.is_err() {
            error!("the last lines of the decision log could not be written");
        }
    }
}

struct LogWriter {
    path: PathBuf,
    file: Option<File>,
    /// The last attempt failed, and that was logged.
    is_failing: bool,
    metrics: Metrics,
    backlog: Arc<AtomicUsize>,
}

impl LogWriter {
    /// Writes all of it, however long that takes.
    fn write(&mut self, lines: &[u8]) {
        let mut rest = lines;
        while !rest.is_empty() {
            match self.try_write(rest) {
                Ok(written) => {
                    rest = rest.get(written..).unwrap_or_default();
                    self.backlog.fetch_sub(written, Ordering::Relaxed);
                    if std::mem::take(&mut self.is_failing) {
                        info!(file = %self.path.display(), "the decision log is written again");
                    }
                }
                Err(problem) if problem.kind() == ErrorKind::Interrupted => {}
                Err(problem) => {
                    self.metrics.decision_log_failed();
                    if !std::mem::replace(&mut self.is_failing, true) {
                        error!(file = %self.path.display(), error = %problem, "writing the decision log failed; trying again");
                    }
                    std::thread::sleep(PAUSE);
                }
            }
        }
    }

    fn try_write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let file = match &mut self.file {
            Some(file) => file,
            none => none.insert(open(&self.path)?),
        };
        match file.write(bytes)? {
            0 => Err(ErrorKind::WriteZero.into()),
            written => Ok(written),
        }
    }
}

/// Opens a file to write at its end. A line that the process before was killed in is ended, so that ours begins on its own.
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

    /// A folder of a test's own, gone with it.
    struct Folder(PathBuf);

    impl Folder {
        fn new(name: &str) -> Self {
            let path = std::env::temp_dir().join(format!("sluice-decision-log-{}-{name}", std::process::id()));
            std::fs::create_dir_all(&path).expect("a temporary folder");
            Self(path)
        }
    }

    impl Drop for Folder {
        fn drop(&mut self) {
            let _ = std::fs::remove_dir_all(&self.0);
        }
    }

    fn failures(metrics: &Metrics) -> String {
        let exposition = metrics.exposition();
        let line = exposition.lines().find(|line| line.starts_with("sluice_decision_log_failures_total"));
        line.expect("the metric").to_owned()
    }

    #[tokio::test]
    async fn lines_go_to_the_end_of_the_file_and_a_line_that_was_cut_off_is_ended() {
        let folder = Folder::new("append");
        let file = folder.0.join("log");
        std::fs::write(&file, "first\ncut o").expect("a file");

        let log = DecisionLog::start(file.clone(), Metrics::default()).expect("a thread");
        log.write(b"a\nb\n".to_vec()).expect("room");
        log.write(b"c\n".to_vec()).expect("room");
        log.finish().await;

        assert_eq!(std::fs::read_to_string(file).expect("the file"), "first\ncut o\na\nb\nc\n");
    }

    #[tokio::test]
    async fn a_file_that_cannot_be_written_is_counted_and_tried_again_until_it_can() {
        let folder = Folder::new("retry");
        let (later, metrics) = (folder.0.join("later"), Metrics::default());

        let log = DecisionLog::start(later.join("log"), metrics.clone()).expect("a thread");
        log.write(b"a\n".to_vec()).expect("room");
        log.write(b"b\n".to_vec()).expect("room");
        while failures(&metrics).ends_with(" 0") {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        std::fs::create_dir(&later).expect("a folder");
        log.finish().await;

        assert_eq!(std::fs::read_to_string(later.join("log")).expect("the file"), "a\nb\n");
    }

    #[tokio::test]
    async fn nothing_more_is_taken_when_too_much_waits() {
        let folder = Folder::new("overrun");

        let mut log = DecisionLog::start(folder.0.join("no/such/folder"), Metrics::default()).expect("a thread");
        log.limit = 1;
        log.write(b"a\n".to_vec()).expect("room");

        assert!(log.write(b"a\n".to_vec()).is_err());
    }
}
