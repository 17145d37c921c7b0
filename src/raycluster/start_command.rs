//! `ray start` command line of a pod, and its flags.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{Container, ResourceRequirements};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use serde_json::{Map, Number, Value};

use super::autoscaler::Autoscaler;
use super::field_error::FieldError;
use super::groups::RayNodeType;
use super::template::TemplateContext;
use sluice_api::quantity::{Exact, QuantityError};
use sluice_api::ray::options::StringMap;

/// Flags that take `true` or `false` as a value; all other boolean flags are enabled by their
/// presence.
const BOOLEAN_FLAGS: [&str; 3] = ["log-color", "include-dashboard", "include-log-monitor"];
/// Device resources of Kubernetes, and their names in Ray.
const CUSTOM_ACCELERATORS: [(&str, &str); 2] =
    [("aws.amazon.com/neuroncore", "neuron_cores"), ("google.com/tpu", "TPU")];
/// Nano-units per unit.
const NANOS_PER_UNIT: i128 = 1_000_000_000;

/// Input from which the flags of a Ray node are derived.
pub(super) struct StartParamsInput<'a> {
    /// Path of the group in the spec.
    pub(super) field: &'a str,
    pub(super) node_type: RayNodeType,
    pub(super) common: &'a TemplateContext<'a>,
    /// `rayStartParams`.
    pub(super) params: Option<&'a StringMap>,
    /// The group's `resources`.
    pub(super) resources: Option<&'a StringMap>,
    /// The group's `labels`.
    pub(super) labels: Option<&'a StringMap>,
    /// Resources of the container that runs Ray.
    pub(super) container_resources: Option<&'a ResourceRequirements>,
}

/// Returns the flags of `ray start`: the user's, and defaults for unset ones.
///
/// # Errors
/// Fails when a resource quantity can't be parsed.
pub(super) fn params(node: &StartParamsInput<'_>) -> Result<StringMap, FieldError> {
    let mut params = node.params.cloned().unwrap_or_default();
    let mut default = |flag: &str, value: &str| {
        params.entry(flag.to_owned()).or_insert_with(|| value.to_owned());
    };
    match node.node_type {
        RayNodeType::Head => default("dashboard-host", "0.0.0.0"),
        RayNodeType::Worker => default("address", &format!("{}:{}", node.common.head_address, node.common.gcs_port)),
    }
    default("metrics-export-port", "8080");
    default("dashboard-agent-listen-port", "52365");
    params.insert("block".into(), "true".into());
    if node.node_type == RayNodeType::Head && node.common.autoscaler != Autoscaler::Off {
        params.insert("no-monitor".into(), "true".into());
    }
    if let Some(labels) = node.labels.filter(|labels| !labels.is_empty()) {
        let pairs: Vec<_> = labels.iter().map(|(key, value)| format!("{key}={value}")).collect();
        params.insert("labels".into(), pairs.join(","));
    }
    apply_group_resources(node, &mut params)?;
    apply_container_resources(node, &mut params)?;
    Ok(params)
}

/// Applies the group's `resources`, which override `rayStartParams`.
fn apply_group_resources(node: &StartParamsInput<'_>, params: &mut StringMap) -> Result<(), FieldError> {
    let mut custom = Map::new();
    for (name, text) in node.resources.into_iter().flatten() {
        let exact = parse_quantity(text, || format!("{}.resources.{name}", node.field))?;
        match name.to_lowercase().as_str() {
            "cpu" => {
                params.insert("num-cpus".into(), ceil_units(exact).to_string());
            }
            "memory" => {
                params.insert("memory".into(), ceil_units(exact).to_string());
            }
            gpu if is_gpu(gpu) => {
                params.insert("num-gpus".into(), ceil_units(exact).to_string());
            }
            _ => {
                custom.insert(name.clone(), json_number(exact));
            }
        }
    }
    if !custom.is_empty() {
        params.insert("resources".into(), shell_quoted(&custom));
    }
    Ok(())
}

