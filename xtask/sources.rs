//! The text files of the repository that the checks read.

use std::path::Path;
use std::process::Command;

use crate::Failure;

/// A tracked text file.
pub(crate) struct Source {
    /// Path from the root of the repository.
    pub(crate) path: String,
    /// Its text.
    pub(crate) text: String,
}

impl Source {
    /// Returns true if the file is Rust code.
    pub(crate) fn is_rust(&self) -> bool {
        self.path.ends_with(".rs")
    }
}

/// Reads every tracked text file that a person writes or reads.
///
/// # Errors
/// If git can't list the files or a file can't be read.
pub(crate) fn read(root: &Path) -> Result<Vec<Source>, Failure> {
    let listed = Command::new("git").args(["ls-files", "-co", "--exclude-standard"]).current_dir(root).output()?;
    if !listed.status.success() {
        return Err(format!("git ls-files: {}", String::from_utf8_lossy(&listed.stderr)).into());
    }
    let mut sources = Vec::new();
    for path in String::from_utf8(listed.stdout)?.lines() {
        let is_text =
            [".rs", ".md", ".yaml", ".toml", ".go", "Makefile", ".ci/run"].iter().any(|end| path.ends_with(end));
        if is_text && root.join(path).is_file() {
            sources.push(Source { path: path.to_owned(), text: std::fs::read_to_string(root.join(path))? });
        }
    }
    Ok(sources)
}
