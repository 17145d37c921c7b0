//! Handles HTTP requests.

use std::time::Duration;

use bytes::Bytes;
use http::header::{CONTENT_TYPE, USER_AGENT};
use http::{Request, Response, StatusCode};
use jiff::Timestamp;
use serde_json::{Value, json};

use super::apply::{self, FieldManager, FieldSet, MergeRules};
use super::deletion::{DeleteOptions, DeleteOutcome};
use super::list::{self, ListPage};
use super::route::{self, Query, RequestPath, ResourcePath};
use super::selector::Selector;
use super::status_error::{FieldError, StatusError};
use super::store::{self, StoredObject};
use super::watch::{Watch, WatchStart};
use super::write::{self, WriteContext, WriteScope};
use super::{ApiResponse, ApiServer, ProxyRequest, builtin, identity, patch};

impl ApiServer {
    /// Handles a request at time `now`.
    pub fn handle(&mut self, now: Timestamp, request: Request<Bytes>) -> ApiResponse {
        match route::parse_path(request.uri()) {
            Some(RequestPath::Version) => ApiResponse::Complete(version_response()),
            Some(RequestPath::Proxy { namespace, target, path_and_query }) => {
                let (parts, body) = request.into_parts();
                ApiResponse::Proxy(ProxyRequest { namespace, target, method: parts.method, path_and_query, body })
            }
            Some(RequestPath::Resource(target)) => {
                self.handle_resource(now, &target, &request).unwrap_or_else(error_response)
            }
            None => error_response(StatusError::no_such_path()),
        }
    }

    fn handle_resource(
        &mut self,
        now: Timestamp,
        target: &ResourcePath,
        request: &Request<Bytes>,
    ) -> Result<ApiResponse, StatusError> {
        let query = Query::parse(request.uri());
        let part = match target.subresource.as_deref() {
            None => WriteScope::Main,
            Some("status") if target.kind.has_status => WriteScope::Status,
            // For custom resources an unknown subresource is reported as a missing object
            // (apiextensions).
            Some(_) if target.kind.is_custom() => {
                return Err(StatusError::not_found(target.kind, target.name.as_deref().unwrap_or_default()));
            }
            Some(_) => return Err(StatusError::no_such_path()),
        };
        let verb = route::verb(request.method(), target, &query).ok_or_else(StatusError::method_not_allowed)?;
        if !query.get("dryRun").is_empty() && verb != "create" {
            return Err(StatusError::bad_request("the simulated API server supports dryRun for creations only"));
        }
        let ResourcePath { kind, namespace, .. } = target;
        let name = target.name.as_deref().unwrap_or_default();
        let context = write_context(request, &query, part);
        match (verb, part) {
            ("watch", _) => Ok(ApiResponse::Watch(self.open_watch(target, &query)?)),
            ("list", _) => {
                let selector = parse_selector(target, &query)?;
                let limit = query.number("limit").and_then(|limit| usize::try_from(limit).ok()).unwrap_or(0);
                let at = route::exact_list_version(&query)?;
                let piece = ListPage { limit, version: at, continue_token: query.get("continue") };
                Ok(complete_response(StatusCode::OK, list::list(&self.store, kind, namespace, &selector, piece)?))
            }
            ("get", _) => {
                let found = self.store.get(kind, &store::object_key(namespace, name));
                Ok(object_response(StatusCode::OK, found.ok_or_else(|| StatusError::not_found(kind, name))?))
            }
            ("create", _) => {
                let mut sent = parse_object(request.body())?;
                builtin::roundtrip(kind, &mut sent).map_err(|why| StatusError::undecodable_body(kind, &why))?;
                let stored = self.create_object(now, kind, namespace, sent, &context)?;
                Ok(object_response(StatusCode::CREATED, &stored))
            }
            ("update", _) => {
                let mut sent = parse_object(request.body())?;
                builtin::roundtrip(kind, &mut sent).map_err(|why| StatusError::undecodable_body(kind, &why))?;
                let replace = |old: &Value| {
                    identity::check_uid(kind, name, old, &sent)?;
                    Ok(sent)
                };
                let stored = self.update_object(now, kind, (namespace, name), &context, replace)?;
                Ok(object_response(StatusCode::OK, &stored))
            }
            ("patch", _) => {
                let content_type = header(request, CONTENT_TYPE);
                if patch::is_apply(content_type) {
                    return self.server_side_apply(now, target, context, query.is_true("force"), request.body());
                }
                let patch = patch::Patch::parse(content_type, request.body())?;
                let apply_patch = |old: &Value| {
                    let mut new = patch.apply_to(old)?;
                    builtin::roundtrip(kind, &mut new).map_err(|why| StatusError::undecodable_patch(&why))?;
                    Ok(new)
                };
                let stored = self.update_object(now, kind, (namespace, name), &context, apply_patch)?;
                Ok(object_response(StatusCode::OK, &stored))
            }
            ("delete", WriteScope::Main) => {
                let options = parse_delete_options(&query, request.body())?;
                let deletion = self.delete_object(now, kind, (namespace, name), &options)?;
                Ok(deletion_response(target, deletion))
            }
            ("deletecollection", WriteScope::Main) => self.delete_collection(now, target, &query, request.body()),
            _ => Err(StatusError::method_not_allowed()),
        }
    }

