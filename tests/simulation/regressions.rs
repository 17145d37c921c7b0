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
    for file in files {
        let case = Case::read(&file);

        let found = run(&case, false).violations;

        let violations: Vec<String> = found.iter().map(ToString::to_string).collect();
        assert!(violations.is_empty(), "{}: {}", file.display(), violations.join("\n"));
    }
}
