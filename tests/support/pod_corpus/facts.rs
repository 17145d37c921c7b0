//! Objects as facts: paths and their JSON values. Values that differ between control planes, and
//! defaults of the API server, are omitted.

use std::collections::BTreeMap;

use serde_json::{Value, json};

/// Paths like `Pod small 0: spec.containers[0 ray-worker].image`, and their JSON values.
pub type Facts = BTreeMap<String, String>;

/// Paths whose values the API server assigns per object.
const ASSIGNED_PATHS: [&str; 16] = [
    "data['auth_token']",
    "status",
    "metadata.uid",
    "metadata.resourceVersion",
    "metadata.creationTimestamp",
    "metadata.managedFields",
    "metadata.generation",
    "metadata.namespace",
    "metadata.selfLink",
    "spec.nodeName",
    "spec.clusterIP",
    "spec.clusterIPs",
    "spec.healthCheckNodePort",
    "spec.ipFamilies",
    "spec.ipFamilyPolicy",
    "metadata.name",
];

/// Defaults of the API server: suffix of the path, and value.
const DEFAULTS: [(&str, &str); 22] = [
    ("spec.dnsPolicy", r#""ClusterFirst""#),
    ("spec.enableServiceLinks", "true"),
    ("spec.preemptionPolicy", r#""PreemptLowerPriority""#),
    ("spec.priority", "0"),
    ("spec.restartPolicy", r#""Always""#),
    ("spec.schedulerName", r#""default-scheduler""#),
    ("spec.securityContext", "{}"),
    ("spec.terminationGracePeriodSeconds", "30"),
    ("spec.serviceAccount", r#""default""#),
    ("spec.serviceAccountName", r#""default""#),
    ("spec.internalTrafficPolicy", r#""Cluster""#),
    ("spec.sessionAffinity", r#""None""#),
    (".terminationMessagePath", r#""/dev/termination-log""#),
    (".terminationMessagePolicy", r#""File""#),
    (".imagePullPolicy", r#""IfNotPresent""#),
    (".resources", "{}"),
    (".protocol", r#""TCP""#),
    (".fieldRef.apiVersion", r#""v1""#),
    ("Probe.successThreshold", "1"),
    ("httpGet.scheme", r#""HTTP""#),
    (".emptyDir", "{}"),
    ("metadata.annotations", "{}"),
];

/// Adds the facts about an object. `texts` are replaced wherever they occur.
pub(super) fn add_facts(facts: &mut Facts, what: &str, object: &Value, texts: &[(&str, &str)]) {
    let mut at = |place: &str, value: &Value| {
        let json = match value {
            Value::String(text) => json!(normalize_blanks(text)).to_string(),
            value => value.to_string(),
        };
        let is_usual = DEFAULTS.iter().any(|(ending, usual)| place.ends_with(ending) && json == *usual);
        if is_usual {
            return;
        }
        let replaced = |text: &str| texts.iter().fold(text.to_owned(), |text, (from, to)| text.replace(from, to));
        facts.insert(replaced(&format!("{what}: {place}")), replaced(&json));
    };
    walk("", object, &mut at);
}

fn walk(place: &str, value: &Value, at: &mut impl FnMut(&str, &Value)) {
    if ASSIGNED_PATHS.contains(&place)
        || place.ends_with(".nodePort")
        || place.starts_with("metadata.ownerReferences") && place.ends_with(".uid")
    {
        return;
    }
    match value {
        Value::Object(fields) if !fields.is_empty() => {
            for (field, value) in fields {
                let is_plain = !field.is_empty() && field.chars().all(|c| c.is_ascii_alphanumeric());
                let inside = match (place, is_plain) {
                    ("", _) => field.clone(),
                    (_, true) => format!("{place}.{field}"),
                    (_, false) => format!("{place}['{field}']"),
                };
                walk(&inside, value, at);
            }
        }
        Value::Array(entries) if !entries.is_empty() => {
            for (key, entry) in
                entry_keys(place, entries).iter().zip(entries).filter(|(key, _)| !is_of_the_account(key))
            {
                walk(&format!("{place}[{key}]"), entry, at);
            }
        }
        _ => at(place, value),
    }
}

/// Removes redundant blanks, which a shell ignores: KubeRay writes two between flags.
fn normalize_blanks(text: &str) -> String {
    text.split(' ').filter(|word| !word.is_empty()).collect::<Vec<_>>().join(" ")
}

/// Reports whether a list entry is the service account volume that the API server mounts into every
/// pod.
fn is_of_the_account(key: &str) -> bool {
    key.contains("kube-api-access-") || key.contains("/var/run/secrets/kubernetes.io/serviceaccount")
}

/// Returns the keys of list entries: their names, and for containers also the index, since the
/// first runs Ray.
fn entry_keys(place: &str, entries: &[Value]) -> Vec<String> {
    let field = match place.rsplit('.').next() {
        Some("volumeMounts") => "mountPath",
        Some("tolerations") => "key",
        _ => "name",
    };
    let is_ordered = place.ends_with("ontainers");
    let mut seen: BTreeMap<&str, usize> = BTreeMap::new();
    let key = |(index, entry): (usize, &'_ Value)| -> Option<(usize, String)> {
        let name = entry.get(field)?.as_str()?;
        Some((index, name.to_owned()))
    };
    let named: Option<Vec<(usize, String)>> = entries.iter().enumerate().map(key).collect();
    let Some(named) = named else { return (0..entries.len()).map(|index| index.to_string()).collect() };
    let mut keys = Vec::new();
    for (index, name) in &named {
        let times = seen.entry(name).and_modify(|times| *times += 1).or_insert(1);
        keys.push(match (is_ordered, *times) {
            (true, _) => format!("{index} {name}"),
            (false, 1) => name.clone(),
            (false, times) => format!("{name} again {times}"),
        });
    }
    keys
}

/// Returns the differences between facts, one per line: removed ones, and added ones.
pub fn diff(from: &Facts, to: &Facts) -> Vec<String> {
    let missing = |these: &Facts, those: &Facts, mark: char| -> Vec<(String, char, String)> {
        let only = these.iter().filter(|(place, value)| those.get(*place) != Some(value));
        only.map(|(place, value)| (place.clone(), mark, value.clone())).collect()
    };
    let mut lines = missing(from, to, '-');
    lines.extend(missing(to, from, '+'));
    lines.sort();
    lines.into_iter().map(|(place, mark, value)| format!("{mark} {place} = {value}")).collect()
}

/// Applies such differences to facts.
pub(super) fn apply_diff(from: &Facts, changes: &str) -> Facts {
    let mut facts = from.clone();
    for line in changes.lines() {
        let (place, value) = line.get(2..).and_then(|fact| fact.split_once(" = ")).unwrap_or_else(|| panic!("{line}"));
        match line.starts_with('+') {
            true => drop(facts.insert(place.to_owned(), value.to_owned())),
            false if facts.get(place).is_some_and(|stands| stands == value) => drop(facts.remove(place)),
            false => {}
        }
    }
    facts
}
