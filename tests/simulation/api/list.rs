//! Lists with pagination; all pages of a list show the state of one version.

use std::borrow::Cow;
use std::collections::BTreeMap;

use bytes::Bytes;
use serde_json::{Value, json};

use super::kinds::ResourceKind;
use super::selector::Selector;
use super::status_error::StatusError;
use super::store::Store;

/// Requested page of a list.
#[derive(Debug, Clone, Copy)]
pub struct ListPage<'a> {
    /// Maximum number of objects; 0 means no limit.
    pub limit: usize,
    /// Exact version to list; `None` lists the current state.
    pub version: Option<u64>,
    /// Continue token of the previous page; empty for the first page.
    pub continue_token: &'a str,
}

impl ListPage<'_> {
    /// The whole list in its current state.
    pub const ALL: Self = Self { limit: 0, version: None, continue_token: "" };
}

/// Returns a list of the selected objects of a kind, encoded as JSON.
///
/// # Errors
/// Returns an error if the token is malformed (400) or the version has been compacted (410).
pub fn list(
    store: &Store,
    kind: &ResourceKind,
    namespace: &str,
    selector: &Selector,
    piece: ListPage<'_>,
) -> Result<Vec<u8>, StatusError> {
    let (version, from) = match (piece.continue_token, piece.version) {
        ("", Some(version)) if version < store.compacted() => {
            let message = format!("The provided resource version {version} is too old");
            return Err(StatusError::expired(message));
        }
        ("", version) => (version.unwrap_or(store.version()), ""),
        (token, _) => parse_continue_token(store, token)?,
    };
    let past = changed_since(store, kind, version);
    let mut bodies = Vec::new();
    let mut next = None;
    let mut left = 0;
    for (key, body) in objects_as_of(store, kind, namespace, from, &past, selector) {
        if piece.limit == 0 || bodies.len() < piece.limit {
            bodies.push(body);
        } else {
            next.get_or_insert_with(|| key.to_owned());
            left += 1;
        }
    }
    let mut metadata = json!({"resourceVersion": version.to_string()});
    if kind.is_custom() {
        metadata["continue"] = "".into();
    }
    if let Some(next) = next {
        metadata["continue"] = format!("{version}:{next}").into();
        metadata["remainingItemCount"] = left.into();
    }
    Ok(encode_list(kind, &metadata, &bodies))
}

/// Parses a continue token into its version and start key.
fn parse_continue_token<'a>(store: &Store, token: &'a str) -> Result<(u64, &'a str), StatusError> {
    let parts = token.split_once(':').and_then(|(version, key)| Some((version.parse::<i64>().ok()?, key)));
    let (version, key) = parts.ok_or_else(|| StatusError::bad_request("continue key is not valid: unknown format"))?;
    // A token with version -1 continues with the current state.
    let version = u64::try_from(version).unwrap_or(store.version());
    if version >= store.compacted() {
        return Ok((version, key));
    }
    let message = "The provided continue parameter is too old to display a consistent list result. You can start a new \
        list without the continue parameter, or use the continue token in this response to retrieve the remainder of the \
        results. Continuing with the provided token results in an inconsistent list - objects that were created, \
        modified, or deleted between the time the first chunk was returned and now may show up in the list.";
    Err(StatusError { continue_token: Some(format!("-1:{key}")), ..StatusError::expired(message) })
}

/// Returns the objects that have changed since `version` as they were then, by key; `None` if the
/// object did not exist yet.
fn changed_since(store: &Store, kind: &ResourceKind, version: u64) -> BTreeMap<String, Option<Value>> {
    let mut past = BTreeMap::new();
    for change in store.changes_of(kind, store.changes_up_to(kind, version)) {
        let before = || change.before.as_ref().map(|before| Value::clone(before));
        past.entry(super::store_key(&change.object)).or_insert_with(before);
    }
    past
}

/// Returns the selected objects, with changed ones as they were (`past`), ordered by key.
fn objects_as_of<'a>(
    store: &'a Store,
    kind: &ResourceKind,
    namespace: &str,
    from: &str,
    past: &'a BTreeMap<String, Option<Value>>,
    selector: &'a Selector,
) -> Vec<(&'a str, Bytes)> {
    let now = store.range(kind, namespace, from).filter(|(key, _)| !past.contains_key(*key));
    let now =
        now.filter(|(_, stored)| selector.matches(&stored.object)).map(|(key, stored)| (key, stored.body.clone()));
    if past.is_empty() {
        return now.collect();
    }
    let in_namespace = |key: &str| namespace.is_empty() || key.split_once('/').is_some_and(|(own, _)| own == namespace);
    let then = past.iter().filter(|(key, _)| key.as_str() >= from && in_namespace(key));
    let then = then.filter_map(|(key, object)| Some((key.as_str(), object.as_ref()?)));
    let then = then.filter(|(_, object)| selector.matches(object));
    let mut all: Vec<_> = now.chain(then.map(|(key, object)| (key, object.to_string().into()))).collect();
    all.sort_by(|a, b| a.0.cmp(b.0));
    all
}

fn encode_list(kind: &ResourceKind, metadata: &Value, bodies: &[Bytes]) -> Vec<u8> {
    let size: usize = bodies.iter().map(|body| body.len() + 1).sum();
    let mut text = Vec::with_capacity(size + 160);
    let head = format!(
        "{{\"kind\":\"{}List\",\"apiVersion\":\"{}\",\"metadata\":{metadata},\"items\":[",
        kind.kind,
        kind.api_version()
    );
    text.extend_from_slice(head.as_bytes());
    // Fields are sorted by name, so most objects begin with exactly this text.
    let head_of_item = format!("{{\"apiVersion\":\"{}\",\"kind\":\"{}\",", kind.api_version(), kind.kind);
    for (index, body) in bodies.iter().enumerate() {
        if index > 0 {
            text.push(b',');
        }
        let (start, rest) = encode_item(kind, &head_of_item, body);
        text.extend_from_slice(start);
        text.extend_from_slice(&rest);
    }
    text.extend_from_slice(b"]}");
    text
}

/// Encodes an object as a list item. Items of built-in kinds have no `apiVersion` and `kind`.
/// Returns a prefix and the rest, to avoid a copy.
fn encode_item<'a>(kind: &ResourceKind, head: &str, body: &'a [u8]) -> (&'static [u8], Cow<'a, [u8]>) {
    if kind.is_custom() {
        return (b"", Cow::Borrowed(body));
    }
    if let Some(rest) = body.strip_prefix(head.as_bytes()) {
        return (b"{", Cow::Borrowed(rest));
    }
    let mut object: Value = serde_json::from_slice(body).unwrap_or_default();
    let fields = super::object_meta::as_map_mut(&mut object);
    fields.remove("apiVersion");
    fields.remove("kind");
    (b"", Cow::Owned(object.to_string().into_bytes()))
}
