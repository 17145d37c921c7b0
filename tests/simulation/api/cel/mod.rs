//! CEL expressions of CRDs and admission policies, evaluated by the `cel` crate.
//!
//! This module adds what Kubernetes adds to the language and our expressions use: quantities, the
//! sum of a list, and a `matches` that compiles each pattern once. An expression that calls
//! anything else fails in a test.
//!
//! Not implemented, because no expression of ours needs it: static types (and so the escaping of
//! field names that are CEL keywords), times, and cost limits.

mod functions;
mod json_value;

use std::sync::{Arc, LazyLock};

use cel::common::value::Val;
use cel::{Context, Env, ExecutionError, Program, extensions};

pub(super) use json_value::from_json;

/// Language with the functions of Kubernetes.
static ENVIRONMENT: LazyLock<Arc<Env>> = LazyLock::new(|| {
    let mut env = Env::stdlib();
    env.add_extension(extensions::strings).expect("declared once");
    env.add_extension(functions::extension).expect("declared once");
    Arc::new(env)
});

/// Compiled expression, with its text.
pub(super) struct Expression {
    text: String,
    program: Program,
}

impl std::fmt::Debug for Expression {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.text)
    }
}

/// Variables of an evaluation.
pub(super) struct Variables<'a>(Context<'a, 'a>);

impl<'a> Variables<'a> {
    /// Returns an empty set of variables.
    pub(super) fn new() -> Self {
        Self(Context::with_env(Arc::clone(&ENVIRONMENT)))
    }

    /// Adds a variable, whose name may be qualified, as in `variables.queue`.
    pub(super) fn set(&mut self, name: impl Into<String>, value: Box<dyn Val + 'a>) {
        self.0.add_variable_as_val(name, value);
    }
}

impl Expression {
    /// Compiles an expression.
    ///
    /// # Panics
    /// Panics if the text is no CEL expression. The CRDs and policies are our own.
    pub(super) fn compile(text: &str) -> Self {
        let text = text.trim();
        let program = ENVIRONMENT.compile(text).unwrap_or_else(|error| panic!("{text}: {error}"));
        Self { text: text.to_owned(), program }
    }

    /// Returns the text of the expression.
    pub(super) fn text(&self) -> &str {
        &self.text
    }

    /// Returns true if the expression refers to this variable.
    pub(super) fn uses(&self, variable: &str) -> bool {
        self.program.references().has_variable(variable)
    }

    /// Evaluates the expression.
    pub(super) fn value<'a>(&self, variables: &Variables<'a>) -> Result<Box<dyn Val + 'a>, String> {
        match cel::Value::resolve_val(self.program.expression(), &variables.0) {
            Ok(value) => Ok(value.into_owned()),
            Err(error) => Err(describe(&error)),
        }
    }

    /// Evaluates a condition.
    pub(super) fn is_true(&self, variables: &Variables<'_>) -> Result<bool, String> {
        match self.program.execute(&variables.0) {
            Ok(cel::Value::Bool(holds)) => Ok(holds),
            Ok(other) => Err(format!("no such overload: {other:?} is not a bool")),
            Err(error) => Err(describe(&error)),
        }
    }

    /// Evaluates a message expression; `None` if its result is not usable as a message.
    pub(super) fn message(&self, variables: &Variables<'_>) -> Option<String> {
        match self.program.execute(&variables.0) {
            Ok(cel::Value::String(text)) => {
                let text = text.trim();
                (!text.is_empty() && !text.contains('\n')).then(|| text.to_owned())
            }
            _ => None,
        }
    }
}

/// Returns the text of an error, as cel-go words it in the cases that depend on the object.
fn describe(error: &ExecutionError) -> String {
    match error {
        ExecutionError::NoSuchKey(key) => format!("no such key: {key}"),
        ExecutionError::NoSuchOverload(_) => "no such overload".to_owned(),
        ExecutionError::UndeclaredReference(name) => format!("no such attribute(s): {name}"),
        ExecutionError::IndexOutOfBounds(index) => format!("index out of bounds: {index:?}"),
        ExecutionError::DivisionByZero(_) => "division by zero".to_owned(),
        ExecutionError::RemainderByZero(_) => "modulus by zero".to_owned(),
        ExecutionError::FunctionError { message, .. } => message.clone(),
        other => other.to_string(),
    }
}

#[cfg(test)]
pub(super) mod tests;
