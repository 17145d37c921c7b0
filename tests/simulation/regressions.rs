//! Regression cases: shrunk seeds that once violated an invariant.

use std::path::Path;

use crate::case::Case;
use crate::run::run;

#[test]
fn regressions_hold() {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("regressions");
    let mut files: Vec<_> = std::fs::read_dir(directory)
        .expect("the directory of cases")
        .map(|file| file.expect("a case").path())
        .collect();
    files.sort();
    assert!(!files.is_empty());
    let violations = files.iter().flat_map(|file| {
        let found = run(&Case::read(file), false).violations;
        found.into_iter().map(|violation| format!("{}: {violation}", file.display()))
    });
    let violations: Vec<String> = violations.collect();
    assert!(violations.is_empty(), "{}", violations.join("\n"));
}
