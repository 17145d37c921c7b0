//! Status, reason and message of a condition, before it has a type and a time.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use sluice_api::condition;

use super::context::ReconcileContext;

/// Status, reason and message of a condition.
#[derive(Debug, Clone)]
pub(super) struct ConditionContent {
    pub(super) status: bool,
    pub(super) reason: String,
    pub(super) message: String,
}

impl ConditionContent {
    pub(super) fn new(status: bool, reason: &str, message: impl Into<String>) -> Self {
        Self { status, reason: reason.to_owned(), message: message.into() }
    }

    pub(super) fn condition(&self, kind: &str, context: &ReconcileContext<'_>) -> Condition {
        Condition {
            type_: kind.to_owned(),
            status: condition::status(self.status).to_owned(),
            reason: self.reason.clone(),
            message: self.message.clone(),
            last_transition_time: Time(condition::whole_seconds(context.now)),
            observed_generation: context.job.meta().generation,
        }
    }
}
