//! Declarative configuration of Serve: `serveConfigV2` of a RayService, and the body of the PUT
//! request that applies it.

use serde_json::Value;
use thiserror::Error;

use sluice_api::canonical_hash;

/// Field with the share of its replicas that each deployment runs, in percent.
const TARGET_CAPACITY: &str = "target_capacity";

/// Serve configuration, parsed and hashed.
#[derive(Debug, Clone, PartialEq)]
pub struct ServeConfig {
    text: String,
    body: Value,
    hash: String,
}

/// Error of an invalid Serve configuration.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum ServeConfigError {
    /// The text is not valid YAML.
    #[error("invalid YAML: {0}")]
    NotYaml(String),
    /// The document is not a mapping.
    #[error("must be a mapping with the key \"applications\", but is {found}")]
    NotAMapping {
        /// Kind of the actual value.
        found: &'static str,
    },
    /// `applications` is not a list of mappings.
    #[error("\"applications\" must be a list of mappings, but is {found}")]
    NoApplications {
        /// Kind of the actual value.
        found: &'static str,
    },
}

impl ServeConfig {
    /// Parses `serveConfigV2`. The content of an application is validated by Serve only.
    ///
    /// # Errors
    /// Fails when the text is not YAML, or has no list of applications.
    pub fn from_yaml(text: &str) -> Result<Self, ServeConfigError> {
        let body: Value = match text.trim() {
            "" => Value::Null,
            text => serde_saphyr::from_str(text)
                .map_err(|error| ServeConfigError::NotYaml(first_line(&error.to_string())))?,
        };
        let Value::Object(fields) = &body else {
            return Err(ServeConfigError::NotAMapping { found: kind_of(Some(&body)) });
        };
        match fields.get("applications") {
            Some(Value::Array(items)) if items.iter().all(Value::is_object) => {}
            other => return Err(ServeConfigError::NoApplications { found: kind_of(other) }),
        }
        let hash = canonical_hash::hash(&body);
        Ok(Self { text: text.to_owned(), body, hash })
    }

    /// Returns the YAML text as written.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// Returns the body of the PUT request.
    pub fn body(&self) -> &Value {
        &self.body
    }

    /// Returns the hash of the configuration, which does not depend on key order and YAML notation.
    pub fn hash(&self) -> &str {
        &self.hash
    }

    /// Returns the configuration with this `target_capacity`, in percent; unchanged for `None`. The
    /// hash stays the same.
    #[must_use]
    pub fn with_target_capacity(&self, percent: Option<u8>) -> Self {
        let mut config = self.clone();
        if let (Some(percent), Some(fields)) = (percent, config.body.as_object_mut()) {
            fields.insert(TARGET_CAPACITY.to_owned(), percent.into());
        }
        config
    }

    /// Returns `target_capacity`, in percent; `None` if it is unset.
    pub fn target_capacity(&self) -> Option<f64> {
        self.body.get(TARGET_CAPACITY)?.as_f64()
    }

    /// Reports whether `target_capacity` is set.
    pub fn has_target_capacity(&self) -> bool {
        self.body.get(TARGET_CAPACITY).is_some_and(|capacity| !capacity.is_null())
    }

    /// Returns the configured replicas of each deployment at full capacity: the maximum of an
    /// autoscaled one. Deployments without a number are omitted.
    pub fn replicas(&self) -> Vec<u32> {
        let applications = self.body.get("applications").and_then(Value::as_array).into_iter().flatten();
        let deployments = applications.filter_map(|application| application.get("deployments")?.as_array()).flatten();
        let max_replicas = |deployment: &Value| deployment.pointer("/autoscaling_config/max_replicas")?.as_u64();
        let replicas =
            |deployment: &Value| max_replicas(deployment).or_else(|| deployment.get("num_replicas")?.as_u64());
        deployments.filter_map(replicas).filter_map(|replicas| u32::try_from(replicas).ok()).collect()
    }

    /// Reports whether the configuration has any application.
    pub fn has_applications(&self) -> bool {
        self.body.get("applications").and_then(Value::as_array).is_some_and(|items| !items.is_empty())
    }
}

