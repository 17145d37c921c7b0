//! Handles HTTP requests.

use std::time::Duration;

use bytes::Bytes;
use http::header::{CONTENT_TYPE, USER_AGENT};
use http::{Request, Response, StatusCode};
use jiff::Timestamp;
use serde_json::{Value, json};

use super::apply::{self, Fields, Manager, Shape};
use super::deletion::{DeleteOptions, Deletion};
use super::list::{self, Piece};
use super::refusal::{Flaw, Refusal};
use super::route::{self, Path, Query, Target};
use super::selector::Selector;
use super::store::{self, Stored};
use super::watch::{Start, Watch};
use super::write::{self, Hand, Part};
use super::{Answer, Api, Proxied, builtin, identity, patch};

impl Api {
    /// Handles a request at time `now`.
    pub fn handle(&mut self, now: Timestamp, request: Request<Bytes>) -> Answer {
        match route::path(request.uri()) {
            Some(Path::Version) => Answer::Done(version()),
            Some(Path::Proxied { namespace, target, path_and_query }) => {
                let (parts, body) = request.into_parts();
                Answer::Proxy(Proxied { namespace, target, method: parts.method, path_and_query, body })
            }
            Some(Path::Objects(target)) => self.answer(now, &target, &request).unwrap_or_else(refused),
            None => refused(Refusal::no_such_path()),
        }
    }

    fn answer(&mut self, now: Timestamp, target: &Target, request: &Request<Bytes>) -> Result<Answer, Refusal> {
        let query = Query::of(request.uri());
        let part = match target.subresource.as_deref() {
            None => Part::Main,
            Some("status") if target.kind.has_status => Part::Status,
            // For custom resources an unknown subresource is reported as a missing object
            // (apiextensions).
            Some(_) if target.kind.is_custom() => {
                return Err(Refusal::not_found(target.kind, target.name.as_deref().unwrap_or_default()));
            }
            Some(_) => return Err(Refusal::no_such_path()),
        };
        if !query.get("dryRun").is_empty() {
            return Err(Refusal::bad_request("dryRun is not supported by the simulated API server"));
        }
        let verb = route::verb(request.method(), target, &query).ok_or_else(Refusal::method_not_allowed)?;
        let Target { kind, namespace, .. } = target;
        let name = target.name.as_deref().unwrap_or_default();
        let context = hand(request, &query, part);
        match (verb, part) {
            ("watch", _) => Ok(Answer::Watch(self.watch(target, &query)?)),
            ("list", _) => {
                let selector = selector(target, &query)?;
                let limit = query.number("limit").and_then(|limit| usize::try_from(limit).ok()).unwrap_or(0);
                let at = route::list_version(&query)?;
                let piece = Piece { limit, at, token: query.get("continue") };
                Ok(json_answer(StatusCode::OK, list::list(&self.store, kind, namespace, &selector, piece)?))
            }
            ("get", _) => {
                let found = self.store.get(kind, &store::key(namespace, name));
                Ok(object_answer(StatusCode::OK, found.ok_or_else(|| Refusal::not_found(kind, name))?))
            }
            ("create", _) => {
                let mut sent = object(request.body())?;
                builtin::reread(kind, &mut sent).map_err(|why| Refusal::unreadable(kind, &why))?;
                let stored = self.store_new(now, kind, namespace, sent, &context)?;
                Ok(object_answer(StatusCode::CREATED, &stored))
            }
            ("update", _) => {
                let mut sent = object(request.body())?;
                builtin::reread(kind, &mut sent).map_err(|why| Refusal::unreadable(kind, &why))?;
                let replace = |old: &Value| {
                    identity::check_replaced(kind, name, old, &sent)?;
                    Ok(sent)
                };
                let stored = self.store_changed(now, kind, (namespace, name), &context, replace)?;
                Ok(object_answer(StatusCode::OK, &stored))
            }
            ("patch", _) => {
                let content_type = header(request, CONTENT_TYPE);
                if patch::is_apply(content_type) {
                    return self.apply(now, target, context, query.flag("force"), request.body());
                }
                let patch = patch::Patch::parse(content_type, request.body())?;
                let apply_patch = |old: &Value| {
                    let mut new = patch.applied_to(old)?;
                    builtin::reread(kind, &mut new).map_err(|why| Refusal::unpatchable(&why))?;
                    Ok(new)
                };
                let stored = self.store_changed(now, kind, (namespace, name), &context, apply_patch)?;
                Ok(object_answer(StatusCode::OK, &stored))
            }
            ("delete", Part::Main) => {
                let options = options(&query, request.body())?;
                let deletion = self.delete_stored(now, kind, (namespace, name), &options)?;
                Ok(deletion_answer(target, deletion))
            }
            ("deletecollection", Part::Main) => self.delete_all(now, target, &query, request.body()),
            _ => Err(Refusal::method_not_allowed()),
        }
    }