    /// Applies a configuration to an object (server-side apply); creates the object if it does not
    /// exist.
    fn server_side_apply(
        &mut self,
        now: Timestamp,
        target: &ResourcePath,
        mut context: WriteContext,
        force: bool,
        body: &[u8],
    ) -> Result<ApiResponse, StatusError> {
        let ResourcePath { kind, namespace, .. } = target;
        let name = target.name.as_deref().unwrap_or_default();
        if context.manager.name.is_empty() {
            let error = FieldError::required("fieldManager", "is required for apply patch");
            return Err(StatusError::invalid_as("PatchOptions", "meta.k8s.io", "", &[error]));
        }
        let mut wanted = patch::parse_apply_configuration(kind, body)?;
        patch::check_declared_types(kind, namespace, name, &wanted)?;
        write::retain_scope_fields(kind, context.scope, &mut wanted);
        let key = store::object_key(namespace, name);
        let Some(live) = self.store.get(kind, &key).map(|stored| stored.object.clone()) else {
            if context.scope == WriteScope::Status {
                return Err(StatusError::not_found(kind, name));
            }
            if super::object_meta::name(&wanted).is_empty() {
                let why =
                    format!("the name of the object ({name} based on URL) was undeterminable: name must be provided");
                return Err(StatusError::bad_request(why));
            }
            let owned = FieldSet::set_by(MergeRules::for_kind(kind), &wanted);
            builtin::roundtrip(kind, &mut wanted).map_err(StatusError::internal_error)?;
            let stored = self.create_object(now, kind, namespace, wanted, &context)?;
            self.managed_fields.set_owners(kind, &key, [(context.manager, owned)].into());
            return Ok(object_response(StatusCode::CREATED, &stored));
        };
        let before = self.managed_fields.owners(kind, &key);
        let mut applied =
            apply::apply(MergeRules::for_kind(kind), &live, &wanted, before.clone(), &context.manager, force)?;
        builtin::roundtrip(kind, &mut applied.object).map_err(StatusError::internal_error)?;
        // A pure change of field owners makes a new version, too.
        context.forces_new_version = applied.owners != before;
        let stored = self.update_object(now, kind, (namespace, name), &context, |_| Ok(applied.object))?;
        if self.store.get(kind, &key).is_some() {
            self.managed_fields.set_owners(kind, &key, applied.owners);
        }
        Ok(object_response(StatusCode::OK, &stored))
    }

    fn open_watch(&self, target: &ResourcePath, query: &Query) -> Result<Watch, StatusError> {
        let start = match query.get("resourceVersion") {
            _ if query.is_true("sendInitialEvents") => {
                WatchStart::Now { ends_with_bookmark: query.is_true("allowWatchBookmarks") }
            }
            "" | "0" => WatchStart::Now { ends_with_bookmark: false },
            version => WatchStart::After(version.parse().map_err(|_| {
                let why = format!("strconv.ParseUint: parsing \"{version}\": invalid syntax");
                StatusError::internal_error(format!("resourceVersion: Invalid value: \"{version}\": {why}"))
            })?),
        };
        let options = (query.number("timeoutSeconds").map(Duration::from_secs), query.is_true("allowWatchBookmarks"));
        let selector = parse_selector(target, query)?;
        Ok(Watch::open(&self.store, target.kind, target.namespace.clone(), selector, start, options))
    }

