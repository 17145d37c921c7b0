//! `integrations.frameworks`: kinds of jobs to manage. If it is absent, Sluice manages every kind
//! that it supports, while Kueue v0.19.2 (`apis/config/v1beta2/defaults.go`) manages batch/v1 Jobs
//! only.

use super::reader::Reader;
use sluice_jobframework::managed::{Framework, Frameworks};

/// Frameworks that Kueue v0.19.2 supports and Sluice does not (`FrameworkName` in
/// `pkg/controller/jobs/*`).
const OTHERS: &[&str] = &[
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
pub(super) fn frameworks(field: &Reader<'_>, not_acted_on: &mut Vec<String>) -> Frameworks {
    if !field.is_set() {
        return Frameworks::default();
    }
    let known = Framework::ALL.map(|framework| (framework.name(), Some(framework)));
    let choices: Vec<(&str, Option<Framework>)> =
        known.into_iter().chain(OTHERS.iter().map(|name| (*name, None))).collect();
    let mut managed = Frameworks::none();
    for item in field.items() {
        match item.choice(&choices) {
            Some(Some(framework)) => managed.add(framework),
            Some(None) => not_acted_on.push(format!("{} ({})", item.path(), item.text().unwrap_or_default())),
            None => {}
        }
    }
    managed
}