/// Derives unset flags from the container's resources.
fn apply_container_resources(node: &StartParamsInput<'_>, params: &mut StringMap) -> Result<(), FieldError> {
    let field = format!("{}.template.spec.containers[0].resources", node.field);
    let limits = node.container_resources.and_then(|resources| resources.limits.as_ref());
    let requests = node.container_resources.and_then(|resources| resources.requests.as_ref());
    let amount_of =
        |list: Option<&BTreeMap<String, Quantity>>, part: &str, name: &str| -> Result<Option<i128>, FieldError> {
            let Some(quantity) = list.and_then(|list| list.get(name)) else { return Ok(None) };
            Ok(Some(parse_quantity(&quantity.0, || format!("{field}.{part}.{name}"))?).filter(|exact| *exact != 0))
        };
    let cpu = amount_of(limits, "limits", "cpu")?.or(amount_of(requests, "requests", "cpu")?);
    let memory = amount_of(limits, "limits", "memory")?;
    for (flag, amount) in [("num-cpus", cpu), ("memory", memory)] {
        if let Some(amount) = amount {
            params.entry(flag.to_owned()).or_insert_with(|| ceil_units(amount).to_string());
        }
    }
    for name in limits.into_iter().flat_map(BTreeMap::keys).filter(|name| is_gpu(name)) {
        if let Some(amount) = amount_of(limits, "limits", name)? {
            params.entry("num-gpus".to_owned()).or_insert_with(|| ceil_units(amount).to_string());
        }
    }
    for (device, called) in CUSTOM_ACCELERATORS {
        if let Some(amount) = amount_of(limits, "limits", device)? {
            add_accelerator(params, called, amount);
        }
    }
    Ok(())
}

/// Adds an accelerator to the custom resources. Ray supports one kind per node, and a user-provided
/// one takes precedence. Text that is not JSON is left to Ray, which reports the error.
fn add_accelerator(params: &mut StringMap, called: &str, amount: i128) {
    let text = params.get("resources").map_or("{}", String::as_str).trim_matches(['\'', '"', '`', ' ']);
    let Ok(mut custom) = serde_json::from_str::<Map<String, Value>>(text) else { return };
    if !CUSTOM_ACCELERATORS.iter().any(|(_, name)| custom.contains_key(*name)) {
        custom.insert(called.to_owned(), json_number(amount));
        params.insert("resources".into(), shell_quoted(&custom));
    }
}

/// Reports whether a resource is a GPU or a MIG slice (KubeRay 1.7
/// `ray-operator/controllers/ray/utils/resources.go`).
pub(super) fn is_gpu(resource: &str) -> bool {
    let digits = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    let slice = |profile: &str| {
        profile
            .strip_suffix("gb")
            .and_then(|profile| profile.split_once("g."))
            .is_some_and(|(a, b)| digits(a) && digits(b))
    };
    resource.ends_with("gpu") || resource.strip_prefix("nvidia.com/mig-").is_some_and(slice)
}

/// Parses a non-negative quantity, in nano-units. Fails when `text` is not one.
fn parse_quantity(text: &str, field: impl FnOnce() -> String) -> Result<i128, FieldError> {
    let error = |source: QuantityError| FieldError::new(field(), source);
    Exact::parse_non_negative(text).map(Exact::nano).map_err(error)
}

/// Converts nano-units to whole units, rounded up.
fn ceil_units(nano: i128) -> i128 {
    nano.div_euclid(NANOS_PER_UNIT) + i128::from(nano.rem_euclid(NANOS_PER_UNIT) != 0)
}

/// Converts nano-units to a JSON number, an integer if possible.
fn json_number(nano: i128) -> Value {
    let whole = i64::try_from(nano / NANOS_PER_UNIT).unwrap_or(i64::MAX);
    if nano % NANOS_PER_UNIT == 0 {
        whole.into()
    } else {
        Number::from_f64(nano as f64 / NANOS_PER_UNIT as f64).map_or(whole.into(), Value::Number)
    }
}

/// Returns JSON quoted as one shell word.
fn shell_quoted(custom: &Map<String, Value>) -> String {
    format!("'{}'", Value::Object(custom.clone()))
}

/// Returns the command line, with flags in alphabetical order.
pub(super) fn command_line(role: RayNodeType, params: &StringMap) -> String {
    let mut line = match role {
        RayNodeType::Head => "ray start --head".to_owned(),
        RayNodeType::Worker => "ray start".to_owned(),
    };
    for (flag, value) in params {
        match value.to_lowercase().as_str() {
            _ if BOOLEAN_FLAGS.contains(&flag.as_str()) => line.push_str(&format!(" --{flag}={value}")),
            "true" => line.push_str(&format!(" --{flag}")),
            "false" => {}
            _ => line.push_str(&format!(" --{flag}={value}")),
        }
    }
    line
}

