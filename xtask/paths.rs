//! Paths and links in the documents: each names a file or folder that exists.

use std::path::{Component, Path, PathBuf};

use regex::Regex;

use crate::sources::Source;

/// Documents that name files of the past.
const EXCEPTIONS: &[&str] = &["CHANGELOG.md"];

/// Returns every path in backquotes and every relative link that leads nowhere.
pub(crate) fn check(root: &Path, sources: &[Source]) -> Vec<String> {
    let named =
        Regex::new(r"`((?:src|tests|config|examples|benches|testenv|docs|xtask)/[\w./-]+)`").expect("a pattern");
    let linked = Regex::new(r"\]\(([^)#:\s]+)(?:#[^)]*)?\)").expect("a pattern");
    let mut problems = Vec::new();
    for source in sources.iter().filter(|source| source.path.ends_with(".md")) {
        if EXCEPTIONS.contains(&source.path.as_str()) {
            continue;
        }
        let folder = Path::new(&source.path).parent().unwrap_or(Path::new(""));
        for (number, line) in source.text.lines().enumerate() {
            let paths = named.captures_iter(line).map(|path| PathBuf::from(&path[1]));
            let links = linked.captures_iter(line).map(|link| normalized(&folder.join(&link[1])));
            for path in paths.chain(links).filter(|path| !root.join(path).exists()) {
                problems.push(format!("{}:{}: {} does not exist", source.path, number + 1, path.display()));
            }
        }
    }
    problems
}

/// Resolves `..` in a relative path without looking at the file system.
fn normalized(path: &Path) -> PathBuf {
    let mut result = PathBuf::new();
    for part in path.components() {
        match part {
            Component::ParentDir => {
                result.pop();
            }
            Component::CurDir => {}
            part => result.push(part),
        }
    }
    result
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn missing_paths_and_links_are_found() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
        let text = "`src/main.rs` and `src/absent.rs`, [here](../Makefile) and [there](absent.md)\n".to_owned();
        let problems = check(&root, &[Source { path: "docs/a.md".to_owned(), text }]);
        assert_eq!(problems.len(), 2, "{problems:?}");
    }
}
