//! What Serve answers.

use std::collections::BTreeMap;

use jiff::Timestamp;
use serde::{Deserialize, Deserializer};
use serde_json::Value;
use thiserror::Error;

/// The state of all applications that were deployed by configuration, as `GET /api/serve/applications/` gives it.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
pub struct ServeStatus {
    /// The applications, by name.
    #[serde(default, deserialize_with = "or_default")]
    pub applications: BTreeMap<String, Application>,
    /// How much of their replicas all deployments are to have, in percent; `None` where that is not limited.
    #[serde(default)]
    pub target_capacity: Option<f64>,
}

impl ServeStatus {
    /// Whether there is an application at all, and each of them runs.
    pub fn is_running(&self) -> bool {
        !self.applications.is_empty() && self.applications.values().all(Application::is_running)
    }
}

/// An application.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
pub struct Application {
    /// As Serve names it: NOT_STARTED, DEPLOYING, RUNNING, DEPLOY_FAILED, DELETING, UNHEALTHY, or what a newer Ray knows.
    #[serde(default, deserialize_with = "or_default")]
    pub status: String,
    /// What Serve says of it.
    #[serde(default, deserialize_with = "or_default")]
    pub message: String,
    /// Its deployments, by name.
    #[serde(default, deserialize_with = "or_default")]
    pub deployments: BTreeMap<String, Deployment>,
}

impl Application {
    /// Whether it takes requests.
    pub fn is_running(&self) -> bool {
        self.status == "RUNNING"
    }

    /// What Serve says of it, and of each deployment that is in trouble. Of that only the last line, which is where a traceback ends.
    pub fn told(&self) -> String {
        let own = Some(self.message.trim().to_owned()).filter(|own| !own.is_empty());
        let in_trouble = self.deployments.iter().filter(|(_, deployment)| deployment.is_in_trouble());
        let of_deployments = in_trouble.filter_map(|(name, deployment)| {
            let last = deployment.message.trim().lines().next_back()?;
            Some(format!("deployment {name} is {}: {}", deployment.status, last.trim()))
        });
        own.into_iter().chain(of_deployments).collect::<Vec<_>>().join("; ")
    }
}

/// A deployment of an application.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
pub struct Deployment {
    /// As Serve names it: UPDATING, HEALTHY, UNHEALTHY, or what a newer Ray knows.
    #[serde(default, deserialize_with = "or_default")]
    pub status: String,
    /// What Serve says of it.
    #[serde(default, deserialize_with = "or_default")]
    pub message: String,
    /// How it is configured.
    #[serde(default, deserialize_with = "or_default")]
    pub deployment_config: DeploymentConfig,
    /// How many replicas Serve wants at present.
    #[serde(default, deserialize_with = "count")]
    pub target_num_replicas: Option<u32>,
    /// Its replicas.
    #[serde(default)]
    pub replicas: Option<Vec<Replica>>,
}

impl Deployment {
    /// Whether it says of itself that it can't do what it is to.
    fn is_in_trouble(&self) -> bool {
        matches!(self.status.as_str(), "UNHEALTHY" | "DEPLOY_FAILED")
    }

    /// How many replicas take requests, if Ray tells of replicas.
    pub fn running(&self) -> Option<u32> {
        let replicas = self.replicas.as_ref()?.iter().filter(|replica| replica.state == "RUNNING");
        u32::try_from(replicas.count()).ok()
    }

    /// Whether Serve decides how many replicas there are.
    pub fn is_autoscaled(&self) -> bool {
        self.deployment_config.autoscaling_config.is_some()
    }

    /// How many replicas it has at full capacity, or at least has where Serve decides.
    pub fn full_replicas(&self) -> u32 {
        let config = &self.deployment_config;
        let fixed = config.num_replicas.unwrap_or(1);
        config.autoscaling_config.as_ref().map_or(fixed, |bounds| bounds.min_replicas.unwrap_or(1))
    }
}

/// How a deployment is configured.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
pub struct DeploymentConfig {
    /// How many replicas it is to have at full capacity.
    #[serde(default, deserialize_with = "count")]
    pub num_replicas: Option<u32>,
    /// Between which bounds Serve decides that, if it does.
    #[serde(default)]
    pub autoscaling_config: Option<AutoscalingBounds>,
}

/// Between which bounds Serve decides how many replicas there are.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
pub struct AutoscalingBounds {
    /// The least; 1 when unset.
    #[serde(default, deserialize_with = "count")]
    pub min_replicas: Option<u32>,
}

/// A replica of a deployment.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
pub struct Replica {
    /// As Serve names it: STARTING, RUNNING, STOPPING, or what a newer Ray knows.
    #[serde(default, deserialize_with = "or_default")]
    pub state: String,
    /// The address of the Ray node that it is on, which is that of its pod; `None` where it has none yet, or Ray doesn't tell.
    #[serde(default)]
    pub node_ip: Option<String>,
}

/// Ray writes null for what it has nothing to say of.
fn or_default<'de, D: Deserializer<'de>, T: Default + Deserialize<'de>>(value: D) -> Result<T, D::Error> {
    Ok(Option::deserialize(value)?.unwrap_or_default())
}

