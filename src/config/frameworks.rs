//! `integrations.frameworks`: kinds of jobs to manage. If it is absent, Sluice manages every kind
//! that it supports, while Kueue v0.19.2 (`apis/config/v1beta2/defaults.go`) manages batch/v1 Jobs
//! only.

use super::field_reader::FieldReader;
use sluice_jobframework::managed::{EnabledFrameworks, Framework};

/// Frameworks that Kueue v0.19.2 supports and Sluice does not (`FrameworkName` in
/// `pkg/controller/jobs/*`).
const UNSUPPORTED_FRAMEWORKS: &[&str] = &[
    "deployment",
    "jobset.x-k8s.io/jobset",
    "kubeflow.org/jaxjob",
    "kubeflow.org/mpijob",
    "kubeflow.org/paddlejob",
    "kubeflow.org/pytorchjob",
    "kubeflow.org/tfjob",
    "kubeflow.org/xgboostjob",
    "leaderworkerset.x-k8s.io/leaderworkerset",
    "pod",
    "sparkoperator.k8s.io/sparkapplication",
    "statefulset",
    "trainer.kubeflow.org/trainjob",
    "workload.codeflare.dev/appwrapper",
];

/// Returns the kinds of jobs to manage, and adds the unsupported ones to `not_acted_on`.
pub(super) fn managed_frameworks(field: &FieldReader<'_>, not_acted_on: &mut Vec<String>) -> EnabledFrameworks {
    if !field.is_set() {
        return EnabledFrameworks::default();
    }
    let known = Framework::ALL.map(|framework| (framework.name(), Some(framework)));
    let choices: Vec<(&str, Option<Framework>)> =
        known.into_iter().chain(UNSUPPORTED_FRAMEWORKS.iter().map(|name| (*name, None))).collect();
    let mut managed = EnabledFrameworks::none();
    for item in field.items() {
        match item.choice(&choices) {
            Some(Some(framework)) => managed.enable(framework),
            Some(None) => not_acted_on.push(format!("{} ({})", item.path(), item.string().unwrap_or_default())),
            None => {}
        }
    }
    managed
}
