//! CPU time and memory of another process, from /proc.

use std::path::PathBuf;

/// CPU time and memory of a process.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ProcessUsage {
    /// CPU time since its start, in seconds.
    pub cpu_seconds: f64,
    /// Resident memory, in bytes.
    pub resident_bytes: u64,
    /// Maximum of the resident memory since its start, in bytes.
    pub peak_bytes: u64,
}

/// Error of a file in /proc.
#[derive(Debug, thiserror::Error)]
pub enum ProcessError {
    /// The file can't be read: the process has ended.
    #[error("failed to read {} of the manager: {source}", path.display())]
    Read {
        /// Path of the file.
        path: PathBuf,
        /// Error of the file system.
        source: std::io::Error,
    },
    /// The file has no such field.
    #[error("failed to find {field} in {} of the manager", path.display())]
    Field {
        /// Path of the file.
        path: PathBuf,
        /// Name of the field.
        field: &'static str,
    },
}

impl ProcessUsage {
    /// Reads the usage of a running process.
    ///
    /// # Errors
    /// If the process has ended.
    pub fn read(process: u32) -> Result<Self, ProcessError> {
        let folder = PathBuf::from(format!("/proc/{process}"));
        let (stat, status) = (folder.join("stat"), folder.join("status"));
        let read = |path: &PathBuf| {
            std::fs::read_to_string(path).map_err(|source| ProcessError::Read { path: path.clone(), source })
        };
        let missing = |path: &PathBuf, field| ProcessError::Field { path: path.clone(), field };
        let (times, memory) = (read(&stat)?, read(&status)?);
        let bytes = |field: &'static str| memory_bytes(&memory, field).ok_or_else(|| missing(&status, field));
        let ticks = cpu_ticks(&times).ok_or_else(|| missing(&stat, "utime and stime"))?;
        Ok(Self {
            cpu_seconds: ticks as f64 / rustix::param::clock_ticks_per_second() as f64,
            resident_bytes: bytes("VmRSS")?,
            peak_bytes: bytes("VmHWM")?,
        })
    }
}

/// Returns user and system time, in ticks, from the text of `stat`. The name of the process comes
/// before them in parentheses and may contain anything.
fn cpu_ticks(stat: &str) -> Option<u64> {
    let (_, fields) = stat.rsplit_once(')')?;
    let mut fields = fields.split_whitespace().skip(11);
    let (user, system): (u64, u64) = (fields.next()?.parse().ok()?, fields.next()?.parse().ok()?);
    Some(user + system)
}

/// Returns a field of `status`, in bytes.
fn memory_bytes(status: &str, field: &str) -> Option<u64> {
    let line = status.lines().find_map(|line| line.strip_prefix(field)?.strip_prefix(':'))?;
    let kibibytes: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kibibytes * 1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_found_after_any_name() {
        let stat = "42 (a) b) S 1 42 42 0 -1 4194304 100 0 0 0 250 50 0 0 20 0 4 0 1000 0 0";

        assert_eq!(cpu_ticks(stat), Some(300));
    }

    #[test]
    fn memory_is_in_bytes() {
        let status = "VmPeak:\t 9 kB\nVmHWM:\t    2048 kB\nVmRSS:\t    1024 kB\n";

        assert_eq!((memory_bytes(status, "VmHWM"), memory_bytes(status, "VmRSS")), (Some(2 << 20), Some(1 << 20)));
        assert_eq!(memory_bytes(status, "VmSwap"), None);
    }

    #[test]
    fn own_process_can_be_read() {
        let usage = ProcessUsage::read(std::process::id()).expect("the own process");

        assert!(usage.peak_bytes >= usage.resident_bytes && usage.resident_bytes > 0);
    }

    #[test]
    fn process_that_has_ended_is_an_error_with_its_path() {
        let error = ProcessUsage::read(u32::MAX).expect_err("there is none");

        assert!(error.to_string().contains("/proc/4294967295/stat"), "{error}");
    }
}
