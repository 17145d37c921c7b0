//! Canonical form of JSON, so that specs are compared by meaning. A client that reads an object and
//! writes it back may change its notation: empty maps appear or disappear, and `1` becomes `1000m`.

use serde_json::Value;

use sluice_api::quantity::Exact;

/// Returns `value` in canonical form: without nulls, empty maps and empty lists, and with
/// normalized quantities in `limits` and `requests`.
pub fn canonical(mut value: Value) -> Value {
    canonicalize(&mut value, Content::Any);
    value
}

/// Kind of values in an object.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Content {
    Quantities,
    Any,
}

fn canonicalize(value: &mut Value, content: Content) {
    match value {
        Value::Object(fields) => {
            for (name, field) in fields.iter_mut() {
                let is_quantities = matches!(name.as_str(), "limits" | "requests");
                canonicalize(field, if is_quantities { Content::Quantities } else { Content::Any });
            }
            fields.retain(|_, field| !is_empty_value(field));
        }
        Value::Array(items) => items.iter_mut().for_each(|item| canonicalize(item, Content::Any)),
        _ => {}
    }
    if content == Content::Any {
        return;
    }
    if let Some(amounts) = value.as_object_mut() {
        for amount in amounts.values_mut() {
            let text = amount.as_str().map_or_else(|| amount.to_string(), str::to_owned);
            if let Ok(exact) = Exact::parse(&text) {
                *amount = format!("{exact:?}").into();
            }
        }
    }
}

fn is_empty_value(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::Object(fields) => fields.is_empty(),
        Value::Array(items) => items.is_empty(),
        _ => false,
    }
}
