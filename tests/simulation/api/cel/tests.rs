//! Tests of the functions of Kubernetes, and of JSON values in expressions.

use rstest::rstest;
use serde_json::{Value, json};

use super::*;

/// Returns the functions that an expression calls and that are not declared.
pub(crate) fn undeclared_functions(expression: &Expression) -> Vec<String> {
    let references = expression.program.references();
    let names = references.functions().into_iter().filter(|name| name.starts_with(|c: char| c.is_ascii_alphabetic()));
    let is_undeclared = |name: &&str| {
        // A declared function is found, and rejects these arguments.
        let call = |text: String| ENVIRONMENT.compile(&text).map(|call| call.execute(&Variables::new().0));
        [format!("{name}(null, null, null, null)"), format!("null.{name}(null, null, null, null)")]
            .into_iter()
            .all(|text| matches!(call(text), Ok(Err(ExecutionError::UndeclaredReference(_)))))
    };
    names.filter(is_undeclared).map(str::to_owned).collect()
}

fn evaluate(text: &str, own: &Value) -> Result<bool, String> {
    let mut variables = Variables::new();
    variables.set("self", from_json(own));
    Expression::compile(text).is_true(&variables)
}

#[rstest]
#[case::greater("quantity('1Gi').isGreaterThan(quantity('1G'))")]
#[case::not_greater_than_equal("!quantity('1').isGreaterThan(quantity('1000m'))")]
#[case::less("quantity('-1n').isLessThan(quantity('0'))")]
#[case::not_less_than_equal("!quantity('1k').isLessThan(quantity('1e3'))")]
#[case::equal("quantity('1k') == quantity('1000')")]
#[case::unequal("quantity('1k') != quantity('1001')")]
#[case::quantity("isQuantity('1.5Gi') && isQuantity('-500m')")]
#[case::no_quantity("!isQuantity('') && !isQuantity('1 Gi') && !isQuantity('Gi')")]
#[case::integer("quantity('2k').isInteger() && quantity('2k').asInteger() == 2000")]
#[case::no_integer("!quantity('1500m').isInteger()")]
#[case::float("quantity('1500m').asApproximateFloat() == 1.5")]
#[case::rounded_float("int(quantity('1500m').asApproximateFloat() * 1000.0 + 0.5) % 3 == 0")]
#[case::sum("[1, 2, 3].sum() == 6")]
#[case::sum_of_none("[].sum() == 0")]
#[case::match_("'a-1'.matches('^[a-z]-[0-9]$') && !'a-b'.matches('^[a-z]-[0-9]$')")]
#[case::unanchored_match("'x1y'.matches('[0-9]')")]
#[case::strings("'b, a'.split(',').map(g, g.trim()) == ['b', 'a'] && ['b', 'a'].join(', ') == 'b, a'")]
#[case::ascii("'A/b'.lowerAscii().indexOf('/') == 1")]
fn function_of_kubernetes_is_true(#[case] text: &str) {
    assert_eq!(evaluate(text, &Value::Null), Ok(true), "{text}");
}

#[rstest]
#[case::no_quantity(
    "quantity('x') == quantity('x')",
    "\"x\" is not a quantity; write a number like 4, 500m, 1.5, 64Gi or 1e3"
)]
#[case::no_integer("quantity('1500m').asInteger() == 1", "cannot convert value to integer")]
#[case::sum_of_strings("['a'].sum() == 1", "no such overload")]
#[case::no_pattern("'a'.matches('(') || false", "regex parse error:\n    (\n    ^\nerror: unclosed group")]
#[case::no_field("self.c == 1", "no such key: c")]
#[case::no_variable("other == 1", "no such attribute(s): other")]
#[case::other_types("self.b > 'x'", "no such overload")]
#[case::no_condition("self.b", "no such overload: Int(2) is not a bool")]
fn invalid_call_is_an_error(#[case] text: &str, #[case] why: &str) {
    assert_eq!(evaluate(text, &json!({"a": "x", "b": 2})), Err(why.to_owned()), "{text}");
}

#[rstest]
#[case::field("self.text == 'x' && self.number == 2 && self.fraction == 1.5 && self.flag && self.nothing == null")]
#[case::presence("has(self.text) && !has(self.other) && has(self.map.a) && !has(self.map.b)")]
#[case::optional_field("self.?map.?a.orValue(0) == 1 && self.?other.?a.orValue(0) == 0 && !self.?other.hasValue()")]
#[case::optional_key("self.map[?'a'].orValue(0) == 1 && self.?map[?'b'].orValue(0) == 0")]
#[case::equal_optionals("self.?map[?'a'] == self.?map.?a && self.?other == self.?map.?b && self.?map != self.?other")]
#[case::keys("self.map.all(k, k == 'a' && self.map[k] == 1) && self.map.map(k, k) == ['a']")]
#[case::contains("'a' in self.map && !('b' in self.map) && 2 in self.list")]
#[case::size("size(self.map) == 1 && self.map.size() == 1 && self.list.size() == 2 && self.empty.size() == 0")]
#[case::equal_maps("self.map == self.same && self.map != self.empty && self.objects[0] == self.map")]
#[case::equal_to_literal("self.map == {'a': 1} && self.empty == {} && {} == self.empty && self.map != {}")]
#[case::equal_lists("self.list.map(x, x) == self.list && self.objects.map(x, x) == self.objects && self.list != [1]")]
#[case::concatenation("self.list + [3] == [1, 2, 3] && (self.objects + self.list).size() == 3")]
#[case::macros("self.list.exists(x, x == 2) && self.list.exists_one(x, x > 1) && self.list.filter(x, x > 1) == [2]")]
#[case::conversion("string(self.number) == '2' && string(self.text) == 'x'")]
fn json_value_behaves_like_a_cel_value(#[case] text: &str) {
    let own = json!({
        "text": "x", "number": 2, "fraction": 1.5, "flag": true, "nothing": null, "list": [1, 2], "empty": {},
        "map": {"a": 1}, "same": {"a": 1}, "objects": [{"a": 1}],
    });
    assert_eq!(evaluate(text, &own), Ok(true), "{text}");
}

#[rstest]
#[case::text("'a ' + string(self)", Some("a 1"))]
#[case::not_text("self", None)]
#[case::empty("' '", None)]
#[case::two_lines(r"'a\nb'", None)]
#[case::error("self.a", None)]
fn message_expression_yields_one_line_or_nothing(#[case] text: &str, #[case] expected: Option<&str>) {
    let one = json!(1);
    let mut variables = Variables::new();
    variables.set("self", from_json(&one));
    assert_eq!(Expression::compile(text).message(&variables).as_deref(), expected);
}

#[test]
fn undeclared_function_is_found() {
    let of = |text: &str| undeclared_functions(&Expression::compile(text));
    assert!(of("'a'.matches('a') && self.all(x, has(x.y)) && isQuantity('1') && [1].sum() == size('a')").is_empty());
    assert_eq!(of("url('a').getHost() == 'a'").len(), 2);
}
