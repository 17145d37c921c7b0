//! Defaulting and validation of Jobs (kubernetes 1.36 `pkg/apis/batch/v1/defaults.go`,
//! `pkg/apis/batch/validation/validation.go` and `pkg/registry/batch/job/strategy.go`).
//!
//! Not implemented: pod failure policy, success policy, backoff limit per index.

use serde_json::{Map, Value, json};

use super::super::object_meta;
use super::super::status_error::FieldError;
use super::{pods, set_default};

/// Labels of the pods with the name of their Job, and with its uid.
const NAME_LABELS: [&str; 2] = ["job-name", "batch.kubernetes.io/job-name"];
const UID_LABELS: [&str; 2] = ["controller-uid", "batch.kubernetes.io/controller-uid"];
/// Message about a field that cannot change.
const IMMUTABLE: &str = "field is immutable";
/// Conditions that a Job keeps once they are True.
const TERMINAL: [&str; 4] = ["SuccessCriteriaMet", "FailureTarget", "Complete", "Failed"];

/// Applies defaults.
pub(super) fn default_job(job: &mut Map<String, Value>) {
    let spec = object_meta::as_map_mut(job.entry("spec").or_insert(Value::Null));
    if !spec.contains_key("parallelism") {
        set_default(spec, "completions", 1);
    }
    set_default(spec, "parallelism", 1);
    set_default(spec, "backoffLimit", 6);
    set_default(spec, "completionMode", "NonIndexed");
    set_default(spec, "suspend", false);
    set_default(spec, "podReplacementPolicy", "TerminatingOrFailed");
    set_default(spec, "manualSelector", false);
    let template = object_meta::as_map_mut(spec.entry("template").or_insert(Value::Null));
    pods::default_pod(object_meta::as_map_mut(template.entry("spec").or_insert(Value::Null)));
    let labels = template.get("metadata").and_then(|metadata| metadata.get("labels")).cloned();
    let metadata = object_meta::as_map_mut(job.entry("metadata").or_insert(Value::Null));
    let is_unlabeled = metadata.get("labels").and_then(Value::as_object).is_none_or(Map::is_empty);
    if let Some(labels) = labels.filter(|_| is_unlabeled) {
        metadata.insert("labels".into(), labels);
    }
}

/// Generates the selector of a new Job and the labels that it selects.
pub(super) fn generate_selector(job: &mut Value) {
    if job.pointer("/spec/manualSelector") == Some(&Value::Bool(true)) {
        return;
    }
    let (name, uid) = (object_meta::name(job).to_owned(), object_meta::metadata_text(job, "uid").to_owned());
    let template = object_meta::metadata_mut(&mut job["spec"]["template"]);
    let labels = object_meta::as_map_mut(template.entry("labels").or_insert(Value::Null));
    NAME_LABELS.iter().for_each(|label| set_default(labels, label, name.as_str()));
    UID_LABELS.iter().for_each(|label| set_default(labels, label, uid.as_str()));
    let selector = object_meta::as_map_mut(&mut job["spec"]["selector"]);
    let selected = object_meta::as_map_mut(selector.entry("matchLabels").or_insert(Value::Null));
    set_default(selected, UID_LABELS[1], uid);
}

/// Validates a Job.
pub(super) fn validate(job: &Value) -> Vec<FieldError> {
    let spec = &job["spec"];
    let mut errors = Vec::new();
    for field in ["parallelism", "completions", "backoffLimit"] {
        if spec[field].as_i64().is_some_and(|number| number < 0) {
            let why = "must be greater than or equal to 0";
            errors.push(FieldError::invalid(format!("spec.{field}"), &spec[field], why));
        }
    }
    if is_indexed(job) && spec["completions"].is_null() {
        errors.push(FieldError::required("spec.completions", "when completion mode is Indexed"));
    }
    let policy = &spec["template"]["spec"]["restartPolicy"];
    if !matches!(policy.as_str(), Some("Never" | "OnFailure")) {
        errors.push(FieldError {
            field: "spec.template.spec.restartPolicy".into(),
            cause_type: "FieldValueNotSupported",
            message: format!("Unsupported value: {policy}: supported values: \"OnFailure\", \"Never\""),
        });
    }
    let template = pods::validate(&spec["template"]).into_iter();
    errors.extend(template.map(|error| FieldError { field: format!("spec.template.{}", error.field), ..error }));
    errors
}

