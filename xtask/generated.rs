//! Files that are generated from the code, written by `make generate` and compared by `make tidy`.

use std::path::Path;

use sluice_api::crds;

use crate::{Failure, reference, sources};

/// Writes every generated file.
///
/// # Errors
/// If a source can't be read or a file can't be written.
pub(crate) fn write(root: &Path) -> Result<Vec<String>, Failure> {
    for (path, text) in files(root)? {
        let path = root.join(path);
        if let Some(folder) = path.parent() {
            std::fs::create_dir_all(folder)?;
        }
        std::fs::write(&path, text).map_err(|error| format!("writing {}: {error}", path.display()))?;
    }
    Ok(Vec::new())
}

/// Returns each generated file that differs from what the code generates.
///
/// # Errors
/// If a source can't be read.
pub(crate) fn check(root: &Path) -> Result<Vec<String>, Failure> {
    let mut problems = Vec::new();
    for (path, text) in files(root)? {
        if std::fs::read_to_string(root.join(&path)).unwrap_or_default() != text {
            problems.push(format!("{path} is out of date; run: make generate"));
        }
    }
    Ok(problems)
}

/// Returns path and content of every generated file.
fn files(root: &Path) -> Result<Vec<(String, String)>, Failure> {
    let definitions = crds::files().into_iter().map(|(name, text)| (format!("config/crd/{name}"), text));
    let pages = reference::pages(&sources::read(root)?);
    let pages = pages.into_iter().map(|(name, text)| (format!("docs/reference/{name}"), text));
    Ok(definitions.chain(pages).collect())
}