    fn delete_collection(
        &mut self,
        now: Timestamp,
        target: &ResourcePath,
        query: &Query,
        body: &[u8],
    ) -> Result<ApiResponse, StatusError> {
        // The response lists the objects as they were before the deletion.
        let (selector, options) = (parse_selector(target, query)?, parse_delete_options(query, body)?);
        let listed = list::list(&self.store, target.kind, &target.namespace, &selector, ListPage::ALL)?;
        let matching = self.store.range(target.kind, &target.namespace, "");
        let matching = matching.filter(|(_, stored)| selector.matches(&stored.object));
        let keys: Vec<(String, String)> = matching
            .map(|(_, stored)| super::object_meta::namespaced_name(&stored.object))
            .map(|(namespace, name)| (namespace.to_owned(), name.to_owned()))
            .collect();
        for (namespace, name) in keys {
            self.delete_object(now, target.kind, (&namespace, &name), &options)?;
        }
        Ok(complete_response(StatusCode::OK, listed))
    }
}

/// Returns the write context of a request. The field manager defaults to the program in the user
/// agent.
fn write_context(request: &Request<Bytes>, query: &Query, part: WriteScope) -> WriteContext {
    let named = query.get("fieldManager");
    let applies = patch::is_apply(header(request, CONTENT_TYPE));
    let program = header(request, USER_AGENT).split('/').next().unwrap_or_default();
    let name = match (named, program) {
        ("", "") if !applies => "unknown",
        ("", program) if !applies => program,
        _ => named,
    };
    let manager = FieldManager { name: name.into(), is_apply: applies, is_status: part == WriteScope::Status };
    let strict = query.get("fieldValidation") == "Strict";
    let user = request.extensions().get().copied();
    WriteContext {
        manager,
        scope: part,
        is_trusted: false,
        user,
        rejects_unknown_fields: strict,
        is_dry_run: !query.get("dryRun").is_empty(),
        forces_new_version: false,
    }
}

fn header(request: &Request<Bytes>, name: http::HeaderName) -> &str {
    request.headers().get(name).and_then(|value| value.to_str().ok()).unwrap_or_default()
}

fn parse_selector(target: &ResourcePath, query: &Query) -> Result<Selector, StatusError> {
    Selector::parse(target.kind, query.get("labelSelector"), query.get("fieldSelector"))
}

fn parse_delete_options(query: &Query, body: &[u8]) -> Result<DeleteOptions, StatusError> {
    DeleteOptions::parse(body, query.get("gracePeriodSeconds"), query.get("propagationPolicy"))
}

/// Decodes a request body that has to be a JSON object.
fn parse_object(body: &[u8]) -> Result<Value, StatusError> {
    let object: Value = serde_json::from_slice(body)
        .map_err(|error| StatusError::bad_request(format!("couldn't get version/kind; json parse error: {error}")))?;
    if object.is_object() { Ok(object) } else { Err(StatusError::bad_request("the body is not an object")) }
}

fn error_response(error: StatusError) -> ApiResponse {
    let code = StatusCode::from_u16(error.code).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    complete_response(code, error.status().to_string())
}

fn object_response(code: StatusCode, stored: &StoredObject) -> ApiResponse {
    complete_response(code, stored.body.clone())
}

fn complete_response(code: StatusCode, body: impl Into<Bytes>) -> ApiResponse {
    ApiResponse::Complete(json_response(code, body))
}

fn json_response(code: StatusCode, body: impl Into<Bytes>) -> Response<Bytes> {
    let mut response = Response::new(body.into());
    *response.status_mut() = code;
    response.headers_mut().insert(CONTENT_TYPE, http::HeaderValue::from_static("application/json"));
    response
}

/// Kinds whose last state is returned when they are deleted. For other kinds it is a Status.
const KINDS_RETURNED_ON_DELETE: [&str; 5] = ["Namespace", "PersistentVolumeClaim", "Pod", "Service", "ServiceAccount"];

/// Returns a Status for a deleted object of most kinds, and the object if it is still terminating.
fn deletion_response(target: &ResourcePath, deletion: DeleteOutcome) -> ApiResponse {
    match deletion {
        DeleteOutcome::Terminating(stored) => object_response(StatusCode::OK, &stored),
        DeleteOutcome::Deleted(last) if KINDS_RETURNED_ON_DELETE.contains(&target.kind.kind.as_str()) => {
            object_response(StatusCode::OK, &last)
        }
        DeleteOutcome::Deleted(last) => {
            let (kind, name) = (target.kind, super::object_meta::name(&last.object));
            let mut details = json!({"name": name, "kind": kind.plural, "uid": super::object_meta::metadata_text(&last.object, "uid")});
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
            complete_response(StatusCode::OK, status.to_string())
        }
    }
}

fn version_response() -> Response<Bytes> {
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
