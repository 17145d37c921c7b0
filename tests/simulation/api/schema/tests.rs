//! Tests of pruning, defaulting and validation.

use rstest::rstest;
use serde_json::json;

use super::*;

fn schema() -> Schema {
    Schema::parse(&json!({
        "type": "object",
        "required": ["spec"],
        "properties": {
            "spec": {
                "type": "object",
                "required": ["size"],
                "properties": {
                    "size": {"type": "integer", "format": "int32", "minimum": 0, "maximum": 10},
                    "mode": {"type": "string", "enum": ["A", "B"], "default": "A"},
                    "name": {"type": "string", "minLength": 1, "maxLength": 3, "pattern": "^[a-z]*$"},
                    "amount": {"x-kubernetes-int-or-string": true},
                    "template": {"type": "object", "x-kubernetes-preserve-unknown-fields": true},
                    "options": {"type": "object", "default": {}, "properties": {"on": {"type": "boolean", "default": true}}},
                    "labels": {"type": "object", "maxProperties": 1, "additionalProperties": {"type": "string"}},
                    "at": {"type": "string", "format": "date-time"},
                    "groups": {
                        "type": "array",
                        "maxItems": 2,
                        "x-kubernetes-list-type": "map",
                        "x-kubernetes-list-map-keys": ["name"],
                        "items": {
                            "type": "object",
                            "required": ["name"],
                            "properties": {
                                "name": {"type": "string"},
                                "count": {"type": "integer", "default": 1, "minimum": 1},
                            },
                        },
                    },
                },
            },
        },
    }))
}

#[test]
fn unknown_fields_are_pruned_and_missing_fields_defaulted() {
    let mut object = json!({
        "apiVersion": "v1",
        "kind": "Any",
        "metadata": {"name": "a"},
        "other": 1,
        "spec": {
            "mode": null,
            "amount": null,
            "template": {"any": {"thing": null}},
            "labels": {"x": "y"},
            "groups": [{"name": "a", "more": 1}, {"name": "b", "count": 2}],
        },
    });

    let dropped = schema().prune_and_default(&mut object, None);

    assert_eq!(dropped, ["other", "spec.groups[0].more"]);
    let expected = json!({
        "apiVersion": "v1",
        "kind": "Any",
        "metadata": {"name": "a"},
        "spec": {
            "mode": "A",
            "options": {"on": true},
            "template": {"any": {"thing": null}},
            "labels": {"x": "y"},
            "groups": [{"name": "a", "count": 1}, {"name": "b", "count": 2}],
        },
    });
    assert_eq!(object, expected);
}

#[rstest]
#[case::valid(json!({"size": 3, "amount": "1Gi", "groups": [{"name": "a"}]}), "")]
#[case::missing(json!({}), "spec.size: Required value")]
#[case::wrong_type(
    json!({"size": "3"}),
    "spec.size: Invalid value: \"string\": spec.size in body must be of type integer: \"string\""
)]
#[case::too_small(json!({"size": -1}), "spec.size: Invalid value: -1: spec.size in body should be greater than or equal to 0")]
#[case::too_large(json!({"size": 11}), "spec.size: Invalid value: 11: spec.size in body should be less than or equal to 10")]
#[case::unsupported_value(json!({"size": 1, "mode": "C"}), "spec.mode: Unsupported value: \"C\": supported values: \"A\", \"B\"")]
#[case::too_long(json!({"size": 1, "name": "abcd"}), "spec.name: Too long: may not be more than 3 bytes")]
#[case::too_short(
    json!({"size": 1, "name": ""}),
    "spec.name: Invalid value: \"\": spec.name in body should be at least 1 chars long"
)]
#[case::pattern(json!({"size": 1, "name": "A"}), "spec.name: Invalid value: \"A\": spec.name in body should match '^[a-z]*$'")]
#[case::int_or_string(
    json!({"size": 1, "amount": true}),
    "spec.amount: Invalid value: \"boolean\": spec.amount in body must be of type integer,string: \"boolean\""
)]
#[case::time(
    json!({"size": 1, "at": "noon"}),
    "spec.at: Invalid value: \"noon\": spec.at in body must be of type date-time: \"noon\""
)]
#[case::duplicate(json!({"size": 1, "groups": [{"name": "a"}, {"name": "a"}]}), "spec.groups[1]: Duplicate value: {\"name\":\"a\"}")]
#[case::too_many(json!({"size": 1, "labels": {"a": "", "b": ""}}), "spec.labels: Too many: 2: must have at most 1 items")]
#[case::in_an_item(
    json!({"size": 1, "groups": [{"name": "a", "count": 0}]}),
    "spec.groups[0].count: Invalid value: 0: spec.groups[0].count in body should be greater than or equal to 1"
)]
fn schema_violation_is_reported(#[case] spec: Value, #[case] expected: &str) {
    let errors = schema().validate(&json!({"spec": spec}), None);
    let texts: Vec<String> = errors.iter().map(|error| format!("{}: {}", error.field, error.message)).collect();
    assert_eq!(texts.join("; "), expected);
}

#[test]
fn existing_violation_is_tolerated_until_the_value_changes() {
    let with = |count: i64, size: i64| json!({"spec": {"size": size, "groups": [{"name": "a", "count": count}]}});
    let fields = |new: &Value| -> Vec<String> {
        schema().validate(new, Some(&with(0, 1))).into_iter().map(|error| error.field).collect()
    };
    assert!(fields(&with(0, 2)).is_empty());
    assert_eq!(fields(&with(-1, 2)), ["spec.groups[0].count"]);
}
