//! CEL validation rules of the CRDs (`x-kubernetes-validations`), worded and ordered as in the API
//! server (apiextensions-apiserver `pkg/apiserver/schema/cel/validation.go`).

use cel::common::types::CelOptional;
use serde_json::Value;

use super::super::cel::{Expression, Variables, from_json};
use super::super::status_error::FieldError;
use super::validate::type_name;
use super::{Schema, ValuePath};

/// CEL rule of a CRD, compiled once.
#[derive(Debug)]
pub(super) struct CelRule {
    condition: Expression,
    old_self: OldSelf,
    /// `message` of the rule; empty if it has none.
    message: String,
    message_expression: Option<Expression>,
    /// `fieldPath` of the rule, like `.resourceGroups`; empty if it has none.
    field_path: String,
    reason: Reason,
}

/// Use of the old value by a rule.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum OldSelf {
    /// The rule does not refer to it.
    Unused,
    /// The rule applies only to a value that replaces one.
    Required,
    /// The rule applies to every value; `oldSelf` is an optional (`optionalOldSelf`).
    Optional,
}

/// Reason of a rule, which decides the type of the error.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Reason {
    Invalid,
    Forbidden,
    Required,
    Duplicate,
}

impl CelRule {
    /// Parses and compiles a rule.
    ///
    /// # Panics
    /// Panics if the rule is no CEL expression, or its reason is unknown. The CRDs are our own.
    pub(super) fn parse(rule: &Value) -> Self {
        let text = |field: &str| rule.get(field).and_then(Value::as_str).unwrap_or_default().trim().to_owned();
        let condition = Expression::compile(&text("rule"));
        Self {
            old_self: match condition.uses("oldSelf") {
                false => OldSelf::Unused,
                true if rule.get("optionalOldSelf") == Some(&Value::Bool(true)) => OldSelf::Optional,
                true => OldSelf::Required,
            },
            condition,
            message: text("message"),
            message_expression: rule.get("messageExpression").and_then(Value::as_str).map(Expression::compile),
            field_path: text("fieldPath"),
            reason: match text("reason").as_str() {
                "" | "FieldValueInvalid" => Reason::Invalid,
                "FieldValueForbidden" => Reason::Forbidden,
                "FieldValueRequired" => Reason::Required,
                "FieldValueDuplicate" => Reason::Duplicate,
                other => panic!("unknown reason {other}"),
            },
        }
    }

    /// Returns the expression of the rule.
    #[cfg(test)]
    pub(super) fn condition(&self) -> &Expression {
        &self.condition
    }

    /// Returns the variables of the rule; `None` if it does not apply.
    fn variables<'a>(&self, value: &'a Value, before: Option<&'a Value>) -> Option<Variables<'a>> {
        let mut variables = Variables::new();
        match (self.old_self, before.map(from_json)) {
            (OldSelf::Unused, _) => {}
            (OldSelf::Required, before) => variables.set("oldSelf", before?),
            (OldSelf::Optional, before) => variables.set("oldSelf", Box::new(CelOptional::from(before))),
        }
        variables.set("self", from_json(value));
        Some(variables)
    }

    /// Evaluates the rule; `None` if the value satisfies it.
    fn check(&self, value: &Value, before: Option<&Value>, path: ValuePath<'_>) -> Option<FieldError> {
        let variables = self.variables(value, before)?;
        match self.condition.is_true(&variables) {
            Ok(true) => None,
            Ok(false) => Some(self.violation(value, &variables, path)),
            Err(error) => {
                let rule = if self.message.is_empty() { self.condition.text() } else { &self.message };
                let why = format!("{error} evaluating rule: {rule}");
                Some(FieldError::invalid(path_or_nil(&path.to_string()), &type_name(value).into(), &why))
            }
        }
    }

    /// Returns the error of a value that violates the rule.
    fn violation(&self, value: &Value, variables: &Variables<'_>, path: ValuePath<'_>) -> FieldError {
        let field = path_or_nil(format!("{path}{}", self.field_path).trim_start_matches('.'));
        let written = self.message_expression.as_ref().and_then(|expression| expression.message(variables));
        let why = match written {
            Some(text) => text,
            None if self.message.is_empty() => format!("failed rule: {}", self.condition.text()),
            None => self.message.clone(),
        };
        match self.reason {
            Reason::Invalid => invalid(field, value, &why),
            Reason::Forbidden => FieldError::forbidden(field, &why),
            Reason::Required => FieldError::required(field, &why),
            Reason::Duplicate => {
                FieldError { field, cause_type: "FieldValueDuplicate", message: format!("Duplicate value: {value}") }
            }
        }
    }
}

impl Schema {
    /// Evaluates the rules of a changed value. Unchanged values are not passed here: the rules with
    /// `oldSelf` in our CRDs hold for them, and other violations are tolerated (ratcheting).
    pub(super) fn check_rules(
        &self,
        value: &Value,
        before: Option<&Value>,
        path: ValuePath<'_>,
        errors: &mut Vec<FieldError>,
    ) {
        errors.extend(self.cel_rules.iter().filter_map(|rule| rule.check(value, before, path)));
    }
}

/// Returns the error of an invalid value. The API server prints scalars only.
fn invalid(field: String, value: &Value, why: &str) -> FieldError {
    if value.is_object() || value.is_array() {
        return FieldError { field, cause_type: "FieldValueInvalid", message: format!("Invalid value: {why}") };
    }
    FieldError::invalid(field, value, why)
}

/// Returns the path, which the API server prints as `<nil>` for the object itself.
fn path_or_nil(path: &str) -> String {
    if path.is_empty() { "<nil>".to_owned() } else { path.to_owned() }
}

#[cfg(test)]
mod tests;
