//! Readable differences between two control planes.

use serde_json::Value;

use super::normalize::NormalizedObjects;

/// Maximum number of reported lines.
const MAX_LINES: usize = 40;

/// Returns one line per difference: object, path, real value and simulated value.
pub(super) fn between(real: &NormalizedObjects, simulated: &NormalizedObjects) -> Vec<String> {
    let mut lines = Vec::new();
    for (name, object) in real {
        match simulated.get(name) {
            Some(other) => compare(name, "", Some(object), Some(other), &mut lines),
            None => lines.push(format!("{name}: only on the real control plane")),
        }
    }
    let only = simulated.keys().filter(|name| !real.contains_key(*name));
    lines.extend(only.map(|name| format!("{name}: only in the simulator")));
    if lines.len() > MAX_LINES {
        let more = lines.len() - MAX_LINES;
        lines.truncate(MAX_LINES);
        lines.push(format!("and {more} more"));
    }
    lines
}

fn compare(name: &str, path: &str, real: Option<&Value>, simulated: Option<&Value>, lines: &mut Vec<String>) {
    match (real, simulated) {
        (Some(Value::Object(a)), Some(Value::Object(b))) => {
            let fields: std::collections::BTreeSet<&String> = a.keys().chain(b.keys()).collect();
            for field in fields {
                compare(name, &format!("{path}.{field}"), a.get(field), b.get(field), lines);
            }
        }
        (Some(Value::Array(a)), Some(Value::Array(b))) => {
            for index in 0..a.len().max(b.len()) {
                compare(name, &format!("{path}[{index}]"), a.get(index), b.get(index), lines);
            }
        }
        (a, b) if a != b => {
            let display = |value: Option<&Value>| value.map_or_else(|| "nothing".to_owned(), Value::to_string);
            lines.push(format!("{name} {path}: real {}, simulated {}", display(a), display(b)));
        }
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_difference_has_its_path_and_both_values() {
        let real = NormalizedObjects::from([
            ("Pod a".to_owned(), json!({"spec": {"x": [1, 2]}})),
            ("Pod b".to_owned(), json!({})),
        ]);
        let simulated = NormalizedObjects::from([
            ("Pod a".to_owned(), json!({"spec": {"x": [1]}})),
            ("Pod c".to_owned(), json!({})),
        ]);

        let lines = between(&real, &simulated);

        let expected = [
            "Pod a .spec.x[1]: real 2, simulated nothing",
            "Pod b: only on the real control plane",
            "Pod c: only in the simulator",
        ];
        assert_eq!(lines, expected);
    }

    #[test]
    fn equal_control_planes_do_not_differ() {
        let normal = NormalizedObjects::from([("Pod a".to_owned(), json!({"spec": {"x": [1, 2]}}))]);

        assert!(between(&normal, &normal).is_empty());
    }
}
