//! Options of incremental upgrades
//! (KubeRay 1.7 `ray-operator/controllers/ray/utils/validation.go`,
//! `ValidateClusterUpgradeOptions`; stricter where a value would never let an upgrade complete).

use jiff::SignedDuration;

use super::state_machine::{FULL, Percent};
use sluice_api::ray::incremental_annotations::{self, SCALE_WORKERS_ANNOTATION};
use sluice_api::ray::{RayService, UpgradeType};
use sluice_raycluster::FieldError;

/// Path of the options.
const OPTIONS_FIELD: &str = "spec.upgradeStrategy.clusterUpgradeOptions";

/// Path of the field that enables the Ray autoscaler.
const AUTOSCALING_FIELD: &str = "spec.rayClusterConfig.enableInTreeAutoscaling";

/// Options of incremental upgrades.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct IncrementalOptions {
    /// Maximum capacity of both clusters above 100 percent, in percent.
    pub max_surge: Percent,
    /// Traffic moved per step, in percent.
    pub step_size: Percent,
    /// Minimum time between two steps.
    pub interval: SignedDuration,
    /// GatewayClass name; None if the Gateway is no longer managed.
    pub gateway_class: Option<String>,
}

impl IncrementalOptions {
    /// Options of an upgrade in progress whose strategy is no longer incremental: the rest moves
    /// immediately.
    pub const IMMEDIATE: Self =
        Self { max_surge: FULL, step_size: FULL, interval: SignedDuration::ZERO, gateway_class: None };

    /// Options of an upgrade in progress whose options are invalid: nothing moves, and the Gateway
    /// and routes are left unchanged.
    pub const FROZEN: Self = Self { max_surge: 0, step_size: 0, interval: SignedDuration::ZERO, gateway_class: None };

    /// Reads the options of a RayService; None if it is not upgraded incrementally.
    ///
    /// # Errors
    /// Returns a validation error for each invalid option.
    pub fn from_service(service: &RayService) -> Result<Option<Self>, Vec<FieldError>> {
        let strategy = service.spec.upgrade_strategy.as_ref();
        let Some(strategy) =
            strategy.filter(|strategy| strategy.type_ == Some(UpgradeType::NewClusterWithIncrementalUpgrade))
        else {
            return Ok(None);
        };
        let mut problems = Vec::new();
        let Some(options) = &strategy.cluster_upgrade_options else {
            let message = "required for type NewClusterWithIncrementalUpgrade: set stepSizePercent, intervalSeconds and gatewayClassName";
            return Err(vec![FieldError { field: OPTIONS_FIELD.to_owned(), message: message.to_owned() }]);
        };
        let surge =
            parse_percent("maxSurgePercent", Some(options.max_surge_percent.unwrap_or(100)), 100, &mut problems);
        let max_step = surge.map_or(100, i32::from);
        let step = parse_percent("stepSizePercent", options.step_size_percent, max_step, &mut problems);
        let interval = match options.interval_seconds {
            Some(seconds) if seconds > 0 => Some(SignedDuration::from_secs(seconds.into())),
            value => {
                push_error("intervalSeconds", value, "greater than 0", &mut problems);
                None
            }
        };
        let class = options.gateway_class_name.trim();
        if class.is_empty() {
            push_error("gatewayClassName", Some("\"\""), "the name of a GatewayClass", &mut problems);
        }
        let scales_workers = incremental_annotations::scale_workers_enabled(&service.metadata).unwrap_or(true);
        if !scales_workers && service.spec.ray_cluster_config.enable_in_tree_autoscaling != Some(true) {
            let message = format!(
                "must be true when annotation {SCALE_WORKERS_ANNOTATION} is false: otherwise nothing scales the workers with the capacity"
            );
            problems.push(FieldError { field: AUTOSCALING_FIELD.to_owned(), message });
        }
        match (surge, step, interval) {
            (Some(surge), Some(step), Some(interval)) if problems.is_empty() => {
                Ok(Some(Self { max_surge: surge, step_size: step, interval, gateway_class: Some(class.to_owned()) }))
            }
            _ => Err(problems),
        }
    }
}

fn parse_percent(name: &str, value: Option<i32>, max: i32, problems: &mut Vec<FieldError>) -> Option<Percent> {
    let percent =
        value.filter(|percent| (1..=max).contains(percent)).and_then(|percent| Percent::try_from(percent).ok());
    if percent.is_none() {
        let limit = if max < 100 { format!("{max} (maxSurgePercent)") } else { max.to_string() };
        push_error(name, value, &format!("an integer from 1 to {limit}"), problems);
    }
    percent
}

