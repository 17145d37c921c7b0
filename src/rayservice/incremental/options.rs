//! How an incremental upgrade is to go, as its owner says
//! (KubeRay 1.7 `ray-operator/controllers/ray/utils/validation.go`, `ValidateClusterUpgradeOptions`; stricter where a value would
//! never let an upgrade end).

use jiff::SignedDuration;

use super::machine::{Percent, WHOLE};
use sluice_api::ray::step_choices::{self, SCALE_WORKERS_ANNOTATION};
use sluice_api::ray::{RayService, UpgradeType};
use sluice_raycluster::Problem;

/// Where the options are.
const FIELD: &str = "spec.upgradeStrategy.clusterUpgradeOptions";

/// What has Ray's autoscaler scale the workers.
const AUTOSCALING: &str = "spec.rayClusterConfig.enableInTreeAutoscaling";

/// How an incremental upgrade is to go.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Options {
    /// How much capacity there may be above 100 percent, in percent.
    pub surge: Percent,
    /// How much traffic moves in a step, in percent.
    pub step: Percent,
    /// The time between two steps.
    pub interval: SignedDuration,
    /// The class of the Gateway; `None` if nothing is to be said of it any more.
    pub gateway_class: Option<String>,
}

impl Options {
    /// For an upgrade that was begun in steps, of a service that is not to be upgraded so any more: the rest goes at once.
    pub const AT_ONCE: Self = Self { surge: WHOLE, step: WHOLE, interval: SignedDuration::ZERO, gateway_class: None };

    /// For an upgrade whose options make no sense now: nothing is begun with these, and the ways in stay as they are.
    pub const HELD: Self = Self { surge: 0, step: 0, interval: SignedDuration::ZERO, gateway_class: None };

    /// What a service says; `None` if it isn't to be upgraded in steps.
    ///
    /// # Errors
    /// Every option that makes no sense, with what is allowed.
    pub fn of(service: &RayService) -> Result<Option<Self>, Vec<Problem>> {
        let strategy = service.spec.upgrade_strategy.as_ref();
        let Some(strategy) =
            strategy.filter(|strategy| strategy.type_ == Some(UpgradeType::NewClusterWithIncrementalUpgrade))
        else {
            return Ok(None);
        };
        let mut problems = Vec::new();
        let Some(options) = &strategy.cluster_upgrade_options else {
            let message = "it is missing, and NewClusterWithIncrementalUpgrade needs stepSizePercent, intervalSeconds and gatewayClassName";
            return Err(vec![Problem { field: FIELD.to_owned(), message: message.to_owned() }]);
        };
        let surge = percent("maxSurgePercent", Some(options.max_surge_percent.unwrap_or(100)), 100, &mut problems);
        let most = surge.map_or(100, i32::from);
        let step = percent("stepSizePercent", options.step_size_percent, most, &mut problems);
        let interval = match options.interval_seconds {
            Some(seconds) if seconds > 0 => Some(SignedDuration::from_secs(seconds.into())),
            said => {
                problem("intervalSeconds", said, "above 0", &mut problems);
                None
            }
        };
        let class = options.gateway_class_name.trim();
        if class.is_empty() {
            problem("gatewayClassName", Some("\"\""), "the name of a GatewayClass", &mut problems);
        }
        let scales = step_choices::scales_workers(&service.metadata).unwrap_or(true);
        if !scales && service.spec.ray_cluster_config.enable_in_tree_autoscaling != Some(true) {
            let message = format!(
                "it is not true, and annotation {SCALE_WORKERS_ANNOTATION} is false: nobody would make the workers follow the capacity"
            );
            problems.push(Problem { field: AUTOSCALING.to_owned(), message });
        }
        match (surge, step, interval) {
            (Some(surge), Some(step), Some(interval)) if problems.is_empty() => {
                Ok(Some(Self { surge, step, interval, gateway_class: Some(class.to_owned()) }))
            }
            _ => Err(problems),
        }
    }
}

fn percent(name: &str, said: Option<i32>, most: i32, problems: &mut Vec<Problem>) -> Option<Percent> {
    let percent =
        said.filter(|percent| (1..=most).contains(percent)).and_then(|percent| Percent::try_from(percent).ok());
    if percent.is_none() {
        let limit = if most < 100 { format!("{most}, which is maxSurgePercent") } else { most.to_string() };
        problem(name, said, &format!("a whole number from 1 to {limit}"), problems);
    }
    percent
}

