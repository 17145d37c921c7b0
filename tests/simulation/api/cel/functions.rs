//! Functions that Kubernetes adds to CEL (`k8s.io/apiserver/pkg/cel/library`), as far as our
//! expressions call them.

use std::any::Any;
use std::cell::RefCell;
use std::collections::BTreeMap;

use cel::common::types::{CelBool, CelDouble, CelInt, CelString, LIST_TYPE, Type};
use cel::common::value::{CowVal, StaticVal, Val};
use cel::{DeclarationError, Env, ExecutionError};
use regex::Regex;
use sluice_api::quantity::Exact;

/// Nano-units per unit.
const NANO_PER_UNIT: i128 = 1_000_000_000;

static QUANTITY: Type = Type::new_unspecified_type("kubernetes.Quantity");

thread_local! {
    /// Compiled patterns. They are constants of our expressions.
    static PATTERNS: RefCell<BTreeMap<String, Regex>> = const { RefCell::new(BTreeMap::new()) };
}

/// Declares the functions.
pub(super) fn extension(env: &mut Env) -> Result<(), DeclarationError> {
    cel::add_overload!(env, fn quantity: (CelString) -> Result<CelQuantity>)?;
    cel::add_overload!(env, fn is_quantity: (CelString) -> CelBool)?;
    cel::add_member_overload!(env, fn is_greater_than: (CelQuantity, CelQuantity) -> CelBool)?;
    cel::add_member_overload!(env, fn is_less_than: (CelQuantity, CelQuantity) -> CelBool)?;
    cel::add_member_overload!(env, fn is_integer: (CelQuantity) -> CelBool)?;
    cel::add_member_overload!(env, fn as_integer: (CelQuantity) -> Result<CelInt>)?;
    cel::add_member_overload!(env, fn as_approximate_float: (CelQuantity) -> CelDouble)?;
    cel::add_member_overload!(env, fn matches: (CelString, CelString) -> Result<CelBool>)?;
    env.add_member_overload("sum", "list.sum()", LIST_TYPE, vec![], sum)
}

/// Quantity as a CEL value.
#[derive(Debug, Clone, Copy)]
struct CelQuantity(Exact);

impl Val for CelQuantity {
    fn get_type(&self) -> &Type {
        <Self as Val>::cel_type()
    }

    fn cel_type() -> &'static Type {
        &QUANTITY
    }

    fn equals(&self, other: &dyn Val) -> bool {
        other.downcast_ref::<Self>().is_some_and(|other| other.0 == self.0)
    }

    fn clone_as_boxed<'v>(&self) -> Box<dyn Val + 'v> {
        Box::new(*self)
    }

    fn as_any(&self) -> Option<&dyn Any> {
        Some(self)
    }
}

impl StaticVal for CelQuantity {}

impl CelQuantity {
    /// Returns the value as an integer; `None` if it has a fraction or is too large.
    fn integer(self) -> Option<i64> {
        let nano = self.0.nano();
        (nano % NANO_PER_UNIT == 0).then(|| i64::try_from(nano / NANO_PER_UNIT).ok()).flatten()
    }
}

fn quantity(text: &CelString<'_>) -> Result<CelQuantity, ExecutionError> {
    let parsed = Exact::parse(text.inner());
    parsed.map(CelQuantity).map_err(|error| ExecutionError::function_error("quantity", error))
}

fn is_quantity(text: &CelString<'_>) -> CelBool {
    Exact::parse(text.inner()).is_ok().into()
}

fn is_greater_than(own: &CelQuantity, other: &CelQuantity) -> CelBool {
    (own.0 > other.0).into()
}

fn is_less_than(own: &CelQuantity, other: &CelQuantity) -> CelBool {
    (own.0 < other.0).into()
}

fn is_integer(own: &CelQuantity) -> CelBool {
    own.integer().is_some().into()
}

fn as_integer(own: &CelQuantity) -> Result<CelInt, ExecutionError> {
    let integer = own.integer().map(CelInt::from);
    integer.ok_or_else(|| ExecutionError::function_error("asInteger", "cannot convert value to integer"))
}

fn as_approximate_float(own: &CelQuantity) -> CelDouble {
    (own.0.nano() as f64 / NANO_PER_UNIT as f64).into()
}

fn matches(text: &CelString<'_>, pattern: &CelString<'_>) -> Result<CelBool, ExecutionError> {
    PATTERNS.with_borrow_mut(|patterns| {
        if let Some(compiled) = patterns.get(pattern.inner()) {
            return Ok(compiled.is_match(text.inner()).into());
        }
        let compiled = Regex::new(pattern.inner()).map_err(|error| ExecutionError::function_error("matches", error))?;
        let is_match = compiled.is_match(text.inner());
        patterns.insert(pattern.inner().to_owned(), compiled);
        Ok(is_match.into())
    })
}

/// Adds up a list of integers.
fn sum<'b, 'v>(arguments: Vec<CowVal<'b, 'v>>) -> Result<CowVal<'b, 'v>, ExecutionError> {
    let not_integers = || ExecutionError::function_error("sum", "no such overload");
    let list = arguments.first().and_then(|list| list.as_iterable()).ok_or_else(not_integers)?;
    let (mut items, mut total) = (list.iter(), 0_i64);
    while let Some(item) = items.next() {
        let item = item.downcast_ref::<CelInt>().ok_or_else(not_integers)?;
        let overflow = || ExecutionError::function_error("sum", "integer overflow");
        total = total.checked_add(*item.inner()).ok_or_else(overflow)?;
    }
    Ok(CowVal::owned(CelInt::from(total)))
}
