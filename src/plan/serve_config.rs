//! The declarative configuration of Serve: `serveConfigV2` of a RayService, and the body of the PUT that applies it.

use serde_json::Value;
use thiserror::Error;

use sluice_api::fingerprint;

/// The field that says how much of its replicas each deployment is to have, in percent.
const TARGET_CAPACITY: &str = "target_capacity";

/// A configuration that can be sent to Serve.
#[derive(Debug, Clone, PartialEq)]
pub struct ServeConfig {
    text: String,
    body: Value,
    hash: String,
}

/// Why a text is no configuration of Serve.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum ConfigError {
    /// It isn't YAML.
    #[error("it isn't YAML: {0}")]
    NotYaml(String),
    /// It isn't a mapping.
    #[error("it is {found}, but has to be a mapping with the key \"applications\"")]
    NotAMapping {
        /// What it is instead.
        found: &'static str,
    },
    /// It doesn't list applications.
    #[error("\"applications\" is {found}, but has to be a list of mappings")]
    NoApplications {
        /// What is there instead.
        found: &'static str,
    },
}

impl ServeConfig {
    /// Reads `serveConfigV2`. What is in an application is Serve's own business.
    ///
    /// # Errors
    /// When it isn't YAML, or doesn't list applications.
    pub fn from_yaml(text: &str) -> Result<Self, ConfigError> {
        let body: Value = match text.trim() {
            "" => Value::Null,
            text => {
                serde_saphyr::from_str(text).map_err(|error| ConfigError::NotYaml(in_one_line(&error.to_string())))?
            }
        };
        let Value::Object(fields) = &body else {
            return Err(ConfigError::NotAMapping { found: kind_of(Some(&body)) });
        };
        match fields.get("applications") {
            Some(Value::Array(items)) if items.iter().all(Value::is_object) => {}
            other => return Err(ConfigError::NoApplications { found: kind_of(other) }),
        }
        let hash = fingerprint::of(&body);
        Ok(Self { text: text.to_owned(), body, hash })
    }

    /// As it was written.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// What is sent.
    pub fn body(&self) -> &Value {
        &self.body
    }

    /// Identifies the configuration, whatever the order of its keys and the spaces in the YAML.
    pub fn hash(&self) -> &str {
        &self.hash
    }

    /// The same, for this much of its replicas in percent; for as many as it says itself if that is `None`.
    #[must_use]
    pub fn at_capacity(&self, percent: Option<u8>) -> Self {
        let mut config = self.clone();
        if let (Some(percent), Some(fields)) = (percent, config.body.as_object_mut()) {
            fields.insert(TARGET_CAPACITY.to_owned(), percent.into());
        }
        config
    }

    /// For how much of its replicas it is, in percent; `None` if it doesn't say.
    pub fn capacity(&self) -> Option<f64> {
        self.body.get(TARGET_CAPACITY)?.as_f64()
    }

    /// Whether it says itself for how much of its replicas it is.
    pub fn sets_capacity(&self) -> bool {
        self.body.get(TARGET_CAPACITY).is_some_and(|capacity| !capacity.is_null())
    }

    /// How many replicas each deployment has at full capacity, as far as it is said here; the most, where Serve decides that.
    pub fn replicas(&self) -> Vec<u32> {
        let applications = self.body.get("applications").and_then(Value::as_array).into_iter().flatten();
        let deployments = applications.flat_map(|application| application.get("deployments")?.as_array()).flatten();
        let most = |deployment: &Value| deployment.pointer("/autoscaling_config/max_replicas")?.as_u64();
        let replicas = |deployment: &Value| most(deployment).or_else(|| deployment.get("num_replicas")?.as_u64());
        deployments.filter_map(replicas).filter_map(|replicas| u32::try_from(replicas).ok()).collect()
    }

    /// Whether it has an application to deploy.
    pub fn has_applications(&self) -> bool {
        self.body.get("applications").and_then(Value::as_array).is_some_and(|items| !items.is_empty())
    }
}

fn kind_of(value: Option<&Value>) -> &'static str {
    match value {
        None => "missing",
        Some(Value::Null) => "empty",
        Some(Value::Bool(_)) => "a boolean",
        Some(Value::Number(_)) => "a number",
        Some(Value::String(_)) => "a string",
        Some(Value::Array(items)) if items.iter().all(Value::is_object) => "a list",
        Some(Value::Array(_)) => "a list of something else",
        Some(Value::Object(_)) => "a mapping",
    }
}

/// The parser draws the place below its first line, which a condition can't, and gives advice to programmers.
fn in_one_line(error: &str) -> String {
    let line = error.lines().next().unwrap_or_default();
    let line = line.split_once("; use ").map_or(line, |(fault, _)| fault);
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
    fn a_configuration_becomes_the_body_of_the_put() {
        let config = ServeConfig::from_yaml(CONFIG).expect("a configuration");

        let deployment = json!({"name": "Llm", "num_replicas": 2, "ray_actor_options": {"num_cpus": 0.5}});
        let app = json!({
            "name": "chat", "import_path": "chat:app", "route_prefix": "/", "deployments": [deployment],
        });
        assert_eq!(*config.body(), json!({"proxy_location": "EveryNode", "applications": [app]}));
        assert!(config.has_applications());
    }

    #[test]
    fn the_hash_follows_what_is_said_and_not_how_it_is_written() {
        let config = |yaml| ServeConfig::from_yaml(yaml).expect("a configuration");
        let written = config("applications:\n- {name: a, x: 1}\n");
        let otherwise = config("# a comment\napplications: [{x: 1, name: \"a\"}]");

        assert_eq!(written.hash(), otherwise.hash());
        assert_ne!(written.hash(), config("applications: [{name: a, x: 2}]").hash());
        assert!(!config("applications: []").has_applications());
    }

    #[rstest]
    #[case::nothing("", "it is empty, but has to be a mapping with the key \"applications\"")]
    #[case::text("chat", "it is a string, but has to be a mapping with the key \"applications\"")]
    #[case::no_applications("a: 1", "\"applications\" is missing, but has to be a list of mappings")]
    #[case::one("applications: {name: a}", "\"applications\" is a mapping, but has to be a list of mappings")]
    #[case::names(
        "applications: [a]",
        "\"applications\" is a list of something else, but has to be a list of mappings"
    )]
    fn what_is_no_configuration_is_refused_with_what_is_allowed(#[case] yaml: &str, #[case] message: &str) {
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
    fn bad_yaml_is_refused_in_one_line(#[case] yaml: &str) {
        let error = ServeConfig::from_yaml(yaml).expect_err("no YAML").to_string();
        assert!(error.starts_with("it isn't YAML: ") && !error.contains('\n') && error.len() > 20, "{error}");
    }
}
