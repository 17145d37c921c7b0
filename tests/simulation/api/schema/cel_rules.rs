//! CEL validation rules of the CRDs (`x-kubernetes-validations`). There is no interpreter: the
//! rules that writes of Sluice or its users could violate are recognized by their text.

use regex::Regex;
use serde_json::Value;

use super::super::status_error::FieldError;
use super::{Schema, ValuePath};

/// CEL rule of a CRD.
#[derive(Debug)]
pub(super) struct CelRule {
    predicate: Predicate,
    message: String,
    /// `fieldPath` of the rule, like `.resourceGroups`; empty if it has none.
    field_path: String,
}

/// Condition of a rule. Transition rules are satisfied if there is no old value.
#[derive(Debug)]
enum Predicate {
    /// The value is immutable.
    Immutable,
    /// `metadata.name` has at most this many characters.
    NameMaxLength(usize),
    /// `metadata.name` matches this pattern.
    NameMatches(Regex),
    /// The value is one of these strings.
    OneOf(Vec<String>),
    /// A hand-written equivalent of the rule.
    Custom(PredicateFn),
}

/// Predicate on a value and its old value (`self` and `oldSelf`).
type PredicateFn = fn(&Value, Option<&Value>) -> bool;

/// Hand-written equivalents of rules, by rule text.
const KNOWN_RULES: [(&str, PredicateFn); 15] = [
    ("self != 'headgroup'", |own, _| own != "headgroup"),
    ("self.minReplicas <= self.maxReplicas", |own, _| is_ordered(own, "minReplicas", "maxReplicas")),
    ("has(self.minCount) ? self.minCount <= self.count : true", |own, _| is_ordered(own, "minCount", "count")),
    ("!has(self.priorityClassRef) || has(self.priority)", |own, _| {
        !has_field(own, "priorityClassRef") || has_field(own, "priority")
    }),
    ("self.all(group, self.exists_one(other, other.groupName == group.groupName))", |own, _| {
        let names: Vec<&Value> = items(Some(own)).iter().filter_map(|group| group.get("groupName")).collect();
        names.iter().enumerate().all(|(index, name)| !names[..index].contains(name))
    }),
    ("self.flavors.all(x, size(x.resources) == size(self.coveredResources))", |own, _| {
        let covered = items(own.get("coveredResources")).len();
        items(own.get("flavors")).iter().all(|flavor| items(flavor.get("resources")).len() == covered)
    }),
    ("self.flavors.all(x, x.resources.map(r, r.name) == self.coveredResources)", |own, _| {
        let covered: Vec<&Value> = items(own.get("coveredResources")).iter().collect();
        let names = |flavor: &Value| -> Vec<Value> {
            items(flavor.get("resources")).iter().filter_map(|resource| resource.get("name").cloned()).collect()
        };
        items(own.get("flavors")).iter().all(|flavor| names(flavor).iter().eq(covered.iter().copied()))
    }),
    (
        "!has(self.cohortName) && has(self.resourceGroups) ? self.resourceGroups.all(rg, rg.flavors.all(f, \
         f.resources.all(r, !has(r.lendingLimit)))) : true",
        |own, _| has_field(own, "cohortName") || !sets_limit(own, "lendingLimit"),
    ),
    (
        "!has(self.cohortName) && has(self.resourceGroups) ? self.resourceGroups.all(rg, rg.flavors.all(f, \
         f.resources.all(r, !has(r.borrowingLimit)))) : true",
        |own, _| has_field(own, "cohortName") || !sets_limit(own, "borrowingLimit"),
    ),
    (
        "!has(self.parentName) && has(self.resourceGroups) ? self.resourceGroups.all(rg, rg.flavors.all(f, \
         f.resources.all(r, !has(r.lendingLimit)))) : true",
        |own, _| has_field(own, "parentName") || !sets_limit(own, "lendingLimit"),
    ),
    (
        "!has(self.parentName) && has(self.resourceGroups) ? self.resourceGroups.all(rg, rg.flavors.all(f, \
         f.resources.all(r, !has(r.borrowingLimit)))) : true",
        |own, _| has_field(own, "parentName") || !sets_limit(own, "borrowingLimit"),
    ),
    (
        "!(self.reclaimWithinCohort == 'Never' && has(self.borrowWithinCohort) && self.borrowWithinCohort.policy != 'Never')",
        |own, _| {
            let borrows = own.pointer("/borrowWithinCohort/policy").is_some_and(|policy| policy != "Never");
            own.get("reclaimWithinCohort").is_none_or(|policy| policy != "Never") || !borrows
        },
    ),
    ("!has(self.topologyName) || self.nodeLabels.size() >= 1", |own, _| {
        let labels = own.get("nodeLabels").and_then(Value::as_object);
        !has_field(own, "topologyName") || labels.is_some_and(|labels| !labels.is_empty())
    }),
    (
        "!has(oldSelf.topologyName) || (has(self.topologyName) && self.topologyName == oldSelf.topologyName)",
        |own, old| old.and_then(|old| old.get("topologyName")).is_none_or(|name| own.get("topologyName") == Some(name)),
    ),
    ("!has(oldSelf.clusterName) || !has(self.clusterName) || oldSelf.clusterName == self.clusterName", |own, old| {
        let (own, old) = (own.get("clusterName"), old.and_then(|old| old.get("clusterName")));
        own.is_none() || old.is_none() || own == old
    }),
];

impl CelRule {
    /// Parses a rule; `None` if its text is not recognized.
    pub(super) fn parse(rule: &Value) -> Option<Self> {
        let text = |field: &str| rule.get(field).and_then(Value::as_str).unwrap_or_default().trim().to_owned();
        Some(Self {
            predicate: Predicate::parse(&text("rule"))?,
            message: text("message"),
            field_path: text("fieldPath"),
        })
    }
}

