//! Reference pages: command line, metrics, annotations and labels, conditions and reasons, Events.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use regex::Regex;

use crate::sources::Source;

/// First line of every page.
const NOTE: &str = "<!-- Generated from the code; `make generate` writes it. -->";

/// Returns name and text of every reference page.
pub(crate) fn pages(sources: &[Source]) -> Vec<(String, String)> {
    let code: Vec<&Source> = sources
        .iter()
        .filter(|source| source.is_rust() && source.path.starts_with("src/") && !is_test(source))
        .collect();
    vec![
        ("cli.md".to_owned(), cli()),
        ("metrics.md".to_owned(), metrics(&code)),
        ("annotations-and-labels.md".to_owned(), keys(&code)),
        ("conditions.md".to_owned(), conditions(&code)),
        ("events.md".to_owned(), events(&code)),
    ]
}

fn is_test(source: &Source) -> bool {
    source.path.contains("/tests/") || source.path.ends_with("/tests.rs") || source.path.ends_with("fixtures.rs")
}

/// Returns the help of every command, as a terminal shows it.
fn cli() -> String {
    let mut page = format!("{NOTE}\n# Command line\n");
    let mut command = sluice_cli::command();
    command.build();
    describe(&mut command, "sluice", &mut page);
    page
}

fn describe(command: &mut clap::Command, name: &str, page: &mut String) {
    let help = command.render_long_help().to_string();
    let lines: Vec<&str> = help.lines().map(str::trim_end).collect();
    let _ = write!(page, "\n## `{name}`\n```text\n{}\n```\n", lines.join("\n").trim_end());
    for nested in command.get_subcommands_mut().filter(|nested| nested.get_name() != "help") {
        let name = format!("{name} {}", nested.get_name());
        describe(nested, &name, page);
    }
}

/// Returns name and meaning of every metric that the process registers.
fn metrics(code: &[&Source]) -> String {
    let registered = Regex::new(r#"registry\.register\(\s*"(?P<name>[^"]+)",\s*"(?P<help>[^"]+)",\s*(?P<metric>\w+)"#)
        .expect("a pattern");
    let mut page = format!("{NOTE}\n# Metrics\n\n| name | meaning | defined in |\n|---|---|---|\n");
    for source in code {
        for metric in registered.captures_iter(&source.text) {
            let is_counter = source.text.contains(&format!("{}: Counter", &metric["metric"]))
                || Regex::new(&format!(r"{}: Family<\w+, Counter>", &metric["metric"]))
                    .expect("a pattern")
                    .is_match(&source.text);
            let suffix = if is_counter { "_total" } else { "" };
            let _ = writeln!(page, "| `{}{suffix}` | {} | {} |", &metric["name"], &metric["help"], source.path);
        }
    }
    page
}

/// One documented string constant.
struct Constant {
    value: String,
    doc: String,
    path: String,
    module: String,
}

/// Returns every string constant that has a doc comment, in the order of the files.
fn constants(code: &[&Source]) -> Vec<Constant> {
    let declared = Regex::new(r#"(?m)^(?P<doc>(?:\s*///[^\n]*\n)+)\s*(?:pub(?:\([^)]*\))? )?const \w+: &(?:'static )?str = "(?P<value>[^"]*)";"#)
        .expect("a pattern");
    let module = Regex::new(r"(?m)^pub mod (\w+) \{").expect("a pattern");
    let mut found = Vec::new();
    for source in code {
        for declaration in declared.captures_iter(&source.text) {
            let place = declaration.get(0).map_or(0, |whole| whole.start());
            let inside = module
                .captures_iter(&source.text[..place])
                .last()
                .map_or("", |name| name.get(1).map_or("", |name| name.as_str()));
            let doc: Vec<&str> = declaration["doc"]
                .lines()
                .map(|line| line.trim().trim_start_matches('/').trim())
                .filter(|line| !line.is_empty())
                .collect();
            found.push(Constant {
                value: declaration["value"].to_owned(),
                doc: doc.join(" "),
                path: source.path.clone(),
                module: inside.to_owned(),
            });
        }
    }
    found
}

/// Returns every annotation, label and finalizer: keys with a domain and a lower-case name.
fn keys(code: &[&Source]) -> String {
    let key = Regex::new(r"^(sluice\.dev|kueue\.x-k8s\.io|ray\.io)/[a-z]").expect("a pattern");
    table(
        "Annotations, labels and finalizers",
        "key",
        constants(code).into_iter().filter(|constant| key.is_match(&constant.value)),
    )
}

/// Returns every condition type and reason.
fn conditions(code: &[&Source]) -> String {
    let own = Regex::new(r"^sluice\.dev/[A-Z]").expect("a pattern");
    let word = Regex::new(r"^[A-Z][A-Za-z]+$").expect("a pattern");
    let is_condition = |constant: &Constant| {
        own.is_match(&constant.value)
            || word.is_match(&constant.value)
                && (constant.module.ends_with("reason")
                    || constant.doc.contains("ondition")
                    || constant.doc.contains("eason"))
    };
    table("Condition types and reasons", "type or reason", constants(code).into_iter().filter(is_condition))
}

/// Returns every reason of a Kubernetes Event, with the file that emits it.
fn events(code: &[&Source]) -> String {
    let emitted =
        Regex::new(r#"(?s)(?:\w+::(normal|warning)\([^"]{0,80}?|\.(event)\()"([A-Z][A-Za-z]+)""#).expect("a pattern");
    let mut reasons: BTreeMap<String, (String, String)> = BTreeMap::new();
    for source in code {
        for event in emitted.captures_iter(&source.text) {
            let kind = if event.get(1).is_some_and(|kind| kind.as_str() == "warning") { "Warning" } else { "Normal" };
            reasons.entry(event[3].to_owned()).or_insert((kind.to_owned(), source.path.clone()));
        }
    }
    let mut page = format!("{NOTE}\n# Events\n\n| reason | type | emitted by |\n|---|---|---|\n");
    for (reason, (kind, path)) in reasons {
        let _ = writeln!(page, "| `{reason}` | {kind} | {path} |");
    }
    page
}

fn table(title: &str, column: &str, constants: impl Iterator<Item = Constant>) -> String {
    let mut rows: BTreeMap<String, (String, String)> = BTreeMap::new();
    for constant in constants {
        rows.entry(constant.value).or_insert((constant.doc, constant.path));
    }
    let mut page = format!("{NOTE}\n# {title}\n\n| {column} | meaning | defined in |\n|---|---|---|\n");
    for (value, (doc, path)) in rows {
        let _ = writeln!(page, "| `{value}` | {} | {path} |", doc.replace('|', "\\|"));
    }
    page
}
