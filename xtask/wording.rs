//! Wording of names, comments and messages: retired words, and how doc comments begin.

use std::collections::HashSet;

use regex::Regex;

use crate::sources::Source;

/// Words that no text of the repository uses, each with what to write instead. `docs/contributing/glossary.md` explains them.
const RETIRED: &[(&str, &str)] = &[
    (r"(?i)\banew\b", "again, or: recreate"),
    (r"(?i)\bnobody\b", "no one named: say which component does not"),
    (r"(?i)\b(some|any)body\b", "the user, the controller, another manager"),
    (r"(?i)\bwhoever\b", "the component that"),
    (r"(?i)\bby now\b", "drop it"),
    (r"(?i)\bjobs? of kubernetes\b", "batch/v1 Job"),
    (r"(?i)\blets? go\b", "ungate (a pod), release (a finalizer)"),
    (r"(?i)\bmakes? no sense\b", "is invalid"),
    (r"(?i)\bin steps($|[^ ]| [^{])", "incremental, incrementally"),
    (r"(?i)\bof late\b", "recently"),
    (r"(?i)\breckoned\b", "computed"),
    (r"(?i)\b(is|are|was|were|been|be) told\b", "is reported, receives"),
    (r"(?i)\btells? of\b", "reports"),
    (r"(?i)\bunpaid\b", "uncovered"),
    (r"(?i)\bset aside\b", "parked, inadmissible"),
    (r"(?i)\bkept back\b", "reserved"),
    (r"(?i)\bvictims?\b", "preemption target, preempted workload"),
];

/// Names that were retired; a definition or use of one is an error.
const RETIRED_NAMES: &[&str] = &[
    "Doubts",
    "Doubt",
    "Footing",
    "Habits",
    "Setbacks",
    "Notebook",
    "Untold",
    "Halves",
    "Makeup",
    "Apart",
    "Census",
    "Molds",
    "Newcomer",
    "Farewell",
    "Ways",
    "Rehearsal",
    "Restless",
    "Keeper",
    "Teller",
    "Breach",
    "Onlooker",
    "Ladder",
    "Rung",
];

/// Files in which a retired word is quoted: the tables of the words themselves, and records of other programs.
const EXCEPTIONS: &[&str] =
    &["xtask/wording.rs", "docs/contributing/glossary.md", "CHANGELOG.md", "tests/simulation/api/recorded/"];

/// Returns every use of a retired word or name.
pub(crate) fn check(sources: &[Source]) -> Vec<String> {
    let words: Vec<(Regex, &str)> =
        RETIRED.iter().map(|(word, instead)| (Regex::new(word).expect("a pattern"), *instead)).collect();
    let names = Regex::new(&format!(r"\b({})\b", RETIRED_NAMES.join("|"))).expect("a pattern");
    let mut problems = Vec::new();
    for source in sources.iter().filter(|source| !EXCEPTIONS.iter().any(|path| source.path.starts_with(path))) {
        for (number, line) in source.text.lines().enumerate() {
            let place = format!("{}:{}", source.path, number + 1);
            for (word, instead) in &words {
                if let Some(found) = word.find(line) {
                    problems.push(format!("{place}: {:?} is retired; write: {instead}", found.as_str()));
                }
            }
            if source.is_rust()
                && let Some(found) = names.find(line)
            {
                problems.push(format!(
                    "{place}: the name {:?} is retired; see docs/contributing/glossary.md",
                    found.as_str()
                ));
            }
        }
    }
    problems
}

/// Returns every doc comment that opens with a question word.
pub(crate) fn check_docs(sources: &[Source]) -> Vec<String> {
    let opens = Regex::new(r"^\s*//[/!] (What|Whether|Who|Whom|Whose|Which|How|Where|When|Why)\b").expect("a pattern");
    let is_doc = |line: &str| line.trim_start().starts_with("///") || line.trim_start().starts_with("//!");
    let mut questions = Vec::new();
    for source in sources.iter().filter(|source| source.is_rust()) {
        let mut previous = "";
        for (number, line) in source.text.lines().enumerate() {
            if is_doc(line) && !is_doc(previous) && opens.is_match(line) {
                questions.push(format!("{}:{}: the doc comment opens with a question word", source.path, number + 1));
            }
            previous = line;
        }
    }
    questions
}

/// Returns every constant that a Rust comment names in backticks and that exists in no source, as after a rename.
pub(crate) fn check_constants(sources: &[Source]) -> Vec<String> {
    let mentioned = Regex::new(r"`(?:\w+::)*([A-Z][A-Z0-9_]{3,})`").expect("a pattern");
    let word = Regex::new(r"\b[A-Z][A-Z0-9_]{3,}\b").expect("a pattern");
    let is_comment = |line: &str| line.trim_start().starts_with("//");
    let code = sources.iter().filter(|source| !source.path.ends_with(".md"));
    let code = code.flat_map(|source| source.text.lines()).filter(|line| !is_comment(line));
    let known: HashSet<&str> = code.flat_map(|line| word.find_iter(line)).map(|found| found.as_str()).collect();
    let mut problems = Vec::new();
    for source in sources.iter().filter(|source| source.is_rust()) {
        for (number, line) in source.text.lines().enumerate().filter(|(_, line)| is_comment(line)) {
            let names = mentioned.captures_iter(line).filter_map(|found| found.get(1)).map(|name| name.as_str());
            let unknown = names.filter(|name| !known.contains(name));
            problems.extend(unknown.map(|name| format!("{}:{}: no constant is named {name}", source.path, number + 1)));
        }
    }
    problems
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rust(text: &str) -> Vec<Source> {
        vec![Source { path: "src/a.rs".into(), text: text.into() }]
    }

    #[test]
    fn retired_words_and_names_are_found_with_their_line() {
        let problems = check(&rust("// fine\n// made anew\nstruct Doubts;\n"));
        assert_eq!(problems.len(), 2, "{problems:?}");
        assert!(problems[0].starts_with("src/a.rs:2: \"anew\""), "{problems:?}");
        assert!(problems[1].starts_with("src/a.rs:3: the name \"Doubts\""), "{problems:?}");
    }

    #[test]
    fn comment_that_names_a_missing_constant_is_found() {
        let text = "/// At most [`LIMIT`], in [`a::MAX_SIZE`].\nconst LIMIT: u8 = 1;\n";
        assert_eq!(check_constants(&rust(text)), ["src/a.rs:1: no constant is named MAX_SIZE"]);
    }

    #[test]
    fn only_the_first_line_of_a_doc_comment_counts() {
        let docs = "/// Returns it.\n/// When it is none, returns nothing.\nfn a() {}\n";
        assert!(check_docs(&rust(docs)).is_empty());
        assert_eq!(check_docs(&rust("/// Whether it is.\nfn a() {}\n")).len(), 1);
    }
}
