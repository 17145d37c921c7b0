//! Roundtrip of objects through their Go-like types: drops unknown and empty fields and
//! canonicalizes quantities (apimachinery `pkg/api/resource/quantity.go`).

use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::{LimitRange, Pod, Service};
use k8s_openapi::api::scheduling::v1::PriorityClass;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};
use sluice_api::quantity::Exact;

use super::super::kinds::ResourceKind;

/// Maps that are omitted when empty. (Many other empty maps are structs, which stay.)
const OMITTED_WHEN_EMPTY: [&str; 7] =
    ["annotations", "data", "labels", "limits", "nodeSelector", "requests", "selector"];
/// Maps of resource quantities.
const QUANTITY_MAPS: [&str; 7] = ["default", "defaultRequest", "limits", "max", "min", "overhead", "requests"];

/// Decodes an object into its type and encodes it again, for kinds that users write by hand.
///
/// # Errors
/// Returns a message that names the field if it is of the wrong type.
pub fn roundtrip(kind: &ResourceKind, object: &mut Value) -> Result<(), String> {
    match kind.kind.as_str() {
        "Job" => roundtrip_as::<Job>(object),
        "Pod" => roundtrip_as::<Pod>(object),
        "Service" => roundtrip_as::<Service>(object),
        "LimitRange" => roundtrip_as::<LimitRange>(object),
        "PriorityClass" => roundtrip_as::<PriorityClass>(object),
        _ => Ok(()),
    }
}

fn roundtrip_as<Type: Serialize + DeserializeOwned>(object: &mut Value) -> Result<(), String> {
    canonicalize_quantities(object)?;
    let typed: Type = serde_json::from_value(object.take()).map_err(|error| error.to_string())?;
    *object = serde_json::to_value(typed).map_err(|error| error.to_string())?;
    remove_empty(object);
    Ok(())
}

fn canonicalize_quantities(value: &mut Value) -> Result<(), String> {
    match value {
        Value::Object(fields) => {
            for (name, value) in fields.iter_mut() {
                match value {
                    Value::Object(amounts) if QUANTITY_MAPS.contains(&name.as_str()) => {
                        amounts.values_mut().try_for_each(canonicalize_quantity)?;
                    }
                    _ => canonicalize_quantities(value)?,
                }
            }
            Ok(())
        }
        Value::Array(items) => items.iter_mut().try_for_each(canonicalize_quantities),
        _ => Ok(()),
    }
}

fn canonicalize_quantity(value: &mut Value) -> Result<(), String> {
    let text = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
    *value = canonical_quantity(&text)?.into();
    Ok(())
}

/// Returns the canonical form of a quantity: an integer with the largest possible suffix of its
/// format.
fn canonical_quantity(text: &str) -> Result<String, String> {
    const ONE: i128 = 1_000_000_000;
    let nano = Exact::parse(text).map_err(|error| error.to_string())?.nano();
    let is_binary = text.ends_with('i') && nano % ONE == 0 && (nano / ONE).abs() >= 1024;
    let (mut number, base, units): (i128, i128, &[&str]) = match text.find(['e', 'E']) {
        _ if is_binary => (nano / ONE, 1024, &["", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei"]),
        Some(exponent) if exponent + 1 < text.len() => {
            (nano, 1000, &["e-9", "e-6", "e-3", "", "e3", "e6", "e9", "e12", "e15", "e18"])
        }
        _ => (nano, 1000, &["n", "u", "m", "", "k", "M", "G", "T", "P", "E"]),
    };
    if number == 0 {
        return Ok("0".into());
    }
    let mut units = units.iter();
    let mut unit = units.next();
    while number % base == 0
        && let Some(larger) = units.next()
    {
        (number, unit) = (number / base, Some(larger));
    }
    Ok(format!("{number}{}", unit.unwrap_or(&"")))
}

fn remove_empty(value: &mut Value) {
    match value {
        Value::Object(fields) => {
            fields.retain(|name, value| is_encoded(name, value));
            fields.values_mut().for_each(remove_empty);
        }
        Value::Array(items) => items.iter_mut().for_each(remove_empty),
        _ => {}
    }
}

fn is_encoded(name: &str, value: &Value) -> bool {
    match value {
        Value::String(text) => !text.is_empty(),
        Value::Array(items) => !items.is_empty(),
        Value::Object(fields) => !(fields.is_empty() && OMITTED_WHEN_EMPTY.contains(&name)),
        _ => true,
    }
}

/// Parses the quantity of a resource; `None` if it is missing or malformed.
pub fn parse_quantity(amounts: Option<&Map<String, Value>>, resource: &str) -> Option<Exact> {
    Exact::parse(amounts?.get(resource)?.as_str()?).ok()
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case("0.5", "500m")]
    #[case("1000m", "1")]
    #[case("1500m", "1500m")]
    #[case("1000", "1k")]
    #[case("1024Mi", "1Gi")]
    #[case("1.5Gi", "1536Mi")]
    #[case("0.5Ki", "512")]
    #[case("2e9", "2e9")]
    #[case("1500M", "1500M")]
    #[case("0Gi", "0")]
    #[case("6000P", "6E")]
    fn quantity_is_written_with_its_largest_suffix(#[case] text: &str, #[case] expected: &str) {
        assert_eq!(canonical_quantity(text).as_deref(), Ok(expected));
    }
}