impl Predicate {
    fn parse(text: &str) -> Option<Self> {
        let within = |start: &str, end: &str| text.strip_prefix(start)?.strip_suffix(end);
        if text == "self == oldSelf" {
            return Some(Self::Immutable);
        }
        if let Some(most) = within("size(self.metadata.name) <= ", "") {
            return most.parse().ok().map(Self::NameMaxLength);
        }
        if let Some(pattern) = within("self.metadata.name.matches('", "')") {
            return Regex::new(pattern).ok().map(Self::NameMatches);
        }
        if let Some(list) = within("self in ['", "']") {
            return Some(Self::OneOf(list.split("', '").map(str::to_owned).collect()));
        }
        KNOWN_RULES.iter().find(|(known, _)| *known == text).map(|(_, holds)| Self::Custom(*holds))
    }

    fn is_satisfied(&self, own: &Value, old: Option<&Value>) -> bool {
        let name = || own.pointer("/metadata/name").and_then(Value::as_str).unwrap_or_default();
        match self {
            Self::Immutable => old.is_none_or(|old| own == old),
            Self::NameMaxLength(most) => name().chars().count() <= *most,
            Self::NameMatches(pattern) => pattern.is_match(name()),
            Self::OneOf(allowed) => own.as_str().is_some_and(|own| allowed.iter().any(|value| value == own)),
            Self::Custom(holds) => holds(own, old),
        }
    }
}

impl Schema {
    /// Evaluates the rules of a changed value.
    pub(super) fn check_rules(
        &self,
        value: &Value,
        before: Option<&Value>,
        path: ValuePath<'_>,
        errors: &mut Vec<FieldError>,
    ) {
        for rule in self.cel_rules.iter().filter(|rule| !rule.predicate.is_satisfied(value, before)) {
            let path = path.to_string();
            let field = match (path.as_str(), rule.field_path.as_str()) {
                ("", "") => "<nil>".to_owned(),
                (path, below) => format!("{path}{below}").trim_start_matches('.').to_owned(),
            };
            let prefix = if value.is_object() || value.is_array() { String::new() } else { format!("{value}: ") };
            let text = format!("Invalid value: {prefix}{}", rule.message);
            errors.push(FieldError { field, cause_type: "FieldValueInvalid", message: text });
        }
    }
}

fn has_field(object: &Value, field: &str) -> bool {
    object.get(field).is_some()
}

fn items(list: Option<&Value>) -> &[Value] {
    list.and_then(Value::as_array).map_or(&[], Vec::as_slice)
}

fn is_ordered(object: &Value, less: &str, more: &str) -> bool {
    let number = |field: &str| object.get(field).and_then(Value::as_i64);
    number(less).zip(number(more)).is_none_or(|(less, more)| less <= more)
}

/// Returns true if any quota of a ClusterQueue or Cohort sets this limit.
fn sets_limit(object: &Value, limit: &str) -> bool {
    let flavors = items(object.get("resourceGroups")).iter().flat_map(|group| items(group.get("flavors")));
    flavors.flat_map(|flavor| items(flavor.get("resources"))).any(|resource| resource.get(limit).is_some())
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use sluice_api::crds;

    use super::*;

    /// Beginnings of rules that are not evaluated: only administrators of flavors or queues could
    /// violate them.
    const UNSUPPORTED_RULES: [&str; 12] = [
        "!has(self.clusterName) || (!has(self.nominatedClusterNames) ||",
        "!has(self.preference) || (self.whenCanBorrow",
        "!has(self.resourceGroups) || self.resourceGroups.all(rg,",
        "!has(self.resourceGroups) || self.resourceGroups.map(rg,",
        "!quantity(string(self)).isGreaterThan(quantity('0'))",
        "(self.group == 'kueue.x-k8s.io')",
        "(self.group == 'scheduling.k8s.io')",
        "has(self.concurrentAdmissionPolicy) == has(oldSelf.concurrentAdmissionPolicy)",
        "self.all(x, !has(x.",
        "self.all(x, has(x.operator)",
        "self.all(x, has(x.tolerationSeconds)",
        "self.all(x, x.effect in",
    ];

    fn collect(schema: &Value, rules: &mut BTreeSet<String>) {
        match schema {
            Value::Object(fields) => {
                for rule in items(fields.get("x-kubernetes-validations")) {
                    rules.insert(rule["rule"].as_str().unwrap_or_default().trim().to_owned());
                }
                fields.values().for_each(|field| collect(field, rules));
            }
            Value::Array(items) => items.iter().for_each(|item| collect(item, rules)),
            _ => {}
        }
    }

    #[test]
    fn every_crd_rule_is_recognized_or_listed_as_unsupported() {
        let mut rules = BTreeSet::new();
        for definition in crds::all() {
            collect(&serde_json::to_value(definition).expect("a CRD is JSON"), &mut rules);
        }
        let is_unknown = |rule: &str| UNSUPPORTED_RULES.iter().any(|start| rule.starts_with(start));
        let unlisted: Vec<&String> =
            rules.iter().filter(|rule| Predicate::parse(rule).is_none() && !is_unknown(rule)).collect();
        assert!(unlisted.is_empty(), "{unlisted:#?}");
        let stale: Vec<&str> =
            KNOWN_RULES.iter().map(|(rule, _)| *rule).filter(|rule| !rules.contains(*rule)).collect();
        assert!(stale.is_empty(), "{stale:#?}");
    }
}