/// Returns the command that runs a script passed as its only argument.
pub(super) fn bash_command() -> Vec<String> {
    ["/bin/bash", "-c", "--"].map(str::to_owned).to_vec()
}

/// Sets the command of a container to start Ray. A user-provided command runs first, since `ray
/// start --block` does not return. A command that contains `ray start` stays unchanged.
pub(super) fn apply_to(line: &str, container: &mut Container) {
    let user_command: Vec<&str> =
        [&container.command, &container.args].into_iter().flatten().flatten().map(String::as_str).collect();
    let user_command = user_command.join(" ");
    if user_command.contains("ray start") {
        return;
    }
    let start = format!("ulimit -n ${{RAY_START_ULIMIT_OPEN_FILES:-65536}}; {line}");
    container.command = Some(bash_command());
    container.args = Some(vec![if user_command.is_empty() { start } else { format!("{user_command} && {start}") }]);
}

#[cfg(test)]
mod tests {
    use rstest::rstest;
    use serde_json::json;

    use super::*;

    fn params_of(pairs: &[(&str, &str)]) -> StringMap {
        pairs.iter().map(|(flag, value)| ((*flag).to_owned(), (*value).to_owned())).collect()
    }

    #[rstest]
    #[case::values(&[("port", "6379"), ("block", "true")], "ray start --head --block --port=6379")]
    #[case::a_false_switch_is_left_out(&[("block", "False")], "ray start --head")]
    #[case::some_flags_take_booleans(&[("include-dashboard", "false")], "ray start --head --include-dashboard=false")]
    fn flags_become_a_command_line(#[case] params: &[(&str, &str)], #[case] expected: &str) {
        assert_eq!(command_line(RayNodeType::Head, &params_of(params)), expected);
    }

    #[rstest]
    #[case("nvidia.com/gpu", true)]
    #[case("amd.com/gpu", true)]
    #[case("nvidia.com/mig-2g.32gb", true)]
    #[case("nvidia.com/mig-g.gb", false)]
    #[case("nvidia.com/gpu.shared", false)]
    #[case("cpu", false)]
    fn gpu_resources_are_recognized_by_name(#[case] resource: &str, #[case] expected: bool) {
        assert_eq!(is_gpu(resource), expected);
    }

    #[rstest]
    #[case::no_user_command(json!({}), Some("ulimit -n ${RAY_START_ULIMIT_OPEN_FILES:-65536}; ray start"))]
    #[case::user_command_runs_first(json!({"command": ["echo"], "args": ["hi"]}),
        Some("echo hi && ulimit -n ${RAY_START_ULIMIT_OPEN_FILES:-65536}; ray start"))]
    #[case::user_command_starts_ray(json!({"args": ["ray start --head"]}), None)]
    fn container_command_starts_ray(#[case] container: Value, #[case] expected: Option<&str>) {
        let mut container: Container = serde_json::from_value(container).expect("a container");
        let before = container.clone();
        apply_to("ray start", &mut container);
        match expected {
            Some(script) => {
                assert_eq!(container.command, Some(bash_command()));
                assert_eq!(container.args, Some(vec![script.to_owned()]));
            }
            None => assert_eq!(container, before),
        }
    }

    #[rstest]
    #[case::no_resources(&[], "'{\"TPU\":4}'")]
    #[case::other_resources(&[("resources", "'{\"a\":1}'")], "'{\"TPU\":4,\"a\":1}'")]
    #[case::user_count_takes_precedence(&[("resources", "'{\"TPU\":2}'")], "'{\"TPU\":2}'")]
    #[case::not_json(&[("resources", "'{a'")], "'{a'")]
    fn accelerator_is_added_to_user_resources(#[case] params: &[(&str, &str)], #[case] expected: &str) {
        let mut params = params_of(params);
        add_accelerator(&mut params, "TPU", 4 * NANOS_PER_UNIT);
        assert_eq!(params.get("resources").map(String::as_str), Some(expected));
    }
}
