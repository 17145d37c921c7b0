//! Pieces of schema that the derive can't say.

use schemars::{Schema, SchemaGenerator, json_schema};

/// The grammar of quantities, without the numbers that no quota is: more than 19 digits or a power of ten beyond 18. The API
/// server's own parser takes `1e400` and wraps it on use.
const QUANTITY_PATTERN: &str =
    r"^\+?([0-9]{1,19}(\.[0-9]{0,9})?|\.[0-9]{1,9})([KMGTPE]i|[numkMGTPE]|[eE](\+?(0?[0-9]|1[0-8])|-[0-9]{1,2}))?$";

/// A name in DNS form (RFC 1123), at most 253 characters.
pub(super) const DNS_SUBDOMAIN: &str = r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$";

/// The name of a resource, label or taint: a DNS name and a slash if somebody owns it, and then at most 63 characters.
pub(super) const QUALIFIED_NAME: &str = r"^([a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*/)?([A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?)$";

/// The value of a label.
pub(super) const LABEL_VALUE: &str = "^([A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?)?$";

/// A quantity of zero or more. A validation rule would say more, but there may be 65,536 quotas in a ClusterQueue, and the API
/// server refuses a definition with any rule that reads them as too dear; so the pattern has no minus sign, and a number has a
/// minimum. What compares one quota with another is in `config/policy`.
pub(super) fn non_negative_quantity(_: &mut SchemaGenerator) -> Schema {
    json_schema!({
        "x-kubernetes-int-or-string": true,
        "minimum": 0,
        "pattern": QUANTITY_PATTERN,
    })
}

/// A weight: zero, or more than 10⁻⁹, below which shares could not be told apart.
pub(super) fn weight(_: &mut SchemaGenerator) -> Schema {
    json_schema!({
        "x-kubernetes-int-or-string": true,
        "minimum": 0,
        "pattern": QUANTITY_PATTERN,
        "x-kubernetes-validations": [{
            "rule": "!quantity(string(self)).isGreaterThan(quantity('0')) || quantity(string(self)).isGreaterThan(quantity('1n'))",
            "message": "weight must be 0 or more than 1n",
        }],
    })
}

/// Labels of nodes. What their names may be is in `config/policy`: a schema can't say that of the keys of a map.
pub(super) fn node_labels(_: &mut SchemaGenerator) -> Schema {
    json_schema!({
        "type": "object",
        "maxProperties": 8,
        "x-kubernetes-map-type": "atomic",
        "additionalProperties": {"type": "string", "maxLength": 63, "pattern": LABEL_VALUE},
    })
}

/// An object that only its reader looks into. The API server stores it as it is: checking a whole pod template on every
/// status write is what made those writes slow.
pub(super) fn opaque_object(_: &mut SchemaGenerator) -> Schema {
    json_schema!({"type": "object", "x-kubernetes-preserve-unknown-fields": true})
}