/// Validates an update of a Job or of its status.
pub(super) fn validate_update(old: &Value, new: &Value) -> Vec<FieldError> {
    let mut errors = validate_spec_update(old, new);
    if old.get("status") != new.get("status") {
        errors.extend(validate_status_update(old, new));
    }
    errors
}

fn validate_spec_update(old: &Value, new: &Value) -> Vec<FieldError> {
    let (before, after) = (&old["spec"], &new["spec"]);
    let mut errors = Vec::new();
    let completions = (&before["completions"], &after["completions"]);
    if !is_indexed(new) && completions.0 != completions.1 {
        errors.push(FieldError::invalid("spec.completions", completions.1, IMMUTABLE));
    }
    let follows_parallelism = *completions.1 == after["parallelism"];
    if is_indexed(new) && completions.0 != completions.1 && !completions.1.is_null() && !follows_parallelism {
        let why = "can only be modified in tandem with spec.parallelism";
        errors.push(FieldError::invalid("spec.completions", completions.1, why));
    }
    for field in
        ["selector", "completionMode", "podFailurePolicy", "backoffLimitPerIndex", "managedBy", "successPolicy"]
    {
        if before[field] != after[field] {
            errors.push(FieldError::invalid(format!("spec.{field}"), &after[field], IMMUTABLE));
        }
    }
    let mutable = has_mutable_template(old);
    if immutable_template(old, mutable) != immutable_template(new, mutable) {
        errors.push(FieldError::invalid("spec.template", &after["template"], IMMUTABLE));
    }
    errors
}

/// Reports whether requests and scheduling directives in the template can change: only while the Job
/// is suspended without active pods, before it has started or once its condition says that it is
/// suspended (feature gates MutableSchedulingDirectivesForSuspendedJobs and
/// MutablePodResourcesForSuspendedJobs, on in 1.36; `shouldAllowMutablePodTemplate`).
fn has_mutable_template(job: &Value) -> bool {
    let is_suspended = job.pointer("/spec/suspend") == Some(&Value::Bool(true));
    let has_started = job.pointer("/status/startTime").is_some();
    is_suspended && (!has_started || is_true(job, "Suspended")) && number(job, "active") == 0
}

/// Returns the part of the template that cannot change.
fn immutable_template(job: &Value, mutable: bool) -> Value {
    let mut template = job["spec"]["template"].clone();
    if !mutable {
        return template;
    }
    let metadata = object_meta::metadata_mut(&mut template);
    ["annotations", "labels"].iter().for_each(|field| drop(metadata.remove(*field)));
    let spec = object_meta::as_map_mut(&mut template["spec"]);
    ["nodeSelector", "tolerations", "schedulingGates"].iter().for_each(|field| drop(spec.remove(*field)));
    let affinity = spec.entry("affinity").or_insert(json!({}));
    object_meta::as_map_mut(affinity).remove("nodeAffinity");
    for list in ["containers", "initContainers"] {
        for container in spec.get_mut(list).and_then(Value::as_array_mut).into_iter().flatten() {
            object_meta::as_map_mut(container).remove("resources");
        }
    }
    template
}

/// Validates a changed status (`ValidateJobStatusUpdate` with the options of
/// `getStatusValidationOptions`).
fn validate_status_update(old: &Value, new: &Value) -> Vec<FieldError> {
    let mut errors = Vec::new();
    let mut refuse_condition = |why: String| {
        errors.push(FieldError::invalid("status.conditions", &Value::Null, &why));
    };
    for kind in TERMINAL.into_iter().filter(|kind| is_true(old, kind) && !is_true(new, kind)) {
        refuse_condition(format!("cannot disable the terminal {kind}=True condition"));
    }
    for (end, before) in [("Complete", "SuccessCriteriaMet"), ("Failed", "FailureTarget")] {
        if is_true(new, end) && !is_true(new, before) {
            refuse_condition(format!("cannot set {end}=True condition without the {before}=true condition"));
        }
    }
    for field in ["failed", "succeeded"] {
        // The counter of an Indexed Job decreases when it is scaled down.
        let may_decrease = field == "succeeded" && is_indexed(new);
        if number(new, field) < number(old, field) && !may_decrease {
            let why = format!("cannot decrease the {field} counter");
            errors.push(FieldError::invalid(format!("status.{field}"), &new["status"][field], &why));
        }
    }
    if number(new, "ready") > number(new, "active") {
        let why = "cannot set more ready pods than active";
        errors.push(FieldError::invalid("status.ready", &new["status"]["ready"], why));
    }
    errors.extend(validate_start_time(old, new));
    if is_finished(new) && !is_finished(old) {
        errors.extend(validate_end(new));
    }
    errors
}

