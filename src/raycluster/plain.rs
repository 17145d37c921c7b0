//! One way to write what can be written in several, so that specs are compared by what they say. Whoever reads an object and writes it
//! back may write it in another way: empty maps come and go, and `1` becomes `1000m`.

use serde_json::Value;

use sluice_api::quantity::Exact;

/// JSON without what says nothing: nulls, empty maps and lists, and other ways to write a quantity.
pub fn of(mut value: Value) -> Value {
    tidy(&mut value, false);
    value
}

fn tidy(value: &mut Value, of_amounts: bool) {
    match value {
        Value::Object(fields) => {
            for (name, field) in fields.iter_mut() {
                tidy(field, matches!(name.as_str(), "limits" | "requests"));
            }
            fields.retain(|_, field| !says_nothing(field));
        }
        Value::Array(items) => items.iter_mut().for_each(|item| tidy(item, false)),
        _ => {}
    }
    if let (true, Some(amounts)) = (of_amounts, value.as_object_mut()) {
        for amount in amounts.values_mut() {
            let text = amount.as_str().map_or_else(|| amount.to_string(), str::to_owned);
            if let Ok(exact) = Exact::parse(&text) {
                *amount = format!("{exact:?}").into();
            }
        }
    }
}

fn says_nothing(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::Object(fields) => fields.is_empty(),
        Value::Array(items) => items.is_empty(),
        _ => false,
    }
}
