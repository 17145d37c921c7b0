//! Replaces random names, uids and addresses by descriptive ones, so that the objects of two
//! control planes compare equal.

use std::collections::BTreeMap;

use serde_json::Value;

use super::dump::{Dump, KindAndName};
use crate::script::manifests::ScriptNamespace;

/// Alphabet of random name suffixes, of the API server and of Sluice.
const ALPHABET: &str = "bcdfghjklmnpqrstvwxz2456789";

/// Random names, uids and addresses of one control plane, with their replacements.
pub(super) struct NameMap {
    /// Longest first, so that no prefix of another entry is replaced.
    replacements: Vec<(String, String)>,
}

impl NameMap {
    /// Derives the replacements from the objects of a namespace.
    pub(super) fn from_dump(dump: &Dump, place: &ScriptNamespace) -> Self {
        let mut names = BTreeMap::new();
        for kind in ["RayCluster", "Workload", "Pod", "Service", "EndpointSlice"] {
            let mut alike: BTreeMap<(String, String), Vec<(&KindAndName, &Value)>> = BTreeMap::new();
            for (key, object) in dump.iter().filter(|((of, _), _)| *of == kind) {
                let stem = rename_known(&names, &name_pattern(kind, &key.1, object));
                alike.entry((stem, distinction(kind, object))).or_default().push((key, object));
            }
            let mut numbers: BTreeMap<String, usize> = BTreeMap::new();
            for ((stem, _), all) in &mut alike {
                all.sort_by_key(|(_, object)| text(object, "/metadata/creationTimestamp").to_owned());
                for (key, _) in all {
                    let number = numbers.entry(stem.clone()).or_default();
                    *number += 1;
                    if key.1 != *stem {
                        names.insert(key.1.clone(), stem.replace('*', &number.to_string()));
                    }
                }
            }
        }
        let mut known: Vec<_> = names.clone().into_iter().collect();
        known.push((place.name.clone(), "<place>".to_owned()));
        for ((kind, name), object) in dump {
            let called = rename_known(&names, name);
            let others = [("/metadata/uid", "uid"), ("/status/podIP", "address"), ("/spec/clusterIP", "address")];
            let others = others.iter().map(|(pointer, what)| (text(object, pointer), *what));
            let random = others.filter(|(value, _)| !value.is_empty() && *value != "None");
            known.extend(random.map(|(value, what)| (value.to_owned(), format!("<{what} of {kind} {called}>"))));
        }
        known.sort_by_key(|(name, _)| std::cmp::Reverse(name.len()));
        Self { replacements: known }
    }

    /// Returns a text with all replacements.
    pub(super) fn rename(&self, text: &str) -> String {
        let mut renamed = text.to_owned();
        for (name, called) in &self.replacements {
            if renamed.contains(name.as_str()) {
                renamed = renamed.replace(name.as_str(), called);
            }
        }
        replace_deleted(&renamed)
    }
}

fn rename_known(names: &BTreeMap<String, String>, text: &str) -> String {
    let mut renamed = text.to_owned();
    for (name, called) in names.iter().rev() {
        renamed = renamed.replace(name.as_str(), called);
    }
    renamed
}

/// Returns a name with an asterisk for its random part.
fn name_pattern(kind: &str, name: &str, object: &Value) -> String {
    match kind {
        "Workload" => {
            // The number also counts slices that were pending only between the end of one cluster
            // and the start of another, which may come in either order.
            split_slice_name(name).map_or_else(|| name.to_owned(), |(start, _)| format!("{start}-<uid>-<*>"))
        }
        "RayCluster" if text(object, "/metadata/labels/ray.io~1originated-from-cr-name").is_empty() => name.to_owned(),
        "Service" => name.to_owned(),
        _ => name.rsplit_once('-').map_or_else(|| name.to_owned(), |(start, _)| format!("{start}-<*>")),
    }
}

/// Splits the name of a slice, `KIND-NAME-HASH` or `KIND-NAME-HASH-N` with a hash that depends on the
/// uid of the job, into the part before the hash and the number, which the first slice has not.
fn split_slice_name(name: &str) -> Option<(&str, &str)> {
    let (start, last) = name.rsplit_once('-')?;
    if is_hex(last, 5) {
        return Some((start, "1"));
    }
    let (start, hash) = start.rsplit_once('-')?;
    let is_number = last.chars().all(|c| c.is_ascii_digit());
    (is_hex(hash, 5) && is_number).then_some((start, last))
}

fn is_hex(text: &str, length: usize) -> bool {
    text.len() == length && text.chars().all(|c| c.is_ascii_hexdigit())
}