fn problem(name: &str, said: Option<impl std::fmt::Display>, allowed: &str, problems: &mut Vec<Problem>) {
    let said = said.map_or_else(|| "it is missing".to_owned(), |said| format!("{said} is not allowed"));
    problems.push(Problem { field: format!("{FIELD}.{name}"), message: format!("{said}; it has to be {allowed}") });
}

#[cfg(test)]
mod tests {
    use rstest::rstest;
    use serde_json::{Value, json};

    use super::*;

    fn service(options: &Value) -> RayService {
        let strategy = json!({"type": "NewClusterWithIncrementalUpgrade", "clusterUpgradeOptions": options});
        let spec = json!({"upgradeStrategy": strategy, "rayClusterConfig": {"headGroupSpec": {"template": {}}}});
        serde_json::from_value(json!({"metadata": {"name": "chat"}, "spec": spec})).expect("a service")
    }

    #[test]
    fn options_are_read() {
        let said = json!({"stepSizePercent": 5, "intervalSeconds": 10, "gatewayClassName": "traefik"});
        let options = Options::of(&service(&said)).expect("they make sense").expect("they are there");
        assert_eq!((options.surge, options.step, options.interval.as_secs()), (100, 5, 10));
        assert_eq!(options.gateway_class.as_deref(), Some("traefik"));

        let mut other = service(&said);
        other.spec.upgrade_strategy.as_mut().expect("it has one").type_ = Some(UpgradeType::NewCluster);
        assert_eq!(Options::of(&other), Ok(None));
    }

    #[rstest]
    #[case::no_surge(json!({"maxSurgePercent": 0}), "maxSurgePercent: 0 is not allowed; it has to be a whole number from 1 to 100")]
    #[case::too_much_surge(json!({"maxSurgePercent": 101}), "maxSurgePercent: 101 is not allowed; it has to be a whole number from 1 to 100")]
    #[case::no_step(json!({"stepSizePercent": 0}), "stepSizePercent: 0 is not allowed; it has to be a whole number from 1 to 50, which is maxSurgePercent")]
    #[case::a_step_above_the_surge(json!({"stepSizePercent": 60}), "stepSizePercent: 60 is not allowed; it has to be a whole number from 1 to 50, which is maxSurgePercent")]
    #[case::step_left_out(json!({"stepSizePercent": null}), "stepSizePercent: it is missing; it has to be a whole number from 1 to 50, which is maxSurgePercent")]
    #[case::no_interval(json!({"intervalSeconds": 0}), "intervalSeconds: 0 is not allowed; it has to be above 0")]
    #[case::an_interval_below_zero(json!({"intervalSeconds": -5}), "intervalSeconds: -5 is not allowed; it has to be above 0")]
    #[case::no_class(json!({"gatewayClassName": " "}), "gatewayClassName: \"\" is not allowed; it has to be the name of a GatewayClass")]
    fn what_would_never_end_is_refused_with_what_is_allowed(#[case] change: Value, #[case] expected: &str) {
        let mut said = json!({
            "maxSurgePercent": 50, "stepSizePercent": 5, "intervalSeconds": 10, "gatewayClassName": "traefik",
        });
        for (name, value) in change.as_object().expect("a change") {
            said[name] = value.clone();
        }
        let problems = Options::of(&service(&said)).expect_err("it makes no sense");
        let told: Vec<String> = problems.iter().map(ToString::to_string).collect();
        assert_eq!(told, [format!("{FIELD}.{expected}")]);
    }

    #[test]
    fn somebody_has_to_make_the_workers_follow() {
        let mut service = service(&json!({"stepSizePercent": 5, "intervalSeconds": 10, "gatewayClassName": "traefik"}));
        service.metadata.annotations = Some([(SCALE_WORKERS_ANNOTATION.to_owned(), "false".to_owned())].into());
        assert_eq!(Options::of(&service).expect_err("nobody does")[0].field, AUTOSCALING);

        service.spec.ray_cluster_config.enable_in_tree_autoscaling = Some(true);
        assert!(Options::of(&service).is_ok());
    }

    #[test]
    fn the_sample_goes_in_steps() {
        let sample = include_str!("../../../config/samples/rayservice-incremental.yaml");
        let service: RayService = serde_saphyr::from_str(sample).expect("a service");
        let options = Options::of(&service).expect("they make sense").expect("they are there");
        assert_eq!((options.surge, options.step), (50, 25));
        assert!(crate::Goal::of(&service).is_ok());
    }

    #[test]
    fn options_that_are_missing_are_asked_for() {
        let problems = Options::of(&service(&Value::Null)).expect_err("there are none");
        assert_eq!(problems[0].field, FIELD);
    }
}