/// Validates that the start time of a running Job changes only when it is resumed.
fn validate_start_time(old: &Value, new: &Value) -> Option<FieldError> {
    let start = |job: &Value| job.pointer("/status/startTime").cloned();
    let is_resumed = is_true(old, "Suspended") && !is_true(new, "Suspended");
    let is_suspended = new.pointer("/spec/suspend") == Some(&Value::Bool(true));
    let changes = start(old).is_some() && start(old) != start(new);
    (changes && !is_suspended && !is_resumed).then(|| {
        let why = "field is immutable for unsuspended job once set";
        FieldError::invalid("status.startTime", &start(new).unwrap_or_default(), why)
    })
}

/// Validates the status of a Job that has just finished.
fn validate_end(job: &Value) -> Vec<FieldError> {
    let status = &job["status"];
    let mut errors = Vec::new();
    for field in ["active", "terminating"].into_iter().filter(|field| number(job, field) > 0) {
        let why = format!("{field}>0 is invalid for finished job");
        errors.push(FieldError::invalid(format!("status.{field}"), &status[field], &why));
    }
    let is_empty_and_suspended = job["spec"]["suspend"] == true && job["spec"]["completions"] == 0;
    if status["startTime"].is_null() && !is_empty_and_suspended {
        errors.push(FieldError::required("status.startTime", "startTime is required for finished job"));
    }
    let uncounted = &status["uncountedTerminatedPods"];
    if ["succeeded", "failed"].iter().any(|list| uncounted[list].as_array().is_some_and(|pods| !pods.is_empty())) {
        errors.push(FieldError::invalid("status.uncountedTerminatedPods", uncounted, "must be empty for finished job"));
    }
    if is_true(job, "Complete") && status["completionTime"].is_null() {
        let why = "completionTime is required for Complete jobs";
        errors.push(FieldError::required("status.completionTime", why));
    }
    errors
}

fn is_indexed(job: &Value) -> bool {
    job.pointer("/spec/completionMode").is_some_and(|mode| mode == "Indexed")
}

fn is_finished(job: &Value) -> bool {
    is_true(job, "Complete") || is_true(job, "Failed")
}

fn is_true(job: &Value, kind: &str) -> bool {
    let conditions = job.pointer("/status/conditions").and_then(Value::as_array);
    conditions.into_iter().flatten().any(|condition| condition["type"] == kind && condition["status"] == "True")
}