    /// Applies a configuration to an object (server-side apply); creates the object if it does not
    /// exist.
    fn apply(
        &mut self,
        now: Timestamp,
        target: &Target,
        mut context: Hand,
        force: bool,
        body: &[u8],
    ) -> Result<Answer, Refusal> {
        let Target { kind, namespace, .. } = target;
        let name = target.name.as_deref().unwrap_or_default();
        if context.manager.name.is_empty() {
            let error = Flaw::required("fieldManager", "is required for apply patch");
            return Err(Refusal::invalid_as("PatchOptions", "meta.k8s.io", "", &[error]));
        }
        let mut wanted = patch::wanted(kind, body)?;
        patch::check_types(kind, namespace, name, &wanted)?;
        write::keep_to_part(kind, context.part, &mut wanted);
        let key = store::key(namespace, name);
        let Some(live) = self.store.get(kind, &key).map(|stored| stored.object.clone()) else {
            if context.part == Part::Status {
                return Err(Refusal::not_found(kind, name));
            }
            if super::fields::name(&wanted).is_empty() {
                let why =
                    format!("the name of the object ({name} based on URL) was undeterminable: name must be provided");
                return Err(Refusal::bad_request(why));
            }
            let owned = Fields::of(Shape::of(kind), &wanted);
            builtin::reread(kind, &mut wanted).map_err(Refusal::broken)?;
            let stored = self.store_new(now, kind, namespace, wanted, &context)?;
            self.ledger.set(kind, &key, [(context.manager, owned)].into());
            return Ok(object_answer(StatusCode::CREATED, &stored));
        };
        let before = self.ledger.owners(kind, &key);
        let mut applied = apply::apply(Shape::of(kind), &live, &wanted, before.clone(), &context.manager, force)?;
        builtin::reread(kind, &mut applied.object).map_err(Refusal::broken)?;
        // A pure change of field owners makes a new version, too.
        context.touches = applied.owners != before;
        let stored = self.store_changed(now, kind, (namespace, name), &context, |_| Ok(applied.object))?;
        if self.store.get(kind, &key).is_some() {
            self.ledger.set(kind, &key, applied.owners);
        }
        Ok(object_answer(StatusCode::OK, &stored))
    }

    fn watch(&self, target: &Target, query: &Query) -> Result<Watch, Refusal> {
        let start = match query.get("resourceVersion") {
            _ if query.flag("sendInitialEvents") => Start::Now { announced: query.flag("allowWatchBookmarks") },
            "" | "0" => Start::Now { announced: false },
            version => Start::After(version.parse().map_err(|_| {
                let why = format!("strconv.ParseUint: parsing \"{version}\": invalid syntax");
                Refusal::broken(format!("resourceVersion: Invalid value: \"{version}\": {why}"))
            })?),
        };
        let options = (query.number("timeoutSeconds").map(Duration::from_secs), query.flag("allowWatchBookmarks"));
        let selector = selector(target, query)?;
        Ok(Watch::open(&self.store, target.kind, target.namespace.clone(), selector, start, options))
    }

    fn delete_all(&mut self, now: Timestamp, target: &Target, query: &Query, body: &[u8]) -> Result<Answer, Refusal> {
        // The response lists the objects as they were before the deletion.
        let (selector, options) = (selector(target, query)?, options(query, body)?);
        let listed = list::list(&self.store, target.kind, &target.namespace, &selector, Piece::ALL)?;
        let matching = self.store.range(target.kind, &target.namespace, "");
        let matching = matching.filter(|(_, stored)| selector.matches(&stored.object));
        let keys: Vec<(String, String)> = matching
            .map(|(_, stored)| super::fields::place(&stored.object))
            .map(|(namespace, name)| (namespace.to_owned(), name.to_owned()))
            .collect();
        for (namespace, name) in keys {
            self.delete_stored(now, target.kind, (&namespace, &name), &options)?;
        }
        Ok(json_answer(StatusCode::OK, listed))
    }
}

