//! Tests that the documents name: each exists in the file that precedes it.

use std::collections::BTreeMap;

use regex::Regex;

use crate::sources::Source;

/// Documents whose tables name tests in their last column, after the file that has them.
const DOCUMENTS: &[&str] = &["docs/kueue-bugs.md"];

/// Returns every named test, or case of one, that does not exist.
pub(crate) fn check(sources: &[Source]) -> Vec<String> {
    let quoted = Regex::new(r"`([^`]+)`").expect("a pattern");
    let files: BTreeMap<&str, &str> =
        sources.iter().map(|source| (source.path.as_str(), source.text.as_str())).collect();
    let mut problems = Vec::new();
    for source in sources.iter().filter(|source| DOCUMENTS.contains(&source.path.as_str())) {
        let rows = source.text.lines().enumerate().filter(|(_, line)| line.starts_with('|'));
        for (number, tests) in rows.filter_map(|(number, row)| Some((number + 1, row.rsplit('|').nth(1)?))) {
            let mut file = None;
            for name in quoted.captures_iter(tests).map(|found| found.extract::<1>().1[0]) {
                if name.ends_with(".rs") {
                    file = files.get(name).map(|text| (name, *text));
                } else if let Some((path, text)) = file.filter(|_| is_name(name))
                    && !text.contains(&format!("fn {name}("))
                    && !text.contains(&format!("#[case::{name}("))
                {
                    problems.push(format!("{}:{number}: {path} has no test {name}", source.path));
                }
            }
        }
    }
    problems
}

fn is_name(text: &str) -> bool {
    text.chars().all(|letter| letter.is_ascii_lowercase() || letter.is_ascii_digit() || letter == '_')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn absent_tests_are_found() {
        let source = |path: &str, text: &str| Source { path: path.to_owned(), text: text.to_owned() };
        let code = source("src/a.rs", "#[case::small(1)]\nfn numbers(#[case] number: u32) {}\n");
        let page = source(DOCUMENTS[0], "| a | b | `src/a.rs`: `numbers`, `small`, `large`; `Kept::name` |\n");
        assert_eq!(check(&[code, page]), ["docs/kueue-bugs.md:1: src/a.rs has no test large"]);
    }
}
