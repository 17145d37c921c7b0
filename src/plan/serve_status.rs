//! Responses of the Serve REST API.

use std::collections::BTreeMap;

use jiff::Timestamp;
use serde::{Deserialize, Deserializer};
use serde_json::Value;
use thiserror::Error;

/// State of all declaratively deployed applications, as returned by `GET /api/serve/applications/`.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
pub struct ServeStatus {
    /// Applications by name.
    #[serde(default, deserialize_with = "null_as_default")]
    pub applications: BTreeMap<String, Application>,
    /// Share of its replicas that each deployment runs, in percent; `None` if it is not limited.
    #[serde(default)]
    pub target_capacity: Option<f64>,
}

impl ServeStatus {
    /// Reports whether there is at least one application, and all are running.
    pub fn is_running(&self) -> bool {
        !self.applications.is_empty() && self.applications.values().all(Application::is_running)
    }
}

/// Application of Serve.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
pub struct Application {
    /// Status in Serve's terms: NOT_STARTED, DEPLOYING, RUNNING, DEPLOY_FAILED, DELETING,
    /// UNHEALTHY, or one of a newer Ray.
    #[serde(default, deserialize_with = "null_as_default")]
    pub status: String,
    /// Serve's message about the application; empty if there is none.
    #[serde(default, deserialize_with = "null_as_default")]
    pub message: String,
    /// Deployments by name.
    #[serde(default, deserialize_with = "null_as_default")]
    pub deployments: BTreeMap<String, Deployment>,
}

impl Application {
    /// Reports whether the application serves requests.
    pub fn is_running(&self) -> bool {
        self.status == "RUNNING"
    }

    /// Returns Serve's message about the application and about each failing deployment. Only the
    /// last line of the latter is included, which is where a traceback names the error.
    pub fn error_message(&self) -> String {
        let own = Some(self.message.trim().to_owned()).filter(|own| !own.is_empty());
        let failing = self.deployments.iter().filter(|(_, deployment)| deployment.is_failing());
        let deployment_messages = failing.filter_map(|(name, deployment)| {
            let last = deployment.message.trim().lines().next_back()?;
            Some(format!("deployment {name} is {}: {}", deployment.status, last.trim()))
        });
        own.into_iter().chain(deployment_messages).collect::<Vec<_>>().join("; ")
    }
}

/// Deployment of an application.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
pub struct Deployment {
    /// Status in Serve's terms: UPDATING, HEALTHY, UNHEALTHY, or one of a newer Ray.
    #[serde(default, deserialize_with = "null_as_default")]
    pub status: String,
    /// Serve's message about the deployment; empty if there is none.
    #[serde(default, deserialize_with = "null_as_default")]
    pub message: String,
    /// Configuration of the deployment.
    #[serde(default, deserialize_with = "null_as_default")]
    pub deployment_config: DeploymentConfig,
    /// Current target number of replicas; `None` if Ray does not report it.
    #[serde(default, deserialize_with = "lenient_count")]
    pub target_num_replicas: Option<u32>,
    /// Replicas; `None` if Ray does not report them.
    #[serde(default)]
    pub replicas: Option<Vec<Replica>>,
}

impl Deployment {
    /// Reports whether the deployment is unhealthy or could not be deployed.
    fn is_failing(&self) -> bool {
        matches!(self.status.as_str(), "UNHEALTHY" | "DEPLOY_FAILED")
    }

    /// Returns the number of running replicas; `None` if Ray does not report replicas.
    pub fn running_replicas(&self) -> Option<u32> {
        let replicas = self.replicas.as_ref()?.iter().filter(|replica| replica.state == "RUNNING");
        u32::try_from(replicas.count()).ok()
    }

    /// Reports whether Serve autoscales the deployment.
    pub fn is_autoscaled(&self) -> bool {
        self.deployment_config.autoscaling_config.is_some()
    }

    /// Returns the number of replicas at full capacity: the minimum of an autoscaled deployment.
    pub fn replicas_at_full_capacity(&self) -> u32 {
        let config = &self.deployment_config;
        let fixed = config.num_replicas.unwrap_or(1);
        config.autoscaling_config.as_ref().map_or(fixed, |bounds| bounds.min_replicas.unwrap_or(1))
    }
}

/// Configuration of a deployment.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
pub struct DeploymentConfig {
    /// Number of replicas at full capacity.
    #[serde(default, deserialize_with = "lenient_count")]
    pub num_replicas: Option<u32>,
    /// Autoscaling bounds; `None` for a fixed number of replicas.
    #[serde(default)]
    pub autoscaling_config: Option<AutoscalingBounds>,
}

/// Bounds of Serve's autoscaling.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
pub struct AutoscalingBounds {
    /// Minimum number of replicas; 1 when unset.
    #[serde(default, deserialize_with = "lenient_count")]
    pub min_replicas: Option<u32>,
}