/// Returns the kind of a value for an error message.
fn kind_of(value: Option<&Value>) -> &'static str {
    match value {
        None => "missing",
        Some(Value::Null) => "empty",
        Some(Value::Bool(_)) => "a boolean",
        Some(Value::Number(_)) => "a number",
        Some(Value::String(_)) => "a string",
        Some(Value::Array(items)) if items.iter().all(Value::is_object) => "a list",
        Some(Value::Array(_)) => "a list of other values",
        Some(Value::Object(_)) => "a mapping",
    }
}

/// Shortens a parser error to its first line without the hint for programmers. The other lines draw
/// the position, which does not fit into a condition message.
fn first_line(error: &str) -> String {
    let line = error.lines().next().unwrap_or_default();
    let line = line.split_once("; use ").map_or(line, |(error, _)| error);
    line.trim_start_matches("error:").trim().to_owned()
}

#[cfg(test)]
mod tests {
    use rstest::rstest;
    use serde_json::json;

    use super::*;

    const CONFIG: &str = "
proxy_location: EveryNode
applications:
  - name: chat
    import_path: chat:app
    route_prefix: /
    deployments:
      - {name: Llm, num_replicas: 2, ray_actor_options: {num_cpus: 0.5}}
";

    #[test]
    fn configuration_becomes_the_body_of_the_put_request() {
        let config = ServeConfig::from_yaml(CONFIG).expect("a configuration");

        let deployment = json!({"name": "Llm", "num_replicas": 2, "ray_actor_options": {"num_cpus": 0.5}});
        let app = json!({
            "name": "chat", "import_path": "chat:app", "route_prefix": "/", "deployments": [deployment],
        });
        assert_eq!(*config.body(), json!({"proxy_location": "EveryNode", "applications": [app]}));
        assert!(config.has_applications());
    }

    #[test]
    fn hash_depends_on_content_and_not_on_notation() {
        let config = |yaml| ServeConfig::from_yaml(yaml).expect("a configuration");
        let block_style = config("applications:\n- {name: a, x: 1}\n");
        let flow_style = config("# a comment\napplications: [{x: 1, name: \"a\"}]");

        assert_eq!(block_style.hash(), flow_style.hash());
        assert_ne!(block_style.hash(), config("applications: [{name: a, x: 2}]").hash());
        assert!(!config("applications: []").has_applications());
    }

    #[rstest]
    #[case::nothing("", "must be a mapping with the key \"applications\", but is empty")]
    #[case::text("chat", "must be a mapping with the key \"applications\", but is a string")]
    #[case::no_applications("a: 1", "\"applications\" must be a list of mappings, but is missing")]
    #[case::one("applications: {name: a}", "\"applications\" must be a list of mappings, but is a mapping")]
    #[case::names("applications: [a]", "\"applications\" must be a list of mappings, but is a list of other values")]
    fn invalid_configuration_is_rejected_with_the_expected_form(#[case] yaml: &str, #[case] message: &str) {
        let error = ServeConfig::from_yaml(yaml).expect_err("no configuration");
        assert_eq!(error.to_string(), message);
    }

    #[rstest]
    #[case::unclosed("applications: [")]
    #[case::two_documents("applications: []\n---\nb: 1")]
    #[case::twice("applications: []\napplications: []")]
    #[case::tabs("applications:\n\t- name: a")]
    #[case::a_bomb(
        "a: &a [x,x,x,x,x,x,x,x,x]\nb: &b [*a,*a,*a,*a,*a,*a,*a,*a,*a]\nc: &c [*b,*b,*b,*b,*b,*b,*b,*b,*b]\nd: &d [*c,*c,*c,*c,*c,*c,*c,*c,*c]\ne: &e [*d,*d,*d,*d,*d,*d,*d,*d,*d]\nf: &f [*e,*e,*e,*e,*e,*e,*e,*e,*e]\napplications: [{x: [*f,*f,*f,*f,*f,*f,*f,*f,*f]}]"
    )]
    fn invalid_yaml_is_rejected_with_a_one_line_error(#[case] yaml: &str) {
        let error = ServeConfig::from_yaml(yaml).expect_err("no YAML").to_string();
        assert!(error.starts_with("invalid YAML: ") && !error.contains('\n') && error.len() > 20, "{error}");
    }
}