/// Where a number is expected, a newer Ray may say something else.
fn count<'de, D: Deserializer<'de>>(value: D) -> Result<Option<u32>, D::Error> {
    Ok(Value::deserialize(value)?.as_u64().and_then(|count| u32::try_from(count).ok()))
}

/// What came of a [`ServeCall`](crate::ServeCall).
#[derive(Debug, Clone, PartialEq)]
pub struct ServeReply {
    /// Namespace of the RayCluster.
    pub namespace: String,
    /// Name of the RayCluster.
    pub cluster: String,
    /// Uid of the RayCluster.
    pub uid: String,
    /// Uid of the head pod that it had when the call was made, if that was known.
    pub head: Option<String>,
    /// When the call was made. What it tells of may have changed since then.
    pub called_at: Timestamp,
    /// When the answer was there.
    pub at: Timestamp,
    /// What was asked, and the answer.
    pub answer: ServeAnswer,
}

impl ServeReply {
    /// What was asked, in a word; the same as that of the [`ServeRequest`](crate::ServeRequest).
    pub fn kind(&self) -> &'static str {
        match self.answer {
            ServeAnswer::Status(_) => "get",
            ServeAnswer::Applied { .. } => "put",
            ServeAnswer::Health { .. } => "healthz",
        }
    }
}

/// What was asked, and the answer.
#[derive(Debug, Clone, PartialEq)]
pub enum ServeAnswer {
    /// The state of all applications.
    Status(Result<ServeStatus, ServeError>),
    /// Whether Serve took a configuration. It acts on it later.
    Applied {
        /// Hash of the configuration.
        config_hash: String,
        /// Whether Serve took it.
        result: Result<(), ServeError>,
    },
    /// Whether the Serve proxy on a pod takes requests.
    Health {
        /// Name of the pod.
        pod: String,
        /// Whether it does, and if not, why.
        result: Result<(), ServeError>,
    },
}

/// Why a call came to nothing. `doing` says what was being done to what.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum ServeError {
    /// Nobody answered in time.
    #[error("{doing}: no answer within {seconds} s")]
    Silent {
        /// What was being done to what.
        doing: String,
        /// For how long the answer was waited for.
        seconds: u64,
    },
    /// Nobody could be asked.
    #[error("{doing}: {cause}")]
    Unreachable {
        /// What was being done to what.
        doing: String,
        /// What went wrong.
        cause: String,
    },
    /// The answer is a refusal.
    #[error("{doing}: HTTP status {code}: {body}")]
    Refused {
        /// What was being done to what.
        doing: String,
        /// The HTTP status.
        code: u16,
        /// What came with it, cut to a length that can be shown.
        body: String,
    },
    /// The answer can't be understood.
    #[error("{doing}: the answer can't be understood: {cause}")]
    Unreadable {
        /// What was being done to what.
        doing: String,
        /// What is wrong with it.
        cause: String,
    },
}

impl ServeError {
    /// Whether asking the same again is bound to get the same answer: Serve itself has found fault with what was asked.
    pub fn is_final(&self) -> bool {
        matches!(self, Self::Refused { code: 400 | 422, .. })
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;
    use serde_json::json;

    use super::*;

    #[test]
    fn a_reply_keeps_statuses_that_are_not_known_here() {
        let reply = json!({
            "deploy_mode": "MULTI_APP",
            "applications": {"chat": {
                "name": "chat", "status": "SHARDING", "message": null, "route_prefix": "/", "docs_path": null,
                "deployments": {"Llm": {"name": "Llm", "status": "UPSCALING", "message": "", "replicas": []}},
            }},
        });

        let status: ServeStatus = serde_json::from_value(reply).expect("a reply");

        let chat = &status.applications["chat"];
        assert_eq!((chat.status.as_str(), chat.message.as_str()), ("SHARDING", ""));
        assert_eq!(chat.deployments["Llm"].status, "UPSCALING");
        assert!(!status.is_running());
    }

    #[test]
    fn what_went_wrong_is_told_of_the_deployment_that_it_went_wrong_in() {
        let reply = json!({
            "status": "DEPLOY_FAILED", "message": "Failed to update the deployments ['Stand'].",
            "deployments": {
                "Market": {"status": "HEALTHY", "message": "all is well"},
                "Stand": {
                    "status": "DEPLOY_FAILED",
                    "message": "It failed to start 3 times. Error:\nTraceback:\n  raise\nRuntimeError: no mangos\n",
                },
            },
        });

        let application: Application = serde_json::from_value(reply).expect("an application");

        let told =
            "Failed to update the deployments ['Stand'].; deployment Stand is DEPLOY_FAILED: RuntimeError: no mangos";
        assert_eq!(application.told(), told);
        assert_eq!(Application::default().told(), "");
    }

    #[rstest]
    #[case::none(json!({}), false)]
    #[case::null(json!({"applications": null}), false)]
    #[case::one_that_runs(json!({"applications": {"a": {"status": "RUNNING"}}}), true)]
    #[case::one_of_two(json!({"applications": {"a": {"status": "RUNNING"}, "b": {"status": "DEPLOYING"}}}), false)]
    fn serve_runs_when_there_are_applications_and_each_runs(#[case] reply: serde_json::Value, #[case] runs: bool) {
        let status: ServeStatus = serde_json::from_value(reply).expect("a reply");
        assert_eq!(status.is_running(), runs);
    }
}