/// Replica of a deployment.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
pub struct Replica {
    /// State in Serve's terms: STARTING, RUNNING, STOPPING, or one of a newer Ray.
    #[serde(default, deserialize_with = "null_as_default")]
    pub state: String,
    /// IP address of its Ray node, which is that of the pod; `None` if the replica is not placed
    /// yet, or Ray does not report it.
    #[serde(default)]
    pub node_ip: Option<String>,
}

/// Deserializes null, which Ray writes for missing values, as the default.
fn null_as_default<'de, D: Deserializer<'de>, T: Default + Deserialize<'de>>(value: D) -> Result<T, D::Error> {
    Ok(Option::deserialize(value)?.unwrap_or_default())
}

/// Deserializes a count; `None` for anything else, which a newer Ray may write.
fn lenient_count<'de, D: Deserializer<'de>>(value: D) -> Result<Option<u32>, D::Error> {
    Ok(Value::deserialize(value)?.as_u64().and_then(|count| u32::try_from(count).ok()))
}

/// Result of a [`ServeCall`](crate::ServeCall).
#[derive(Debug, Clone, PartialEq)]
pub struct ServeReply {
    /// Namespace of the RayCluster.
    pub namespace: String,
    /// Name of the RayCluster.
    pub cluster: String,
    /// Uid of the RayCluster.
    pub uid: String,
    /// Uid of the cluster's head pod when the call was made; `None` if it was not known.
    pub head_uid: Option<String>,
    /// Time of the call. The reported state may have changed since then.
    pub called_at: Timestamp,
    /// Time at which the answer arrived.
    pub answered_at: Timestamp,
    /// Answer by kind of request.
    pub answer: ServeAnswer,
}

impl ServeReply {
    /// Returns the kind of the request, like that of [`ServeRequest`](crate::ServeRequest): `get`,
    /// `put` or `healthz`.
    pub fn kind(&self) -> &'static str {
        match self.answer {
            ServeAnswer::Status(_) => "get",
            ServeAnswer::Applied { .. } => "put",
            ServeAnswer::Health { .. } => "healthz",
        }
    }
}

/// Answer by kind of request.
#[derive(Debug, Clone, PartialEq)]
pub enum ServeAnswer {
    /// State of all applications.
    Status(Result<ServeStatus, ServeError>),
    /// Result of sending a configuration. Serve deploys an accepted one asynchronously.
    Applied {
        /// Hash of the configuration.
        config_hash: String,
        /// Acceptance by Serve, or the error.
        result: Result<(), ServeError>,
    },
    /// Health check of the Serve proxy on a pod.
    Health {
        /// Name of the pod.
        pod: String,
        /// Success, or the reason why the proxy does not serve.
        result: Result<(), ServeError>,
    },
}

/// Error of a call. `doing` describes the operation and its object.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum ServeError {
    /// No response arrived in time.
    #[error("{doing}: no response within {seconds} s")]
    Timeout {
        /// Operation and its object.
        doing: String,
        /// Timeout, in seconds.
        seconds: u64,
    },
    /// The request could not be sent, or the connection failed.
    #[error("{doing}: {cause}")]
    Unreachable {
        /// Operation and its object.
        doing: String,
        /// Cause of the failure.
        cause: String,
    },
    /// The response has an HTTP error status.
    #[error("{doing}: HTTP status {code}: {body}")]
    Rejected {
        /// Operation and its object.
        doing: String,
        /// HTTP status code.
        code: u16,
        /// Truncated body of the response.
        body: String,
    },
    /// The response can't be parsed.
    #[error("{doing}: the response can't be parsed: {cause}")]
    Unreadable {
        /// Operation and its object.
        doing: String,
        /// Parse error.
        cause: String,
    },
}

impl ServeError {
    /// Reports whether retrying the same call is pointless, since Serve rejected the request as
    /// invalid.
    pub fn is_permanent(&self) -> bool {
        matches!(self, Self::Rejected { code: 400 | 422, .. })
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;
    use serde_json::json;

    use super::*;

    #[test]
    fn unknown_statuses_are_kept() {
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
    fn error_message_names_the_failing_deployment() {
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

        let expected =
            "Failed to update the deployments ['Stand'].; deployment Stand is DEPLOY_FAILED: RuntimeError: no mangos";
        assert_eq!(application.error_message(), expected);
        assert_eq!(Application::default().error_message(), "");
    }

    #[rstest]
    #[case::none(json!({}), false)]
    #[case::null(json!({"applications": null}), false)]
    #[case::running(json!({"applications": {"a": {"status": "RUNNING"}}}), true)]
    #[case::one_of_two_running(json!({"applications": {"a": {"status": "RUNNING"}, "b": {"status": "DEPLOYING"}}}), false)]
    fn serve_is_running_when_all_of_its_applications_are(#[case] reply: serde_json::Value, #[case] runs: bool) {
        let status: ServeStatus = serde_json::from_value(reply).expect("a reply");
        assert_eq!(status.is_running(), runs);
    }
}