fn number(job: &Value, field: &str) -> i64 {
    job["status"][field].as_i64().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    fn job(spec: Value, status: Value) -> Value {
        let mut job = json!({"metadata": {"name": "sum", "uid": "7"}, "spec": spec, "status": status});
        let template = json!({"spec": {"restartPolicy": "Never", "containers": [{"name": "c", "image": "c"}]}});
        set_default(object_meta::as_map_mut(&mut job["spec"]), "template", template);
        default_job(object_meta::as_map_mut(&mut job));
        job
    }

    #[rstest]
    #[case::neither(json!({}), json!(1), json!(1))]
    #[case::work_queue(json!({"parallelism": 3}), json!(3), Value::Null)]
    #[case::completions_only(json!({"completions": 3}), json!(1), json!(3))]
    fn parallelism_and_completions_have_defaults(
        #[case] spec: Value,
        #[case] parallelism: Value,
        #[case] completions: Value,
    ) {
        let spec = job(spec, json!({}))["spec"].take();

        // Completions default to 1 only if parallelism is absent, too.
        assert_eq!((&spec["parallelism"], &spec["completions"]), (&parallelism, &completions));
        assert_eq!((&spec["suspend"], &spec["backoffLimit"]), (&json!(false), &json!(6)));
    }

    #[test]
    fn selector_of_a_new_job_selects_its_pods_by_uid() {
        let mut job = job(json!({}), json!({}));

        generate_selector(&mut job);

        assert_eq!(job["spec"]["selector"], json!({"matchLabels": {"batch.kubernetes.io/controller-uid": "7"}}));
        let labels = &job["spec"]["template"]["metadata"]["labels"];
        assert_eq!((&labels["job-name"], &labels["batch.kubernetes.io/job-name"]), (&json!("sum"), &json!("sum")));
        assert_eq!(labels["controller-uid"], "7");
    }

    #[rstest]
    #[case::new(json!({}), true)]
    #[case::started(json!({"startTime": "2026-01-01T00:00:00Z"}), false)]
    #[case::suspended_again(
        json!({"startTime": "2026-01-01T00:00:00Z", "conditions": [{"type": "Suspended", "status": "True"}]}),
        true
    )]
    #[case::pods_still_run(json!({"active": 1}), false)]
    fn scheduling_gates_change_only_while_a_job_is_suspended_without_pods(
        #[case] status: Value,
        #[case] allowed: bool,
    ) {
        let old = job(json!({"suspend": true}), status);
        let mut new = old.clone();
        new["spec"]["template"]["spec"]["schedulingGates"] = json!([{"name": "kueue.x-k8s.io/elastic-job"}]);

        assert_eq!(validate_update(&old, &new).is_empty(), allowed);
        let mut running = old.clone();
        running["spec"]["suspend"] = json!(false);
        new["spec"]["suspend"] = json!(false);
        assert!(!validate_update(&running, &new).is_empty());
    }

    #[rstest]
    #[case::image(json!({"image": "d"}), false)]
    #[case::requests(json!({"resources": {"requests": {"cpu": "2"}}}), true)]
    fn template_of_a_suspended_job_can_change_its_requests_only(#[case] change: Value, #[case] allowed: bool) {
        let old = job(json!({"suspend": true}), json!({}));
        let mut new = old.clone();
        for (field, value) in change.as_object().into_iter().flatten() {
            new["spec"]["template"]["spec"]["containers"][0][field] = value.clone();
        }

        assert_eq!(validate_update(&old, &new).is_empty(), allowed);
    }

    #[rstest]
    #[case::fixed(json!({"completions": 2, "parallelism": 2}), json!({"completions": 3}), false)]
    #[case::indexed_alone(
        json!({"completions": 2, "parallelism": 2, "completionMode": "Indexed"}),
        json!({"completions": 3}),
        false
    )]
    #[case::indexed_in_tandem(
        json!({"completions": 2, "parallelism": 2, "completionMode": "Indexed"}),
        json!({"completions": 3, "parallelism": 3}),
        true
    )]
    #[case::parallelism(json!({"completions": 2, "parallelism": 2}), json!({"parallelism": 0}), true)]
    fn completions_change_with_parallelism_of_indexed_jobs_only(
        #[case] spec: Value,
        #[case] change: Value,
        #[case] allowed: bool,
    ) {
        let old = job(spec, json!({}));
        let mut new = old.clone();
        for (field, value) in change.as_object().into_iter().flatten() {
            new["spec"][field] = value.clone();
        }

        assert_eq!(validate_update(&old, &new).is_empty(), allowed);
    }

    fn conditions(kinds: &[&str]) -> Value {
        kinds.iter().map(|kind| json!({"type": kind, "status": "True"})).collect()
    }

    #[rstest]
    #[case::without_criteria(json!({"conditions": conditions(&["Complete"])}), false)]
    #[case::complete(json!({"conditions": conditions(&["SuccessCriteriaMet", "Complete"])}), true)]
    #[case::active(json!({"conditions": conditions(&["SuccessCriteriaMet", "Complete"]), "active": 1}), false)]
    #[case::uncounted(
        json!({"conditions": conditions(&["FailureTarget", "Failed"]), "uncountedTerminatedPods": {"failed": ["a"]}}),
        false
    )]
    #[case::failed(json!({"conditions": conditions(&["FailureTarget", "Failed"])}), true)]
    fn job_finishes_in_two_steps_without_pods(#[case] mut status: Value, #[case] allowed: bool) {
        let start = json!("2026-01-01T00:00:00Z");
        let old = job(json!({}), json!({"startTime": start}));
        let mut new = old.clone();
        status["startTime"] = start.clone();
        if is_true(&json!({"status": status}), "Complete") {
            status["completionTime"] = start;
        }
        new["status"] = status;

        assert_eq!(validate_update(&old, &new).is_empty(), allowed);
    }
}
