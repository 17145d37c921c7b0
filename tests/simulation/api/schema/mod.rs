//! CRD schemas: parsed once, then used to prune, default, validate and merge objects.

mod cel_rules;
mod defaulting;
mod validate;

use std::collections::BTreeMap;
use std::fmt;

use regex::Regex;
use serde_json::Value;

/// Schema of one value.
#[derive(Debug, Default)]
pub struct Schema {
    value_type: ValueType,
    properties: BTreeMap<String, Self>,
    /// Schema of undeclared fields (`additionalProperties`); `None` if they are not allowed.
    additional_properties: Option<Box<Self>>,
    items: Option<Box<Self>>,
    required: Vec<String>,
    default: Option<Value>,
    /// Keeps unknown fields (`x-kubernetes-preserve-unknown-fields`).
    preserves_unknown_fields: bool,
    /// List type (`x-kubernetes-list-type`).
    pub list_type: ListType,
    /// Set if a map is merged as one value (`x-kubernetes-map-type: atomic`).
    pub is_atomic_map: bool,
    constraints: Constraints,
    /// CEL rules (`x-kubernetes-validations`).
    cel_rules: Vec<cel_rules::CelRule>,
    /// Set if this schema or one below it has CEL rules; values of others are not searched for them.
    has_rules: bool,
}

/// JSON type of a value.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
enum ValueType {
    #[default]
    Any,
    Object,
    Array,
    String,
    Integer,
    Number,
    Boolean,
    IntOrString,
}

/// List type, which decides how lists are merged.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub enum ListType {
    /// The list is merged as one value.
    #[default]
    Atomic,
    /// Items are unique.
    Set,
    /// Items are identified by these fields.
    Map(Vec<String>),
}

/// Constraints on a value in addition to its type.
#[derive(Debug, Default)]
struct Constraints {
    enum_values: Vec<Value>,
    minimum: Option<f64>,
    maximum: Option<f64>,
    min_length: Option<usize>,
    max_length: Option<usize>,
    min_items: Option<usize>,
    max_items: Option<usize>,
    max_properties: Option<usize>,
    pattern: Option<Regex>,
    format: Option<String>,
}

impl Schema {
    /// Parses a schema.
    ///
    /// # Panics
    /// Panics if a pattern is not a regular expression. The CRDs are our own.
    pub fn parse(schema: &Value) -> Self {
        let nested = |field: &str| schema.get(field).filter(|nested| nested.is_object());
        let flag = |field: &str| schema.get(field) == Some(&Value::Bool(true));
        let text = |field: &str| schema.get(field).and_then(Value::as_str).unwrap_or_default();
        let properties = nested("properties").and_then(Value::as_object).into_iter().flatten();
        Self {
            value_type: if flag("x-kubernetes-int-or-string") {
                ValueType::IntOrString
            } else {
                ValueType::parse(text("type"))
            },
            properties: properties.map(|(name, schema)| (name.clone(), Self::parse(schema))).collect(),
            additional_properties: nested("additionalProperties").map(|schema| Box::new(Self::parse(schema))),
            items: nested("items").map(|schema| Box::new(Self::parse(schema))),
            required: string_list(schema, "required"),
            default: schema.get("default").cloned(),
            preserves_unknown_fields: flag("x-kubernetes-preserve-unknown-fields"),
            list_type: match text("x-kubernetes-list-type") {
                "map" => ListType::Map(string_list(schema, "x-kubernetes-list-map-keys")),
                "set" => ListType::Set,
                _ => ListType::Atomic,
            },
            is_atomic_map: text("x-kubernetes-map-type") == "atomic",
            constraints: Constraints::parse(schema),
            cel_rules: schema
                .get("x-kubernetes-validations")
                .and_then(Value::as_array)
                .map_or_else(Vec::new, |rules| rules.iter().map(cel_rules::CelRule::parse).collect()),
            has_rules: false,
        }
        .with_rules_marked()
    }

    /// Records whether this schema, or one below it, has rules. Schemas below are complete.
    fn with_rules_marked(mut self) -> Self {
        let below = self.properties.values().chain(self.additional_properties.as_deref()).chain(self.items.as_deref());
        self.has_rules = !self.cel_rules.is_empty() || below.into_iter().any(|schema| schema.has_rules);
        self
    }

    /// Returns the schema of a field; `None` if it is unknown.
    pub fn field(&self, name: &str) -> Option<&Self> {
        self.properties.get(name).or(self.additional_properties.as_deref())
    }

    /// Returns true if the schema declares the field by name.
    pub fn declares(&self, field: &str) -> bool {
        self.properties.contains_key(field)
    }

    /// Returns the default; `None` if there is none.
    pub fn default_value(&self) -> Option<&Value> {
        self.default.as_ref()
    }

    /// Returns the schema of list items; `None` if there is none.
    pub fn item(&self) -> Option<&Self> {
        self.items.as_deref()
    }
}

impl ValueType {
    fn parse(name: &str) -> Self {
        match name {
            "object" => Self::Object,
            "array" => Self::Array,
            "string" => Self::String,
            "integer" => Self::Integer,
            "number" => Self::Number,
            "boolean" => Self::Boolean,
            _ => Self::Any,
        }
    }
}

impl Constraints {
    fn parse(schema: &Value) -> Self {
        let number = |field: &str| schema.get(field).and_then(Value::as_f64);
        let count =
            |field: &str| schema.get(field).and_then(Value::as_u64).and_then(|count| usize::try_from(count).ok());
        let text = |field: &str| schema.get(field).and_then(Value::as_str);
        Self {
            enum_values: schema.get("enum").and_then(Value::as_array).cloned().unwrap_or_default(),
            minimum: number("minimum"),
            maximum: number("maximum"),
            min_length: count("minLength"),
            max_length: count("maxLength"),
            min_items: count("minItems"),
            max_items: count("maxItems"),
            max_properties: count("maxProperties"),
            pattern: text("pattern").map(|pattern| Regex::new(pattern).expect("a regular expression")),
            format: text("format").map(str::to_owned),
        }
    }
}

fn string_list(schema: &Value, field: &str) -> Vec<String> {
    let list = schema.get(field).and_then(Value::as_array).into_iter().flatten();
    list.filter_map(Value::as_str).map(str::to_owned).collect()
}

/// Path of a value in an object; formatted only when an error is reported.
#[derive(Clone, Copy)]
enum ValuePath<'a> {
    Root,
    Field(&'a Self, &'a str),
    Index(&'a Self, usize),
}

impl fmt::Display for ValuePath<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Root => Ok(()),
            Self::Field(Self::Root, name) => f.write_str(name),
            Self::Field(parent, name) => write!(f, "{parent}.{name}"),
            Self::Index(parent, index) => write!(f, "{parent}[{index}]"),
        }
    }
}

#[cfg(test)]
mod tests;
