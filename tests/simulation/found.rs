//! What seeds found before, made short: each broke something once, and may not again.

use std::path::Path;

use crate::case::Case;
use crate::run::run;

#[test]
fn what_was_broken_once_holds() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("found");
    let mut files: Vec<_> =
        std::fs::read_dir(folder).expect("the cases").map(|file| file.expect("a case").path()).collect();
    files.sort();
    assert!(!files.is_empty());
    for file in files {
        let case = Case::read(&file);

        let found = run(&case, false).found;

        let told: Vec<String> = found.iter().map(ToString::to_string).collect();
        assert!(told.is_empty(), "{}: {}", file.display(), told.join("\n"));
    }
}
