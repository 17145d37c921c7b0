//! HTTP handler for AdmissionReviews.

use std::sync::Arc;

use axum::Router;
use axum::body::Bytes;
use axum::extract::DefaultBodyLimit;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::post;
use kube::core::DynamicObject;
use kube::core::admission::{
    AdmissionRequest, AdmissionResponse, AdmissionReview, ConvertAdmissionReviewError, Operation, SerializePatchError,
};
use tracing::debug;

use super::finalizer;
use super::mutate::{self, MutationContext};
use super::namespace_cache::NamespaceCache;

/// Maximum size of a request body, in bytes. The API server accepts objects of up to 3 MiB; an
/// AdmissionReview may contain two.
const MAX_BODY_BYTES: usize = 8 << 20;

/// Returns the routes of the webhook. With `external_ray_operator`, an external operator creates the
/// pods of queued clusters.
pub(super) fn routes(places: NamespaceCache, external_ray_operator: bool) -> Router {
    let places = Arc::new(places);
    let mutate = move |body: Bytes| async move { mutate(&body, &places, external_ray_operator) };
    Router::new().route("/mutate", post(mutate)).layer(DefaultBodyLimit::max(MAX_BODY_BYTES))
}

fn mutate(body: &[u8], places: &NamespaceCache, external_ray_operator: bool) -> Response {
    match respond(body, places, external_ray_operator) {
        Ok(answer) => ([(header::CONTENT_TYPE, "application/json")], answer).into_response(),
        Err(problem) => {
            debug!(%problem, "invalid AdmissionReview");
            (StatusCode::BAD_REQUEST, problem.to_string()).into_response()
        }
    }
}

/// Error of answering an AdmissionReview.
#[derive(Debug, thiserror::Error)]
enum ReviewError {
    #[error("reading the AdmissionReview: {0}")]
    Decode(#[source] serde_json::Error),
    #[error("reading the AdmissionReview: {0}")]
    NoRequest(#[source] ConvertAdmissionReviewError),
    #[error("reading the object: {0}")]
    Object(#[source] serde_json::Error),
    #[error("writing the patch: {0}")]
    Patch(#[source] serde_json::Error),
    #[error(transparent)]
    SerializePatch(#[from] SerializePatchError),
    #[error("writing the response: {0}")]
    Response(#[source] serde_json::Error),
}

/// Returns the response to an AdmissionReview. Every object is allowed, and may be patched.
///
/// # Errors
/// If the AdmissionReview is invalid.
fn respond(body: &[u8], places: &NamespaceCache, external_ray_operator: bool) -> Result<Vec<u8>, ReviewError> {
    let review: AdmissionReview<DynamicObject> = serde_json::from_slice(body).map_err(ReviewError::Decode)?;
    let request: AdmissionRequest<DynamicObject> = review.try_into().map_err(ReviewError::NoRequest)?;
    let mut response = AdmissionResponse::from(&request);
    if let (Operation::Create | Operation::Update, Some(object)) = (&request.operation, &request.object) {
        let read = |object| serde_json::to_value(object).map_err(ReviewError::Object);
        let (object, old) = (read(object)?, request.old_object.as_ref().map(read).transpose()?);
        let namespace = request.namespace.as_deref().unwrap_or_default();
        let ray_job = places.controlling_ray_job(namespace, &object);
        let context = MutationContext {
            external_ray_operator,
            managed: places.management_state(namespace, &object, old.is_none(), ray_job.as_deref()),
            uses_existing_cluster: ray_job.is_some_and(|job| job.spec.uses_existing_cluster()),
        };
        let patch = finalizer::patch(&object, old.as_ref());
        if let Some(patch) = patch.or_else(|| mutate::patch(&object, old.as_ref(), context)) {
            let patch = serde_json::from_value(patch).map_err(ReviewError::Patch)?;
            response = response.with_patch(patch)?;
        }
    }
    serde_json::to_vec(&response.into_review()).map_err(ReviewError::Response)
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn review(operation: &str, suspend: bool) -> Value {
        let object = json!({
            "apiVersion": "ray.io/v1", "kind": "RayCluster",
            "metadata": {"name": "c", "labels": {"kueue.x-k8s.io/queue-name": "a"}}, "spec": {"suspend": suspend},
        });
        let kind = json!({"group": "ray.io", "version": "v1", "kind": "RayCluster"});
        let resource = json!({"group": "ray.io", "version": "v1", "resource": "rayclusters"});
        let review = json!({
            "apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview",
            "request": {
                "uid": "7", "kind": kind, "resource": resource, "operation": operation, "userInfo": {}, "namespace": "team",
                "object": object.clone(),
                "oldObject": if operation == "CREATE" { Value::Null } else { object }, "dryRun": false,
            },
        });
        let answer = respond(review.to_string().as_bytes(), &NamespaceCache::empty(), false).expect("an answer");
        serde_json::from_slice(&answer).expect("JSON")
    }

    #[test]
    fn new_object_is_patched_and_allowed() {
        let answer = review("CREATE", false);
        assert_eq!(answer["apiVersion"], "admission.k8s.io/v1");
        assert_eq!(answer["response"]["uid"], "7");
        assert_eq!(answer["response"]["allowed"], true);
        assert_eq!(answer["response"]["patchType"], "JSONPatch");
        assert!(!answer["response"]["patch"].is_null());
    }

    #[test]
    fn new_cluster_queue_is_patched_with_its_finalizer() {
        let object = json!({"apiVersion": "kueue.x-k8s.io/v1beta2", "kind": "ClusterQueue", "metadata": {"name": "q"}, "spec": {}});
        let kind = json!({"group": "kueue.x-k8s.io", "version": "v1beta2", "kind": "ClusterQueue"});
        let resource = json!({"group": "kueue.x-k8s.io", "version": "v1beta2", "resource": "clusterqueues"});
        let review = json!({
            "apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview",
            "request": {
                "uid": "7", "kind": kind, "resource": resource, "operation": "CREATE", "userInfo": {}, "object": object, "dryRun": false,
            },
        });

        let answer = respond(review.to_string().as_bytes(), &NamespaceCache::empty(), false).expect("an answer");

        let answer: Value = serde_json::from_slice(&answer).expect("JSON");
        assert_eq!(answer["response"]["allowed"], true);
        assert!(!answer["response"]["patch"].is_null(), "{answer}");
    }

    #[test]
    fn suspended_or_existing_object_is_allowed_unchanged() {
        for answer in [review("CREATE", true), review("UPDATE", false)] {
            assert_eq!(answer["response"]["allowed"], true);
            assert!(answer["response"]["patch"].is_null(), "{answer}");
        }
    }

    #[test]
    fn invalid_review_is_an_error() {
        for body in ["", "{}", "{\"apiVersion\": \"v1\", \"kind\": \"AdmissionReview\"}"] {
            let problem = respond(body.as_bytes(), &NamespaceCache::empty(), false).expect_err("a problem");
            assert!(problem.to_string().starts_with("reading the AdmissionReview: "), "{problem}");
        }
    }
}
