//! The few numbers that are read from the metrics of an API server, in the text format of
//! Prometheus.

use std::collections::BTreeMap;

/// Family of the requests.
const REQUESTS: &str = "apiserver_request_total";
/// Family of the CPU time.
const CPU_SECONDS: &str = "process_cpu_seconds_total";

/// Metrics of an API server at one time.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct ServerMetrics {
    /// Number of requests by verb, kind and subresource, like `PATCH workloads/status`.
    pub requests: BTreeMap<String, u64>,
    /// CPU time of the process, in seconds. `None` if it is not reported.
    pub cpu_seconds: Option<f64>,
}

/// A line of the metrics is not in the text format.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("failed to parse the metrics of the API server: {0:?} is not a sample")]
pub struct MetricsError(String);

impl ServerMetrics {
    /// Parses the metrics.
    ///
    /// # Errors
    /// If a line of a family that is read is not in the text format.
    pub fn parse(text: &str) -> Result<Self, MetricsError> {
        let mut metrics = Self::default();
        for line in text.lines() {
            let is_of = |family: &str| line.strip_prefix(family).is_some_and(|rest| rest.starts_with(['{', ' ']));
            if !is_of(REQUESTS) && !is_of(CPU_SECONDS) {
                continue;
            }
            let invalid = || MetricsError(line.to_owned());
            let (labels, value) = sample(line).ok_or_else(invalid)?;
            if is_of(CPU_SECONDS) {
                metrics.cpu_seconds = Some(value);
                continue;
            }
            let label = |name: &str| labels.get(name).map_or("", String::as_str);
            let subresource = match label("subresource") {
                "" => String::new(),
                subresource => format!("/{subresource}"),
            };
            let request = format!("{} {}{subresource}", label("verb"), label("resource"));
            *metrics.requests.entry(request).or_default() += value as u64;
        }
        Ok(metrics)
    }
}

/// Returns how many requests of each kind were made since `before`.
pub fn requests_since(before: &BTreeMap<String, u64>, after: &BTreeMap<String, u64>) -> BTreeMap<String, u64> {
    let made = |(request, count): (&String, &u64)| {
        let made = count.saturating_sub(before.get(request).copied().unwrap_or_default());
        (made > 0).then(|| (request.clone(), made))
    };
    after.iter().filter_map(made).collect()
}

/// Parses a sample: its labels and its value.
fn sample(line: &str) -> Option<(BTreeMap<String, String>, f64)> {
    let Some((_, labels)) = line.split_once('{') else {
        return Some((BTreeMap::new(), line.split_whitespace().nth(1)?.parse().ok()?));
    };
    let mut found = BTreeMap::new();
    let mut rest = labels;
    loop {
        rest = rest.trim_start_matches([',', ' ']);
        if let Some(value) = rest.strip_prefix('}') {
            return Some((found, value.split_whitespace().next()?.parse().ok()?));
        }
        let (name, quoted) = rest.split_once("=\"")?;
        let (value, after) = quoted_value(quoted)?;
        found.insert(name.to_owned(), value);
        rest = after;
    }
}

/// Splits the text after an opening quote into the value and what follows the closing quote.
fn quoted_value(text: &str) -> Option<(String, &str)> {
    let mut value = String::new();
    let mut characters = text.char_indices();
    while let Some((at, character)) = characters.next() {
        match character {
            '"' => return Some((value, &text[at + 1..])),
            '\\' => match characters.next()?.1 {
                'n' => value.push('\n'),
                escaped => value.push(escaped),
            },
            other => value.push(other),
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = r#"
# HELP apiserver_request_total [STABLE] Counter of apiserver requests
# TYPE apiserver_request_total counter
apiserver_request_total{code="200",resource="workloads",subresource="status",verb="PATCH"} 12
apiserver_request_total{code="409",resource="workloads",subresource="status",verb="PATCH"} 3
apiserver_request_total{code="201",resource="odd\"}name",subresource="",verb="POST"} 1e+06
apiserver_request_total_other{verb="PATCH"} 99
process_cpu_seconds_total 12.25
"#;

    #[test]
    fn requests_are_summed_by_verb_kind_and_subresource() {
        let metrics = ServerMetrics::parse(TEXT).expect("metrics");

        let expected = [("PATCH workloads/status".to_owned(), 15), ("POST odd\"}name".to_owned(), 1_000_000)];
        assert_eq!(metrics.requests, BTreeMap::from(expected));
        assert_eq!(metrics.cpu_seconds, Some(12.25));
    }

    #[test]
    fn broken_line_is_an_error_that_quotes_it() {
        let error = ServerMetrics::parse("apiserver_request_total{verb=\"PATCH} 12").expect_err("it is broken");

        assert!(error.to_string().contains("PATCH} 12"), "{error}");
    }

    #[test]
    fn only_requests_since_the_start_count() {
        let count = |number| BTreeMap::from([("LIST pods".to_owned(), 5), ("GET pods".to_owned(), number)]);

        assert_eq!(requests_since(&count(2), &count(9)), BTreeMap::from([("GET pods".to_owned(), 7)]));
    }
}