/// Returns what distinguishes objects of the same stem, besides names and times.
fn distinction(kind: &str, object: &Value) -> String {
    match kind {
        "RayCluster" => {
            text(object, "/metadata/annotations/ray.io~1hash-without-replicas-and-workers-to-delete").to_owned()
        }
        "Workload" => {
            let name = text(object, "/metadata/name");
            format!("{:>9}", split_slice_name(name).map_or("", |(_, number)| number))
        }
        "Pod" => {
            let labels = &object["metadata"]["labels"];
            let index = |label: &str| format!("{:>9}", labels[label].as_str().unwrap_or_default());
            // Pods of equal age are ungated in the order of their names, which are random.
            let gates = object.pointer("/spec/schedulingGates").and_then(Value::as_array);
            let waits = if gates.is_some_and(|gates| !gates.is_empty()) { "waits" } else { "runs" };
            format!("{waits}{}{}", index("ray.io/worker-group-replica-index"), index("ray.io/replica-host-index"))
        }
        _ => String::new(),
    }
}

/// Replaces uids and names of deleted objects, which are not in the dump and are recognized by
/// their form.
fn replace_deleted(text: &str) -> String {
    let is_part = |c: char| c.is_ascii_alphanumeric() || c == '-';
    let mut cleaned = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(start) = rest.find(is_part) {
        cleaned.push_str(&rest[..start]);
        let word = &rest[start..];
        let end = word.find(|c| !is_part(c)).unwrap_or(word.len());
        cleaned.push_str(&replace_random(&word[..end]));
        rest = &word[end..];
    }
    cleaned + rest
}

fn replace_random(word: &str) -> String {
    let parts: Vec<&str> = word.split('-').collect();
    if let [a, b, c, d, e] = parts[..]
        && [(a, 8), (b, 4), (c, 4), (d, 4), (e, 12)].iter().all(|(part, length)| is_hex(part, *length))
    {
        return "<uid of deleted object>".to_owned();
    }
    let is_slice = ["rayservice-", "raycluster-"].iter().any(|kind| word.starts_with(kind));
    if is_slice && let Some((start, _)) = split_slice_name(word) {
        return format!("{start}-<uid>-<deleted>");
    }
    // No word consists of these letters only. A number without a name before it is not a suffix.
    let is_random = |part: &str| part.len() == 5 && part.chars().all(|c| ALPHABET.contains(c));
    if word.starts_with(|c: char| c.is_ascii_lowercase()) && parts.iter().skip(1).any(|part| is_random(part)) {
        let known = parts.iter().enumerate();
        let known = known.map(|(at, part)| if at > 0 && is_random(part) { "<deleted>" } else { *part });
        return known.collect::<Vec<_>>().join("-");
    }
    word.to_owned()
}

fn text<'a>(object: &'a Value, pointer: &str) -> &'a str {
    object.pointer(pointer).and_then(Value::as_str).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use rstest::rstest;
    use serde_json::json;

    use super::*;

    #[rstest]
    #[case::uid("uid 0e3e10be-7e47-49f0-8260-f7e299d39212.", "uid <uid of deleted object>.")]
    #[case::slice("s0/rayservice-chat-f1fd0-3 waits", "s0/rayservice-chat-<uid>-<deleted> waits")]
    #[case::first_slice("s0/rayservice-chat-f1fd0 waits", "s0/rayservice-chat-<uid>-<deleted> waits")]
    #[case::cluster("RayCluster chat-5hvb5 goes", "RayCluster chat-<deleted> goes")]
    #[case::replica("small-25548", "small-<deleted>")]
    #[case::number("-25548 and 25548", "-25548 and 25548")]
    #[case::pod("(chat-5hvb5-head-c8nm8)", "(chat-<deleted>-head-<deleted>)")]
    #[case::nothing_random(
        "team-a, on-demand, is-ray-node, worker-group-small",
        "team-a, on-demand, is-ray-node, worker-group-small"
    )]
    fn names_of_deleted_objects_are_recognized_by_their_form(#[case] text: &str, #[case] expected: &str) {
        assert_eq!(replace_deleted(text), expected);
    }

    #[test]
    fn corresponding_objects_get_the_same_name_on_both_sides() {
        let dump = |cluster: &str, pod: &str, uid: &str| {
            let meta = json!({
                "name": cluster, "uid": uid, "labels": {"ray.io/originated-from-cr-name": "chat"},
            });
            let pod_meta = json!({"name": format!("{cluster}-head-{pod}"), "uid": format!("{uid}-pod")});
            Dump::from([
                (("RayCluster", cluster.to_owned()), json!({"kind": "RayCluster", "metadata": meta})),
                (("Pod", format!("{cluster}-head-{pod}")), json!({"kind": "Pod", "metadata": pod_meta})),
            ])
        };
        let place = ScriptNamespace::new("place1");
        let (here, there) = (
            NameMap::from_dump(&dump("chat-bcdfg", "xz245", "u1"), &place),
            NameMap::from_dump(&dump("chat-dfgkl", "2w2w2", "u2"), &place),
        );

        let renamed = here.rename("pod chat-bcdfg-head-xz245 of chat-bcdfg (u1)");

        assert_eq!(renamed, "pod chat-<1>-head-<1> of chat-<1> (<uid of RayCluster chat-<1>>)");
        assert_eq!(renamed, there.rename("pod chat-dfgkl-head-2w2w2 of chat-dfgkl (u2)"));
    }
}
