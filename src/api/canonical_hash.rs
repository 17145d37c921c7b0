//! Hash of a JSON value that is independent of the order of its keys.

use std::fmt::Write;

use serde_json::Value;
use sha2::{Digest, Sha256};

/// Version of the hash algorithm. It changes whenever an equal value would get another hash, so
/// that a hash written by an older release is not mistaken for that of another value.
const HASH_VERSION: &str = "v1";

/// Returns the hash of `value`, like `v1-0f3a…`: the first 128 bits of the SHA-256 of its JSON with
/// sorted keys.
pub fn hash(value: &Value) -> String {
    let mut json = String::new();
    write_canonical(value, &mut json);
    format!("{HASH_VERSION}-{}", to_hex(&Sha256::digest(json.as_bytes())[..16]))
}

/// Returns a short hash of `text`: the first 20 bits of its SHA-256, as five hexadecimal digits.
pub fn short_hash(text: &str) -> String {
    let mut digits = to_hex(&Sha256::digest(text)[..3]);
    digits.truncate(5);
    digits
}

/// Returns whether `hash` was computed by the current version of [`hash`], so that it can be compared
/// with its result.
pub fn is_comparable(hash: &str) -> bool {
    hash.split_once('-').is_some_and(|(version, _)| version == HASH_VERSION)
}

fn to_hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        // Writing to a String can't fail.
        let _ = write!(text, "{byte:02x}");
        text
    })
}

fn write_canonical(value: &Value, out: &mut String) {
    match value {
        Value::Object(fields) => {
            let mut names: Vec<&String> = fields.keys().collect();
            names.sort();
            write_list(out, ['{', '}'], names, |name, out| {
                out.push_str(&Value::from(name.as_str()).to_string());
                out.push(':');
                write_canonical(&fields[name.as_str()], out);
            });
        }
        Value::Array(items) => write_list(out, ['[', ']'], items, write_canonical),
        scalar => out.push_str(&scalar.to_string()),
    }
}

fn write_list<T>(
    out: &mut String,
    [open, close]: [char; 2],
    items: impl IntoIterator<Item = T>,
    mut each: impl FnMut(T, &mut String),
) {
    out.push(open);
    for (at, item) in items.into_iter().enumerate() {
        if at > 0 {
            out.push(',');
        }
        each(item, out);
    }
    out.push(close);
}

#[cfg(test)]
mod tests {
    use rstest::rstest;
    use serde_json::json;

    use super::*;

    #[test]
    fn hash_is_stable_across_releases() {
        let value = json!({"b": [1, "two", null, {"d": true, "c": 1.5}], "a": "ü\""});

        let mut text = String::new();
        write_canonical(&value, &mut text);

        assert_eq!(text, r#"{"a":"ü\"","b":[1,"two",null,{"c":1.5,"d":true}]}"#);
        assert_eq!(hash(&value), "v1-929080a2705bff62338d1976adcc15cb");
    }

    #[rstest]
    #[case::this_version("v1-00", true)]
    #[case::later_version("v2-00", false)]
    #[case::hash_of_kuberay("94Q7P53ETTCG3N1LC5S2KGF6PI8U6FHG", false)]
    fn only_hashes_of_this_version_are_comparable(#[case] hash: &str, #[case] comparable: bool) {
        assert_eq!(is_comparable(hash), comparable);
    }
}