fn push_error(name: &str, value: Option<impl std::fmt::Display>, allowed: &str, problems: &mut Vec<FieldError>) {
    let cause = value.map_or_else(|| "required value".to_owned(), |value| format!("invalid value {value}"));
    problems
        .push(FieldError { field: format!("{OPTIONS_FIELD}.{name}"), message: format!("{cause}; must be {allowed}") });
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
    fn options_are_parsed() {
        let value = json!({"stepSizePercent": 5, "intervalSeconds": 10, "gatewayClassName": "traefik"});
        let options =
            IncrementalOptions::from_service(&service(&value)).expect("valid options").expect("incremental strategy");
        assert_eq!((options.max_surge, options.step_size, options.interval.as_secs()), (100, 5, 10));
        assert_eq!(options.gateway_class.as_deref(), Some("traefik"));

        let mut other = service(&value);
        other.spec.upgrade_strategy.as_mut().expect("it has one").type_ = Some(UpgradeType::NewCluster);
        assert_eq!(IncrementalOptions::from_service(&other), Ok(None));
    }

    #[rstest]
    #[case::zero_surge(json!({"maxSurgePercent": 0}), "maxSurgePercent: invalid value 0; must be an integer from 1 to 100")]
    #[case::surge_above_100(json!({"maxSurgePercent": 101}), "maxSurgePercent: invalid value 101; must be an integer from 1 to 100")]
    #[case::zero_step(json!({"stepSizePercent": 0}), "stepSizePercent: invalid value 0; must be an integer from 1 to 50 (maxSurgePercent)")]
    #[case::step_above_surge(json!({"stepSizePercent": 60}), "stepSizePercent: invalid value 60; must be an integer from 1 to 50 (maxSurgePercent)")]
    #[case::step_missing(json!({"stepSizePercent": null}), "stepSizePercent: required value; must be an integer from 1 to 50 (maxSurgePercent)")]
    #[case::zero_interval(json!({"intervalSeconds": 0}), "intervalSeconds: invalid value 0; must be greater than 0")]
    #[case::negative_interval(json!({"intervalSeconds": -5}), "intervalSeconds: invalid value -5; must be greater than 0")]
    #[case::empty_gateway_class(json!({"gatewayClassName": " "}), "gatewayClassName: invalid value \"\"; must be the name of a GatewayClass")]
    fn options_that_never_complete_are_rejected_with_the_allowed_values(#[case] change: Value, #[case] expected: &str) {
        let mut options = json!({
            "maxSurgePercent": 50, "stepSizePercent": 5, "intervalSeconds": 10, "gatewayClassName": "traefik",
        });
        for (name, value) in change.as_object().expect("a change") {
            options[name] = value.clone();
        }
        let problems = IncrementalOptions::from_service(&service(&options)).expect_err("an invalid option");
        let messages: Vec<String> = problems.iter().map(ToString::to_string).collect();
        assert_eq!(messages, [format!("{OPTIONS_FIELD}.{expected}")]);
    }

    #[test]
    fn workers_must_be_scaled_by_sluice_or_by_the_autoscaler() {
        let mut service = service(&json!({"stepSizePercent": 5, "intervalSeconds": 10, "gatewayClassName": "traefik"}));
        service.metadata.annotations = Some([(SCALE_WORKERS_ANNOTATION.to_owned(), "false".to_owned())].into());
        assert_eq!(
            IncrementalOptions::from_service(&service).expect_err("nothing scales the workers")[0].field,
            AUTOSCALING_FIELD
        );

        service.spec.ray_cluster_config.enable_in_tree_autoscaling = Some(true);
        assert!(IncrementalOptions::from_service(&service).is_ok());
    }

    #[test]
    fn sample_is_upgraded_incrementally() {
        let sample = include_str!("../../../config/samples/rayservice-incremental.yaml");
        let service: RayService = serde_saphyr::from_str(sample).expect("a service");
        let options = IncrementalOptions::from_service(&service).expect("valid options").expect("incremental strategy");
        assert_eq!((options.max_surge, options.step_size), (50, 25));
        assert!(crate::DesiredService::from_service(&service).is_ok());
    }

    #[test]
    fn missing_options_are_rejected() {
        let problems = IncrementalOptions::from_service(&service(&Value::Null)).expect_err("no options");
        assert_eq!(problems[0].field, OPTIONS_FIELD);
    }
}