/// Returns the write context of a request. The field manager defaults to the program in the user
/// agent.
fn hand(request: &Request<Bytes>, query: &Query, part: Part) -> Hand {
    let named = query.get("fieldManager");
    let applies = patch::is_apply(header(request, CONTENT_TYPE));
    let program = header(request, USER_AGENT).split('/').next().unwrap_or_default();
    let name = match (named, program) {
        ("", "") if !applies => "unknown",
        ("", program) if !applies => program,
        _ => named,
    };
    let manager = Manager { name: name.into(), applies, status: part == Part::Status };
    let strict = query.get("fieldValidation") == "Strict";
    Hand { manager, part, trusted: false, strict, touches: false }
}

fn header(request: &Request<Bytes>, name: http::HeaderName) -> &str {
    request.headers().get(name).and_then(|value| value.to_str().ok()).unwrap_or_default()
}

fn selector(target: &Target, query: &Query) -> Result<Selector, Refusal> {
    Selector::parse(target.kind, query.get("labelSelector"), query.get("fieldSelector"))
}

fn options(query: &Query, body: &[u8]) -> Result<DeleteOptions, Refusal> {
    DeleteOptions::parse(body, query.get("gracePeriodSeconds"), query.get("propagationPolicy"))
}

/// Decodes a request body that has to be a JSON object.
fn object(body: &[u8]) -> Result<Value, Refusal> {
    let object: Value = serde_json::from_slice(body)
        .map_err(|error| Refusal::bad_request(format!("couldn't get version/kind; json parse error: {error}")))?;
    if object.is_object() { Ok(object) } else { Err(Refusal::bad_request("the body is not an object")) }
}

fn refused(error: Refusal) -> Answer {
    let code = StatusCode::from_u16(error.code).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    json_answer(code, error.status().to_string())
}

fn object_answer(code: StatusCode, stored: &Stored) -> Answer {
    json_answer(code, stored.body.clone())
}

fn json_answer(code: StatusCode, body: impl Into<Bytes>) -> Answer {
    Answer::Done(json_response(code, body))
}

fn json_response(code: StatusCode, body: impl Into<Bytes>) -> Response<Bytes> {
    let mut response = Response::new(body.into());
    *response.status_mut() = code;
    response.headers_mut().insert(CONTENT_TYPE, http::HeaderValue::from_static("application/json"));
    response
}

/// Kinds whose last state is returned when they are deleted. For other kinds it is a Status.
const RETURNED: [&str; 5] = ["Namespace", "PersistentVolumeClaim", "Pod", "Service", "ServiceAccount"];

/// Returns a Status for a deleted object of most kinds, and the object if it is still terminating.
fn deletion_answer(target: &Target, deletion: Deletion) -> Answer {
    match deletion {
        Deletion::Pending(stored) => object_answer(StatusCode::OK, &stored),
        Deletion::Gone(last) if RETURNED.contains(&target.kind.kind.as_str()) => object_answer(StatusCode::OK, &last),
        Deletion::Gone(last) => {
            let (kind, name) = (target.kind, super::fields::name(&last.object));
            let mut details =
                json!({"name": name, "kind": kind.plural, "uid": super::fields::text(&last.object, "uid")});
            if !kind.group.is_empty() {
                details["group"] = kind.group.clone().into();
            }
            let status = json!({
                "kind": "Status",
                "apiVersion": "v1",
                "metadata": {},
                "status": "Success",
                "details": details,
            });
            json_answer(StatusCode::OK, status.to_string())
        }
    }
}

fn version() -> Response<Bytes> {
    let version = json!({
        "major": "1",
        "minor": "36",
        "gitVersion": "v1.36.0",
        "gitCommit": "",
        "gitTreeState": "clean",
        "buildDate": "1970-01-01T00:00:00Z",
        "goVersion": "",
        "compiler": "gc",
        "platform": "linux/amd64",
    });
    json_response(StatusCode::OK, version.to_string())
}
