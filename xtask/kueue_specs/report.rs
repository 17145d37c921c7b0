//! Results of a suite, and the specs that docs/kueue-specs.md lists as failing.

use std::collections::BTreeMap;
use std::path::Path;

use serde_json::Value;

use crate::Failure;

/// Document that lists every failing spec with its reason.
pub(super) const DOCUMENT: &str = "docs/kueue-specs.md";

/// Reads a JSON report of Ginkgo. Returns for each spec that ran if it passed.
///
/// # Errors
/// If the report is missing or not one of Ginkgo.
pub(super) fn read(path: &Path) -> Result<BTreeMap<String, bool>, Failure> {
    let text = std::fs::read_to_string(path).map_err(|error| format!("reading {}: {error}", path.display()))?;
    let report: Vec<Value> = serde_json::from_str(&text)?;
    let specs = report.iter().flat_map(|suite| suite["SpecReports"].as_array().into_iter().flatten());
    let ran = specs.filter(|spec| {
        spec["LeafNodeType"] == "It" && !matches!(spec["State"].as_str(), Some("skipped" | "pending") | None)
    });
    Ok(ran.map(|spec| (name_of(spec), spec["State"] == "passed")).collect())
}

/// Returns the name of a spec: the texts of its containers and its own.
fn name_of(spec: &Value) -> String {
    let containers = spec["ContainerHierarchyTexts"].as_array().into_iter().flatten();
    let texts = containers.chain([&spec["LeafNodeText"]]).filter_map(Value::as_str);
    // Some texts contain line breaks, double spaces, or the separator of the document's columns.
    let words = texts.flat_map(str::split_whitespace).map(|word| word.replace('|', "/"));
    words.collect::<Vec<_>>().join(" ")
}

/// Start of the reason of a spec that fails in some runs only: it depends on which of two processes is
/// faster.
const SOMETIMES: &str = "In some runs: ";

/// Returns the specs of a suite that the document lists as failing, with the reason: the columns of its
/// rows are the suite, the spec and the reason.
pub(super) fn expected_failures<'a>(document: &'a str, suite: &str) -> BTreeMap<&'a str, &'a str> {
    let rows = document.lines().filter_map(|line| line.strip_prefix("| "));
    let columns = rows.map(|row| row.split(" | ").collect::<Vec<_>>());
    let of_suite = columns.filter(|columns| columns.len() == 3 && columns[0] == suite);
    of_suite.map(|columns| (columns[1], columns[2])).collect()
}

/// Returns every spec whose result differs from what the document says.
pub(super) fn differences(suite: &str, results: &BTreeMap<String, bool>, document: &str) -> Vec<String> {
    let expected = expected_failures(document, suite);
    let unexpected = results.iter().filter(|(name, passed)| !**passed && !expected.contains_key(name.as_str()));
    let failed = unexpected.map(|(name, _)| format!("{suite}: failed, and {DOCUMENT} does not list it: {name}"));
    let always = expected.iter().filter(|(_, reason)| !reason.starts_with(SOMETIMES));
    let obsolete = always.filter(|(name, _)| results.get(**name) != Some(&false));
    let passed =
        obsolete.map(|(name, _)| format!("{suite}: {DOCUMENT} lists it as failing, and it did not fail: {name}"));
    failed.chain(passed).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_that_differ_from_the_document_are_reported() {
        let document = "| suite | spec | reason |\n|---|---|---|\n| a | fails | reason |\n| a | fixed | reason |\n| a | races | In some runs: reason |\n\
             | b | x | y |\n";
        let results = [("fails", false), ("fixed", true), ("new", false), ("works", true), ("races", true)];
        let results = results.map(|(name, passed)| (name.to_owned(), passed)).into();

        let found = differences("a", &results, document);

        assert_eq!(
            found,
            [
                "a: failed, and docs/kueue-specs.md does not list it: new",
                "a: docs/kueue-specs.md lists it as failing, and it did not fail: fixed",
            ]
        );
    }
}
